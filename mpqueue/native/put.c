/* put.c - the producer's calls: claim, write, publish; then what the durability policy asks for.
 *
 * A try call holds queue->mutex from the claim to the publication of small items. Large ones are
 * copied with the mutex released: their frame is theirs alone, and the segment is referenced. */
#include "internal.h"

#define COPY_UNLOCKED_BYTES (64u * 1024u)

static void count_in(struct mpq_queue *queue, uint64_t items, uint64_t bytes)
{
    struct mpq_member *me = queue->me;
    if (MPQ_UNLIKELY(queue->me_shared)) {
        atomic_fetch_add_explicit(&me->enqueued_items, items, memory_order_relaxed);
        atomic_fetch_add_explicit(&me->enqueued_bytes, bytes, memory_order_relaxed);
        return;
    }
    mpq_bump(me->enqueued_items, items);
    mpq_bump(me->enqueued_bytes, bytes);
}

struct once {
    struct mpq_claim claim;
    uint64_t ticket;
    bool prepare; /* the next segment is due and nobody works on it */
};

static bool preparation_due(const struct mpq_queue *queue)
{
    uint64_t generation = MPQ_POSITION_GEN(mpq_tail_position(queue->control)) + 1;
    const struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    return !mpq_ring_ready(queue, generation) &&
           MPQ_STATE_CODE(mpq_load(entry->state)) != MPQ_RING_PREPARING &&
           mpq_ring_room(queue, generation);
}

static void published(struct mpq_queue *queue, struct once *once)
{
    struct mpq_control *control = queue->control;
    if (!mpq_visible_is_durable(queue))
        mpq_wake(queue, &control->items_event, &control->items_waiting);
    mpq_touch_ahead(queue, &once->claim);
    once->ticket = mpq_flush_ticket(queue, once->claim.items_after);
    once->prepare = once->ticket == 0 && once->claim.past_half && preparation_due(queue);
}

/* One attempt, nothing waited for. */
static mpq_status put_once(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                           const struct mpq_lock_wait *wait, struct once *once,
                           struct mpq_error *error)
{
    struct mpq_guard guard;
    struct mpq_segment *volatile unlocked = NULL; /* copied to with the mutex released */
    volatile bool held = true;
    mpq_mutex_lock(&queue->mutex);
    if (MPQ_UNLIKELY(atomic_load_explicit(&queue->closing, memory_order_relaxed) != 0)) {
        mpq_mutex_unlock(&queue->mutex);
        return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
    mpq_guard_push(&guard);
    mpq_status status;
    if (MPQ_UNLIKELY(sigsetjmp(guard.jump, 0) != 0)) {
        status = mpq_guard_recover(&guard, queue, error);
    } else {
        MPQ_GUARD_ARM(&guard);
        status = mpq_claim_keyed(queue, items, count, wait, &guard, &once->claim, error);
        if (status == MPQ_OK) {
            const uint64_t bytes = once->claim.bytes;
            queue->published = true;
            if (MPQ_UNLIKELY(bytes > COPY_UNLOCKED_BYTES)) {
                unlocked = once->claim.segment;
                mpq_segment_retain(unlocked);
                atomic_fetch_add(&queue->inflight, 1); /* close waits for the copy */
                held = false;
                mpq_mutex_unlock(&queue->mutex);
            }
            mpq_claim_write(queue, items, count, &once->claim);
            status = mpq_claim_publish(queue, items, count, &once->claim, error);
            guard.claimed = NULL;
            if (status == MPQ_OK) {
                if (MPQ_UNLIKELY(!held)) {
                    mpq_mutex_lock(&queue->mutex);
                    held = true;
                }
                count_in(queue, count, bytes);
                published(queue, once);
            }
        }
        MPQ_GUARD_DROP(&guard);
    }
    if (MPQ_LIKELY(held))
        mpq_mutex_unlock(&queue->mutex);
    if (MPQ_UNLIKELY(unlocked != NULL)) {
        mpq_segment_release(unlocked);
        atomic_fetch_sub(&queue->inflight, 1);
    }
    return status;
}

/* Nothing is left to claim: all of it had been accepted before, but may not be durable yet. */
static mpq_status known_once(struct mpq_queue *queue, struct once *once, struct mpq_error *error)
{
    const struct mpq_keyed *keyed = once->claim.keyed;
    struct mpq_guard guard;
    mpq_status status = MPQ_OK;
    mpq_mutex_lock(&queue->mutex);
    if (atomic_load(&queue->closing) != 0) {
        mpq_mutex_unlock(&queue->mutex);
        return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0) {
        status = mpq_guard_recover(&guard, queue, error);
    } else {
        MPQ_GUARD_ARM(&guard);
        once->claim.first_seq = 0;
        once->prepare = false;
        once->ticket = 0;
        if (keyed->newest != 0)
            once->ticket = mpq_flush_ticket(queue, mpq_tail_read(queue->control).items);
        mpq_count_duplicates(queue, keyed);
        MPQ_GUARD_DROP(&guard);
    }
    mpq_mutex_unlock(&queue->mutex);
    return status;
}

/* put_once of what is fresh of a keyed put, whose keys tell what that is. */
static mpq_status keyed_once(struct mpq_queue *queue, struct mpq_keyed *keyed,
                             const struct mpq_lock_wait *wait, struct once *once,
                             struct mpq_error *error)
{
    mpq_status status;
    do {
        once->claim.need = MPQ_NEED_NOTHING;
        status = keyed->fresh_count == 0
                     ? known_once(queue, once, error)
                     : put_once(queue, keyed->fresh, keyed->fresh_count, wait, once, error);
    } while (status == MPQ_AGAIN && once->claim.need == MPQ_NEED_FEWER);
    return status;
}

/* MPQ_FLUSH also when the next segment is to be prepared: that is work outside the lock. */
static mpq_status accepted(const struct once *once, uint64_t *seq, uint64_t *ticket)
{
    *seq = once->claim.first_seq;
    *ticket = once->ticket;
    return once->ticket != 0 || once->prepare ? MPQ_FLUSH : MPQ_OK;
}

static inline mpq_status batch_try(struct mpq_queue *queue, const struct mpq_item_in *items,
                                   uint32_t count, struct mpq_keyed *keyed, uint64_t *first_seq,
                                   uint64_t *ticket, struct mpq_error *error)
{
    if (mpq_forked(queue)) {
        if (atomic_load(&queue->closing) != 0)
            return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
        return MPQ_AGAIN;
    }
    struct once once;
    once.claim.keyed = keyed;
    mpq_status status = keyed != NULL ? keyed_once(queue, keyed, NULL, &once, error)
                                      : put_once(queue, items, count, NULL, &once, error);
    if (MPQ_LIKELY(status == MPQ_OK))
        return accepted(&once, first_seq, ticket);
    return status;
}

mpq_status mpq_put_batch_try(struct mpq_queue *queue, const struct mpq_item_in *items,
                             uint32_t count, uint64_t *first_seq, uint64_t *ticket,
                             struct mpq_error *error)
{
    return batch_try(queue, items, count, NULL, first_seq, ticket, error);
}

mpq_status mpq_put_try(struct mpq_queue *queue, const struct mpq_item_in *item, uint64_t *seq,
                       uint64_t *ticket, struct mpq_error *error)
{
    return mpq_put_batch_try(queue, item, 1, seq, ticket, error);
}

static mpq_status wait_for_room(struct mpq_queue *queue, const struct mpq_call *call,
                                struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    uint64_t before = mpq_load(control->consumer_select);
    uint64_t oldest = mpq_load(control->oldest_generation);
    struct mpq_waiter waiter = mpq_wait_arm(&control->space_event, &control->space_waiting);
    if (atomic_load(&control->consumer_select) != before ||
        mpq_load(control->oldest_generation) != oldest)
        return MPQ_OK;
    mpq_status status = mpq_wait_sleep(queue, &waiter, call, MPQ_SLICE_NS, error);
    if (status == MPQ_OK)
        status = mpq_still_there(queue, error);
    return status;
}

static mpq_status batch_put(struct mpq_queue *queue, const struct mpq_item_in *items,
                            uint32_t count, struct mpq_keyed *keyed, const struct mpq_call *call,
                            uint64_t *first_seq, uint64_t *ticket, struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    struct mpq_lock_wait wait = {0};
    struct once once;
    once.claim.keyed = keyed;
    bool counted_full = false;
    for (;;) {
        status = keyed != NULL ? keyed_once(queue, keyed, &wait, &once, error)
                               : put_once(queue, items, count, &wait, &once, error);
        if (status == MPQ_OK) {
            status = accepted(&once, first_seq, ticket);
            break;
        }
        struct mpq_error full;
        bool is_full = status == MPQ_FULL;
        if (status == MPQ_AGAIN && once.claim.need == MPQ_NEED_SEGMENT) {
            status = mpq_segment_prepare(queue, once.claim.need_generation, once.claim.need_bytes,
                                         call, error);
            is_full = status == MPQ_FULL;
        } else if (status == MPQ_AGAIN && once.claim.need == MPQ_NEED_MARK) {
            struct mpq_tail_now tail; /* a mark lasts: never one out of an overwritten control */
            status = mpq_tail_read_proved(queue->control, &tail)
                         ? mpq_mark_raise(queue, tail.next_seq + 2 * MPQ_SEQ_BLOCK,
                                          once.claim.need_generation + 2, call, error)
                         : mpq_overwritten(queue, error);
        } else if (status == MPQ_AGAIN && once.claim.need == MPQ_NEED_KEY) {
            status = mpq_keys_wait(queue, keyed, call, error);
        } else if (status == MPQ_AGAIN) {
            status = mpq_lock_sleep(queue, &wait, call, error);
        }
        if (is_full) {
            if (error != NULL)
                full = *error;
            if (!counted_full)
                atomic_fetch_add_explicit(&queue->me->full, 1, memory_order_relaxed);
            counted_full = true;
            status = wait_for_room(queue, call, error);
            if (status == MPQ_TIMEOUT) {
                if (error != NULL)
                    *error = full;
                status = MPQ_FULL;
            }
        }
        if (status != MPQ_OK)
            break;
        if (atomic_load(&queue->closing) != 0) {
            status = mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
            break;
        }
    }
    mpq_exit(queue);
    return status;
}

mpq_status mpq_put_batch(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                         const struct mpq_call *call, uint64_t *first_seq, uint64_t *ticket,
                         struct mpq_error *error)
{
    return batch_put(queue, items, count, NULL, call, first_seq, ticket, error);
}

mpq_status mpq_put_keyed(struct mpq_queue *queue, struct mpq_keyed *keyed,
                         const struct mpq_call *call, uint64_t *ticket, struct mpq_error *error)
{
    uint64_t first_seq;
    const mpq_status status =
        call == NULL ? batch_try(queue, NULL, 0, keyed, &first_seq, ticket, error)
                     : batch_put(queue, NULL, 0, keyed, call, &first_seq, ticket, error);
    if (status != MPQ_OK && status != MPQ_FLUSH)
        return status;
    for (uint32_t i = 0; i < keyed->count; i++)
        if (keyed->keys[i].twin != i) {
            keyed->keys[i].seq = keyed->keys[keyed->keys[i].twin].seq;
            keyed->keys[i].duplicate = true;
        }
    return status;
}

mpq_status mpq_put(struct mpq_queue *queue, const struct mpq_item_in *item,
                   const struct mpq_call *call, uint64_t *seq, uint64_t *ticket,
                   struct mpq_error *error)
{
    return mpq_put_batch(queue, item, 1, call, seq, ticket, error);
}

uint32_t mpq_batch_fit(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count)
{
    struct mpq_control *control = queue->control;
    uint64_t capacity = mpq_load(control->capacity), max_bytes = mpq_load(control->max_bytes);
    uint64_t most = queue->segment_size / 2;
    if (max_bytes != 0)
        most = mpq_min64(most, max_bytes);
    uint64_t bytes = 0;
    uint32_t fit = 0;
    while (fit < count && fit < MPQ_BATCH_MAX && (capacity == 0 || fit < capacity)) {
        bytes += MPQ_FRAME_EXTENT(items[fit].ext_length, items[fit].length);
        if (bytes > most)
            break;
        fit++;
    }
    return fit == 0 ? 1 : fit;
}

void mpq_count_dropped(struct mpq_queue *queue, uint64_t items)
{
    if (queue->me != NULL)
        atomic_fetch_add_explicit(&queue->me->dropped_items, items, memory_order_relaxed);
}
