/* attempts.c - how often an item was handed out: counted in control, before anybody sees it.
 *
 * So what kills its consumer is counted too. Counts above 1 go into the cursor as well, and outlive
 * the machine; which seqs those are is remembered here. */
#include "internal.h"

bool mpq_attempt_remember(struct mpq_consumer *consumer, uint64_t seq)
{
    mpq_io *io = consumer->queue->io;
    if (consumer->retried_count == consumer->retried_room) {
        uint32_t kept = 0; /* settled ones go first */
        for (uint32_t i = 0; i < consumer->retried_count; i++) {
            uint64_t old = consumer->retried[i];
            if (old >= consumer->record.floor && !mpq_acked(consumer->queue, old))
                consumer->retried[kept++] = old;
        }
        consumer->retried_count = kept;
        if (kept * 2 > consumer->retried_room || consumer->retried_room == 0) {
            uint32_t room = consumer->retried_room == 0 ? 64 : consumer->retried_room * 2;
            uint64_t *grown = io->alloc(io, (size_t)room * 8);
            if (grown == NULL)
                return false;
            if (kept != 0)
                memcpy(grown, consumer->retried, (size_t)kept * 8);
            io->free(io, consumer->retried);
            consumer->retried = grown;
            consumer->retried_room = room;
        }
    }
    consumer->retried[consumer->retried_count++] = seq;
    return true;
}

#define ATTEMPT_SEQ(seq) ((seq) & ((1ULL << 48) - 1))

uint32_t mpq_attempts_of(const struct mpq_queue *queue, uint64_t seq)
{
    uint64_t now = mpq_load(queue->attempts[mpq_place_of(queue, seq)]);
    return now >> 16 == ATTEMPT_SEQ(seq) ? (uint32_t)(now & 0xFFFF) : 0;
}

bool mpq_attempts_recall(struct mpq_consumer *consumer)
{
    const uint64_t floor = consumer->record.floor;
    for (uint64_t seq = floor; seq - floor < (uint64_t)consumer->queue->window_words * 32; seq++)
        if (mpq_attempts_of(consumer->queue, seq) > 1 && !mpq_acked(consumer->queue, seq) &&
            !mpq_attempt_remember(consumer, seq))
            return false;
    return true;
}

uint32_t mpq_attempt_count(struct mpq_consumer *consumer, uint64_t seq)
{
    struct mpq_queue *queue = consumer->queue;
    _Atomic uint64_t *slot = &queue->attempts[mpq_place_of(queue, seq)];
    uint32_t attempts = mpq_attempts_of(queue, seq);
    if (attempts < 0xFFFF)
        attempts++;
    mpq_store(*slot, ATTEMPT_SEQ(seq) << 16 | attempts);
    return attempts;
}

void mpq_attempt_undo(struct mpq_consumer *consumer, uint64_t seq)
{
    struct mpq_queue *queue = consumer->queue;
    const uint32_t attempts = mpq_attempts_of(queue, seq);
    if (attempts == 0 || attempts == 0xFFFF) /* at its bound it no longer counts */
        return;
    mpq_store(queue->attempts[mpq_place_of(queue, seq)], ATTEMPT_SEQ(seq) << 16 | (attempts - 1));
    for (uint32_t i = consumer->retried_count; attempts == 2 && i-- > 0;)
        if (consumer->retried[i] == seq) {
            consumer->retried[i] = consumer->retried[--consumer->retried_count];
            return;
        }
}

uint32_t mpq_attempts_before(const struct mpq_consumer *consumer, const struct mpq_segment *segment,
                             uint64_t offset, const struct mpq_frame *header)
{
    const uint8_t *ext = segment->base + offset + MPQ_FRAME_HEADER;
    uint32_t attempts = mpq_attempts_of(consumer->queue, header->seq), before = 0;
    for (uint32_t at = 0; at + 4 <= header->ext_length;) {
        uint16_t type, length;
        memcpy(&type, ext + at, 2);
        memcpy(&length, ext + at + 2, 2);
        if (type == 0 || at + 4u + length > header->ext_length)
            break;
        if (type == MPQ_EXT_ATTEMPTS && length == 4)
            memcpy(&before, ext + at + 4, 4);
        at = (at + 4u + length + 7u) & ~7u;
    }
    return attempts + before;
}
