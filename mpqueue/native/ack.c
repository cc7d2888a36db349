/* ack.c - settling: acks in any order, gaps, losses, skips; nack and rewind.
 *
 * I1 the one commit of a settle is the flip of the consumer record, which carries floor, totals
 * and the last window word; the word's own store follows and a new consumer repeats it. I2 a
 * word counts only with its seq's tag and an agreeing complement: anything else means "not acked",
 * which redelivers. I3 claimed - settled is exact at every flip. Model: sync_consumer.pml. */
#include "dead.h"

bool mpq_acked(const struct mpq_queue *queue, uint64_t seq)
{
    const struct mpq_window_word *word = mpq_word_of(queue, seq);
    uint64_t value = mpq_load(word->value);
    return value == ~mpq_load(word->complement) && value >> 32 == ((seq >> 5) & 0xFFFFFFFFu) &&
           (value >> (seq & 31) & 1) != 0;
}

void mpq_entry_walked(struct mpq_consumer *consumer, uint64_t seq, uint64_t position,
                      uint64_t extent, enum mpq_entry_state state)
{
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (consumer->record.floor == consumer->read_seq) {
        /* Nothing is outstanding: the floor stands at this frame, whatever was missing before it.
         */
        consumer->record.floor = seq;
        consumer->record.floor_position = position;
        consumer->record_changed = true;
    } else {
        mpq_entry_of(consumer, consumer->last_walked)->next = seq;
    }
    entry->seq = seq;
    entry->position = position;
    entry->next = 0;
    entry->extent = (uint32_t)mpq_min64(extent, UINT32_MAX);
    entry->state = state;
    entry->token = 0;
    consumer->last_walked = seq;
    consumer->read_seq = seq + 1;
    consumer->read_position = position + (extent >> 5);
}

/* The floor moves to the lowest seq that is walked and not settled, else to where the walk is. */
static void follow(struct mpq_consumer *consumer)
{
    struct mpq_consumer_now *record = &consumer->record;
    while (record->floor < consumer->read_seq) {
        const struct mpq_entry *entry = mpq_entry_of(consumer, record->floor);
        if (entry->state != MPQ_ENTRY_SETTLED)
            return;
        if (entry->next == 0) {
            record->floor = consumer->read_seq;
            record->floor_position = consumer->read_position;
        } else {
            record->floor = entry->next;
            record->floor_position = mpq_entry_of(consumer, entry->next)->position;
        }
        consumer->record_changed = true;
    }
}

void mpq_settle_commit(struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_control *control = queue->control;
    follow(consumer);
    if (!consumer->record_open && !consumer->record_changed)
        return;
    mpq_consumer_write(control, &consumer->record);
    if (consumer->record_open) {
        struct mpq_window_word *word = &queue->window[consumer->record.word_index];
        mpq_store(word->value, consumer->record.word_value);
        mpq_store(word->complement, ~consumer->record.word_value);
        consumer->cursor_dirty = true;
    }
    consumer->record_open = false;
    consumer->record_changed = false;
    if (mpq_load(control->capacity) != 0 || mpq_load(control->max_bytes) != 0) {
        atomic_thread_fence(memory_order_seq_cst); /* the flip before the look at the flag */
        mpq_wake(queue, &control->space_event, &control->space_waiting);
    }
    if (consumer->blocked_on_window || (mpq_load(control->sealed) != 0 && mpq_drained(consumer)))
        mpq_wake(queue, &control->items_event, &control->items_waiting);
    mpq_helper_poke(consumer);
}

void mpq_count_out(struct mpq_consumer *consumer, int by, uint32_t extent)
{
    struct mpq_control *control = consumer->queue->control;
    consumer->out += (uint64_t)(int64_t)by;
    consumer->out_bytes += (uint64_t)((int64_t)by * (int64_t)extent);
    mpq_store(control->reserved_items, consumer->out);
    mpq_store(control->reserved_bytes, consumer->out_bytes);
}

/* What only queues with leases or failures have: apart, so that others pay one look. */
static void settle_more(struct mpq_consumer *consumer, struct mpq_entry *entry, uint64_t seq,
                        bool leased)
{
    if (leased)
        mpq_lease_end(consumer, entry);
    if (consumer->failures != NULL)
        mpq_failure_forget(consumer, seq);
}

void mpq_settle(struct mpq_consumer *consumer, uint64_t seq, uint64_t bytes, enum mpq_settle how)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_consumer_now *record = &consumer->record;
    const uint64_t tag = (seq >> 5) << 32;
    if (consumer->record_open && (record->word_value & ~0xFFFFFFFFULL) != tag)
        mpq_settle_commit(consumer);
    if (!consumer->record_open) {
        const struct mpq_window_word *word = mpq_word_of(queue, seq);
        uint64_t value = mpq_load(word->value);
        if (value != ~mpq_load(word->complement) || (value & ~0xFFFFFFFFULL) != tag)
            value = tag;
        record->word_index = mpq_place_of(queue, seq) >> 5;
        record->word_value = value;
        consumer->record_open = true;
    }
    record->word_value |= 1ULL << (seq & 31);
    struct mpq_totals *totals = &record->totals;
    totals->settled_items++;
    totals->settled_bytes += bytes;
    switch (how) {
    case MPQ_SETTLE_ACK: totals->acked_items++; break;
    case MPQ_SETTLE_GAP: totals->gap_items++; break;
    case MPQ_SETTLE_SKIP: totals->skipped_items++; break;
    case MPQ_SETTLE_LOST:
        totals->lost_items++;
        totals->lost_bytes += bytes;
        break;
    }
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    bool leased = false;
    if (entry->seq == seq) {
        if (entry->state == MPQ_ENTRY_OUT) {
            mpq_count_out(consumer, -1, entry->extent);
            leased = entry->lease != 0;
        }
        entry->state = MPQ_ENTRY_SETTLED;
    }
    if (MPQ_UNLIKELY(leased || consumer->failures != NULL))
        settle_more(consumer, entry, seq, leased);
}

/* ---- the calls */

mpq_status mpq_stale(struct mpq_consumer *consumer, uint64_t seq, bool acked,
                     struct mpq_error *error)
{
    if (acked)
        return mpq_fail(
            error, MPQ_STALE,
            "%s: seq %llu was acked: it cannot be given back or extended; nothing was changed",
            consumer->queue->path, (unsigned long long)seq);
    return mpq_fail(
        error, MPQ_STALE,
        "%s: seq %llu was handed out again or returned since this hand-out, or its lease ran out; "
        "nothing was changed: act on the newer hand-out",
        consumer->queue->path, (unsigned long long)seq);
}

/* Settles one hand-out; the caller commits. */
static mpq_status settle_one(struct mpq_consumer *consumer, uint64_t seq, uint64_t token)
{
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (entry->seq != seq)
        return seq < consumer->read_seq ? MPQ_OK : MPQ_STALE; /* settled long ago */
    if (entry->token != (uint32_t)token)
        return MPQ_STALE;
    if (entry->state == MPQ_ENTRY_SETTLED)
        return MPQ_OK; /* a repeat */
    if (entry->state != MPQ_ENTRY_OUT || mpq_lease_over(consumer, entry))
        return MPQ_STALE;
    mpq_settle(consumer, seq, entry->extent, MPQ_SETTLE_ACK);
    return MPQ_OK;
}

mpq_status mpq_ack(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                   struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    status = settle_one(consumer, seq, token);
    mpq_settle_commit(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status == MPQ_STALE ? mpq_stale(consumer, seq, false, error) : status;
}

mpq_status mpq_ack_many(struct mpq_consumer *consumer, const uint64_t *seqs, const uint64_t *tokens,
                        uint32_t count, uint32_t *bad, struct mpq_error *error)
{
    volatile uint64_t first_bad = 0;
    *bad = 0;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    for (uint32_t i = 0; i < count; i++)
        if (settle_one(consumer, seqs[i], tokens[i]) != MPQ_OK && (*bad)++ == 0)
            first_bad = seqs[i];
    mpq_settle_commit(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return *bad != 0 ? mpq_stale(consumer, first_bad, false, error) : MPQ_OK;
}

mpq_status mpq_ack_up_to(struct mpq_consumer *consumer, uint64_t seq, uint64_t *acked,
                         struct mpq_error *error)
{
    *acked = 0;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    if (seq > consumer->read_seq) {
        uint64_t next = consumer->read_seq;
        MPQ_CONSUMER_OUTSIDE(consumer, guard);
        return mpq_fail(error, MPQ_OUT_OF_RANGE,
                        "%s: cannot ack up to seq %llu: items were handed out below %llu only",
                        consumer->queue->path, (unsigned long long)seq, (unsigned long long)next);
    }
    uint64_t at = consumer->record.floor;
    while (at < seq && at < consumer->read_seq) {
        struct mpq_entry *entry = mpq_entry_of(consumer, at);
        uint64_t next = entry->next;
        if (entry->state == MPQ_ENTRY_OUT && !mpq_lease_over(consumer, entry)) {
            mpq_settle(consumer, at, entry->extent, MPQ_SETTLE_ACK);
            ++*acked;
        }
        if (next == 0)
            break;
        at = next;
    }
    mpq_settle_commit(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return MPQ_OK;
}

bool mpq_ack_needs_sync(struct mpq_consumer *consumer)
{
    return mpq_load(consumer->queue->control->durability) == MPQ_DURABILITY_SYNC;
}

mpq_status mpq_entry_return(struct mpq_consumer *consumer, struct mpq_entry *entry,
                            struct mpq_error *error)
{
    if (!mpq_again_push(consumer, entry->seq))
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", consumer->queue->path);
    entry->state = MPQ_ENTRY_AGAIN;
    entry->token = 0; /* no hand-out's, also when it is skipped */
    mpq_count_out(consumer, -1, entry->extent);
    if (MPQ_UNLIKELY(entry->lease != 0))
        mpq_lease_end(consumer, entry);
    return MPQ_OK;
}

static mpq_status give_back(struct mpq_consumer *consumer, struct mpq_entry *entry,
                            struct mpq_error *error)
{
    mpq_status status = mpq_entry_return(consumer, entry, error);
    if (status == MPQ_OK)
        mpq_bump(consumer->queue->control->nacked_items, 1);
    return status;
}

bool mpq_entry_held(const struct mpq_consumer *consumer, const struct mpq_entry *entry,
                    uint64_t seq, uint64_t token)
{
    return entry->seq == seq && entry->state == MPQ_ENTRY_OUT && entry->token == (uint32_t)token &&
           !mpq_lease_over(consumer, entry);
}

/* For reserves that wait in other threads of this process, and the bell. */
static void wake_reserves(struct mpq_consumer *consumer)
{
    struct mpq_control *control = consumer->queue->control;
    mpq_wake(consumer->queue, &control->items_event, &control->items_waiting);
}

static mpq_status return_one(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                             bool unseen, struct mpq_error *error)
{
    volatile bool acked = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (mpq_entry_held(consumer, entry, seq, token)) {
        status = give_back(consumer, entry, error);
        if (status == MPQ_OK && unseen)
            mpq_attempt_undo(consumer, seq);
        wake_reserves(consumer);
    } else {
        status = MPQ_STALE;
        acked = mpq_entry_acked(entry, seq, token);
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status == MPQ_STALE ? mpq_stale(consumer, seq, acked, error) : status;
}

mpq_status mpq_nack(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                    struct mpq_error *error)
{
    return return_one(consumer, seq, token, false, error);
}

mpq_status mpq_unreserve(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                         struct mpq_error *error)
{
    return return_one(consumer, seq, token, true, error);
}

bool mpq_handed_out(struct mpq_consumer *consumer, uint64_t seq, uint64_t token)
{
    const bool ours = mpq_look_begin(consumer);
    const bool out = mpq_entry_held(consumer, mpq_entry_of(consumer, seq), seq, token);
    mpq_look_end(consumer, ours);
    return out;
}

mpq_status mpq_rewind(struct mpq_consumer *consumer, uint64_t *items, uint64_t *bytes,
                      struct mpq_error *error)
{
    *items = *bytes = 0;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    uint64_t at = consumer->record.floor;
    while (status == MPQ_OK && at < consumer->read_seq) {
        struct mpq_entry *entry = mpq_entry_of(consumer, at);
        if (entry->state == MPQ_ENTRY_OUT) {
            status = give_back(consumer, entry, error);
            if (status == MPQ_OK) {
                ++*items;
                *bytes += entry->extent;
            }
        }
        if (entry->next == 0)
            break;
        at = entry->next;
    }
    if (*items != 0)
        wake_reserves(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}
