/* recover.c - opening alone: can control be trusted?
 *
 * Nobody else lives (the range of members' bytes is held), so every incarnation is dead. Control is
 * the truth when it is of this boot and of this very queue, its records agree with their checks, no
 * newer segment holds items and nothing behind its tail validates. Then the page cache holds
 * everything that was ever stored and there is nothing to scan. Otherwise rebuild.c makes it anew.
 * I1 whatever is concluded is durable before anybody is let in. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "aside.h"

/* ---- the directory */

static int collect(void *argument, const char *name)
{
    struct mpq_generations *found = argument;
    uint64_t generation;
    if (!mpq_segment_parse(name, &generation))
        return 0;
    if (found->count == found->room) {
        uint32_t room = found->room == 0 ? 64 : found->room * 2;
        uint64_t *grown = found->io->alloc(found->io, (size_t)room * 8);
        if (grown == NULL) {
            found->failed = true;
            return 1;
        }
        if (found->count != 0)
            memcpy(grown, found->list, (size_t)found->count * 8);
        found->io->free(found->io, found->list);
        found->list = grown;
        found->room = room;
    }
    found->list[found->count++] = generation;
    return 0;
}

static int ascending(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

mpq_status mpq_generations_find(struct mpq_queue *queue, struct mpq_generations *found,
                                struct mpq_error *error)
{
    memset(found, 0, sizeof *found);
    found->io = queue->io;
    int rc = queue->io->list(queue->io, queue->dirfd, collect, found);
    if (found->failed)
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    if (rc != 0)
        return mpq_fail_errno(error, "%s: cannot list the directory", queue->path);
    if (found->count > 1)
        qsort(found->list, found->count, sizeof *found->list, ascending);
    return MPQ_OK;
}

static int sweep_name(void *argument, const char *name)
{
    struct mpq_queue *queue = argument;
    if (strncmp(name, "preparing-", 10) == 0 || strncmp(name, "making-", 7) == 0 ||
        strcmp(name, "keys-new") == 0)
        (void)queue->io->unlink(queue->io, queue->dirfd, name);
    return 0;
}

void mpq_sweep_segments(struct mpq_queue *queue, const struct mpq_generations *found,
                        uint64_t oldest)
{
    uint32_t keep = mpq_load(queue->control->keep_segments);
    for (uint32_t i = found->count; i-- > 0;) {
        const uint64_t generation = found->list[i];
        if (generation >= oldest)
            continue;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        struct stat now;
        if (keep > 0 && oldest - generation <= 64 &&
            queue->io->stat(queue->io, queue->dirfd, name, &now) == 0 &&
            (uint64_t)now.st_size == queue->segment_size) {
            struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
            mpq_store(entry->generation, generation);
            mpq_store(entry->bytes, queue->segment_size);
            atomic_store(&entry->state, MPQ_STATE(0, MPQ_RING_KEPT));
            keep--;
        } else if (queue->io->unlink(queue->io, queue->dirfd, name) != 0) {
            (void)mpq_set_aside(queue, generation);
        }
    }
}

/* ---- is control fresh? */

static bool identity_holds(const struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                           const struct mpq_control *head, uint64_t file_bytes, const char *boot_id)
{
    return head->magic == MPQ_CONTROL_MAGIC && head->version == MPQ_FORMAT_VERSION &&
           head->identity_hash == mpq_xxh64(head, offsetof(struct mpq_control, identity_hash), 0) &&
           memcmp(head->uuid, meta->uuid, 16) == 0 && head->meta_inode == queue->meta_inode &&
           head->meta_device == queue->meta_device && meta->inode == queue->meta_inode &&
           meta->device == queue->meta_device &&
           strncmp(head->boot_id, boot_id, sizeof head->boot_id) == 0 &&
           head->total_bytes == mpq_control_bytes(&meta->options) &&
           head->total_bytes <= file_bytes && head->ring_entries == MPQ_RING &&
           head->epoch == meta->epoch;
}

static bool has_item(struct mpq_queue *queue, uint64_t generation, uint64_t offset,
                     uint64_t min_seq)
{
    struct mpq_seen seen;
    struct mpq_segment *segment = mpq_segment_map(queue, generation, NULL);
    if (segment == NULL)
        return false;
    for (;;) {
        offset = mpq_frame_scan(queue, segment, offset, segment->bytes, min_seq, false, &seen);
        if (offset == 0)
            return false;
        if (seen.code != MPQ_GAP)
            return true;
        offset += MPQ_FRAME_ALIGN;
    }
}

/* active_gone: the file that the tail lies in is missing or too short; control is the truth all the
 * same, and proves what was in it. */
static bool proved_fresh(struct mpq_queue *queue, const struct mpq_generations *found,
                         bool *active_gone)
{
    struct mpq_control *control = queue->control;
    if (!mpq_tail_proved(control) || !mpq_consumer_proved(control) || mpq_load(control->fault) != 0)
        return false;
    const struct mpq_tail_now tail = mpq_tail_read(control);
    const struct mpq_consumer_now consumer = mpq_consumer_read(control);
    const uint64_t active = MPQ_POSITION_GEN(tail.position);
    if (consumer.floor > tail.next_seq || consumer.floor_position > tail.position ||
        mpq_load(control->next_incarnation) > MPQ_INCARNATION_MAX / 2)
        return false;
    bool there = MPQ_POSITION_OFF(tail.position) < MPQ_SEGMENT_FIRST;
    for (uint32_t i = 0; i < found->count; i++) {
        if (found->list[i] == active) {
            struct mpq_error error;
            const struct mpq_segment *segment = mpq_segment_map(queue, active, &error);
            if (segment == NULL && error.status != MPQ_CORRUPT)
                return false; /* it cannot be looked at now */
            there |= segment != NULL && segment->bytes >= MPQ_POSITION_OFF(tail.position);
        }
        if (found->list[i] > active &&
            has_item(queue, found->list[i], MPQ_SEGMENT_FIRST, tail.next_seq))
            return false;
    }
    *active_gone = !there;
    return !there || MPQ_POSITION_OFF(tail.position) < MPQ_SEGMENT_FIRST ||
           !has_item(queue, active, MPQ_POSITION_OFF(tail.position), tail.next_seq);
}

/* ---- (a) control is the truth */

static uint64_t oldest_needed(struct mpq_queue *queue, const struct mpq_generations *found,
                              mpq_status *status, struct mpq_error *error)
{
    uint64_t oldest = MPQ_POSITION_GEN(mpq_consumer_read(queue->control).floor_position);
    uint64_t newest = 0;
    uint8_t *slot = queue->io->alloc(queue->io, MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window));
    int fd = queue->io->open(queue->io, queue->dirfd, "cursor", O_RDWR, 0);
    if (slot == NULL || (fd < 0 && errno != ENOENT))
        *status = mpq_fail_errno(error, "%s: cannot open the cursor file", queue->path);
    for (int i = 0; i < 2 && *status == MPQ_OK; i++) {
        int rc = fd < 0 ? 1 : mpq_cursor_read(queue, fd, i, slot);
        if (rc < 0)
            *status = mpq_fail_errno(error, "%s: cannot read the cursor file", queue->path);
        const struct mpq_cursor_slot *head = (void *)slot;
        oldest = mpq_min64(oldest, rc == 0 ? MPQ_POSITION_GEN(head->floor_position) : 0);
        if (rc == 0 && head->number >= newest) { /* only recovery counts these */
            newest = head->number;
            mpq_store(queue->control->torn_items, head->totals.torn_items);
        }
    }
    if (fd >= 0)
        queue->io->close(queue->io, fd);
    queue->io->free(queue->io, slot);
    /* Files that reclaim had freed before are not needed by anybody. */
    uint64_t was = mpq_load(queue->control->oldest_generation);
    uint64_t floor = MPQ_POSITION_GEN(mpq_consumer_read(queue->control).floor_position);
    if (was <= mpq_max64(floor, 1))
        oldest = mpq_max64(oldest, was);
    while (oldest < floor) { /* the lowest of them that still exists */
        for (uint32_t i = 0; i < found->count; i++)
            if (found->list[i] == oldest)
                return oldest;
        oldest++;
    }
    return mpq_max64(oldest, 1);
}

static void restore_ring(struct mpq_queue *queue, const struct mpq_generations *found,
                         uint64_t oldest)
{
    uint64_t damaged[64];
    uint32_t damaged_count = 0;
    for (uint32_t i = 0; i < MPQ_RING; i++) {
        struct mpq_ring_entry *entry = &queue->ring[i];
        if ((mpq_load(entry->bytes) & MPQ_RING_DAMAGED) != 0 && damaged_count < 64)
            damaged[damaged_count++] = mpq_load(entry->generation);
        mpq_store(entry->state, 0);
        mpq_store(entry->bytes, 0);
    }
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
        struct stat now;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        if (generation < oldest || queue->io->stat(queue->io, queue->dirfd, name, &now) != 0)
            continue;
        uint64_t bytes = (uint64_t)now.st_size;
        for (uint32_t k = 0; k < damaged_count; k++)
            if (damaged[k] == generation)
                bytes |= MPQ_RING_DAMAGED;
        mpq_store(entry->generation, generation);
        mpq_store(entry->bytes, bytes);
        mpq_store(entry->freed_at, 0);
        mpq_store(entry->state, MPQ_STATE(0, MPQ_RING_PREPARED));
    }
}

/* A write-back that failed while nobody had the queue open was told to nobody. */
static mpq_status write_again(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    const struct mpq_tail_now tail = mpq_tail_read(control);
    uint64_t from = mpq_load(control->durable_position);
    const uint64_t floor = mpq_consumer_read(control).floor_position;
    if (from > tail.position || from < floor) {
        from = floor;
        mpq_store(control->durable_position, floor);
    }
    const uint64_t oldest = mpq_load(control->oldest_generation);
    for (uint64_t generation = mpq_max64(MPQ_POSITION_GEN(from), oldest);
         from < tail.position && generation <= MPQ_POSITION_GEN(tail.position); generation++) {
        struct mpq_segment *segment = mpq_segment_map(queue, generation, error);
        if (segment == NULL && error->status == MPQ_CORRUPT)
            continue;
        if (segment == NULL)
            return error->status;
        uint64_t start =
            generation == MPQ_POSITION_GEN(from) ? MPQ_POSITION_OFF(from) & ~4095ULL : 0;
        uint64_t end = generation == MPQ_POSITION_GEN(tail.position)
                           ? mpq_max64(MPQ_POSITION_OFF(tail.position), MPQ_SEGMENT_FIRST)
                           : segment->bytes;
        mpq_redirty(segment, 0, MPQ_SEGMENT_FIRST);
        mpq_redirty(segment, start, end);
        if (queue->io->msync(queue->io, segment->base, end) != 0) {
            int failed = errno;
            mpq_poison(queue, failed, MPQ_STAGE_SEGMENT);
            return MPQ_OK; /* the queue opens, poisoned: reading goes on */
        }
    }
    return MPQ_OK;
}

/* Claims go on behind the missing file; the consumer meets it, and books what it held, by seq. */
static void pass_active(struct mpq_queue *queue, const struct mpq_generations *found)
{
    struct mpq_tail_now tail = mpq_tail_read(queue->control);
    const uint64_t active = MPQ_POSITION_GEN(tail.position);
    for (uint32_t i = 0; i < found->count; i++)
        if (found->list[i] > active) { /* prepared, never entered */
            char name[MPQ_NAME_MAX];
            mpq_segment_name(found->list[i], name);
            if (queue->io->unlink(queue->io, queue->dirfd, name) != 0)
                (void)mpq_set_aside(queue, found->list[i]);
        }
    mpq_segments_forget(queue);
    tail.position = MPQ_POSITION(active + 1, 0);
    mpq_tail_write(queue->control, &tail);
}

/* What was prepared and never entered must be as it was made: the next claims go there. */
static void clear_ahead(struct mpq_queue *queue, const struct mpq_generations *found)
{
    const uint64_t active = MPQ_POSITION_GEN(mpq_tail_read(queue->control).position);
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        if (generation <= active || mpq_segment_intact(queue, generation) != MPQ_INTACT_NO)
            continue;
        mpq_segment_forget(queue, generation);
        (void)mpq_set_aside(queue, generation);
    }
}

static mpq_status trust(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                        const struct mpq_generations *found, bool active_gone,
                        struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    mpq_status status = MPQ_OK;
    uint64_t oldest = oldest_needed(queue, found, &status, error);
    if (status != MPQ_OK)
        return status;
    mpq_store(control->owner, 0);
    mpq_store(control->flush_owner, 0);
    mpq_store(control->consumer, 0);
    mpq_store(control->reserved_items, 0);
    mpq_store(control->reserved_bytes, 0);
    mpq_store(control->blocked_on_claim, 0);
    mpq_store(control->gateless, 0);
    mpq_store(control->gate_device, 0);
    mpq_store(control->gate_inode, 0);
    mpq_store(control->sealed, meta->sealed);
    mpq_store(control->seq_mark, meta->seq_mark);
    mpq_store(control->generation_mark, meta->generation_mark);
    if (meta->poison_errno != 0) { /* else what control says holds: meta may not take writes */
        mpq_store(control->poison_errno, meta->poison_errno);
        mpq_store(control->poison_stage, meta->poison_stage);
    }
    mpq_config_store(control, &meta->options);
    /* At most one member joins in a microsecond, so a number that was damaged is passed as well. */
    mpq_raise_to(&control->next_incarnation,
                 mpq_max64(meta->epoch, queue->io->wall_ns(queue->io) / 1000));
    /* Nobody holds a ticket. */
    mpq_store(control->flush_started, 0);
    mpq_store(control->flush_done, 0);
    mpq_store(control->oldest_generation, oldest);
    mpq_members_clear(queue);
    if (active_gone)
        pass_active(queue, found);
    clear_ahead(queue, found);
    restore_ring(queue, found, oldest);
    /* Where the disk fails, the queue opens poisoned; files stay. */
    struct mpq_error unsaved;
    if (mpq_keys_save(queue, &unsaved) == MPQ_OK)
        mpq_sweep_segments(queue, found, oldest);
    return mpq_visible_is_durable(queue) ? write_again(queue, error) : MPQ_OK;
}

/* ---- deciding */

static mpq_status open_control(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                               const char *boot_id, bool *usable, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    *usable = false;
    int fd = io->open(io, queue->dirfd, "control", O_RDWR, 0);
    if (fd < 0)
        return errno == ENOENT ? MPQ_OK
                               : mpq_fail_errno(error, "%s: cannot open control", queue->path);
    struct stat now;
    struct mpq_control head;
    mpq_status status = MPQ_OK;
    if (io->fstat(io, fd, &now) != 0) {
        status = mpq_fail_errno(error, "%s: cannot look at control", queue->path);
    } else if ((uint64_t)now.st_size >= sizeof head) {
        if (mpq_io_read(io, fd, &head, sizeof head, 0) != 0)
            status = mpq_fail_errno(error, "%s: cannot read control", queue->path);
        else if (identity_holds(queue, meta, &head, (uint64_t)now.st_size, boot_id)) {
            status = mpq_control_map(queue, fd, head.total_bytes, error);
            *usable = status == MPQ_OK;
        }
    }
    io->close(io, fd);
    return status;
}

static mpq_status decide(struct mpq_queue *queue, struct mpq_meta_slot *meta, const char *boot_id,
                         const struct mpq_generations *found, struct mpq_error *error)
{
    bool usable = false;
    mpq_status status = open_control(queue, meta, boot_id, &usable, error);
    if (status != MPQ_OK)
        return status;
    struct mpq_rebuild_how how = {.poisoned = meta->poison_errno != 0};
    if (usable)
        how.poisoned |= mpq_load(queue->control->poison_errno) != 0;
    bool active_gone = false;
    const bool fresh = usable && proved_fresh(queue, found, &active_gone);
    (void)queue->io->list(queue->io, queue->dirfd, sweep_name, queue);
    if (fresh && !how.poisoned)
        return trust(queue, meta, found, active_gone, error);
    mpq_segments_forget(queue);
    mpq_control_unmap(queue);
    struct mpq_repair report;
    status = mpq_rebuild(queue, meta, boot_id, &how, &report, error);
    if (status == MPQ_FLUSH_FAILED && fresh) {
        /* The disk still fails: the queue opens as it was, poisoned. */
        status = open_control(queue, meta, boot_id, &usable, error);
        if (status == MPQ_OK)
            status = trust(queue, meta, found, active_gone, error);
    }
    return status;
}

/* The guard holds nothing but what is given back here: the caller's gate is not lost in a jump. */
static mpq_status decide_guarded(struct mpq_queue *queue, struct mpq_meta_slot *meta,
                                 const char *boot_id, const struct mpq_generations *found,
                                 struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, queue, error);
    MPQ_GUARD_ARM(&guard);
    mpq_status status = decide(queue, meta, boot_id, found, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

mpq_status mpq_recover(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_meta_slot meta;
    char boot_id[40];
    mpq_status status = mpq_meta_read(queue, &meta, error);
    if (status != MPQ_OK)
        return status;
    if (queue->io->boot_id(queue->io, boot_id) != 0)
        return mpq_fail_errno(error, "%s: cannot read the kernel's boot id", queue->path);
    struct mpq_generations found;
    status = mpq_generations_find(queue, &found, error);
    if (status == MPQ_OK)
        status = decide_guarded(queue, &meta, boot_id, &found, error);
    queue->io->free(queue->io, found.list);
    return status;
}
