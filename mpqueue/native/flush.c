/* flush.c - durability: every flush is the same act, whoever does it and under whatever policy.
 *
 *   take a number (started + 1); snapshot the tail and the contiguous settled prefix; msync
 *   watermark..tail in every segment touched; CAS-max `done`; CAS-max the watermark; wake all.
 *
 * A flush with a number >= t began after everything that was published before t was read, so it
 * wrote it. Leadership is an optimisation: concurrent flushes are redundant, never wrong.
 *
 * I1 the number is taken before the snapshot, the snapshot before msync. I2 threads that share
 * mappings flush one at a time, from the look at poison to the latch: the kernel tells each open
 * file description once. I3 the first flush through a new mapping re-dirties what it covers,
 * because a mapping made after a failed write-back is told nothing.
 * Model: sync_flush.pml. */
#include <stdio.h>
#include <sys/mman.h>

#include "internal.h"

#define PATIENCE_MIN_NS (50 * MPQ_MS)
#define CROWD_PUTS 64

bool mpq_visible_is_durable(const struct mpq_queue *queue)
{
    return mpq_load(queue->control->durability) >= MPQ_DURABILITY_GROUP;
}

static bool interval_due(struct mpq_queue *queue, uint64_t items_after)
{
    struct mpq_control *control = queue->control;
    uint64_t exposed = items_after - mpq_min64(items_after, mpq_load(control->durable_items));
    if (exposed > mpq_load(control->interval_items))
        return true;
    uint64_t now = queue->io->monotonic_ns(queue->io);
    return now - mpq_load(control->flushed_at_ns) > mpq_load(control->interval_ns);
}

uint64_t mpq_flush_ticket(struct mpq_queue *queue, uint64_t items_after)
{
    struct mpq_control *control = queue->control;
    switch (mpq_load(control->durability)) {
    case MPQ_DURABILITY_NONE: return 0;
    case MPQ_DURABILITY_INTERVAL:
        if (!interval_due(queue, items_after))
            return 0;
        break;
    default: break;
    }
    /* Read after the publication (sequentially consistent on both sides). */
    queue->owed_flush = atomic_load(&control->flush_started) + 1;
    return mpq_load(control->durability) == MPQ_DURABILITY_SYNC ? MPQ_TICKET_OWN
                                                                : queue->owed_flush;
}

/* ---- the snapshot */

struct snapshot {
    uint64_t from; /* first position to write */
    uint64_t tail; /* position */
    uint64_t settled; /* position: end of the contiguous settled prefix */
    uint64_t items; /* claimed, less those unsettled */
    uint64_t bytes;
};

static struct mpq_segment *flush_map(struct mpq_queue *queue, uint64_t generation,
                                     struct mpq_error *error)
{
    mpq_guarded_lock(queue);
    struct mpq_segment *segment = mpq_segment_map(queue, generation, error);
    if (segment != NULL)
        mpq_segment_retain(segment);
    mpq_guarded_unlock(queue);
    return segment;
}

static bool gone_below_floor(struct mpq_queue *queue, uint64_t generation)
{
    return generation < mpq_load(queue->control->oldest_generation);
}

/* Walks one segment from *position towards the tail. Counts what is not settled. */
static void walk_segment(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t *position,
                         const struct mpq_tail_now *tail, struct snapshot *snap, bool *contiguous,
                         uint64_t *unsettled, uint64_t *unsettled_bytes)
{
    uint64_t offset = MPQ_POSITION_OFF(*position);
    uint64_t limit = MPQ_POSITION_GEN(tail->position) == segment->generation
                         ? MPQ_POSITION_OFF(tail->position)
                         : segment->bytes;
    uint64_t min_seq = 0;
    while (offset < limit) {
        struct mpq_seen seen;
        enum mpq_sight sight = mpq_frame_see(queue, segment, offset, min_seq, &seen);
        if (sight == MPQ_SEE_END)
            break;
        if (sight == MPQ_SEE_DAMAGE) {
            uint64_t next = mpq_frame_scan(queue, segment, offset + MPQ_FRAME_ALIGN, limit, min_seq,
                                           true, &seen);
            if (next == 0)
                break;
            offset = next;
        }
        if (seen.code == MPQ_CLAIMED) {
            if (*contiguous)
                snap->settled = MPQ_POSITION(segment->generation, offset);
            *contiguous = false;
            *unsettled += 1;
            *unsettled_bytes += seen.extent;
        }
        offset += seen.extent;
        min_seq = seen.header.seq;
    }
    *position = MPQ_POSITION_GEN(tail->position) == segment->generation
                    ? tail->position
                    : MPQ_POSITION(segment->generation + 1, 0);
}

static mpq_status take_snapshot(struct mpq_queue *queue, struct snapshot *snap,
                                struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    struct mpq_tail_now tail;
    if (!mpq_tail_read_proved(control, &tail))
        return mpq_overwritten(queue, error);
    struct mpq_consumer_now consumer = mpq_consumer_read(control);
    uint64_t watermark = atomic_load_explicit(&control->durable_position, memory_order_acquire);
    /* What was acked is settled, but a crash may undo acks that are not durable: it is written too.
     */
    snap->from = watermark;
    snap->tail = tail.position;
    snap->settled = tail.position;
    uint64_t position = mpq_max64(watermark, consumer.floor_position);
    uint64_t unsettled = 0, unsettled_bytes = 0;
    bool contiguous = true;
    while (position < tail.position) {
        uint64_t generation = MPQ_POSITION_GEN(position);
        if (generation == 0 || gone_below_floor(queue, generation)) {
            position = MPQ_POSITION(generation + 1, 0);
            continue;
        }
        if (MPQ_POSITION_OFF(position) < MPQ_SEGMENT_FIRST)
            position = MPQ_POSITION(generation, MPQ_SEGMENT_FIRST);
        struct mpq_segment *segment = flush_map(queue, generation, error);
        if (segment == NULL) {
            if (gone_below_floor(queue, generation) ||
                (error->status == MPQ_CORRUPT && generation < MPQ_POSITION_GEN(tail.position))) {
                position = MPQ_POSITION(generation + 1, 0); /* a lost file cannot be flushed */
                continue;
            }
            return error->status;
        }
        walk_segment(queue, segment, &position, &tail, snap, &contiguous, &unsettled,
                     &unsettled_bytes);
        mpq_segment_release(segment);
    }
    snap->items = tail.items - mpq_min64(unsettled, tail.items);
    snap->bytes = tail.bytes - mpq_min64(unsettled_bytes, tail.bytes);
    return MPQ_OK;
}

/* ---- writing it */

void mpq_redirty(struct mpq_segment *segment, uint64_t from, uint64_t to)
{
    for (uint64_t at = from; at < to; at += MPQ_PAGE)
        atomic_fetch_or_explicit((_Atomic uint64_t *)(void *)(segment->base + at), 0,
                                 memory_order_relaxed);
}

static mpq_status write_segment(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t from,
                                uint64_t to)
{
    const uint64_t host_page = 65536; /* covers every host: msync wants its page, not ours */
    from &= ~(uint64_t)(MPQ_PAGE - 1);
    if (!segment->flushed_before) {
        /* Static headers and roll records too, once per mapping. */
        mpq_redirty(segment, 0, MPQ_SEGMENT_FIRST);
        mpq_redirty(segment, from, to);
        from = 0;
    }
    uint64_t start = from & ~(host_page - 1);
    if (start >= to)
        return MPQ_OK;
    if (queue->io->msync(queue->io, segment->base + start, to - start) != 0)
        return MPQ_FLUSH_FAILED;
    segment->flushed_before = true;
    return MPQ_OK;
}

/* Bytes of a file without its name are on no disk that an opener will find. Reclaim takes names
 * away too, of segments that the floor has passed. */
static mpq_status still_named(struct mpq_queue *queue, const struct mpq_segment *segment,
                              struct mpq_error *error)
{
    char name[MPQ_NAME_MAX];
    struct stat now;
    mpq_segment_name(segment->generation, name);
    const bool there = queue->io->stat(queue->io, queue->dirfd, name, &now) == 0;
    if (!there && errno != ENOENT)
        return mpq_fail_errno(error, "%s: cannot look at %s", queue->path, name);
    if (there && now.st_ino == segment->inode && (uint64_t)now.st_size >= segment->bytes)
        return MPQ_OK;
    if (segment->generation < MPQ_POSITION_GEN(mpq_consumer_read(queue->control).floor_position))
        return MPQ_OK;
    mpq_status status = mpq_still_there(queue, error);
    if (status != MPQ_OK)
        return status;
    mpq_store(queue->removed, 1);
    return mpq_fail(error, MPQ_REMOVED,
                    "%s: %s was deleted, replaced or truncated while the queue was open; close "
                    "every process that has it open, then open it again: what is missing will be "
                    "counted",
                    queue->path, name);
}

static mpq_status write_out(struct mpq_queue *queue, const struct snapshot *snap,
                            struct mpq_error *error)
{
    const uint64_t last = MPQ_POSITION_GEN(snap->tail);
    for (uint64_t generation = MPQ_POSITION_GEN(snap->from); generation <= last; generation++) {
        if (generation == 0 || gone_below_floor(queue, generation))
            continue;
        uint64_t to = generation == last ? MPQ_POSITION_OFF(snap->tail) : UINT64_MAX;
        if (to <= MPQ_SEGMENT_FIRST)
            continue; /* nothing was ever put there */
        struct mpq_segment *segment = flush_map(queue, generation, error);
        if (segment == NULL) {
            if (gone_below_floor(queue, generation) || error->status == MPQ_CORRUPT)
                continue;
            return error->status;
        }
        uint64_t from =
            generation == MPQ_POSITION_GEN(snap->from) ? MPQ_POSITION_OFF(snap->from) : 0;
        mpq_status status = write_segment(queue, segment, from, mpq_min64(to, segment->bytes));
        int failed = errno;
        const mpq_status named = status == MPQ_OK ? still_named(queue, segment, error) : MPQ_OK;
        mpq_segment_release(segment);
        if (named != MPQ_OK)
            return named;
        if (status != MPQ_OK) {
            mpq_poison(queue, failed, MPQ_STAGE_SEGMENT);
            mpq_fail(
                error, MPQ_FLUSH_FAILED,
                "%s: flushing segment %llu failed: %s; the outcome is unknown: what was put last "
                "may or may not survive. The queue refuses further puts until every process "
                "closed it and it was opened again",
                queue->path, (unsigned long long)generation, strerror(failed));
            error->os_errno = failed;
            return MPQ_FLUSH_FAILED;
        }
    }
    return MPQ_OK;
}

static void count_flush(struct mpq_queue *queue, uint64_t took_ns)
{
    struct mpq_control *control = queue->control;
    unsigned bucket = 0;
    while (bucket < MPQ_HISTOGRAM - 1 && took_ns > (16000ULL << bucket))
        bucket++;
    atomic_fetch_add_explicit(&queue->me->flushes, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&queue->me->flush_ns, took_ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&queue->me->flush_histogram[bucket], 1, memory_order_relaxed);
    uint64_t recent = mpq_load(control->flush_recent_ns);
    mpq_store(control->flush_recent_ns, recent == 0 ? took_ns : (recent * 7 + took_ns) / 8);
}

static mpq_status flush_locked(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    if (mpq_load(control->poison_errno) != 0)
        return mpq_poisoned(queue, error);
    mpq_status status = mpq_still_there(queue, error);
    if (status != MPQ_OK)
        return status;
    uint64_t began = queue->io->monotonic_ns(queue->io);
    uint64_t number = atomic_fetch_add(&control->flush_started, 1) + 1;
    struct snapshot snap;
    mpq_members_mark(queue);
    status = take_snapshot(queue, &snap, error);
    if (status == MPQ_OK)
        status = write_out(queue, &snap, error);
    if (status != MPQ_OK)
        return status;
    uint64_t ended = queue->io->monotonic_ns(queue->io);
    mpq_raise_to(&control->flush_done, number);
    mpq_raise_to(&control->durable_items, snap.items);
    mpq_raise_to(&control->durable_bytes, snap.bytes);
    mpq_raise_to(&control->durable_position, snap.settled);
    mpq_raise_to(&control->flushed_at_ns, ended);
    mpq_members_flushed(queue);
    count_flush(queue, ended - began);
    mpq_wake(queue, &control->flush_event, &control->flush_waiting);
    mpq_wake(queue, &control->items_event, &control->items_waiting);
    return MPQ_OK;
}

static mpq_status flush_guarded(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, queue, error);
    MPQ_GUARD_ARM(&guard);
    mpq_status status = flush_locked(queue, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

/* Threads of this process flush in turn: the one before may have served this one too. */
static mpq_status flush_unless_done(struct mpq_queue *queue, uint64_t ticket,
                                    struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    struct mpq_error local;
    mpq_status status = MPQ_OK;
    pthread_mutex_lock(&queue->flush_mutex);
    if (atomic_load(&control->flush_done) < ticket || mpq_load(control->poison_errno) != 0)
        status = flush_guarded(queue, error != NULL ? error : &local);
    pthread_mutex_unlock(&queue->flush_mutex);
    return status;
}

mpq_status mpq_flush_once(struct mpq_queue *queue, struct mpq_error *error)
{
    return flush_unless_done(queue, UINT64_MAX, error);
}

void mpq_flush_if_due(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    if (mpq_load(control->durability) != MPQ_DURABILITY_INTERVAL ||
        mpq_load(control->poison_errno) != 0)
        return;
    const uint64_t items = mpq_tail_read(control).items;
    if (items > mpq_load(control->durable_items) && interval_due(queue, items))
        (void)mpq_flush_once(queue, NULL); /* a failure is latched for whoever puts next */
}

/* ---- tickets */

/* Takes the leadership; a dead leader is replaced. */
static bool lead(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    uint64_t owner = atomic_load(&control->flush_owner);
    if (owner != 0 && !mpq_dead(queue, owner))
        return false;
    return atomic_compare_exchange_strong(&control->flush_owner, &owner, queue->incarnation);
}

static mpq_status lead_flush(struct mpq_queue *queue, uint64_t ticket, struct mpq_error *error)
{
    mpq_status status = flush_unless_done(queue, ticket, error);
    uint64_t mine = queue->incarnation;
    (void)atomic_compare_exchange_strong(&queue->control->flush_owner, &mine, 0);
    mpq_wake(queue, &queue->control->flush_event, &queue->control->flush_waiting);
    return status;
}

/* Are more than two processes pushing? Two flush side by side faster than in turns; from three
 * on, one that flushes for all is. Racing stores only blur the estimate. */
static bool crowded(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    const uint64_t me = queue->incarnation;
    if (mpq_load(control->flush_pair[0]) != me && mpq_load(control->flush_pair[1]) != me) {
        mpq_store(control->flush_pair[mpq_load(control->flush_started) & 1], me);
        mpq_store(control->flush_crowd, CROWD_PUTS);
        return true;
    }
    const uint64_t crowd = mpq_load(control->flush_crowd);
    if (crowd != 0)
        mpq_store(control->flush_crowd, crowd - 1);
    return crowd != 0;
}

static mpq_status wait_ticket(struct mpq_queue *queue, uint64_t ticket, const struct mpq_call *call,
                              struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    const struct mpq_call patient = {UINT64_MAX, call->check, call->arg};
    uint64_t give_up = 0;
    const bool crowd = crowded(queue);
    for (;;) {
        /* SYNC done: acquire here, CAS-max in flush_locked */
        const uint64_t done = atomic_load(&control->flush_done);
        if (done >= ticket && done > atomic_load(&control->flush_started))
            return mpq_overwritten(queue, error);
        if (done >= ticket)
            return mpq_load(control->poison_errno) != 0 ? mpq_poisoned(queue, error) : MPQ_OK;
        if (mpq_load(control->poison_errno) != 0)
            return mpq_poisoned(queue, error);
        mpq_status status;
        if (lead(queue)) {
            status = lead_flush(queue, ticket, error);
        } else if (!crowd) {
            status = flush_unless_done(queue, ticket, error);
        } else {
            uint64_t now = queue->io->monotonic_ns(queue->io);
            uint64_t patience = mpq_max64(PATIENCE_MIN_NS, 4 * mpq_load(control->flush_recent_ns));
            if (give_up == 0)
                give_up = now + patience;
            if (now >= give_up)
                return mpq_flush_once(queue, error); /* the leader is stopped */
            struct mpq_waiter waiter = mpq_wait_arm(&control->flush_event, &control->flush_waiting);
            if (atomic_load(&control->flush_done) >= ticket ||
                atomic_load(&control->flush_owner) == 0)
                continue;
            status =
                mpq_wait_sleep(queue, &waiter, &patient, mpq_min64(patience, MPQ_SLICE_NS), error);
        }
        if (status != MPQ_OK)
            return status;
    }
}

/* What was put is in the queue: its caller must not take another error for "nothing changed". */
static mpq_status outcome_unknown(mpq_status status, struct mpq_error *error)
{
    if (status == MPQ_OK) /* and nothing is in the message */
        return status;
    const size_t used = error != NULL ? strlen(error->message) : 0;
    if (status == MPQ_REMOVED && error != NULL)
        snprintf(error->message + used, sizeof error->message - used,
                 "; what was put last may be lost with it");
    if (status != MPQ_SYSTEM && status != MPQ_MEMORY && status != MPQ_NO_SPACE)
        return status;
    if (error != NULL) {
        snprintf(error->message + used, sizeof error->message - used,
                 "; what was put last is in the queue, but it is not known to be on the disk: "
                 "flush() tries again");
        error->status = MPQ_FLUSH_FAILED;
    }
    return MPQ_FLUSH_FAILED;
}

/* ---- a close meanwhile */

mpq_status mpq_flush_leave(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    const bool owed = queue->owed_flush > atomic_load(&control->flush_done);
    mpq_status status = MPQ_OK;
    int failed = (int)mpq_load(control->poison_errno);
    if (failed == 0 && (owed || (queue->published && !mpq_visible_is_durable(queue)))) {
        status = mpq_load(queue->vanished) != 0 ? mpq_vanished(queue, error)
                                                : mpq_flush_once(queue, error);
        if (status != MPQ_OK)
            failed = (int)mpq_load(control->poison_errno);
        if (status != MPQ_OK && failed == 0)
            failed = EIO;
    }
    /* SYNC parted: before the release of mpq_leave, after which the handle looks like a child's */
    atomic_store(&queue->parted, 1 + (uint32_t)failed);
    return status;
}

/* The handle was closed between a put and its flush. What it put is below the tail of the last
 * flush, which the close makes when nobody else is inside: that one serves. */
static mpq_status flush_of_close(struct mpq_queue *queue, const struct mpq_call *call,
                                 struct mpq_error *error)
{
    mpq_io *io = queue->io;
    uint32_t parted;
    for (;;) { /* control may be gone: mpq_pause is not for here */
        /* SYNC parted: acquire here, release in mpq_leave */
        const bool forked =
            atomic_load_explicit(&queue->fork->incarnation, memory_order_acquire) == 0;
        parted = atomic_load(&queue->parted);
        if (parted != 0 || forked || io->monotonic_ns(io) >= call->deadline_ns)
            break; /* forked: that close is the parent's */
        io->pause(io, MPQ_MS);
        if (call->check != NULL && call->check(call->arg) != 0)
            return MPQ_INTERRUPTED;
    }
    if (parted == 1)
        return MPQ_OK;
    mpq_fail(error, MPQ_FLUSH_FAILED,
             "%s: this handle was closed before the flush of what was put last%s; that is in the "
             "queue, but it is not known to be on the disk: open the queue and flush()",
             queue->path, parted != 0 ? ", and its last flush failed" : "");
    if (error != NULL)
        error->os_errno = parted != 0 ? (int)parted - 1 : EIO;
    return MPQ_FLUSH_FAILED;
}

mpq_status mpq_put_flush(struct mpq_queue *queue, uint64_t ticket, const struct mpq_call *call,
                         struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status == MPQ_CLOSED)
        return ticket == 0 ? MPQ_OK : flush_of_close(queue, call, error);
    if (status != MPQ_OK)
        return status;
    if (ticket == MPQ_TICKET_OWN)
        status = mpq_flush_once(queue, error);
    else if (ticket != 0)
        status = wait_ticket(queue, ticket, call, error);
    status = outcome_unknown(status, error);
    if (status == MPQ_OK) {
        struct mpq_tail_now tail = mpq_tail_read(queue->control);
        uint64_t next = MPQ_POSITION_GEN(tail.position) + 1;
        uint64_t now = queue->io->monotonic_ns(queue->io);
        /* Behind an item larger than a segment, another one may follow: a segment of the usual
         * size would be passed, and take a place of the ring. */
        if (MPQ_POSITION_OFF(tail.position) > queue->segment_size / 2 &&
            MPQ_POSITION_OFF(tail.position) <= queue->segment_size &&
            !mpq_ring_ready(queue, next) && mpq_ring_room(queue, next) &&
            now >= queue->prepare_after_ns) {
            /* Ahead of need, so a failure is nobody's yet: it only holds off the next try. */
            if (mpq_segment_prepare(queue, next, queue->segment_size, call, NULL) != MPQ_OK)
                queue->prepare_after_ns = now + MPQ_SLICE_NS;
        }
    }
    mpq_exit(queue);
    return status;
}

mpq_status mpq_flush(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    status = wait_ticket(queue, atomic_load(&queue->control->flush_started) + 1, call, error);
    struct mpq_consumer *consumer = status == MPQ_OK ? mpq_consumer_hold(queue) : NULL;
    if (consumer != NULL) {
        status = mpq_consumer_sync(consumer, error);
        if (status == MPQ_CLOSED && atomic_load(&queue->closing) == 0)
            status = MPQ_OK; /* another thread closed it meanwhile, which persists acks */
        mpq_consumer_free(consumer);
    }
    mpq_exit(queue);
    return status;
}
