/* claim.c - 1 claim, 2 write, 3 publish.
 *
 * Claim, under the header lock: frame headers are written CLAIMED beyond the tail, then one
 * selector store moves the tail. Killed before it: nothing happened. Between claim and publish
 * there is one straight path: no wait, no lock, no signal check.
 *
 * I1 every frame below the tail has a whole header. I2 seqs are dense and never reused within an
 * epoch. I3 CLAIMED(me) -> READY is a CAS of its own claimant; CLAIMED(n) -> GAP is made by others
 * only when n is dead. I4 limits are exact: they are checked where the tail moves. */
#include <sys/mman.h>

#include "aside.h"

#define TOUCH_BYTES (256u * 1024u)
#define STAMP_TICKS (1u << 15) /* some 10 us */
#define ENTER_MAX 16u /* segments that one claim may roll over */

static uint64_t extent_of(const struct mpq_item_in *item)
{
    return MPQ_FRAME_EXTENT(item->ext_length, item->length);
}

/* Wall clock, at most STAMP_TICKS old: the clock costs a twentieth of a put, a look at the
 * processor's counter a quarter of that. Whoever puts at leisure reads the clock each time.
 * queue->mutex is held. */
static uint64_t stamp(struct mpq_queue *queue)
{
#ifdef __x86_64__
    const uint64_t ticks = __builtin_ia32_rdtsc();
    if (ticks - queue->stamp_ticks < STAMP_TICKS)
        return queue->stamp_ns;
    queue->stamp_ticks = ticks;
#endif
    queue->stamp_ns = queue->io->wall_ns(queue->io);
    return queue->stamp_ns;
}

static mpq_status refused(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    if (MPQ_UNLIKELY(mpq_load(queue->removed) != 0))
        return mpq_fail(error, MPQ_REMOVED,
                        "%s: its files were deleted or replaced while it was open; close every "
                        "process that has it open, then open it again",
                        queue->path);
    if (mpq_load(control->fault) != 0)
        return mpq_fail(
            error, MPQ_INTERNAL,
            "%s: an invariant was broken (a lock byte was lost, or memory of a queue file "
            "vanished); close every process that has it open and open it again",
            queue->path);
    if (mpq_load(control->poison_errno) != 0)
        return mpq_poisoned(queue, error);
    if (mpq_load(control->sealed) != 0)
        return mpq_fail(error, MPQ_SEALED,
                        "%s: the queue is sealed: no more puts; `mpqueue seal --undo` lifts it",
                        queue->path);
    return MPQ_OK;
}

static mpq_status full(struct mpq_queue *queue, uint32_t reason, struct mpq_error *error)
{
    const char *option = reason == MPQ_FULL_CAPACITY ? "capacity" : "max_bytes";
    uint64_t bound = reason == MPQ_FULL_CAPACITY ? mpq_load(queue->control->capacity)
                                                 : mpq_load(queue->control->max_bytes);
    mpq_fail(error, MPQ_FULL, "%s: full: %s is %llu; consume and ack, or raise it", queue->path,
             option, (unsigned long long)bound);
    if (error != NULL)
        error->reason = reason;
    return MPQ_FULL;
}

static mpq_status room_left(struct mpq_queue *queue, const struct mpq_tail_now *tail,
                            uint32_t count, uint64_t bytes, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    uint64_t capacity = mpq_load(control->capacity), max_bytes = mpq_load(control->max_bytes);
    if (MPQ_LIKELY(capacity == 0 && max_bytes == 0))
        return MPQ_OK;
    struct mpq_consumer_now consumer = mpq_consumer_read(control);
    uint64_t items = tail->items > consumer.totals.settled_items
                         ? tail->items - consumer.totals.settled_items
                         : 0;
    uint64_t used = tail->bytes > consumer.totals.settled_bytes
                        ? tail->bytes - consumer.totals.settled_bytes
                        : 0;
    if (capacity != 0 && items + count > capacity)
        return full(queue, MPQ_FULL_CAPACITY, error);
    if (max_bytes != 0 && used + bytes > max_bytes)
        return full(queue, MPQ_FULL_BYTES, error);
    return MPQ_OK;
}

static void touch(struct mpq_segment *segment, uint64_t offset, uint64_t bytes)
{
    if (offset < MPQ_SEGMENT_FIRST || offset + bytes + MPQ_FRAME_HEADER > segment->bytes)
        return;
    /* Or-ing nothing into a word is harmless whoever owns it. */
    for (uint64_t at = offset; at < offset + bytes; at += MPQ_PAGE)
        atomic_fetch_or_explicit((_Atomic uint64_t *)(void *)(segment->base + at), 0,
                                 memory_order_relaxed);
}

/* A page that was just flushed, or never touched, faults at the next store: better here than
 * under the lock. Under sync and group the flush has just cleaned the tail's page; under none and
 * interval pages are made ready in chunks, after a claim. */
static void touch_before(struct mpq_queue *queue, uint64_t bytes)
{
    if (!mpq_visible_is_durable(queue) && bytes <= TOUCH_BYTES / 2)
        return;
    const uint64_t position = mpq_tail_position(queue->control);
    struct mpq_segment *active = mpq_segment_mapped(queue, MPQ_POSITION_GEN(position));
    if (active != NULL)
        touch(active, MPQ_POSITION_OFF(position), bytes);
}

void mpq_touch_ahead(struct mpq_queue *queue, const struct mpq_claim *claim)
{
    struct mpq_segment *segment = claim->segment;
    if (MPQ_LIKELY(claim->offset + TOUCH_BYTES / 2 <= segment->touched) ||
        mpq_visible_is_durable(queue))
        return;
    const uint64_t from = mpq_max64(segment->touched, claim->offset) & ~(uint64_t)(MPQ_PAGE - 1);
    const uint64_t to = mpq_min64(from + TOUCH_BYTES, segment->bytes);
#ifdef MADV_POPULATE_WRITE
    if (to > from)
        (void)queue->io->advise(queue->io, segment->base + from, to - from, MADV_POPULATE_WRITE);
#endif
    segment->touched = mpq_max64(to, from + TOUCH_BYTES);
}

static void write_pad(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t offset,
                      uint64_t seq)
{
    if (offset < MPQ_SEGMENT_FIRST || segment->bytes < offset + MPQ_FRAME_HEADER)
        return;
    struct mpq_frame pad = {
        .state = MPQ_STATE(queue->incarnation, MPQ_PAD),
        .seq = seq,
        .length = (uint32_t)(segment->bytes - offset - MPQ_FRAME_HEADER),
        .flags = MPQ_FLAG_PAD,
    };
    mpq_frame_header_write(queue, segment, offset, &pad);
}

static void enter_segment(struct mpq_queue *queue, struct mpq_segment *segment,
                          const struct mpq_tail_now *tail, uint64_t now_ns)
{
    struct mpq_roll record;
    memset(&record, 0, sizeof record);
    record.base_seq = tail->next_seq;
    record.epoch = queue->control->epoch;
    record.previous_end = tail->position;
    record.previous_seq = mpq_walked_end(queue->control, tail->next_seq);
    record.durable_position = mpq_load(queue->control->durable_position);
    record.entered_at = now_ns;
    mpq_roll_write(queue, segment, &record);
}

/* Where the claim goes. MPQ_AGAIN with claim->need when something must be made first. */
static mpq_status place(struct mpq_queue *queue, const struct mpq_tail_now *tail, uint64_t bytes,
                        struct mpq_claim *claim, uint64_t generations[ENTER_MAX + 1])
{
    const uint64_t generation = MPQ_POSITION_GEN(tail->position);
    const uint64_t offset = MPQ_POSITION_OFF(tail->position);
    generations[0] = 0;
    if (offset >= MPQ_SEGMENT_FIRST) {
        struct mpq_segment *segment = mpq_segment_mapped(queue, generation);
        if (segment == NULL) {
            claim->need_generation = generation;
            return MPQ_AGAIN;
        }
        if (offset + bytes <= segment->bytes) {
            claim->segment = segment;
            claim->offset = offset;
            return MPQ_OK;
        }
    }
    /* Roll: into the next segment, or over it when the item needs one of its own size. */
    uint64_t need = MPQ_SEGMENT_FIRST + bytes;
    need = need <= queue->segment_size ? queue->segment_size
                                       : (need + MPQ_PAGE - 1) & ~(uint64_t)(MPQ_PAGE - 1);
    for (unsigned i = 0; i < ENTER_MAX; i++) {
        uint64_t next = generation + 1 + i;
        if (!mpq_ring_ready(queue, next)) {
            claim->need = MPQ_NEED_SEGMENT;
            claim->need_generation = next;
            claim->need_bytes = need;
            return MPQ_AGAIN;
        }
        struct mpq_segment *segment = mpq_segment_mapped(queue, next);
        if (segment == NULL) {
            claim->need_generation = next;
            return MPQ_AGAIN;
        }
        generations[i] = next;
        generations[i + 1] = 0;
        if (need <= segment->bytes) {
            claim->segment = segment;
            claim->offset = MPQ_SEGMENT_FIRST;
            return MPQ_OK;
        }
    }
    claim->need = MPQ_NEED_LOCK; /* others' large items first */
    return MPQ_AGAIN;
}

static void roll(struct mpq_queue *queue, struct mpq_tail_now *tail, const uint64_t *entered,
                 uint64_t now_ns)
{
    uint64_t generation = MPQ_POSITION_GEN(tail->position);
    struct mpq_segment *left = mpq_segment_mapped(queue, generation);
    if (left != NULL)
        write_pad(queue, left, MPQ_POSITION_OFF(tail->position), tail->next_seq);
    for (unsigned i = 0; entered[i] != 0; i++) {
        struct mpq_segment *segment = mpq_segment_mapped(queue, entered[i]);
        enter_segment(queue, segment, tail, now_ns);
        tail->position = MPQ_POSITION(entered[i], MPQ_SEGMENT_FIRST);
        if (entered[i + 1] != 0)
            write_pad(queue, segment, MPQ_SEGMENT_FIRST, tail->next_seq);
    }
}

static void write_headers(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                          const struct mpq_claim *claim, uint64_t seq)
{
    uint64_t offset = claim->offset;
    for (uint32_t i = 0; i < count; i++) {
        struct mpq_frame header = {
            .state = MPQ_STATE(queue->incarnation, MPQ_CLAIMED),
            .seq = seq + i,
            .length = items[i].length,
            .ext_length = items[i].ext_length,
            .enqueued_at = claim->enqueued_at,
        };
        if (count > 1)
            header.flags = (uint16_t)(MPQ_FLAG_BATCH | (i == 0 ? MPQ_FLAG_BATCH_FIRST : 0u) |
                                      (i == count - 1 ? MPQ_FLAG_BATCH_LAST : 0u));
        mpq_frame_header_write(queue, claim->segment, offset, &header);
        offset += extent_of(&items[i]);
    }
}

static mpq_status sizes(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                        uint64_t *bytes, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    uint64_t max_item = mpq_load(control->max_item), max_bytes = mpq_load(control->max_bytes);
    uint64_t capacity = mpq_load(control->capacity);
    *bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].length > max_item)
            return mpq_fail(
                error, MPQ_TOO_LARGE,
                "%s: an item of %u bytes can never fit: it is larger than max_item (%llu bytes); "
                "split it or raise max_item",
                queue->path, items[i].length, (unsigned long long)max_item);
        *bytes += extent_of(&items[i]);
    }
    if (max_bytes != 0 && *bytes > max_bytes)
        return mpq_fail(error, MPQ_TOO_LARGE,
                        "%s: %llu bytes (framed) can never fit: max_bytes is %llu; split it or "
                        "raise max_bytes",
                        queue->path, (unsigned long long)*bytes, (unsigned long long)max_bytes);
    if (count > 1 && (count > MPQ_BATCH_MAX || *bytes > queue->segment_size / 2 ||
                      (capacity != 0 && count > capacity)))
        return mpq_fail(
            error, MPQ_TOO_LARGE,
            "%s: a batch of %u items, %llu bytes (framed), is too large: at most %u items, "
            "half a segment (%llu bytes) and capacity; put_many(atomic=False) splits it",
            queue->path, count, (unsigned long long)*bytes, MPQ_BATCH_MAX,
            (unsigned long long)queue->segment_size / 2);
    return MPQ_OK;
}

/* Maps what place() missed; false when it cannot. Leaves the reason in *error. *broken: what is
 * there is no segment as it was prepared, and nobody was seen to enter it. */
static bool map_missing(struct mpq_queue *queue, uint64_t generation, uint64_t *broken,
                        struct mpq_error *error, mpq_status *status)
{
    struct mpq_error local;
    struct mpq_segment *segment = mpq_segment_map(queue, generation, &local);
    const bool ahead = generation > MPQ_POSITION_GEN(mpq_tail_position(queue->control));
    if (segment != NULL && ahead &&
        !mpq_segment_as_made(queue, segment->base, segment->bytes, generation)) {
        mpq_segment_forget(queue, generation);
        *broken = generation;
        return true;
    }
    if (segment != NULL || generation < mpq_load(queue->control->oldest_generation))
        return true; /* or it was drained and reclaimed meanwhile: the tail has moved on */
    if (local.status == MPQ_CORRUPT && ahead && *broken != generation) {
        *broken = generation;
        return true;
    }
    *status = local.status;
    if (local.status == MPQ_CORRUPT)
        *status = local.status = MPQ_REMOVED; /* a segment that claims go to was deleted */
    if (error != NULL)
        *error = local;
    return false;
}

/* Claims go on behind a generation that nobody can enter; the walk meets it, and no seq lay there.
 * Its file is left to reclaim. */
static void pass(struct mpq_queue *queue, struct mpq_tail_now *tail, uint64_t broken,
                 const uint64_t *entered, uint64_t now_ns)
{
    roll(queue, tail, entered, now_ns);
    tail->position = MPQ_POSITION(broken, 0);
    mpq_tail_write(queue->control, tail);
    struct mpq_ring_entry *entry = mpq_ring_at(queue, broken);
    atomic_fetch_or(&entry->bytes, MPQ_RING_DAMAGED);
}

/* A ring may be full of segments that were prepared ahead and are too small for a large item: they
 * are passed without an item (`stuck`), or it would wait for ever for somebody's small one. */
mpq_status mpq_claim_keyed(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                           const struct mpq_lock_wait *wait, struct mpq_guard *guard,
                           struct mpq_claim *claim, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    uint64_t bytes;
    mpq_status status = mpq_control_ours(queue, error);
    if (status == MPQ_OK)
        status = sizes(queue, items, count, &bytes, error);
    if (status != MPQ_OK)
        return status;
    claim->need = MPQ_NEED_NOTHING;
    const uint64_t now_ns = stamp(queue);
    claim->enqueued_at = now_ns;
    uint64_t entered[ENTER_MAX + 1];
    uint64_t broken = 0;
    /* One round a segment that must be mapped first; more only under a racing tail. */
    for (unsigned tries = 0; tries < 2 * ENTER_MAX; tries++) {
        struct mpq_tail_now tail;
        touch_before(queue, bytes);
        if (!mpq_lock_try(queue, wait)) {
            claim->need = MPQ_NEED_LOCK;
            return MPQ_AGAIN;
        }
        status = refused(queue, error);
        if (status == MPQ_OK) {
            if (!mpq_tail_read_proved(control, &tail))
                status = mpq_overwritten(queue, error);
            else if (MPQ_UNLIKELY(claim->keyed != NULL))
                status = mpq_keys_meet(queue, claim);
            if (status == MPQ_OK)
                status = room_left(queue, &tail, count, bytes, error);
            if (status == MPQ_FULL)
                claim->need = MPQ_NEED_ROOM;
        }
        if (status == MPQ_OK && tail.next_seq + count > mpq_load(control->seq_mark)) {
            claim->need = MPQ_NEED_MARK;
            claim->need_generation = MPQ_POSITION_GEN(tail.position);
            status = MPQ_AGAIN;
        }
        if (status == MPQ_OK)
            status = place(queue, &tail, bytes, claim, entered);
        const bool stuck = status == MPQ_AGAIN && claim->need == MPQ_NEED_SEGMENT &&
                           entered[0] != 0 && !mpq_ring_room(queue, claim->need_generation);
        if (stuck) {
            roll(queue, &tail, entered, now_ns);
            mpq_tail_write(control, &tail);
        }
        const bool passed = status == MPQ_AGAIN && claim->need == MPQ_NEED_NOTHING && broken != 0 &&
                            claim->need_generation == broken &&
                            broken > MPQ_POSITION_GEN(tail.position);
        if (passed)
            pass(queue, &tail, broken, entered, now_ns);
        if (status != MPQ_OK) {
            mpq_lock_release(queue);
            if (passed)
                continue;
            if (stuck) /* the walk over them moves the floor; it flushes them */
                mpq_wake(queue, &control->items_event, &control->items_waiting);
            if (status != MPQ_AGAIN || claim->need != MPQ_NEED_NOTHING)
                return status;
            if (!map_missing(queue, claim->need_generation, &broken, error, &status))
                return status;
            continue;
        }
        if (MPQ_UNLIKELY(entered[0] != 0))
            roll(queue, &tail, entered, now_ns);
        write_headers(queue, items, count, claim, tail.next_seq);
        claim->first_seq = tail.next_seq;
        tail.position = MPQ_POSITION(claim->segment->generation, claim->offset + bytes);
        tail.next_seq += count;
        tail.items += count;
        tail.bytes += bytes;
        claim->items_after = tail.items;
        mpq_tail_write(control, &tail);
        guard->claimed_state = MPQ_STATE(queue->incarnation, MPQ_CLAIMED);
        guard->claimed_count = count;
        guard->claimed = (_Atomic uint64_t *)(void *)(claim->segment->base + claim->offset);
        if (MPQ_UNLIKELY(claim->keyed != NULL))
            mpq_keys_add(queue, claim);
        mpq_lock_release(queue);
        claim->bytes = bytes;
        claim->past_half = claim->offset + bytes > claim->segment->bytes / 2;
        return MPQ_OK;
    }
    claim->need = MPQ_NEED_LOCK;
    return MPQ_AGAIN;
}

mpq_status mpq_claim(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                     const struct mpq_lock_wait *wait, struct mpq_guard *guard,
                     struct mpq_claim *claim, struct mpq_error *error)
{
    claim->keyed = NULL;
    return mpq_claim_keyed(queue, items, count, wait, guard, claim, error);
}

void mpq_claim_write(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                     const struct mpq_claim *claim)
{
    uint64_t offset = claim->offset;
    const uint64_t generation = claim->segment->generation;
    for (uint32_t i = 0; i < count; i++) {
        const struct mpq_item_in *item = &items[i];
        struct mpq_frame *frame = (void *)(claim->segment->base + offset);
        uint8_t *body = (uint8_t *)frame + MPQ_FRAME_HEADER;
        if (item->ext_length != 0)
            memcpy(body, item->ext, item->ext_length);
        if (item->length != 0)
            memcpy(body + item->ext_length, item->body, item->length);
        /* Over the destination: the source may change while it is copied. */
        uint64_t seed = mpq_body_seed(mpq_header_seed(queue->hash_seed, generation, offset),
                                      claim->first_seq + i);
        frame->body_hash = mpq_xxh64(body, (size_t)item->ext_length + item->length, seed);
        offset += extent_of(item);
    }
}

mpq_status mpq_claim_publish(struct mpq_queue *queue, const struct mpq_item_in *items,
                             uint32_t count, const struct mpq_claim *claim, struct mpq_error *error)
{
    uint64_t offset = claim->offset;
    for (uint32_t i = 0; i < count; i++)
        offset += extent_of(&items[i]);
    /* Last to first: the first READY shows all of a batch. */
    for (uint32_t i = count; i-- > 0;) {
        offset -= extent_of(&items[i]);
        struct mpq_frame *frame = (void *)(claim->segment->base + offset);
        uint64_t expected = MPQ_STATE(queue->incarnation, MPQ_CLAIMED);
        /* SYNC publish: release here, acquire in load_header of frame.c. Sequentially consistent
         * for the waiters flag that mpq_wake looks at next. */
        if (!atomic_compare_exchange_strong(mpq_state_of(frame), &expected,
                                            MPQ_STATE(queue->incarnation, MPQ_READY))) {
            mpq_store(queue->control->fault, 1);
            return mpq_fail(error, MPQ_INTERNAL,
                            "%s: seq %llu was settled by somebody else while its producer lived",
                            queue->path, (unsigned long long)(claim->first_seq + i));
        }
    }
    return MPQ_OK;
}
