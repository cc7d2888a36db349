/* failure.c - what is known of why items in this consumer's hands failed: for their dead letters.
 *
 * In memory only, and bounded: it is told where it is known. Kept while the queue has max_attempts,
 * for an item until it is settled; a consumer that dies takes it with it. */
#include "dead.h"

#define BUCKETS 1024u
#define NOTES_MAX 4096u /* items; of further ones nothing is known */

struct note {
    struct note *next;
    struct mpq_failure failure;
    uint64_t seq;
};

struct mpq_failures {
    uint32_t count;
    struct note *buckets[BUCKETS];
};

static struct note **place_of(const struct mpq_consumer *consumer, uint64_t seq)
{
    struct note **at = &consumer->failures->buckets[seq % BUCKETS];
    while (*at != NULL && (*at)->seq != seq)
        at = &(*at)->next;
    return at;
}

uint32_t mpq_text_cut(const char *text, size_t length, uint32_t most)
{
    if (length <= most)
        return (uint32_t)length;
    while (most > 0 && ((uint8_t)text[most] & 0xC0) == 0x80) /* not inside a character */
        most--;
    return most;
}

void mpq_failure_note(struct mpq_consumer *consumer, uint64_t seq, const char *text, size_t length)
{
    mpq_io *io = consumer->queue->io;
    if (mpq_load(consumer->queue->control->max_attempts) == 0)
        return;
    if (consumer->failures == NULL)
        consumer->failures = io->alloc(io, sizeof *consumer->failures);
    if (consumer->failures == NULL)
        return;
    struct note **at = place_of(consumer, seq), *note = *at;
    const uint32_t bytes = mpq_text_cut(text, length, MPQ_FAILURE_TEXT);
    if (note == NULL) {
        if (consumer->failures->count == NOTES_MAX || (note = io->alloc(io, sizeof *note)) == NULL)
            return;
        *at = note;
        consumer->failures->count++;
        note->seq = seq;
        note->failure.first_ns = io->wall_ns(io);
        note->failure.first_length = bytes;
        memcpy(note->failure.first, text, bytes);
    }
    note->failure.last_ns = io->wall_ns(io);
    note->failure.last_length = bytes;
    memcpy(note->failure.last, text, bytes);
}

bool mpq_failure_find(const struct mpq_consumer *consumer, uint64_t seq,
                      struct mpq_failure *failure)
{
    const struct note *note = consumer->failures == NULL ? NULL : *place_of(consumer, seq);
    if (note != NULL)
        *failure = note->failure;
    return note != NULL;
}

void mpq_failure_forget(struct mpq_consumer *consumer, uint64_t seq)
{
    struct note **at = place_of(consumer, seq), *note = *at;
    if (note == NULL)
        return;
    *at = note->next;
    consumer->failures->count--;
    consumer->queue->io->free(consumer->queue->io, note);
}

void mpq_failures_free(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    for (uint32_t i = 0; consumer->failures != NULL && i < BUCKETS; i++)
        for (struct note *note = consumer->failures->buckets[i], *next; note != NULL; note = next) {
            next = note->next;
            io->free(io, note);
        }
    io->free(io, consumer->failures);
    consumer->failures = NULL;
}

bool mpq_keeps_failures(struct mpq_consumer *consumer)
{
    return mpq_consumer_check(consumer, NULL) == MPQ_OK &&
           mpq_load(consumer->queue->control->max_attempts) != 0;
}

mpq_status mpq_failed(struct mpq_consumer *consumer, uint64_t seq, uint64_t token, const char *text,
                      size_t length, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    if (mpq_entry_held(consumer, mpq_entry_of(consumer, seq), seq, token))
        mpq_failure_note(consumer, seq, text, length);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}
