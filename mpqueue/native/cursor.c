/* cursor.c - the durable consumer state, and the helper thread that writes it in time.
 *
 * One write of one slot persists floor, acked window, attempts above 1 and totals; slots alternate.
 * I1 a torn or damaged slot means redelivery, never loss: the other one is older and whole. I2 the
 * snapshot is taken under the mutex that acks hold. I3 a new consumer syncs the file before it
 * writes a slot, and goes on with the slot after the newest valid one. I4 what only one slot has
 * passed is not reclaimed. */
#include <fcntl.h>
#include <stdlib.h>

#include "internal.h"

static uint64_t slot_bytes(const struct mpq_queue *queue)
{
    return MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
}

static uint64_t slot_hash(const struct mpq_queue *queue, uint8_t *slot)
{
    struct mpq_cursor_slot *head = (void *)slot;
    uint64_t kept = head->hash;
    head->hash = 0;
    uint64_t hash = mpq_xxh64(slot, slot_bytes(queue), queue->hash_seed);
    head->hash = kept;
    return hash;
}

void mpq_cursor_seal(struct mpq_queue *queue, uint8_t *slot)
{
    struct mpq_cursor_slot *head = (void *)slot;
    head->magic = MPQ_CURSOR_MAGIC;
    head->version = MPQ_FORMAT_VERSION;
    head->slot_bytes = (uint32_t)slot_bytes(queue);
    memcpy(head->uuid, queue->uuid, 16);
    head->window = queue->created.ack_window;
    head->hash = slot_hash(queue, slot);
}

int mpq_cursor_read(struct mpq_queue *queue, int fd, int index, uint8_t *slot)
{
    const uint64_t bytes = slot_bytes(queue);
    const struct mpq_cursor_slot *head = (void *)slot;
    struct stat now;
    if (queue->io->fstat(queue->io, fd, &now) != 0)
        return -1;
    if ((uint64_t)now.st_size < (uint64_t)(index + 1) * bytes)
        return 1;
    if (mpq_io_read(queue->io, fd, slot, bytes, (uint64_t)index * bytes) != 0)
        return -1;
    return head->magic == MPQ_CURSOR_MAGIC && head->version == MPQ_FORMAT_VERSION &&
                   head->slot_bytes == bytes && memcmp(head->uuid, queue->uuid, 16) == 0 &&
                   head->window == queue->created.ack_window &&
                   head->attempts_count <= MPQ_CURSOR_ATTEMPTS && head->floor <= MPQ_SEQ_MAX &&
                   head->next_seq <= MPQ_SEQ_MAX && head->hash == slot_hash(queue, slot)
               ? 0
               : 1;
}

mpq_status mpq_cursor_open(struct mpq_queue *queue, int *out, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    const uint64_t bytes = 2 * slot_bytes(queue);
    int fd = io->open(io, queue->dirfd, "cursor", O_RDWR, 0);
    if (fd < 0 && errno == ENOENT) /* only who has the role, or is alone, makes it */
        fd = io->open(io, queue->dirfd, "cursor", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot open the cursor file", queue->path);
    struct stat now;
    if (io->fstat(io, fd, &now) != 0)
        goto failed;
    if ((uint64_t)now.st_size < bytes) {
        if (io->chmod(io, fd, queue->created.file_mode) != 0 || io->allocate(io, fd, bytes) != 0 ||
            io->sync(io, fd) != 0 || io->sync(io, queue->dirfd) != 0)
            goto failed;
    } else if (io->datasync(io, fd) != 0) {
        goto failed;
    }
    *out = fd;
    return MPQ_OK;
failed:;
    mpq_status status = mpq_fail_errno(error, "%s: cannot prepare the cursor file", queue->path);
    io->close(io, fd);
    return status;
}

mpq_status mpq_cursor_attach(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_status status = mpq_cursor_open(queue, &consumer->cursor_fd, error);
    if (status != MPQ_OK)
        return status;
    consumer->cursor_id = mpq_fd_id(queue->io, consumer->cursor_fd);
    const struct mpq_cursor_slot *head = (void *)consumer->cursor_buffer;
    int newest = 1;
    for (int i = 0; i < 2; i++) {
        int rc = mpq_cursor_read(queue, consumer->cursor_fd, i, consumer->cursor_buffer);
        if (rc < 0)
            return mpq_fail_errno(error, "%s: cannot read the cursor file", queue->path);
        if (rc != 0)
            continue;
        consumer->slot_floor[i] = head->floor;
        consumer->slot_floor_position[i] = head->floor_position;
        if (head->number >= consumer->cursor_number) {
            consumer->cursor_number = head->number;
            newest = i;
        }
    }
    consumer->cursor_next = 1 - newest;
    /* What was acked before us may be newer than both slots. */
    consumer->cursor_dirty = true;
    return MPQ_OK;
}

/* ---- writing a slot */

static void fill_bitmap(const struct mpq_queue *queue, uint64_t floor, uint32_t *bitmap)
{
    const uint64_t first = floor >> 5;
    for (uint32_t i = 0; i < queue->window_words; i++) {
        const struct mpq_window_word *word = mpq_word_of(queue, (first + i) << 5);
        uint64_t value = mpq_load(word->value);
        bool counts =
            value == ~mpq_load(word->complement) && value >> 32 == ((first + i) & 0xFFFFFFFFu);
        bitmap[i] = counts ? (uint32_t)value : 0;
    }
}

static void fill_attempts(struct mpq_consumer *consumer, struct mpq_cursor_slot *head,
                          struct mpq_cursor_attempt *attempts)
{
    uint32_t count = 0;
    for (uint32_t i = consumer->retried_count; i-- > 0 && count < MPQ_CURSOR_ATTEMPTS;) {
        uint64_t seq = consumer->retried[i];
        if (seq < consumer->record.floor || mpq_acked(consumer->queue, seq))
            continue;
        attempts[count].seq = seq;
        attempts[count].attempts = mpq_attempts_of(consumer->queue, seq);
        count++;
    }
    head->attempts_count = count;
}

/* Moves with every hand-out and return; they change no ack but a counter and attempts. */
static uint64_t moves(const struct mpq_control *control)
{
    return mpq_load(control->delivered_items) + mpq_load(control->nacked_items) +
           mpq_load(control->expired_leases);
}

static void snapshot(struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_control *control = queue->control;
    memset(consumer->cursor_buffer, 0, consumer->cursor_bytes);
    struct mpq_cursor_slot *head = (void *)consumer->cursor_buffer;
    const struct mpq_consumer_now *record = &consumer->record;
    head->number = consumer->cursor_number + 1;
    head->floor = record->floor;
    head->floor_position = record->floor_position;
    const struct mpq_tail_now tail = mpq_tail_read(control);
    head->next_seq = tail.next_seq;
    head->claimed_items = tail.items;
    head->claimed_bytes = tail.bytes;
    /* Unlike the tail it has no check of its own, and what lasts must not promise too much. */
    head->durable_items = mpq_min64(mpq_load(control->durable_items), tail.items);
    head->recoveries = mpq_load(control->recoveries);
    head->durable_position = mpq_load(control->durable_position);
    head->epoch = control->epoch;
    head->written_at = queue->io->wall_ns(queue->io);
    head->totals = record->totals;
    head->totals.torn_items = mpq_load(control->torn_items);
    head->delivered_items = mpq_load(control->delivered_items);
    head->redelivered_items = mpq_load(control->redelivered_items);
    head->nacked_items = mpq_load(control->nacked_items);
    head->loss_events = mpq_load(control->loss_events);
    head->lost_segments = mpq_load(control->lost_segments);
    mpq_members_sum(queue, &head->full_items, &head->dropped_items);
    head->expired_leases = mpq_load(control->expired_leases);
    head->dead_items = mpq_load(control->dead_items);
    consumer->cursor_moves = moves(control);
    uint8_t *at = consumer->cursor_buffer + MPQ_CURSOR_HEADER;
    fill_bitmap(queue, record->floor, (uint32_t *)(void *)at);
    fill_attempts(consumer, head, (void *)(at + queue->created.ack_window / 8));
    mpq_cursor_seal(queue, consumer->cursor_buffer);
}

static mpq_status snapshot_guarded(struct mpq_consumer *consumer, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    mpq_settle_commit(consumer);
    snapshot(consumer);
    consumer->cursor_dirty = false;
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

/* cursor_mutex held */
static mpq_status write_slot(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_io *io = queue->io;
    if (consumer->cursor_fd < 0) /* the role was given back by another thread */
        return mpq_fail(error, MPQ_CLOSED, "%s: this consumer was closed", queue->path);
    if (mpq_load(queue->control->poison_errno) != 0)
        return mpq_poisoned(queue, error);
    mpq_status status = snapshot_guarded(consumer, error);
    if (status == MPQ_OK) /* what was taken from a control that is not ours must not last */
        status = mpq_usable(queue, error);
    if (status != MPQ_OK)
        return status;
    const struct mpq_cursor_slot *head = (void *)consumer->cursor_buffer;
    const int slot = consumer->cursor_next;
    if (!mpq_fd_is(io, consumer->cursor_fd, &consumer->cursor_id)) {
        consumer->cursor_dirty = true;
        errno = EBADF;
        return mpq_fail_errno(error,
                              "%s: cannot write the cursor (acks hold while this machine is up)",
                              queue->path);
    }
    if (mpq_io_write(io, consumer->cursor_fd, consumer->cursor_buffer, consumer->cursor_bytes,
                     (uint64_t)slot * consumer->cursor_bytes) != 0) {
        /* The other slot stands, and the next write takes this one again: nothing is in doubt. */
        consumer->cursor_dirty = true;
        return mpq_fail_errno(error,
                              "%s: writing the cursor failed; acks hold while this machine is up, "
                              "and the next write tries again",
                              queue->path);
    }
    if (io->datasync(io, consumer->cursor_fd) != 0) {
        int failed = errno;
        consumer->cursor_dirty = true;
        mpq_poison(queue, failed, MPQ_STAGE_CURSOR);
        mpq_fail(
            error, MPQ_FLUSH_FAILED,
            "%s: flushing the cursor failed: %s; acks hold while this machine is up, after a power "
            "cut some items may be delivered again. Close every process that has the queue "
            "open and open it again",
            queue->path, strerror(failed));
        if (error != NULL)
            error->os_errno = failed;
        return MPQ_FLUSH_FAILED;
    }
    /* A cursor that no opener will find makes no ack durable. */
    if (mpq_still_there(queue, error) == MPQ_REMOVED)
        return MPQ_REMOVED;
    consumer->cursor_number = head->number;
    consumer->cursor_next = 1 - slot;
    consumer->slot_floor[slot] = head->floor;
    consumer->slot_floor_position[slot] = head->floor_position;
    mpq_store(queue->control->cursor_floor,
              mpq_min64(consumer->slot_floor[0], consumer->slot_floor[1]));
    mpq_bump(queue->control->cursor_writes, 1);
    return MPQ_OK;
}

mpq_status mpq_cursor_write(struct mpq_consumer *consumer, struct mpq_error *error)
{
    pthread_mutex_lock(&consumer->cursor_mutex);
    mpq_status status = write_slot(consumer, error);
    pthread_mutex_unlock(&consumer->cursor_mutex);
    return status;
}

static mpq_status sync_inside(struct mpq_consumer *consumer, struct mpq_error *error)
{
    mpq_status status = MPQ_OK;
    pthread_mutex_lock(&consumer->cursor_mutex);
    /* A write that began after our acks has covered them. */
    mpq_mutex_lock(&consumer->mutex);
    bool dirty = consumer->cursor_dirty || consumer->record_open || consumer->record_changed ||
                 consumer->cursor_moves != moves(consumer->queue->control);
    mpq_mutex_unlock(&consumer->mutex);
    if (dirty)
        status = write_slot(consumer, error);
    pthread_mutex_unlock(&consumer->cursor_mutex);
    return status;
}

mpq_status mpq_consumer_sync(struct mpq_consumer *consumer, struct mpq_error *error)
{
    mpq_status status = mpq_consumer_enter(consumer, error);
    if (status != MPQ_OK)
        return status;
    status = sync_inside(consumer, error);
    mpq_exit(consumer->queue);
    return status;
}

mpq_status mpq_cursor_leave(struct mpq_consumer *consumer, struct mpq_error *error)
{
    mpq_status status = mpq_consumer_sync(consumer, error);
    const uint64_t behind =
        mpq_min64(consumer->slot_floor_position[0], consumer->slot_floor_position[1]);
    if (status == MPQ_OK &&
        MPQ_POSITION_GEN(consumer->record.floor_position) > MPQ_POSITION_GEN(behind))
        status = mpq_cursor_write(consumer, error); /* the slot that alone blocks reclaim */
    return status;
}

/* ---- the helper thread: exists only while there are acks to persist or segments to free */

static uint64_t floor_generation(const struct mpq_consumer *consumer)
{
    return MPQ_POSITION_GEN(consumer->record.floor_position);
}

#define LEFT_BEHIND_NS (250 * MPQ_MS)
#define FOREVER_NS (3600000 * MPQ_MS)

/* Retained segments, or files that could not be removed, are looked at again. */
static bool left_behind(const struct mpq_consumer *consumer)
{
    return mpq_load(consumer->queue->control->oldest_generation) < consumer->reclaimed;
}

/* Waits under consumer->mutex; false when the time passed without an event. */
static bool linger(struct mpq_consumer *consumer, uint64_t ns)
{
    mpq_io *io = consumer->queue->io;
    const uint32_t seen = mpq_load(consumer->helper_event);
    consumer->helper_asleep = true;
    mpq_mutex_unlock(&consumer->mutex);
    const bool in_time = io->futex_wait(io, &consumer->helper_event, seen, ns) == 0;
    mpq_mutex_lock(&consumer->mutex);
    consumer->helper_asleep = false;
    return in_time || mpq_load(consumer->helper_event) != seen;
}

static void wake_helper(struct mpq_consumer *consumer)
{
    mpq_bump(consumer->helper_event, 1);
    if (consumer->helper_asleep)
        (void)consumer->queue->io->futex_wake(consumer->queue->io, &consumer->helper_event, 1);
}

static void *helper_main(void *argument)
{
    struct mpq_consumer *consumer = argument;
    struct mpq_queue *queue = consumer->queue;
    mpq_mutex_lock(&consumer->mutex);
    while (!consumer->helper_stop) {
        if (!consumer->helper_wanted && !consumer->helper_reclaim) {
            if (!left_behind(consumer)) {
                (void)linger(consumer, FOREVER_NS);
                continue;
            }
            if (!linger(consumer, LEFT_BEHIND_NS)) {
                mpq_mutex_unlock(&consumer->mutex);
                mpq_reclaim(consumer, false);
                mpq_mutex_lock(&consumer->mutex);
            }
            continue;
        }
        if (!consumer->helper_reclaim) {
            uint64_t end =
                queue->io->monotonic_ns(queue->io) + mpq_load(queue->control->ack_linger_ns);
            for (uint64_t now = end; !consumer->helper_stop && !consumer->helper_reclaim;) {
                now = queue->io->monotonic_ns(queue->io);
                if (now >= end || !linger(consumer, end - now))
                    break;
            }
        }
        if (consumer->helper_stop)
            break;
        bool reclaim = consumer->helper_reclaim;
        consumer->helper_wanted = consumer->helper_reclaim = false;
        mpq_mutex_unlock(&consumer->mutex);
        /* A failed flush is latched as poison, and a failed write leaves the cursor dirty: whoever
         * needs durability next is told. */
        mpq_flush_if_due(queue);
        mpq_status status = mpq_cursor_write(consumer, NULL);
        if (status == MPQ_OK && reclaim)
            status = mpq_cursor_write(consumer, NULL);
        if (status == MPQ_OK && reclaim)
            mpq_reclaim(consumer, false);
        mpq_mutex_lock(&consumer->mutex);
    }
    mpq_mutex_unlock(&consumer->mutex);
    return NULL;
}

static void poke(struct mpq_consumer *consumer, bool reclaim, bool persist)
{
    if ((!reclaim || consumer->helper_reclaim) && (!persist || consumer->helper_wanted))
        return;
    if (consumer->helper_stop || mpq_load(consumer->queue->control->poison_errno) != 0)
        return;
    consumer->helper_wanted |= persist;
    consumer->helper_reclaim |= reclaim;
    if (!consumer->helper_started) {
        mpq_io *queue_io = consumer->queue->io;
        consumer->helper_started =
            queue_io->spawn(queue_io, &consumer->helper, helper_main, consumer) == 0;
        return;
    }
    wake_helper(consumer);
}

void mpq_helper_poke(struct mpq_consumer *consumer)
{
    const uint32_t durability = mpq_load(consumer->queue->control->durability);
    poke(consumer, floor_generation(consumer) > consumer->reclaimed,
         consumer->cursor_dirty &&
             (durability == MPQ_DURABILITY_GROUP || durability == MPQ_DURABILITY_INTERVAL));
}

void mpq_helper_start(struct mpq_consumer *consumer)
{
    mpq_mutex_lock(&consumer->mutex);
    poke(consumer, floor_generation(consumer) > consumer->reclaimed, false);
    mpq_mutex_unlock(&consumer->mutex);
}

void mpq_helper_stop(struct mpq_consumer *consumer)
{
    mpq_mutex_lock(&consumer->mutex);
    consumer->helper_stop = true;
    wake_helper(consumer);
    bool started = consumer->helper_started;
    consumer->helper_started = false;
    mpq_mutex_unlock(&consumer->mutex);
    if (started)
        pthread_join(consumer->helper, NULL);
}
