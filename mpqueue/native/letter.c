/* letter.c - an item on its way to another queue: its bytes, and an extension with what is known.
 *
 * A dead letter has the extension of its item, and says where it came from, how often it was handed
 * out, why it was moved and how it failed; the way back leaves out all but where it came from. */
#include "dead.h"

#define EXT_MAX 65528u

struct mpq_letter {
    uint32_t ext_length;
    uint8_t ext[EXT_MAX];
    uint8_t body[];
};

/* False: there is no room for it. */
static bool append(struct mpq_letter *letter, uint16_t type, const void *value, uint16_t length)
{
    const uint32_t bytes = (4u + length + 7u) & ~7u;
    uint8_t *at = letter->ext + letter->ext_length;
    if (letter->ext_length + bytes > EXT_MAX)
        return false;
    memcpy(at, &type, 2);
    memcpy(at + 2, &length, 2);
    memcpy(at + 4, value, length); /* the rest is zeros */
    letter->ext_length += bytes;
    return true;
}

/* Takes over what is the item's own. `attempts` grows by what was counted before it was copied. */
static bool take_over(struct mpq_letter *letter, const uint8_t *ext, uint32_t length,
                      uint32_t *attempts)
{
    bool has_origin = false;
    for (uint32_t at = 0; at + 4 <= length;) {
        uint16_t type, bytes;
        memcpy(&type, ext + at, 2);
        memcpy(&bytes, ext + at + 2, 2);
        if (type == 0 || at + 4u + bytes > length)
            break;
        if (type == MPQ_EXT_ATTEMPTS && bytes == 4) {
            uint32_t before;
            memcpy(&before, ext + at + 4, 4);
            *attempts += before;
        }
        has_origin |= type == MPQ_EXT_ORIGIN;
        if (type != MPQ_EXT_ATTEMPTS && type != MPQ_EXT_NOT_BEFORE && type != MPQ_EXT_REASON &&
            type != MPQ_EXT_HISTORY)
            (void)append(letter, type, ext + at + 4, bytes);
        at = (at + 4u + bytes + 7u) & ~7u;
    }
    return has_origin;
}

static void append_origin(struct mpq_letter *letter, const struct mpq_queue *from,
                          const struct mpq_item *item)
{
    uint8_t origin[32];
    memcpy(origin, from->uuid, 16);
    memcpy(origin + 16, &item->epoch, 8);
    memcpy(origin + 24, &item->origin_seq, 8);
    (void)append(letter, MPQ_EXT_ORIGIN, origin, sizeof origin);
}

static void append_history(struct mpq_letter *letter, const struct mpq_failure *failure)
{
    uint8_t history[16 + 2 * MPQ_FAILURE_TEXT + 1];
    uint8_t *at = history + 16;
    memcpy(history, &failure->first_ns, 8);
    memcpy(history + 8, &failure->last_ns, 8);
    memcpy(at, failure->first, failure->first_length);
    for (uint8_t *end = at + failure->first_length; at < end; at++)
        if (*at == 0) /* what divides the two */
            *at = ' ';
    *at++ = 0;
    memcpy(at, failure->last, failure->last_length);
    at += failure->last_length;
    (void)append(letter, MPQ_EXT_HISTORY, history, (uint16_t)(at - history));
}

mpq_status mpq_letter_make(struct mpq_queue *from, const struct mpq_item *item,
                           const struct mpq_why *why, struct mpq_letter **out,
                           struct mpq_item_in *in, struct mpq_error *error)
{
    mpq_io *io = from->io;
    struct mpq_letter *letter = io->alloc(io, sizeof *letter + item->length);
    uint8_t *ext = letter == NULL ? NULL : io->alloc(io, (size_t)item->ext_length + 1);
    mpq_status status = MPQ_OK;
    *out = NULL;
    if (ext == NULL) {
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", from->path);
    } else if (!mpq_copy_out(ext, item->ext, item->ext_length) ||
               !mpq_copy_out(letter->body, item->body, item->length)) {
        status = mpq_fail(error, MPQ_REMOVED, "%s: the file that seq %llu lies in was truncated",
                          from->path, (unsigned long long)item->seq);
    } else {
        uint32_t attempts = item->attempts;
        if (!take_over(letter, ext, item->ext_length, &attempts))
            append_origin(letter, from, item);
        if (why != NULL) {
            (void)append(letter, MPQ_EXT_ATTEMPTS, &attempts, 4);
            (void)append(letter, MPQ_EXT_REASON, why->reason,
                         (uint16_t)mpq_text_cut(why->reason, why->length, MPQ_FAILURE_TEXT));
            if (why->failure != NULL)
                append_history(letter, why->failure);
        }
        *in = (struct mpq_item_in){letter->body, item->length, letter->ext,
                                   (uint16_t)letter->ext_length};
    }
    io->free(io, ext);
    if (status != MPQ_OK) {
        io->free(io, letter);
        return status;
    }
    *out = letter;
    return MPQ_OK;
}

mpq_status mpq_letter_send(struct mpq_queue *to, const struct mpq_item_in *in,
                           const struct mpq_call *call, uint64_t *seq, struct mpq_error *error)
{
    static const struct mpq_call unbounded = {UINT64_MAX, NULL, NULL};
    uint64_t ticket = 0;
    mpq_status status = mpq_put(to, in, call, seq, &ticket, error);
    if (status != MPQ_OK && status != MPQ_FLUSH)
        return status;
    /* Of its own, whatever the policy: the other copy goes when this one is safe. */
    return mpq_flush(to, &unbounded, error);
}

mpq_status mpq_redrive(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                       struct mpq_queue *to, const struct mpq_call *call, uint64_t *put,
                       struct mpq_error *error)
{
    struct mpq_queue *from = consumer->queue;
    struct mpq_item item;
    struct mpq_letter *letter;
    struct mpq_item_in in;
    mpq_status status = mpq_consumer_enter(consumer, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_item_again(consumer, seq, token, &item, error);
    if (status == MPQ_OK) {
        status = mpq_letter_make(from, &item, NULL, &letter, &in, error);
        const bool intact = mpq_item_intact(consumer, &item);
        mpq_segment_release(item.segment);
        if (status == MPQ_OK && !intact) {
            from->io->free(from->io, letter);
            status = mpq_stale(consumer, seq, false, error);
        }
    }
    if (status == MPQ_OK) {
        status = mpq_letter_send(to, &in, call, put, error);
        from->io->free(from->io, letter);
    }
    if (status == MPQ_OK)
        status = mpq_ack(consumer, seq, token, error);
    mpq_exit(from);
    return status;
}
