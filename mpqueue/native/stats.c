/* stats.c - one snapshot of everything that can be counted, from control (and the directory). */
#include <stdlib.h>

#include "aside.h"

static void add_member(struct mpq_stats *stats, const struct mpq_member *member)
{
    stats->full += mpq_load(member->full);
    stats->waits += mpq_load(member->waits);
    stats->lock_waits += mpq_load(member->lock_waits);
    stats->lock_wait_max_ns =
        mpq_max64(stats->lock_wait_max_ns, mpq_load(member->lock_wait_max_ns));
    stats->flushes += mpq_load(member->flushes);
    stats->flush_ns += mpq_load(member->flush_ns);
    stats->dropped_items += mpq_load(member->dropped_items);
    stats->duplicate_items += mpq_load(member->duplicate_items);
    for (unsigned i = 0; i < MPQ_HISTOGRAM; i++)
        stats->flush_histogram[i] += mpq_load(member->flush_histogram[i]);
}

static uint64_t difference(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void add_members(struct mpq_queue *queue, struct mpq_stats *stats)
{
    struct mpq_control *control = queue->control;
    add_member(stats, &control->retired);
    add_member(stats, &control->shared);
    for (uint32_t i = 0; i < queue->created.max_members; i++) {
        const struct mpq_member *member = &queue->members[i];
        uint64_t incarnation = mpq_load(member->incarnation);
        if (incarnation == 0)
            continue;
        add_member(stats, member);
        stats->members++;
        if (mpq_load(member->role) != 0 && !mpq_dead(queue, incarnation)) {
            stats->members_alive++;
            stats->weak |= mpq_load(member->weak);
        }
    }
}

static void add_segments(struct mpq_queue *queue, struct mpq_stats *stats, uint64_t tail)
{
    struct mpq_control *control = queue->control;
    const uint64_t oldest = mpq_load(control->oldest_generation);
    stats->oldest_generation = oldest;
    stats->tail_generation = tail;
    for (uint64_t generation = oldest; generation - oldest < MPQ_RING && generation <= tail + 1;
         generation++) {
        const struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
        if (!mpq_ring_ready(queue, generation))
            continue;
        stats->segments++;
        stats->disk_bytes += mpq_load(entry->bytes) & ~MPQ_RING_DAMAGED;
    }
    for (uint64_t back = 1; back <= 64 && back <= oldest; back++) {
        const struct mpq_ring_entry *entry = mpq_ring_at(queue, oldest - back);
        if (MPQ_STATE_CODE(mpq_load(entry->state)) == MPQ_RING_KEPT &&
            mpq_load(entry->generation) == oldest - back) {
            stats->kept_segments++;
            stats->disk_bytes += mpq_load(entry->bytes);
        }
    }
    stats->disk_bytes +=
        2 * MPQ_PAGE + queue->control_bytes + 2 * MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
    if (queue->keys != NULL)
        stats->disk_bytes +=
            MPQ_KEY_SLOTS(queue->created.key_window) * sizeof(struct mpq_key_saved);
    stats->capacity_bytes = mpq_load(control->max_bytes);
    if (stats->capacity_bytes == 0)
        stats->capacity_bytes = (uint64_t)(mpq_load(control->max_segments) - 1) *
                                (queue->segment_size - MPQ_SEGMENT_FIRST);
}

static uint64_t oldest_age(struct mpq_queue *queue, uint64_t position, uint64_t seq)
{
    if (MPQ_POSITION_OFF(position) < MPQ_SEGMENT_FIRST)
        position = MPQ_POSITION(mpq_max64(MPQ_POSITION_GEN(position),
                                          mpq_load(queue->control->oldest_generation)),
                                MPQ_SEGMENT_FIRST);
    uint64_t enqueued_at = 0;
    struct mpq_seen seen;
    mpq_guarded_lock(queue);
    for (uint64_t generation = MPQ_POSITION_GEN(position), tries = 0; tries < 2 && enqueued_at == 0;
         generation++, tries++) {
        struct mpq_segment *segment = mpq_segment_map(queue, generation, NULL);
        uint64_t offset = tries == 0 ? MPQ_POSITION_OFF(position) : MPQ_SEGMENT_FIRST;
        if (segment != NULL && mpq_frame_see(queue, segment, offset, seq, &seen) == MPQ_SEE_FRAME &&
            seen.code != MPQ_PAD)
            enqueued_at = seen.header.enqueued_at;
    }
    mpq_guarded_unlock(queue);
    uint64_t now = queue->io->wall_ns(queue->io);
    return enqueued_at != 0 && now > enqueued_at ? now - enqueued_at : 0;
}

/* What a consumer has in hand, and waits for, ended with it: a dead one leaves its gauges. */
static void add_consumer(struct mpq_queue *queue, const struct mpq_consumer_now *consumer,
                         struct mpq_stats *stats)
{
    const struct mpq_control *control = queue->control;
    const uint64_t holder = mpq_load(control->consumer);
    stats->read_seq = consumer->floor;
    if (holder == 0 || mpq_dead(queue, holder))
        return;
    int64_t pid = mpq_pid_of(queue, holder);
    stats->consumer_attached = 1;
    stats->consumer_pid = pid > 0 ? (uint64_t)pid : 0;
    stats->read_seq = mpq_max64(consumer->floor, mpq_load(control->read_seq));
    stats->reserved_items = mpq_load(control->reserved_items);
    stats->reserved_bytes = mpq_load(control->reserved_bytes);
    stats->blocked_on_window = mpq_load(control->blocked_on_window);
    const uint64_t claimant = mpq_load(control->blocked_on_claim);
    pid = claimant != 0 ? mpq_pid_of(queue, claimant) : 0;
    stats->blocked_on_claim_pid = pid > 0 ? (uint64_t)pid : 0;
}

static void fill(struct mpq_queue *queue, struct mpq_stats *stats)
{
    struct mpq_control *control = queue->control;
    /* Consumer first: depth read this way errs upwards, never below zero. */
    const struct mpq_consumer_now consumer = mpq_consumer_read(control);
    const struct mpq_tail_now tail = mpq_tail_read(control);
    const struct mpq_totals *totals = &consumer.totals;
    stats->enqueued_items = tail.items;
    stats->enqueued_bytes = tail.bytes;
    stats->delivered_items = mpq_load(control->delivered_items);
    stats->redelivered_items = mpq_load(control->redelivered_items);
    stats->acked_items = totals->acked_items;
    stats->nacked_items = mpq_load(control->nacked_items);
    stats->expired_leases = mpq_load(control->expired_leases);
    stats->dead_items = mpq_load(control->dead_items);
    stats->gap_items = totals->gap_items;
    stats->skipped_items = totals->skipped_items;
    stats->lost_items = totals->lost_items;
    stats->lost_bytes = totals->lost_bytes;
    stats->lost_segments = mpq_load(control->lost_segments);
    stats->torn_items = mpq_load(control->torn_items);
    stats->settled_items = totals->settled_items;
    stats->settled_bytes = totals->settled_bytes;
    stats->depth = difference(tail.items, totals->settled_items);
    stats->backlog_bytes = difference(tail.bytes, totals->settled_bytes);
    add_consumer(queue, &consumer, stats);
    stats->scheduled_items = tail.scheduled + consumer.scheduled;
    stats->ready_items = difference(stats->depth, stats->reserved_items + stats->scheduled_items);
    /* What is settled is nobody's loss: where acks are in order, this is exact. */
    stats->unsynced_items =
        mpq_min64(stats->depth, difference(tail.items, mpq_load(control->durable_items)));
    stats->unsynced_bytes =
        mpq_min64(stats->backlog_bytes, difference(tail.bytes, mpq_load(control->durable_bytes)));
    stats->floor = consumer.floor;
    stats->next_seq = tail.next_seq;
    stats->epoch = control->epoch;
    stats->floor_lag_items = difference(tail.next_seq, consumer.floor);
    add_segments(queue, stats, MPQ_POSITION_GEN(tail.position));
    stats->segments_made = mpq_load(control->segments_made);
    stats->segments_reused = mpq_load(control->segments_reused);
    stats->segments_removed = mpq_load(control->segments_removed);
    stats->unreclaimed = mpq_load(control->unreclaimed);
    stats->takeovers = mpq_load(control->takeovers);
    stats->cursor_writes = mpq_load(control->cursor_writes);
    stats->loss_events = mpq_load(control->loss_events);
    stats->corrupt_saved = mpq_load(control->corrupt_saved);
    stats->corrupt_skipped = mpq_load(control->corrupt_skipped);
    stats->recoveries = mpq_load(control->recoveries);
    stats->recovered_at_most = mpq_load(control->recovered_at_most);
    if (queue->keys != NULL) {
        stats->keys_remembered = mpq_min64(mpq_load(queue->keys->count), queue->created.key_window);
        stats->keys_damaged = mpq_load(queue->keys->damaged);
    }
    stats->sealed = mpq_load(control->sealed);
    stats->poison_errno = mpq_load(control->poison_errno);
    stats->poison_stage = mpq_load(control->poison_stage);
    stats->fault = mpq_load(control->fault);
    stats->durability = mpq_load(control->durability);
    add_members(queue, stats);
    if (stats->depth != 0)
        stats->oldest_age_ns = oldest_age(queue, consumer.floor_position, consumer.floor);
}

bool mpq_is_ready(const struct mpq_queue *queue)
{
    return !mpq_forked(queue);
}

mpq_status mpq_make_ready(struct mpq_queue *queue, const struct mpq_call *call,
                          struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status == MPQ_OK)
        mpq_exit(queue);
    return status;
}

static bool unusable(struct mpq_queue *queue)
{
    const struct mpq_call call = {UINT64_MAX, NULL, NULL};
    return mpq_enter(queue, &call, NULL) != MPQ_OK;
}

void mpq_stats_get(struct mpq_queue *queue, struct mpq_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    if (unusable(queue)) {
        *stats = queue->last_stats;
        return;
    }
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0) {
        (void)mpq_guard_recover(&guard, queue, NULL);
    } else {
        MPQ_GUARD_ARM(&guard);
        fill(queue, stats);
        MPQ_GUARD_DROP(&guard);
    }
    const uint64_t disk_bytes = mpq_disk_bytes(queue);
    if (disk_bytes != 0) /* else as far as control knows */
        stats->disk_bytes = disk_bytes;
    mpq_exit(queue);
}

uint64_t mpq_depth(struct mpq_queue *queue)
{
    if (unusable(queue))
        return queue->last_stats.depth;
    const struct mpq_consumer_now consumer = mpq_consumer_read(queue->control);
    const struct mpq_tail_now tail = mpq_tail_read(queue->control);
    mpq_exit(queue);
    return difference(tail.items, consumer.totals.settled_items);
}

uint32_t mpq_members(struct mpq_queue *queue, struct mpq_member_info *infos, uint32_t max)
{
    if (unusable(queue))
        return 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < queue->created.max_members; i++) {
        const struct mpq_member *member = &queue->members[i];
        uint64_t incarnation = mpq_load(member->incarnation);
        if (incarnation == 0 || mpq_load(member->role) == 0)
            continue;
        if (count < max) {
            struct mpq_member_info *info = &infos[count];
            info->incarnation = incarnation;
            info->pid = mpq_load(member->pid);
            info->pid_namespace = mpq_load(member->pid_namespace);
            info->start_time = mpq_load(member->start_time);
            info->joined_at = mpq_load(member->joined_at);
            info->enqueued_items = mpq_load(member->enqueued_items);
            info->enqueued_bytes = mpq_load(member->enqueued_bytes);
            info->unsynced_bytes =
                difference(info->enqueued_bytes, mpq_load(member->flushed_bytes));
            info->full = mpq_load(member->full);
            info->dropped_items = mpq_load(member->dropped_items);
            info->waits = mpq_load(member->waits);
            info->lock_waits = mpq_load(member->lock_waits);
            info->lock_wait_max_ns = mpq_load(member->lock_wait_max_ns);
            info->flushes = mpq_load(member->flushes);
            info->flush_ns = mpq_load(member->flush_ns);
            info->role = mpq_load(member->role);
            info->weak = mpq_load(member->weak);
            info->alive = !mpq_dead(queue, incarnation);
            memcpy(info->command, member->command, sizeof info->command);
        }
        count++;
    }
    mpq_exit(queue);
    return count;
}
