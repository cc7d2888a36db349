/* watch.c - waiting for something to consume, and clearing what stands in the way.
 *
 * Under sync and group the consumer reads up to the durable watermark, which stands at the first
 * frame that is not settled. Its claimant, or the pusher that should flush it, may have died: then
 * the consumer makes the gap, or the flush, itself. A gap is thus durable before it is passed. */
#include <sched.h>

#include "dead.h"

/* A look takes the tail's line from the producers, so it looks a few times only; then whoever waits
 * for this processor, a producer as a rule, may bring more than one item. An idle consumer does
 * this once a slice. */
#define SPINS 50
#define YIELDS 4
#define OWN_FLUSH_SLICES 3 /* 1 + 2 + 4 ms without progress */

static bool progress_possible(struct mpq_consumer *consumer, bool *pending)
{
    struct mpq_queue *queue = consumer->queue;
    *pending = mpq_tail_read(queue->control).position > consumer->read_position;
    if (consumer->again_count != 0 || consumer->tell || mpq_leases_left(consumer) == 0 ||
        mpq_dead_due(consumer) || mpq_drained(consumer)) /* sealed since the last try */
        return true;
    return mpq_visible_limit(queue) > consumer->read_position && !consumer->blocked_on_claim &&
           !consumer->blocked_on_window;
}

/* *slice: how long to sleep at most. */
static bool look(struct mpq_consumer *consumer, bool *pending, uint32_t *slices, uint64_t *slice)
{
    mpq_mutex_lock(&consumer->mutex);
    /* SYNC wait: `closing` is set before the wake of mpq_bell_stop */
    bool now = atomic_load(&consumer->closing) != 0 || progress_possible(consumer, pending);
    *slices = consumer->idle_slices;
    *slice = mpq_min64(MPQ_SLICE_NS, mpq_leases_left(consumer));
    mpq_mutex_unlock(&consumer->mutex);
    return now;
}

enum head { HEAD_NONE, HEAD_UNSEEN, HEAD_SEEN };

/* The frame at the read position, when it is above the watermark. */
static enum head look_at_head(struct mpq_consumer *consumer, bool map, struct mpq_segment **segment,
                              uint64_t *offset, struct mpq_seen *seen)
{
    struct mpq_queue *queue = consumer->queue;
    const uint64_t position = consumer->read_position;
    const uint64_t generation = MPQ_POSITION_GEN(position);
    struct mpq_error error;
    if (mpq_visible_limit(queue) > position || mpq_tail_read(queue->control).position <= position)
        return HEAD_NONE;
    if (generation < mpq_load(queue->control->oldest_generation))
        return HEAD_UNSEEN;
    *offset = mpq_max64(MPQ_POSITION_OFF(position), MPQ_SEGMENT_FIRST);
    *segment = consumer->segment;
    if (*segment == NULL || (*segment)->generation != generation)
        *segment = map ? mpq_consumer_segment(consumer, generation, &error) : NULL;
    return *segment != NULL && mpq_frame_see(queue, *segment, *offset, consumer->read_seq, seen) ==
                                   MPQ_SEE_FRAME
               ? HEAD_SEEN
               : HEAD_UNSEEN;
}

bool mpq_head_orphaned(struct mpq_consumer *consumer, bool map)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_segment *segment;
    struct mpq_seen seen;
    uint64_t offset;
    if (!mpq_visible_is_durable(queue) || mpq_load(queue->control->poison_errno) != 0)
        return false;
    const enum head head = look_at_head(consumer, map, &segment, &offset, &seen);
    if (head != HEAD_SEEN)
        return head == HEAD_UNSEEN;
    return seen.code == MPQ_GAP || mpq_dead(queue, MPQ_STATE_INC(seen.header.state));
}

/* True: a flush would move the watermark beyond the head. */
static bool settle_head(struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_segment *segment;
    struct mpq_seen seen;
    uint64_t offset;
    const enum head head = look_at_head(consumer, true, &segment, &offset, &seen);
    consumer->claimed_at = 0;
    if (head != HEAD_SEEN || seen.code != MPQ_CLAIMED)
        return head != HEAD_NONE;
    const uint64_t claimant = MPQ_STATE_INC(seen.header.state);
    if (!mpq_dead(queue, claimant)) {
        consumer->claimed_at = consumer->read_position;
        mpq_store(queue->control->blocked_on_claim, claimant);
        return false;
    }
    (void)mpq_gap_frames(queue, segment, offset, &seen);
    return true;
}

static mpq_status clear_the_way(struct mpq_consumer *consumer, bool orphans_only, bool *cleared,
                                struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    *cleared = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    const uint64_t position = consumer->read_position;
    bool flush = (!orphans_only || mpq_head_orphaned(consumer, true)) && settle_head(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    if (!flush || mpq_load(queue->control->poison_errno) != 0)
        return MPQ_OK; /* poisoned: what is durable can still be read */
    status = mpq_flush_once(queue, error);
    *cleared = status == MPQ_OK && mpq_visible_limit(queue) > position;
    return status == MPQ_POISONED ? MPQ_OK : status;
}

static mpq_status wait_inside(struct mpq_consumer *consumer, const struct mpq_call *call,
                              struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_control *control = queue->control;
    bool pending = false, cleared;
    uint32_t slices = 0;
    /* Also in a call that must not wait: what the dead accepted is ready, once it is seen. */
    mpq_status status = clear_the_way(consumer, true, &cleared, error);
    if (status != MPQ_OK || cleared)
        return status;
    mpq_mutex_lock(&consumer->mutex); /* other threads walk */
    const uint64_t walked_to = consumer->limit;
    mpq_mutex_unlock(&consumer->mutex);
    for (int i = 0; i < SPINS + YIELDS && mpq_visible_limit(queue) <= walked_to; i++)
        if (i < SPINS)
            mpq_relax();
        else
            sched_yield();
    struct mpq_waiter waiter = mpq_wait_arm(&control->items_event, &control->items_waiting);
    uint64_t slice;
    if (look(consumer, &pending, &slices, &slice))
        return MPQ_OK;
    if (pending)
        slice = mpq_min64(MPQ_MS << mpq_min64(slices, 7), slice);
    status = mpq_wait_sleep(queue, &waiter, call, slice, error);
    if (status == MPQ_OK) /* a handler may have forked, and this be the child */
        status = mpq_consumer_check(consumer, error);
    if (status != MPQ_OK)
        return status;
    mpq_flush_if_due(queue);
    status = mpq_still_there(queue, error);
    if (status != MPQ_OK || look(consumer, &pending, &slices, &slice))
        return status;
    mpq_mutex_lock(&consumer->mutex);
    consumer->idle_slices = pending ? consumer->idle_slices + 1 : 0;
    mpq_mutex_unlock(&consumer->mutex);
    if (pending && slices >= OWN_FLUSH_SLICES && mpq_visible_is_durable(queue))
        status = clear_the_way(consumer, false, &cleared, error);
    return status;
}

mpq_status mpq_reserve_wait(struct mpq_consumer *consumer, const struct mpq_call *call,
                            struct mpq_error *error)
{
    mpq_status status = mpq_consumer_enter(consumer, error);
    if (status != MPQ_OK)
        return status;
    if (!mpq_dead_run(consumer))
        status = wait_inside(consumer, call, error);
    mpq_exit(consumer->queue);
    return status;
}

mpq_status mpq_checkpoint(struct mpq_consumer *consumer, const struct mpq_call *call,
                          struct mpq_error *error)
{
    mpq_status status = mpq_consumer_enter(consumer, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_flush(consumer->queue, call, error);
    for (int i = 0; i < 2 && status == MPQ_OK; i++)
        status = mpq_cursor_write(consumer, error);
    if (status == MPQ_OK)
        mpq_reclaim(consumer, false);
    mpq_exit(consumer->queue);
    return status;
}
