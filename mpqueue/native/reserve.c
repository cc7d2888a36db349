/* reserve.c - 4 the next ready item: the consumer's walk and hand-out.
 *
 * The walk meets every frame once, in seq order. What it meets settled (gaps, acked before) it
 * passes; a claim stops it: a live claimant is waited for, a dead one's frame becomes a gap. So
 * when an item is handed out nothing new can appear below it.
 *
 * I1 both hashes hold before a byte is handed out. I2 under sync and group nothing is read above
 * the durable watermark. I3 the attempt is counted in control before the hand-out. */
#include <sys/mman.h>

#include "dead.h"

uint64_t mpq_visible_limit(const struct mpq_queue *queue)
{
    const struct mpq_control *control = queue->control;
    if (mpq_visible_is_durable(queue))
        return atomic_load_explicit(&control->durable_position, memory_order_acquire);
    return mpq_tail_position(control);
}

struct mpq_segment *mpq_consumer_segment(struct mpq_consumer *consumer, uint64_t generation,
                                         struct mpq_error *error)
{
    if (consumer->segment != NULL && consumer->segment->generation == generation)
        return consumer->segment;
    struct mpq_queue *queue = consumer->queue;
    mpq_guarded_lock(queue);
    struct mpq_segment *segment = mpq_segment_map(queue, generation, error);
    if (segment != NULL)
        mpq_segment_retain(segment);
    mpq_guarded_unlock(queue);
    if (segment == NULL)
        return NULL;
    mpq_segment_release(consumer->segment);
    consumer->segment = segment;
    return segment;
}

bool mpq_gap_frames(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t offset,
                    const struct mpq_seen *first)
{
    /* It may have published between the look that found a claim and its death. The first frame is
     * published last: READY there, after the death, means that everything is. */
    if (mpq_state_decode(atomic_load(mpq_state_of((void *)(segment->base + offset)))) == MPQ_READY)
        return false;
    uint64_t offsets[MPQ_BATCH_MAX];
    uint32_t count = 0;
    struct mpq_seen seen = *first;
    for (;;) {
        offsets[count++] = offset;
        if ((seen.header.flags & MPQ_FLAG_BATCH) == 0 ||
            (seen.header.flags & MPQ_FLAG_BATCH_LAST) != 0 || count == MPQ_BATCH_MAX)
            break;
        uint64_t seq = seen.header.seq;
        offset += seen.extent;
        if (mpq_frame_see(queue, segment, offset, seq + 1, &seen) != MPQ_SEE_FRAME ||
            seen.header.seq != seq + 1 || seen.code == MPQ_PAD)
            break;
    }
    while (count-- > 0) {
        _Atomic uint64_t *state = mpq_state_of((void *)(segment->base + offsets[count]));
        uint64_t now = atomic_load(state);
        while (mpq_state_decode(now) != MPQ_GAP &&
               !atomic_compare_exchange_weak(state, &now, MPQ_STATE(MPQ_STATE_INC(now), MPQ_GAP)))
            ;
    }
    return true;
}

bool mpq_window_blocks(struct mpq_consumer *consumer, uint64_t seq)
{
    if (MPQ_LIKELY(consumer->record.floor == consumer->read_seq || mpq_in_window(consumer, seq)))
        return false;
    mpq_settle_commit(consumer); /* the floor may be behind what is settled */
    consumer->blocked_on_window =
        consumer->record.floor < consumer->read_seq && !mpq_in_window(consumer, seq);
    return consumer->blocked_on_window;
}

/* ---- the walk */

enum step { STEP_ON, STEP_ITEM, STEP_STOP };

struct step_out {
    struct mpq_segment *segment;
    uint64_t offset;
    struct mpq_seen seen;
    mpq_status status; /* of STEP_STOP */
};

static enum step stop(struct step_out *out, mpq_status status)
{
    out->status = status;
    return STEP_STOP;
}

static enum step settle_gap(struct mpq_consumer *consumer, struct step_out *out)
{
    const uint64_t seq = out->seen.header.seq;
    if ((out->seen.header.flags & MPQ_FLAG_BATCH_FIRST) != 0)
        (void)mpq_gap_frames(consumer->queue, out->segment, out->offset, &out->seen);
    bool before = mpq_acked(consumer->queue, seq);
    mpq_entry_walked(consumer, seq, consumer->read_position, out->seen.extent, MPQ_ENTRY_SETTLED);
    if (!before) {
        if (consumer->queue->keys != NULL)
            mpq_keys_void(consumer->queue, seq);
        mpq_settle(consumer, seq, out->seen.extent, MPQ_SETTLE_GAP);
    }
    return STEP_ON;
}

static enum step step_frame(struct mpq_consumer *consumer, struct step_out *out,
                            struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    const struct mpq_frame *header = &out->seen.header;
    if (out->seen.code == MPQ_PAD) {
        consumer->read_position += out->seen.extent >> 5;
        return STEP_ON;
    }
    if (mpq_window_blocks(consumer, header->seq))
        return stop(out, MPQ_EMPTY);
    if (out->seen.code == MPQ_GAP)
        return settle_gap(consumer, out);
    if (out->seen.code == MPQ_CLAIMED) {
        const uint64_t claimant = MPQ_STATE_INC(header->state);
        if (!mpq_dead(queue, claimant)) {
            consumer->blocked_on_claim = true;
            mpq_store(queue->control->blocked_on_claim, claimant);
            return stop(out, MPQ_EMPTY);
        }
        if (!mpq_gap_frames(queue, out->segment, out->offset, &out->seen))
            return STEP_ON; /* the same frame again: it is an item by now */
        return settle_gap(consumer, out);
    }
    if (mpq_acked(queue, header->seq)) {
        mpq_entry_walked(consumer, header->seq, consumer->read_position, out->seen.extent,
                         MPQ_ENTRY_SETTLED);
        return STEP_ON;
    }
    if (MPQ_LIKELY(mpq_body_holds(queue, out->segment, out->offset, header)))
        return STEP_ITEM;
    mpq_quarantine(queue, out->segment, out->offset, out->offset + out->seen.extent);
    mpq_status status =
        mpq_lose(consumer, header->seq, consumer->read_position,
                 consumer->read_position + (out->seen.extent >> 5), header->seq + 1, true, error);
    return status == MPQ_OK ? STEP_ON : stop(out, status);
}

#define READ_AHEAD (256u * 1024u)
#define PREFETCH_LINES 3 /* most of an item of 100 bytes */

/* Maps the pages up to the limit in one call instead of a fault each. */
static void read_ahead(struct mpq_consumer *consumer, struct mpq_segment *segment, uint64_t offset)
{
    uint64_t to = MPQ_POSITION_GEN(consumer->limit) == segment->generation
                      ? MPQ_POSITION_OFF(consumer->limit)
                      : segment->bytes;
    const uint64_t from = offset & ~(uint64_t)(MPQ_PAGE - 1);
    to = mpq_min64((to + MPQ_PAGE - 1) & ~(uint64_t)(MPQ_PAGE - 1), from + READ_AHEAD);
#ifdef MADV_POPULATE_READ
    if (to > from && to <= segment->bytes)
        (void)consumer->queue->io->advise(consumer->queue->io, segment->base + from, to - from,
                                          MADV_POPULATE_READ);
#endif
    segment->read_ahead = mpq_max64(to, offset + 1);
}

static enum step step(struct mpq_consumer *consumer, struct step_out *out, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    if (consumer->read_position >= consumer->limit) {
        consumer->limit = mpq_visible_limit(queue);
        if (consumer->read_position >= consumer->limit)
            return stop(out, MPQ_EMPTY);
    }
    const uint64_t generation = MPQ_POSITION_GEN(consumer->read_position);
    if (MPQ_POSITION_OFF(consumer->read_position) < MPQ_SEGMENT_FIRST) {
        const uint64_t oldest = mpq_load(queue->control->oldest_generation);
        if (oldest > MPQ_POSITION_GEN(mpq_tail_position(queue->control)) + 1 ||
            MPQ_POSITION_GEN(consumer->limit) > oldest + MPQ_RING)
            return stop(out, mpq_overwritten(queue, error)); /* or it would walk for ages */
        const bool none = generation < oldest;
        consumer->read_position =
            none ? MPQ_POSITION(generation + 1, 0) : MPQ_POSITION(generation, MPQ_SEGMENT_FIRST);
        return STEP_ON;
    }
    out->segment = mpq_consumer_segment(consumer, generation, error);
    if (out->segment == NULL) {
        if (error->status != MPQ_CORRUPT)
            return stop(out, error->status);
        mpq_status status = mpq_cross_damage(consumer, NULL, error);
        return status == MPQ_OK ? STEP_ON : stop(out, status);
    }
    out->offset = MPQ_POSITION_OFF(consumer->read_position);
    if (MPQ_UNLIKELY(out->offset >= out->segment->read_ahead))
        read_ahead(consumer, out->segment, out->offset);
    enum mpq_sight sight =
        mpq_frame_see(queue, out->segment, out->offset, consumer->read_seq, &out->seen);
    if (MPQ_LIKELY(sight == MPQ_SEE_FRAME))
        return step_frame(consumer, out, error);
    if (sight == MPQ_SEE_END && out->offset + MPQ_FRAME_ALIGN >= out->segment->bytes &&
        !mpq_cut_short(consumer, out->segment)) {
        consumer->read_position = MPQ_POSITION(generation + 1, 0);
        return STEP_ON;
    }
    mpq_status status = mpq_cross_damage(consumer, out->segment, error);
    return status == MPQ_OK ? STEP_ON : stop(out, status);
}

/* The frame after the next one: its lines are in the cache of the producer that wrote them. */
static inline void prefetch(const struct step_out *out)
{
    const uint8_t *at = out->segment->base + out->offset + 2 * out->seen.extent;
    for (unsigned line = 0; line < PREFETCH_LINES; line++)
        __builtin_prefetch(at + line * 64);
}

static mpq_status walk(struct mpq_consumer *consumer, struct step_out *out, struct mpq_error *error)
{
    struct mpq_control *control = consumer->queue->control;
    const bool waited =
        consumer->blocked_on_claim || consumer->blocked_on_window || consumer->idle_slices != 0;
    consumer->blocked_on_claim = consumer->blocked_on_window = false;
    enum step next;
    do {
        next = step(consumer, out, error);
    } while (next == STEP_ON);
    if (next == STEP_ITEM) {
        prefetch(out);
        if (MPQ_UNLIKELY(waited)) {
            mpq_store(control->blocked_on_claim, 0);
            mpq_store(control->blocked_on_window, 0);
        }
        return MPQ_OK;
    }
    if (!consumer->peeking && consumer->record.floor == consumer->read_seq &&
        consumer->record.floor_position < consumer->read_position) {
        /* Nothing is outstanding: padding and empty segments hold nothing that keeps the floor. */
        consumer->record.floor_position = consumer->read_position;
        consumer->record_changed = true;
    }
    mpq_settle_commit(consumer);
    if (!consumer->blocked_on_claim && consumer->claimed_at != consumer->read_position &&
        mpq_load(control->blocked_on_claim) != 0)
        mpq_store(control->blocked_on_claim, 0);
    mpq_store(control->blocked_on_window, consumer->blocked_on_window ? 1 : 0);
    return out->status;
}

/* ---- hand-out */

static void find_origin(struct mpq_item *item)
{
    for (uint32_t at = 0; at + 4 <= item->ext_length;) {
        uint16_t type, length;
        memcpy(&type, item->ext + at, 2);
        memcpy(&length, item->ext + at + 2, 2);
        if (type == 0 || at + 4u + length > item->ext_length)
            return;
        if (type == MPQ_EXT_ORIGIN && length == 32) {
            memcpy(&item->epoch, item->ext + at + 4 + 16, 8);
            memcpy(&item->origin_seq, item->ext + at + 4 + 24, 8);
        }
        at = (at + 4u + length + 7u) & ~7u;
    }
}

/* Before anything is booked: the copy may fault. */
static void show(struct mpq_consumer *consumer, const struct step_out *out, struct mpq_room *room,
                 struct mpq_item *item)
{
    const struct mpq_frame *header = &out->seen.header;
    item->seq = header->seq;
    item->enqueued_at = header->enqueued_at;
    item->length = header->length;
    item->ext_length = header->ext_length;
    item->ext = out->segment->base + out->offset + MPQ_FRAME_HEADER;
    item->segment = NULL;
    const size_t bytes = (size_t)header->ext_length + header->length;
    if (room != NULL && bytes <= room->bytes) {
        item->ext = memcpy(room->to, item->ext, bytes);
        room->to += bytes;
        room->bytes -= bytes;
    } else {
        item->segment = out->segment;
        mpq_segment_retain(out->segment);
    }
    item->body = item->ext + header->ext_length;
    if (MPQ_UNLIKELY(out->segment->epoch == 0)) {
        struct mpq_roll roll;
        out->segment->epoch = mpq_roll_read(consumer->queue, out->segment, &roll)
                                  ? roll.epoch
                                  : consumer->queue->control->epoch;
    }
    item->origin_seq = item->seq;
    item->epoch = out->segment->epoch;
    if (item->ext_length != 0)
        find_origin(item);
}

static void hand_out(struct mpq_consumer *consumer, struct mpq_entry *entry, struct mpq_item *item)
{
    struct mpq_control *control = consumer->queue->control;
    entry->token = ++consumer->next_token;
    entry->state = MPQ_ENTRY_OUT;
    item->token = entry->token;
    item->attempts = mpq_attempt_count(consumer, item->seq);
    mpq_count_out(consumer, 1, entry->extent);
    mpq_bump(control->delivered_items, 1);
    if (MPQ_UNLIKELY(item->attempts > 1)) {
        mpq_bump(control->redelivered_items, 1);
        if (item->attempts == 2) /* once: recalled ones are in the list */
            (void)mpq_attempt_remember(consumer, item->seq);
    }
    if (MPQ_UNLIKELY(consumer->leases != NULL))
        mpq_lease_begin(consumer, entry);
    mpq_store(control->read_seq, consumer->read_seq);
    mpq_store(control->read_position, consumer->read_position);
    consumer->idle_slices = 0;
}

/* An item that was walked before: its frame is looked at again. MPQ_CORRUPT: damaged since. */
static mpq_status see_again(struct mpq_consumer *consumer, const struct mpq_entry *entry,
                            struct step_out *out, struct mpq_error *error)
{
    out->segment = mpq_consumer_segment(consumer, MPQ_POSITION_GEN(entry->position), error);
    if (out->segment == NULL && error->status != MPQ_CORRUPT)
        return error->status;
    out->offset = MPQ_POSITION_OFF(entry->position);
    return out->segment != NULL &&
                   mpq_frame_see(consumer->queue, out->segment, out->offset, entry->seq,
                                 &out->seen) == MPQ_SEE_FRAME &&
                   out->seen.header.seq == entry->seq &&
                   mpq_body_holds(consumer->queue, out->segment, out->offset, &out->seen.header)
               ? MPQ_OK
               : MPQ_CORRUPT;
}

mpq_status mpq_entry_lost(struct mpq_consumer *consumer, struct mpq_entry *entry,
                          struct mpq_error *error)
{
    const uint64_t generation = MPQ_POSITION_GEN(entry->position);
    mpq_settle(consumer, entry->seq, entry->extent, MPQ_SETTLE_LOST);
    mpq_settle_commit(consumer);
    mpq_mark_damaged(consumer->queue, generation);
    return mpq_corrupt(consumer, generation, MPQ_POSITION_OFF(entry->position), 1, entry->extent,
                       error);
}

mpq_status mpq_entry_show(struct mpq_consumer *consumer, struct mpq_entry *entry,
                          struct mpq_item *item, struct mpq_error *error)
{
    struct step_out out;
    mpq_status status = see_again(consumer, entry, &out, error);
    if (status != MPQ_OK)
        return status;
    memset(item, 0, sizeof *item);
    show(consumer, &out, NULL, item);
    item->attempts = mpq_attempts_of(consumer->queue, entry->seq);
    return MPQ_OK;
}

mpq_status mpq_item_again(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                          struct mpq_item *item, struct mpq_error *error)
{
    volatile bool acked = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (mpq_entry_held(consumer, entry, seq, token)) {
        status = mpq_entry_show(consumer, entry, item, error);
        if (status == MPQ_CORRUPT)
            status = mpq_entry_lost(consumer, entry, error);
    } else {
        status = MPQ_STALE;
        acked = mpq_entry_acked(entry, seq, token);
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status == MPQ_STALE ? mpq_stale(consumer, seq, acked, error) : status;
}

/* The lowest one that was returned. */
static mpq_status next_again(struct mpq_consumer *consumer, struct step_out *out,
                             struct mpq_error *error)
{
    struct mpq_entry *entry = mpq_entry_of(consumer, consumer->again[0]);
    mpq_status status = see_again(consumer, entry, out, error);
    if (status != MPQ_CORRUPT)
        return status;
    if (consumer->peeking)
        return mpq_damage_ahead(consumer->queue, error);
    (void)mpq_again_pop(consumer);
    return mpq_entry_lost(consumer, entry, error);
}

static inline mpq_status next_met(struct mpq_consumer *consumer, struct step_out *out,
                                  struct mpq_error *error)
{
    return MPQ_UNLIKELY(consumer->again_count != 0) ? next_again(consumer, out, error)
                                                    : walk(consumer, out, error);
}

/* The first one, from *out on, that may be handed out once more; the others are doomed. */
static mpq_status next_bearable(struct mpq_consumer *consumer, struct step_out *out,
                                struct mpq_error *error)
{
    const uint32_t most = mpq_load(consumer->queue->control->max_attempts);
    while (mpq_attempts_before(consumer, out->segment, out->offset, &out->seen.header) >= most) {
        const uint64_t seq = out->seen.header.seq;
        if (seq < consumer->read_seq)
            (void)mpq_again_pop(consumer);
        else
            mpq_entry_walked(consumer, seq, consumer->read_position, out->seen.extent,
                             MPQ_ENTRY_AGAIN);
        if (!mpq_doom(consumer, seq)) {
            (void)mpq_again_push(consumer, seq);
            return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", consumer->queue->path);
        }
        if (mpq_dead_due(consumer))
            return MPQ_AGAIN;
        mpq_status status = next_met(consumer, out, error);
        if (status != MPQ_OK)
            return status;
    }
    return MPQ_OK;
}

/* What reserve would hand out: what is past max_attempts is set aside for dead/. */
static inline mpq_status next_ready(struct mpq_consumer *consumer, struct step_out *out,
                                    struct mpq_error *error)
{
    if (mpq_dead_due(consumer))
        return MPQ_AGAIN;
    mpq_status status = next_met(consumer, out, error);
    if (MPQ_LIKELY(mpq_load(consumer->queue->control->max_attempts) == 0) || status != MPQ_OK)
        return status;
    return next_bearable(consumer, out, error);
}

/* What stands before any look at what is ready. True, with *error: overdue leases could not be
 * ended, or something happened that nobody was told of yet. */
static bool untold_now(struct mpq_consumer *consumer, struct mpq_error *error)
{
    if (mpq_leased(consumer) && mpq_leases_expire(consumer, error) != MPQ_OK)
        return true;
    if (!consumer->tell)
        return false;
    consumer->tell = consumer->peeking;
    *error = consumer->untold;
    return true;
}

static inline bool untold(struct mpq_consumer *consumer, struct mpq_error *error)
{
    return MPQ_UNLIKELY(mpq_leased(consumer) || consumer->tell) && untold_now(consumer, error);
}

/* MPQ_EMPTY also when the next item is larger than `most` payload bytes. */
static mpq_status reserve_one(struct mpq_consumer *consumer, struct mpq_item *item, uint64_t most,
                              struct mpq_room *room, struct mpq_error *error)
{
    struct step_out out;
    if (untold(consumer, error))
        return error->status;
    mpq_status status = next_ready(consumer, &out, error);
    if (status != MPQ_OK)
        return status;
    if (out.seen.header.length > most)
        return MPQ_EMPTY;
    const uint64_t seq = out.seen.header.seq;
    show(consumer, &out, room, item);
    if (MPQ_UNLIKELY(seq < consumer->read_seq))
        (void)mpq_again_pop(consumer);
    else
        mpq_entry_walked(consumer, seq, consumer->read_position, out.seen.extent, MPQ_ENTRY_OUT);
    hand_out(consumer, mpq_entry_of(consumer, seq), item);
    return MPQ_OK;
}

bool mpq_drained(const struct mpq_consumer *consumer)
{
    const struct mpq_control *control = consumer->queue->control;
    return mpq_load(control->sealed) != 0 && consumer->out == 0 && consumer->again_count == 0 &&
           !mpq_dead_waits(consumer) && consumer->read_position >= mpq_tail_read(control).position;
}

static mpq_status empty_or_sealed(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    if (!mpq_drained(consumer)) {
        mpq_status status = mpq_usable(queue, error);
        if (status != MPQ_OK)
            return status;
        if (consumer->bell_made)
            mpq_bell_arm(consumer);
        return mpq_head_orphaned(consumer, false) ? MPQ_AGAIN : MPQ_EMPTY;
    }
    return mpq_fail(error, MPQ_SEALED, "%s: sealed and drained: no item will come any more",
                    queue->path);
}

static mpq_status reserve_inside(struct mpq_consumer *consumer, struct mpq_room *room,
                                 struct mpq_item *item, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    status = reserve_one(consumer, item, UINT64_MAX, room, error);
    if (status == MPQ_EMPTY)
        status = empty_or_sealed(consumer, error);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

mpq_status mpq_reserve_into(struct mpq_consumer *consumer, struct mpq_room *room,
                            struct mpq_item *item, struct mpq_error *told)
{
    struct mpq_error local;
    return reserve_inside(consumer, room, item, told != NULL ? told : &local);
}

mpq_status mpq_reserve_try(struct mpq_consumer *consumer, struct mpq_item *item,
                           struct mpq_error *told)
{
    return mpq_reserve_into(consumer, NULL, item, told);
}

static mpq_status many_inside(struct mpq_consumer *consumer, struct mpq_room *room,
                              struct mpq_item *items, uint32_t count, uint64_t max_bytes,
                              uint32_t *taken, struct mpq_error *error)
{
    *taken = 0;
    volatile uint64_t bytes = 0;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    while (*taken < count) {
        uint64_t most = UINT64_MAX;
        if (max_bytes != 0 && *taken != 0) {
            if (bytes >= max_bytes) /* an item without a byte is one too many as well */
                break;
            most = max_bytes - bytes;
        }
        status = reserve_one(consumer, &items[*taken], most, room, error);
        if (status != MPQ_OK)
            break;
        bytes = bytes + items[*taken].length;
        ++*taken;
    }
    if (*taken != 0 && status == MPQ_CORRUPT) { /* booked, so it must be told: by the next call */
        consumer->untold = *error;
        consumer->tell = true;
    }
    if (*taken == 0 && status == MPQ_EMPTY)
        status = empty_or_sealed(consumer, error);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return *taken != 0 ? MPQ_OK : status;
}

mpq_status mpq_reserve_many_into(struct mpq_consumer *consumer, struct mpq_room *room,
                                 struct mpq_item *items, uint32_t count, uint64_t max_bytes,
                                 uint32_t *taken, struct mpq_error *told)
{
    struct mpq_error local;
    return many_inside(consumer, room, items, count, max_bytes, taken,
                       told != NULL ? told : &local);
}

mpq_status mpq_reserve_many_try(struct mpq_consumer *consumer, struct mpq_item *items,
                                uint32_t count, uint64_t max_bytes, uint32_t *taken,
                                struct mpq_error *told)
{
    return mpq_reserve_many_into(consumer, NULL, items, count, max_bytes, taken, told);
}

mpq_status mpq_consumer_at_end(struct mpq_consumer *consumer, bool *at_end, struct mpq_error *error)
{
    *at_end = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_control *control = consumer->queue->control;
    *at_end = mpq_load(control->sealed) != 0 && consumer->again_count == 0 &&
              !mpq_dead_waits(consumer) &&
              consumer->read_position >= mpq_tail_read(control).position;
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

static mpq_status peek_inside(struct mpq_consumer *consumer, struct mpq_item *item,
                              struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct step_out out;
    consumer->peeking = true;
    if (untold(consumer, error))
        status = error->status;
    else
        status = next_ready(consumer, &out, error);
    consumer->peeking = false;
    if (status == MPQ_OK) {
        memset(item, 0, sizeof *item);
        show(consumer, &out, NULL, item);
        item->attempts = mpq_attempts_of(consumer->queue, item->seq);
    } else if (status == MPQ_EMPTY) {
        status = empty_or_sealed(consumer, error);
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

mpq_status mpq_consumer_peek(struct mpq_consumer *consumer, struct mpq_item *item,
                             struct mpq_error *told)
{
    struct mpq_error local;
    return peek_inside(consumer, item, told != NULL ? told : &local);
}

static mpq_status skip_inside(struct mpq_consumer *consumer, uint64_t *seq, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct step_out out;
    if (untold(consumer, error)) {
        status = error->status;
    } else if (consumer->again_count != 0) {
        *seq = mpq_again_pop(consumer);
        mpq_settle(consumer, *seq, mpq_entry_of(consumer, *seq)->extent, MPQ_SETTLE_SKIP);
        mpq_settle_commit(consumer);
    } else {
        status = walk(consumer, &out, error);
        if (status == MPQ_OK) {
            *seq = out.seen.header.seq;
            mpq_entry_walked(consumer, *seq, consumer->read_position, out.seen.extent,
                             MPQ_ENTRY_SETTLED);
            mpq_settle(consumer, *seq, out.seen.extent, MPQ_SETTLE_SKIP);
            mpq_settle_commit(consumer);
            mpq_store(consumer->queue->control->read_seq, consumer->read_seq);
        } else if (status == MPQ_EMPTY) {
            status = empty_or_sealed(consumer, error);
        }
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

mpq_status mpq_skip(struct mpq_consumer *consumer, uint64_t *seq, struct mpq_error *told)
{
    struct mpq_error local;
    return skip_inside(consumer, seq, told != NULL ? told : &local);
}
