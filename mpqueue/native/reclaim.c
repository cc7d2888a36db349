/* reclaim.c - giving whole segments back, and recounting.
 *
 * I1 a segment is freed only below the floor of both cursor slots. I2 below the floor there is no
 * claim and no hand-out: every frame is settled. I3 nothing is freed while the queue is poisoned.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "aside.h"

static uint32_t kept_now(const struct mpq_queue *queue, uint64_t oldest)
{
    uint32_t kept = 0;
    for (uint64_t back = 1; back <= 64 && back <= oldest; back++) {
        const struct mpq_ring_entry *entry = mpq_ring_at(queue, oldest - back);
        if (MPQ_STATE_CODE(mpq_load(entry->state)) == MPQ_RING_KEPT &&
            mpq_load(entry->generation) == oldest - back)
            kept++;
    }
    return kept;
}

/* Files that may exist at once: the ring's bound holds for kept ones too. The one in question is
 * among the live, as is one that is prepared ahead. */
static bool may_keep(const struct mpq_queue *queue, uint64_t oldest)
{
    const struct mpq_control *control = queue->control;
    uint32_t kept = kept_now(queue, oldest);
    uint64_t live = MPQ_POSITION_GEN(mpq_tail_read(control).position) + 2 - oldest;
    return kept < mpq_load(control->keep_segments) && kept < 64 &&
           live + kept <= mpq_load(control->max_segments) && !queue->weak;
}

static bool free_segment(struct mpq_queue *queue, uint64_t generation, bool *kept)
{
    struct mpq_control *control = queue->control;
    struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    const uint64_t bytes = mpq_load(entry->bytes);
    const bool known = mpq_load(entry->generation) == generation;
    *kept = known && bytes == queue->segment_size && may_keep(queue, generation);
    if (*kept) {
        atomic_store(&entry->state, MPQ_STATE(0, MPQ_RING_KEPT));
        return true;
    }
    char name[MPQ_NAME_MAX];
    mpq_segment_name(generation, name);
    if (queue->io->unlink(queue->io, queue->dirfd, name) != 0 && errno != ENOENT &&
        (errno != EISDIR || !mpq_set_aside(queue, generation)))
        return false;
    if (known) {
        mpq_store(entry->bytes, 0); /* the file is gone: see mpq_segments_forget_freed */
        atomic_store(&entry->state, MPQ_STATE(0, MPQ_RING_EMPTY));
    }
    atomic_fetch_add_explicit(&control->segments_removed, 1, memory_order_relaxed);
    return true;
}

/* A preparer that stood still before its link may have given the name again after it was freed and
 * before the look that name_file of segment.c takes: either sees what the other did. */
static void free_name_again(struct mpq_queue *queue, uint64_t generation)
{
    char name[MPQ_NAME_MAX];
    mpq_segment_name(generation, name);
    (void)queue->io->unlink(queue->io, queue->dirfd, name);
}

/* retain: acked segments stay for a while, but never make a producer wait. */
static bool retained(struct mpq_queue *queue, uint64_t generation, bool pressed)
{
    struct mpq_control *control = queue->control;
    const uint64_t retain = mpq_load(control->retain_ns);
    if (retain == 0 || pressed || mpq_load(control->space_waiting) != 0)
        return false;
    const uint64_t tail = MPQ_POSITION_GEN(mpq_tail_read(control).position);
    if (tail + 3 - generation >= mpq_load(control->max_segments))
        return false;
    struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    const uint64_t now = queue->io->wall_ns(queue->io);
    if (mpq_load(entry->freed_at) == 0)
        mpq_store(entry->freed_at, now);
    return now - mpq_load(entry->freed_at) < retain;
}

static void reclaim_inside(struct mpq_consumer *consumer, bool pressed)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_control *control = queue->control;
    if (consumer->cursor_fd < 0)
        return; /* another thread gave the role back: it may be another process's by now */
    uint64_t durable =
        mpq_min64(consumer->slot_floor_position[0], consumer->slot_floor_position[1]);
    uint64_t oldest = mpq_load(control->oldest_generation);
    bool moved = false;
    struct mpq_error error;
    while (oldest < MPQ_POSITION_GEN(durable) && !retained(queue, oldest, pressed)) {
        bool kept;
        /* With the frames go their keys: those that are remembered are in a file by then. */
        if (!(moved || mpq_keys_save(queue, &error) == MPQ_OK) ||
            !free_segment(queue, oldest, &kept)) {
            mpq_store(control->unreclaimed, MPQ_POSITION_GEN(durable) - oldest);
            break;
        }
        oldest++;
        atomic_store(&control->oldest_generation, oldest);
        if (!kept)
            free_name_again(queue, oldest - 1);
        mpq_store(control->unreclaimed, 0);
        moved = true;
    }
    mpq_guarded_lock(queue);
    mpq_segments_forget_freed(queue);
    mpq_guarded_unlock(queue);
    mpq_mutex_lock(&consumer->mutex);
    consumer->reclaimed = mpq_max64(consumer->reclaimed, MPQ_POSITION_GEN(durable));
    mpq_mutex_unlock(&consumer->mutex);
    if (moved)
        mpq_wake(queue, &control->space_event, &control->space_waiting);
}

void mpq_reclaim(struct mpq_consumer *consumer, bool pressed)
{
    struct mpq_queue *queue = consumer->queue;
    if (mpq_load(queue->control->poison_errno) != 0 || mpq_usable(queue, NULL) != MPQ_OK)
        return;
    pthread_mutex_lock(&consumer->cursor_mutex);
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0) {
        (void)mpq_guard_recover(&guard, queue, NULL);
    } else {
        MPQ_GUARD_ARM(&guard);
        reclaim_inside(consumer, pressed);
        MPQ_GUARD_DROP(&guard);
    }
    pthread_mutex_unlock(&consumer->cursor_mutex);
}

/* ---- recount */

static void count_segment(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t offset,
                          uint64_t limit, uint64_t *min_seq, uint64_t *items, uint64_t *bytes)
{
    while (offset + MPQ_FRAME_HEADER <= limit) {
        struct mpq_seen seen;
        if (mpq_frame_see(queue, segment, offset, *min_seq, &seen) != MPQ_SEE_FRAME) {
            offset = mpq_frame_scan(queue, segment, offset + MPQ_FRAME_ALIGN, limit, *min_seq, true,
                                    &seen);
            if (offset == 0)
                return;
        }
        if (seen.code != MPQ_PAD) {
            *min_seq = seen.header.seq + 1;
            if (!mpq_acked(queue, seen.header.seq)) {
                ++*items;
                *bytes += seen.extent;
            }
        }
        offset += seen.extent;
    }
}

void mpq_recount(struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_tail_now tail;
    if (!mpq_tail_read_proved(queue->control, &tail))
        return;
    struct mpq_consumer_now *record = &consumer->record;
    uint64_t items = 0, bytes = 0, min_seq = record->floor;
    uint64_t generation = MPQ_POSITION_GEN(record->floor_position);
    const uint64_t oldest = mpq_load(queue->control->oldest_generation);
    for (; generation <= MPQ_POSITION_GEN(tail.position); generation++) {
        if (generation < oldest)
            continue;
        mpq_guarded_lock(queue);
        struct mpq_segment *segment = mpq_segment_map(queue, generation, NULL);
        if (segment != NULL)
            mpq_segment_retain(segment);
        mpq_guarded_unlock(queue);
        if (segment == NULL)
            continue;
        uint64_t offset = generation == MPQ_POSITION_GEN(record->floor_position)
                              ? MPQ_POSITION_OFF(record->floor_position)
                              : MPQ_SEGMENT_FIRST;
        uint64_t limit = generation == MPQ_POSITION_GEN(tail.position)
                             ? MPQ_POSITION_OFF(tail.position)
                             : segment->bytes;
        count_segment(queue, segment, mpq_max64(offset, MPQ_SEGMENT_FIRST), limit, &min_seq, &items,
                      &bytes);
        mpq_segment_release(segment);
    }
    record->totals.settled_items = tail.items - mpq_min64(items, tail.items);
    record->totals.settled_bytes = tail.bytes - mpq_min64(bytes, tail.bytes);
    consumer->record_changed = true;
    mpq_settle_commit(consumer);
}
