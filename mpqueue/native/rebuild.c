/* rebuild.c - making control anew from what lasts: meta, cursor and segments.
 *
 * The cursor is read here, the segments are walked (rebuild_walk.c), and what follows is made
 * durable (rebuild_finish.c). A new epoch begins, and its first claim takes a fresh segment.
 *
 * I1 nothing that could not be read is destroyed. I2 conclusions are durable before the new control
 * gets its name: a kill anywhere, or a second crash, finds either the old state or the same
 * conclusions. I3 next seq is above everything that was walked and above every mark. */
#include <fcntl.h>

#include "rebuild.h"

struct mpq_segment *mpq_rebuild_map(struct rebuild *r, uint64_t generation, mpq_status *status,
                                    struct mpq_error *error)
{
    struct mpq_error local;
    struct mpq_segment *segment = mpq_segment_map(r->queue, generation, &local);
    if (segment == NULL && local.status != MPQ_CORRUPT) {
        if (error != NULL)
            *error = local;
        *status = local.status;
    }
    if (segment != NULL)
        mpq_segment_retain(segment);
    return segment;
}

/* ---- cursor */

static mpq_status load_cursor(struct rebuild *r, struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_status status = MPQ_OK;
    if (r->how->dry) { /* as it is: missing or short is not made good */
        r->cursor_fd = queue->io->open(queue->io, queue->dirfd, "cursor", O_RDWR, 0);
        if (r->cursor_fd < 0 && errno != ENOENT)
            status = mpq_fail_errno(error, "%s: cannot open the cursor file", queue->path);
    } else {
        status = mpq_cursor_open(queue, &r->cursor_fd, error);
    }
    if (status != MPQ_OK)
        return status;
    const uint64_t bytes = MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
    bool holds[2];
    for (int i = 0; i < 2; i++) {
        r->slots[i] = queue->io->alloc(queue->io, bytes);
        if (r->slots[i] == NULL)
            return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
        int rc = r->cursor_fd < 0 ? 1 : mpq_cursor_read(queue, r->cursor_fd, i, r->slots[i]);
        if (rc < 0)
            return mpq_fail_errno(error, "%s: cannot read the cursor file", queue->path);
        holds[i] = rc == 0;
        r->valid += holds[i];
    }
    const struct mpq_cursor_slot *a = (void *)r->slots[0], *b = (void *)r->slots[1];
    r->newest_index = holds[1] && (!holds[0] || b->number > a->number) ? 1 : 0;
    if (r->newest_index == 1) {
        uint8_t *swap = r->slots[0];
        r->slots[0] = r->slots[1];
        r->slots[1] = swap;
    }
    if (r->valid == 0)
        memset(r->slots[0], 0, bytes);
    return MPQ_OK;
}

static void restore_window(struct rebuild *r)
{
    struct mpq_queue *queue = r->queue;
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    const uint32_t *bitmap = (const void *)(r->slots[0] + MPQ_CURSOR_HEADER);
    const uint64_t first = head->floor >> 5;
    for (uint32_t i = 0; r->valid != 0 && i < queue->window_words; i++) {
        struct mpq_window_word *word = mpq_word_of(queue, (first + i) << 5);
        uint64_t value = (first + i) << 32 | bitmap[i];
        mpq_store(word->value, value);
        mpq_store(word->complement, ~value);
    }
    const struct mpq_cursor_attempt *attempts =
        (const void *)(r->slots[0] + MPQ_CURSOR_HEADER + queue->created.ack_window / 8);
    for (uint32_t i = 0; i < head->attempts_count; i++)
        mpq_store(queue->attempts[mpq_place_of(queue, attempts[i].seq)],
                  (attempts[i].seq & ((1ULL << 48) - 1)) << 16 |
                      mpq_min64(attempts[i].attempts, 0xFFFF));
}

/* ---- the whole of it */

static uint64_t new_epoch(struct mpq_queue *queue, const struct mpq_meta_slot *meta)
{
    uint32_t salt = 0;
    (void)queue->io->random(queue->io, &salt, sizeof salt);
    return mpq_max64(meta->epoch + 1 + (salt & 0xFFFFF), queue->io->wall_ns(queue->io) / 1000);
}

static mpq_status conclude(struct rebuild *r, struct mpq_meta_slot *meta, const char *boot_id,
                           const struct mpq_generations *found, struct mpq_error *error)
{
    mpq_status status = load_cursor(r, error);
    if (status == MPQ_OK) {
        restore_window(r);
        if (r->how->dry)
            status = mpq_evidence_acks(r->queue, meta, boot_id, &r->known, error);
    }
    if (status == MPQ_OK) {
        status = mpq_rebuild_walk(r, found, meta, error);
    }
    if (status == MPQ_OK && r->how->dry) {
        r->report->torn_items = r->torn;
        r->report->lost_items = r->lost;
        r->report->lost_bytes = r->lost_bytes;
    } else if (status == MPQ_OK) {
        status = mpq_rebuild_finish(r, meta, found, error);
    }
    r->report->cleared_poison = status == MPQ_OK && r->how->poisoned;
    return status;
}

/* The guard holds nothing but what mpq_rebuild gives back. */
static mpq_status conclude_guarded(struct rebuild *r, struct mpq_meta_slot *meta,
                                   const char *boot_id, const struct mpq_generations *found,
                                   struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, r->queue, error);
    MPQ_GUARD_ARM(&guard);
    mpq_status status = conclude(r, meta, boot_id, found, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

mpq_status mpq_rebuild(struct mpq_queue *queue, struct mpq_meta_slot *meta, const char *boot_id,
                       const struct mpq_rebuild_how *how, struct mpq_repair *report,
                       struct mpq_error *error)
{
    mpq_io *io = queue->io;
    memset(report, 0, sizeof *report);
    struct rebuild *r = io->alloc(io, sizeof *r);
    struct mpq_generations found;
    mpq_status status = mpq_generations_find(queue, &found, error);
    int control_fd = -1;
    if (r == NULL)
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    else
        r->cursor_fd = -1;
    if (status == MPQ_OK) {
        struct mpq_meta_slot next = *meta;
        next.epoch = new_epoch(queue, meta);
        r->queue = queue;
        r->how = how;
        r->report = report;
        status = mpq_evidence_read(queue, meta, boot_id, &r->known, error);
        if (status == MPQ_OK)
            status = mpq_control_make(queue, &next, boot_id, &control_fd, error);
    }
    if (status == MPQ_OK)
        status = conclude_guarded(r, meta, boot_id, &found, error);
    if (status != MPQ_OK || how->dry) {
        mpq_segments_forget(queue);
        mpq_control_unmap(queue);
        (void)io->unlink(io, queue->dirfd, "control-new");
    }
    if (control_fd >= 0)
        io->close(io, control_fd);
    if (r != NULL) {
        if (r->cursor_fd >= 0)
            io->close(io, r->cursor_fd);
        io->free(io, r->slots[0]);
        io->free(io, r->slots[1]);
        io->free(io, r);
    }
    io->free(io, found.list);
    return status;
}
