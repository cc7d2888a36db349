/* rebuild_finish.c - a rebuild's conclusions, made durable: segments, meta, cursor, then the name.
 *
 * I2 of rebuild.c is the order of mpq_rebuild_finish. */

#include "aside.h"
#include "rebuild.h"

static mpq_status sync_segments(struct rebuild *r, const struct mpq_generations *found,
                                struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        if (generation < MPQ_POSITION_GEN(r->floor_position) || generation > r->last)
            continue;
        mpq_status status = MPQ_OK;
        struct mpq_segment *segment = mpq_rebuild_map(r, generation, &status, error);
        if (segment == NULL) {
            if (status != MPQ_OK)
                return status;
            continue;
        }
        if (generation == r->last && r->end >= MPQ_SEGMENT_FIRST)
            mpq_rebuild_pad(r, segment, r->end, segment->bytes);
        if (r->how->poisoned)
            mpq_redirty(segment, 0, segment->bytes);
        int rc = queue->io->msync(queue->io, segment->base, segment->bytes);
        int failed = errno;
        mpq_segment_release(segment);
        if (rc != 0) {
            /* The kernel may take these pages for clean now: the next opener is told. */
            mpq_poison(queue, failed, MPQ_STAGE_SEGMENT);
            mpq_fail(error, MPQ_FLUSH_FAILED, "%s: writing segment %llu back failed: %s",
                     queue->path, (unsigned long long)generation, strerror(failed));
            if (error != NULL)
                error->os_errno = failed;
            return MPQ_FLUSH_FAILED;
        }
    }
    return MPQ_OK;
}

static mpq_status write_cursor(struct rebuild *r, const struct mpq_tail_now *tail, uint64_t epoch,
                               struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_io *io = queue->io;
    const uint64_t bytes = MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
    struct mpq_cursor_slot *head = (void *)r->slots[0];
    head->floor = r->floor;
    head->floor_position = r->floor_position;
    head->next_seq = tail->next_seq;
    head->durable_position = tail->position;
    head->epoch = epoch;
    head->written_at = io->wall_ns(io);
    head->totals.torn_items += r->torn;
    head->totals.lost_items += r->lost;
    head->totals.lost_bytes += r->lost_bytes;
    head->totals.settled_items += r->lost;
    head->lost_segments += r->lost_segments;
    head->totals.settled_bytes += r->lost_bytes;
    head->claimed_items = head->durable_items = tail->items;
    head->claimed_bytes = tail->bytes;
    if (r->last != 0 || r->valid != 0)
        head->recoveries++;
    for (int i = 0; i < 2; i++) { /* the older slot first: the newest stays whole meanwhile */
        int slot = i == 0 ? 1 - r->newest_index : r->newest_index;
        head->number++;
        mpq_cursor_seal(queue, r->slots[0]);
        if (mpq_io_write(io, r->cursor_fd, r->slots[0], bytes, (uint64_t)slot * bytes) != 0 ||
            io->datasync(io, r->cursor_fd) != 0)
            return mpq_fail_errno(error, "%s: cannot write the cursor file", queue->path);
    }
    return MPQ_OK;
}

/* What is missing at the end is met by the consumer as a file that is not there: the tail lies
 * behind a generation that never was. */
static struct mpq_tail_now tail_from(const struct rebuild *r, const struct mpq_meta_slot *meta,
                                     const struct mpq_generations *found)
{
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    struct mpq_tail_now tail = {.next_seq = mpq_max64(r->next, 1)};
    if (r->last != 0 && r->missing_end != 0) {
        tail.position = MPQ_POSITION(r->last + 2, 0);
    } else if (r->last != 0) {
        struct mpq_segment *segment = mpq_segment_map(r->queue, r->last, NULL);
        /* Behind the closing padding; without room for one, where the walk itself ends. */
        uint64_t end = r->end;
        if (segment != NULL && r->end + MPQ_FRAME_HEADER <= segment->bytes)
            end = segment->bytes;
        tail.position = MPQ_POSITION(r->last, end);
    } else {
        uint64_t used = mpq_max64(MPQ_POSITION_GEN(r->floor_position), meta->generation_mark - 1);
        if (found->count != 0)
            used = mpq_max64(used, found->list[found->count - 1]);
        tail.position = MPQ_POSITION(used + (r->missing_end != 0 ? 2 : 0), 0);
    }
    if (r->valid != 0)
        tail.next_seq = mpq_max64(tail.next_seq, head->next_seq);
    if (meta->epoch != 0)
        tail.next_seq = mpq_max64(tail.next_seq, meta->seq_mark);
    tail.items = head->totals.settled_items + r->lost + r->unsettled;
    tail.bytes = head->totals.settled_bytes + r->lost_bytes + r->unsettled_bytes;
    return tail;
}

static void fill_control(struct rebuild *r, const struct mpq_meta_slot *meta,
                         const struct mpq_tail_now *tail, uint64_t oldest)
{
    struct mpq_control *control = r->queue->control;
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    struct mpq_consumer_now record = {
        .floor = r->floor, .floor_position = r->floor_position, .totals = head->totals};
    mpq_tail_write(control, tail);
    mpq_consumer_write(control, &record);
    mpq_store(control->sealed, meta->sealed);
    mpq_store(control->seq_mark, meta->seq_mark);
    mpq_store(control->generation_mark, meta->generation_mark);
    mpq_store(control->oldest_generation, oldest);
    mpq_store(control->epoch_first_seq, tail->next_seq);
    mpq_store(control->epoch_previous_seq, mpq_max64(r->next, 1));
    mpq_store(control->delivered_items, head->delivered_items);
    mpq_store(control->redelivered_items, head->redelivered_items);
    mpq_store(control->nacked_items, head->nacked_items);
    mpq_store(control->loss_events, head->loss_events);
    mpq_store(control->lost_segments, head->lost_segments);
    mpq_store(control->retired.full, head->full_items);
    mpq_store(control->retired.dropped_items, head->dropped_items);
    mpq_store(control->expired_leases, head->expired_leases);
    mpq_store(control->dead_items, head->dead_items);
    mpq_store(control->durable_position, tail->position);
    mpq_store(control->durable_items, tail->items);
    mpq_store(control->durable_bytes, tail->bytes);
    mpq_store(control->torn_items, head->totals.torn_items);
    mpq_store(control->flushed_at_ns, r->queue->io->monotonic_ns(r->queue->io));
    mpq_store(control->next_incarnation, meta->epoch);
    mpq_store(control->read_seq, r->floor);
    if (r->last != 0 || r->valid != 0) {
        mpq_store(control->recoveries, head->recoveries);
        mpq_store(control->recovered_at_most, meta->options.durability == MPQ_DURABILITY_INTERVAL
                                                  ? meta->options.interval_items
                                                  : r->torn);
    }
}

/* Files behind the last item hold nothing that was accepted; but only what is well formed is
 * thrown away, and only when nothing is missing: the rest is kept aside. */
static void clear_behind(struct rebuild *r, const struct mpq_generations *found,
                         uint64_t floor_generation)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        if (generation < floor_generation)
            continue;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        struct mpq_segment *segment = mpq_segment_map(queue, generation, NULL);
        struct stat now;
        bool empty = segment == NULL && queue->io->stat(queue->io, queue->dirfd, name, &now) == 0 &&
                     S_ISREG(now.st_mode) && now.st_size == 0;
        bool formed =
            segment != NULL && r->missing_end == 0 &&
            mpq_segment_header_check(queue, segment->base, segment->bytes, generation) == MPQ_OK;
        if (generation <= r->last) {
            if (segment == NULL && !empty)
                r->report->quarantined += mpq_set_aside(queue, generation);
            continue;
        }
        if (formed || empty)
            (void)queue->io->unlink(queue->io, queue->dirfd, name);
        else
            r->report->quarantined += mpq_set_aside(queue, generation);
    }
    mpq_segments_forget(queue);
}

static void ring_from(struct rebuild *r, const struct mpq_generations *found, uint64_t oldest,
                      uint64_t tail_generation)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        struct stat now;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        if (generation < oldest || generation > tail_generation ||
            queue->io->stat(queue->io, queue->dirfd, name, &now) != 0)
            continue;
        struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
        mpq_store(entry->generation, generation);
        mpq_store(entry->bytes, (uint64_t)now.st_size);
        mpq_store(entry->state, MPQ_STATE(0, MPQ_RING_PREPARED));
    }
}

mpq_status mpq_rebuild_finish(struct rebuild *r, struct mpq_meta_slot *meta,
                              const struct mpq_generations *found, struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_io *io = queue->io;
    struct mpq_tail_now tail = tail_from(r, meta, found);
    mpq_status status = sync_segments(r, found, error);
    if (status != MPQ_OK)
        return status;
    const uint64_t floor_generation = MPQ_POSITION_GEN(r->floor_position);
    const uint64_t behind = MPQ_POSITION_GEN(tail.position);
    if (r->last == 0) /* nothing is left: the floor is where the next segment will begin */
        r->floor_position = r->missing_end != 0 ? MPQ_POSITION(behind - 1, 0) : tail.position;
    meta->epoch = queue->control->epoch;
    meta->inode = queue->meta_inode;
    meta->device = queue->meta_device;
    meta->seq_mark = mpq_max64(meta->seq_mark, tail.next_seq + MPQ_SEQ_BLOCK);
    meta->generation_mark = mpq_max64(meta->generation_mark, MPQ_POSITION_GEN(tail.position) + 1);
    meta->poison_errno = meta->poison_stage = 0;
    /* The seq mark first: a second crash must not issue these seqs again. */
    status = mpq_meta_write(queue, meta, error);
    if (status == MPQ_OK)
        status = write_cursor(r, &tail, meta->epoch, error);
    if (status == MPQ_OK && queue->keys != NULL)
        status = mpq_keys_rebuild(r, found, error); /* before any frame goes */
    if (status != MPQ_OK)
        return status;
    uint64_t oldest = r->last == 0 ? behind + 1 : behind;
    if (r->last == 0 && r->missing_end != 0)
        oldest = behind - 1;
    for (uint32_t i = found->count; i-- > 0;)
        if (found->list[i] >= floor_generation && found->list[i] <= r->last)
            oldest = found->list[i];
    /* A missing file at the floor is damage for the consumer to book, not the end of the ring. */
    if (r->last != 0 && floor_generation < oldest && (floor_generation != 0 || r->missing_head))
        oldest = mpq_max64(floor_generation, 1);
    fill_control(r, meta, &tail, oldest);
    clear_behind(r, found, floor_generation);
    ring_from(r, found, oldest, r->last);
    mpq_sweep_segments(queue, found, oldest);
    /* The maker of the directory may not have got so far; puts through this control rely on it. */
    status = mpq_sync_parent(queue, error);
    if (status != MPQ_OK)
        return status;
    if (io->rename(io, queue->dirfd, "control-new", "control") != 0 ||
        io->sync(io, queue->dirfd) != 0)
        return mpq_fail_errno(error, "%s: cannot name the control file", queue->path);
    r->report->torn_items = r->torn;
    r->report->lost_items = r->lost;
    r->report->lost_bytes = r->lost_bytes;
    r->report->rebuilt = 1;
    if (r->torn + r->lost + r->missing_end != 0 || r->last != 0) {
        if (r->lost != 0) {
            queue->event_info.lost_items += r->lost;
            queue->event_info.lost_bytes += r->lost_bytes;
            mpq_event(queue, MPQ_EVENT_LOSS);
        }
        queue->event_info.torn_items = r->torn;
        queue->event_info.recovered_at_most = mpq_load(queue->control->recovered_at_most);
        mpq_event(queue, MPQ_EVENT_RECOVERED);
    }
    return MPQ_OK;
}
