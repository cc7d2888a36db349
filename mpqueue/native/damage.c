/* damage.c - bytes that the consumer cannot read: how many seqs they held, booked and told once.
 *
 * I1 a loss is counted exactly, by seq: what was settled before, or never issued, is none. I2 its
 * first seq keeps the floor until all of it is counted. I3 the bytes are saved before they are
 * passed. */
#include "dead.h"

static void tell_of(struct mpq_queue *queue, uint64_t generation, uint64_t offset, uint64_t items,
                    uint64_t bytes, struct mpq_error *error)
{
    mpq_fail(
        error, MPQ_CORRUPT,
        "%s: damage in segment %llu at offset %llu: %llu item(s) lost, counted and passed; the "
        "bytes are in corrupt/ when there was room. Reading goes on with the next item",
        queue->path, (unsigned long long)generation, (unsigned long long)offset,
        (unsigned long long)items);
    if (error != NULL) {
        error->generation = generation;
        error->offset = offset;
        error->lost_items = items;
        error->lost_bytes = bytes;
    }
}

mpq_status mpq_corrupt(struct mpq_consumer *consumer, uint64_t generation, uint64_t offset,
                       uint64_t items, uint64_t bytes, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_bump(queue->control->loss_events, 1);
    queue->event_info.lost_items += items;
    queue->event_info.lost_bytes += bytes;
    mpq_event(queue, MPQ_EVENT_LOSS);
    tell_of(queue, generation, offset, items, bytes, error);
    return MPQ_CORRUPT;
}

mpq_status mpq_damage_ahead(struct mpq_queue *queue, struct mpq_error *error)
{
    return mpq_fail(error, MPQ_CORRUPT,
                    "%s: the next bytes are damaged; reserve books and passes them", queue->path);
}

void mpq_mark_damaged(struct mpq_queue *queue, uint64_t generation)
{
    struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    if (mpq_load(entry->generation) == generation)
        atomic_fetch_or(&entry->bytes, MPQ_RING_DAMAGED);
}

/* How many of the seqs first..upto - 1 the current epoch skipped: nobody ever had them. */
static uint64_t skipped(const struct mpq_queue *queue, uint64_t first, uint64_t upto)
{
    const uint64_t from = mpq_max64(first, mpq_load(queue->control->epoch_previous_seq));
    const uint64_t to = mpq_min64(upto, mpq_load(queue->control->epoch_first_seq));
    return to > from ? to - from : 0;
}

/* The first seq that can have lain at `from`: where an epoch begins, the walk before ended below
 * it. What the segments before held was booked before this one was entered. */
static uint64_t first_seq_at(struct mpq_consumer *consumer, uint64_t from)
{
    struct mpq_queue *queue = consumer->queue;
    const struct mpq_segment *segment = consumer->segment;
    const uint64_t first = consumer->read_seq;
    struct mpq_roll roll;
    if (MPQ_POSITION_OFF(from) == MPQ_SEGMENT_FIRST && segment != NULL &&
        segment->generation == MPQ_POSITION_GEN(from) && mpq_roll_read(queue, segment, &roll) &&
        roll.base_seq > first)
        return roll.base_seq;
    if (skipped(queue, first, first + 1) != 0)
        return mpq_load(queue->control->epoch_first_seq);
    return first;
}

/* Books the seqs first..next_seq - 1, which lay in from..to, as lost unless they were settled
 * before or never issued. The walk goes on at `to`. The first of them is settled last and keeps the
 * floor until then: who dies between two flips leaves the rest to be counted. */
mpq_status mpq_lose(struct mpq_consumer *consumer, uint64_t first, uint64_t from, uint64_t to,
                    uint64_t next_seq, bool headed, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    const uint64_t extent = MPQ_POSITION_GEN(from) == MPQ_POSITION_GEN(to) ? (to - from) << 5 : 0;
    if (next_seq > first && mpq_window_blocks(consumer, next_seq - 1))
        return MPQ_EMPTY;
    if (consumer->peeking)
        return mpq_damage_ahead(queue, error);
    uint64_t lost = 0;
    if (next_seq > first) {
        const bool first_lost = !mpq_acked(queue, first);
        mpq_entry_walked(consumer, first, from, 0, MPQ_ENTRY_LOST);
        uint64_t seq = first + 1;
        for (; seq < next_seq && mpq_in_window(consumer, seq); seq++) {
            if (mpq_acked(queue, seq) || skipped(queue, seq, seq + 1) != 0)
                continue;
            lost++;
            mpq_settle(consumer, seq, !first_lost && lost == 1 ? extent : 0, MPQ_SETTLE_LOST);
        }
        if (first_lost) {
            lost++;
            mpq_settle(consumer, first, extent, MPQ_SETTLE_LOST);
        }
        /* No bit of the window is theirs: they go with the last flip. */
        const uint64_t beyond = next_seq - seq - skipped(queue, seq, next_seq);
        lost += beyond;
        consumer->record.totals.settled_items += beyond;
        consumer->record.totals.lost_items += beyond;
        mpq_entry_of(consumer, first)->state = MPQ_ENTRY_SETTLED;
        consumer->read_seq = next_seq;
    }
    consumer->read_position = to;
    mpq_settle_commit(consumer);
    if (lost == 0)
        return MPQ_OK;
    mpq_mark_damaged(queue, MPQ_POSITION_GEN(from));
    if (!headed) /* else its bytes are known: a walk over the backlog would find the same */
        mpq_recount(consumer);
    return mpq_corrupt(consumer, MPQ_POSITION_GEN(from), MPQ_POSITION_OFF(from), lost, extent,
                       error);
}

/* Where the seqs of a segment end: what its successor recorded, or the tail. */
static uint64_t seq_at_end(struct mpq_consumer *consumer, uint64_t generation,
                           const struct mpq_tail_now *tail)
{
    struct mpq_queue *queue = consumer->queue;
    for (uint64_t next = generation + 1; next <= MPQ_POSITION_GEN(tail->position); next++) {
        struct mpq_roll roll;
        mpq_guarded_lock(queue);
        struct mpq_segment *segment = mpq_segment_map(queue, next, NULL);
        bool found = segment != NULL && mpq_roll_read(queue, segment, &roll);
        struct mpq_seen seen;
        if (!found && segment != NULL &&
            mpq_frame_see(queue, segment, MPQ_SEGMENT_FIRST, consumer->read_seq, &seen) ==
                MPQ_SEE_FRAME) {
            roll.previous_seq = seen.header.seq;
            found = true;
        }
        mpq_guarded_unlock(queue);
        if (found)
            return roll.previous_seq;
    }
    return mpq_walked_end(queue->control, tail->next_seq);
}

bool mpq_cut_short(struct mpq_consumer *consumer, const struct mpq_segment *segment)
{
    struct mpq_queue *queue = consumer->queue;
    const struct mpq_tail_now tail = mpq_tail_read(queue->control);
    return mpq_segment_header_check(queue, segment->base, segment->bytes, segment->generation) !=
               MPQ_OK &&
           seq_at_end(consumer, segment->generation, &tail) > consumer->read_seq;
}

/* How many files are missing, or are not ours, from this one on: their items are booked at once. */
static uint64_t missing_from(struct mpq_queue *queue, uint64_t generation, uint64_t tail_position)
{
    uint64_t count = 0;
    bool missing = true;
    mpq_guarded_lock(queue);
    while (missing) {
        count++;
        missing = MPQ_POSITION(generation + count, MPQ_SEGMENT_FIRST) < tail_position &&
                  mpq_segment_map(queue, generation + count, NULL) == NULL;
    }
    mpq_guarded_unlock(queue);
    return count;
}

mpq_status mpq_cross_damage(struct mpq_consumer *consumer, struct mpq_segment *segment,
                            struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_tail_now tail; /* it may say where the damage ends */
    mpq_status status = mpq_control_ours(queue, error);
    if (status == MPQ_OK && !mpq_tail_read_proved(queue->control, &tail))
        status = mpq_overwritten(queue, error);
    if (status != MPQ_OK)
        return status;
    const uint64_t from = consumer->read_position;
    const uint64_t generation = MPQ_POSITION_GEN(from), offset = MPQ_POSITION_OFF(from);
    const bool last = MPQ_POSITION_GEN(tail.position) == generation;
    const uint64_t limit = last ? MPQ_POSITION_OFF(tail.position) : UINT64_MAX;
    uint64_t to, next_seq;
    struct mpq_seen seen;
    uint64_t found = 0;
    if (segment != NULL)
        found = mpq_frame_scan(queue, segment, offset + MPQ_FRAME_ALIGN, limit, consumer->read_seq,
                               true, &seen);
    if (found != 0) {
        next_seq = seen.header.seq;
        const uint64_t pads = mpq_frame_pads_before(queue, segment, offset + MPQ_FRAME_ALIGN, found,
                                                    consumer->read_seq, &next_seq);
        found = pads != 0 ? pads : found;
        to = MPQ_POSITION(generation, found);
    } else {
        to = last ? tail.position : MPQ_POSITION(generation + 1, 0);
        next_seq = seq_at_end(consumer, generation, &tail);
    }
    if (segment != NULL)
        mpq_quarantine(queue, segment, offset,
                       found != 0 ? found : mpq_min64(limit, segment->bytes));
    status = mpq_lose(consumer, first_seq_at(consumer, from), from, to, next_seq, false, error);
    if (status == MPQ_CORRUPT && segment == NULL && !consumer->peeking)
        mpq_bump(queue->control->lost_segments, missing_from(queue, generation, tail.position));
    return status;
}

void mpq_keep_loss(struct mpq_consumer *consumer, const struct mpq_error *error)
{
    mpq_mutex_lock(&consumer->mutex);
    struct mpq_error *kept = &consumer->untold;
    if (consumer->tell && kept->status == MPQ_CORRUPT) { /* one telling for both */
        const uint64_t items = kept->lost_items + error->lost_items;
        const uint64_t bytes = kept->lost_bytes + error->lost_bytes;
        *kept = *error;
        tell_of(consumer->queue, error->generation, error->offset, items, bytes, kept);
    } else if (!consumer->tell) {
        *kept = *error;
    }
    consumer->tell = true;
    mpq_mutex_unlock(&consumer->mutex);
}

bool mpq_untold_loss(struct mpq_consumer *consumer, struct mpq_error *error)
{
    if (mpq_consumer_check(consumer, NULL) != MPQ_OK)
        return false;
    mpq_mutex_lock(&consumer->mutex);
    const bool loss = consumer->tell && consumer->untold.status == MPQ_CORRUPT;
    if (loss) {
        *error = consumer->untold;
        consumer->tell = false;
    }
    mpq_mutex_unlock(&consumer->mutex);
    return loss;
}
