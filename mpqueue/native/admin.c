/* admin.c - what an operator does to a queue: options, seal, repair, destroy. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

#define MIB (1024ULL * 1024ULL)

void mpq_options_default(struct mpq_options *options)
{
    memset(options, 0, sizeof *options);
    options->segment_size = 16 * MIB;
    options->max_segments = 64;
    options->keep_segments = 2;
    options->max_item = 64 * MIB;
    options->durability = MPQ_DURABILITY_GROUP;
    options->interval_items = 1000;
    options->interval_ns = 100 * MPQ_MS;
    options->ack_window = 32768;
    options->ack_linger_ns = 10 * MPQ_MS;
    options->max_members = 1024;
    options->file_mode = 0600;
}

#define BOUND(condition, text)                                                                     \
    if (!(condition))                                                                              \
    return mpq_fail(error, MPQ_INVALID, "%s", text)

mpq_status mpq_options_check(const struct mpq_options *o, struct mpq_error *error)
{
    BOUND(o->segment_size >= 64 * 1024 && o->segment_size <= 1024 * MIB &&
              o->segment_size % MPQ_PAGE == 0,
          "segment_size must be a multiple of 4096 from 64 KiB to 1 GiB");
    BOUND(o->max_segments >= 4 && o->max_segments <= MPQ_RING / 2,
          "max_segments must be from 4 to 8192");
    BOUND(o->keep_segments <= 64, "keep_segments must be from 0 to 64");
    BOUND(o->max_bytes == 0 || o->max_bytes >= MPQ_FRAME_EXTENT(0, 1),
          "max_bytes must be at least 64, the frame of the smallest item, or none");
    BOUND(o->max_item >= 1 && o->max_item <= 2048 * MIB, "max_item must be from 1 byte to 2 GiB");
    BOUND(o->durability <= MPQ_DURABILITY_SYNC, "durability must be sync, group, interval or none");
    BOUND(o->interval_items >= 1, "interval_items must be at least 1");
    BOUND(o->ack_window >= 64 && o->ack_window <= (1u << 22) && o->ack_window % 64 == 0,
          "ack_window must be a multiple of 64 from 64 to 4194304");
    BOUND(o->max_members >= 1 && o->max_members <= 65536, "max_members must be from 1 to 65536");
    BOUND(o->backoff_count <= MPQ_BACKOFF_MAX, "backoff takes at most 16 steps");
    BOUND((o->file_mode & ~0777u) == 0 && (o->file_mode & 0600) == 0600,
          "mode must be permission bits with read and write for the owner");
    return MPQ_OK;
}

void mpq_options_get(struct mpq_queue *queue, struct mpq_options *options)
{
    *options = queue->created;
    struct mpq_control *control = queue->control;
    if (control == NULL)
        return;
    options->capacity = mpq_load(control->capacity);
    options->max_bytes = mpq_load(control->max_bytes);
    options->max_item = mpq_load(control->max_item);
    options->interval_ns = mpq_load(control->interval_ns);
    options->ack_linger_ns = mpq_load(control->ack_linger_ns);
    options->retain_ns = mpq_load(control->retain_ns);
    options->lease_timeout_ns = mpq_load(control->lease_timeout_ns);
    options->dead_retain_ns = mpq_load(control->dead_retain_ns);
    options->max_segments = mpq_load(control->max_segments);
    options->keep_segments = mpq_load(control->keep_segments);
    options->interval_items = mpq_load(control->interval_items);
    options->durability = mpq_load(control->durability);
    options->max_attempts = mpq_load(control->max_attempts);
    options->backoff_count = mpq_load(control->backoff_count);
    for (unsigned i = 0; i < MPQ_BACKOFF_MAX; i++)
        options->backoff_ns[i] = mpq_load(control->backoff_ns[i]);
}

static void apply(uint32_t given, const struct mpq_options *from, struct mpq_options *to)
{
#define TAKE(bit, field)                                                                           \
    if ((given & (bit)) != 0)                                                                      \
    to->field = from->field
    TAKE(MPQ_GIVEN_CAPACITY, capacity);
    TAKE(MPQ_GIVEN_MAX_BYTES, max_bytes);
    TAKE(MPQ_GIVEN_MAX_ITEM, max_item);
    TAKE(MPQ_GIVEN_INTERVAL, interval_ns);
    TAKE(MPQ_GIVEN_ACK_LINGER, ack_linger_ns);
    TAKE(MPQ_GIVEN_RETAIN, retain_ns);
    TAKE(MPQ_GIVEN_LEASE_TIMEOUT, lease_timeout_ns);
    TAKE(MPQ_GIVEN_DEAD_RETAIN, dead_retain_ns);
    TAKE(MPQ_GIVEN_MAX_SEGMENTS, max_segments);
    TAKE(MPQ_GIVEN_KEEP_SEGMENTS, keep_segments);
    TAKE(MPQ_GIVEN_INTERVAL_ITEMS, interval_items);
    TAKE(MPQ_GIVEN_DURABILITY, durability);
    TAKE(MPQ_GIVEN_MAX_ATTEMPTS, max_attempts);
#undef TAKE
    if ((given & MPQ_GIVEN_BACKOFF) != 0) {
        to->backoff_count = from->backoff_count;
        memcpy(to->backoff_ns, from->backoff_ns, sizeof to->backoff_ns);
    }
}

struct set_options {
    uint32_t given;
    const struct mpq_options *options;
    struct mpq_options result;
};

/* Waits for the header lock; MPQ_CLOSED when the handle is closed meanwhile. */
static mpq_status lock_wait(struct mpq_queue *queue, const struct mpq_call *call,
                            struct mpq_error *error)
{
    struct mpq_lock_wait wait = {0};
    mpq_status status = MPQ_OK;
    while (status == MPQ_OK && !mpq_lock_try(queue, &wait)) {
        status = mpq_lock_sleep(queue, &wait, call, error);
        if (status == MPQ_OK && atomic_load(&queue->closing) != 0)
            status = mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
    return status;
}

static void set_options(struct mpq_meta_slot *meta, void *arg)
{
    struct set_options *set = arg;
    apply(set->given, set->options, &meta->options);
    set->result = meta->options;
}

mpq_status mpq_options_set(struct mpq_queue *queue, uint32_t given,
                           const struct mpq_options *options, const struct mpq_call *call,
                           struct mpq_error *error)
{
    const uint32_t fixed = MPQ_GIVEN_SEGMENT_SIZE | MPQ_GIVEN_ACK_WINDOW | MPQ_GIVEN_MAX_MEMBERS |
                           MPQ_GIVEN_CODEC | MPQ_GIVEN_MODE;
    if ((given & fixed) != 0)
        return mpq_fail(
            error, MPQ_INVALID,
            "%s: segment_size, ack_window, max_members, codec and mode are fixed when a "
            "queue is made; make another queue",
            queue->path);
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    struct mpq_options checked;
    mpq_options_get(queue, &checked);
    apply(given, options, &checked);
    status = mpq_usable(queue, error);
    if (status == MPQ_OK)
        status = mpq_options_check(&checked, error);
    struct set_options set = {.given = given, .options = options};
    if (status == MPQ_OK)
        status = mpq_meta_update(queue, set_options, &set, call, error);
    if (status == MPQ_OK)
        status = lock_wait(queue, call, error);
    if (status == MPQ_OK) {
        mpq_config_store(queue->control, &set.result);
        mpq_lock_release(queue);
        mpq_wake(queue, &queue->control->space_event, &queue->control->space_waiting);
        mpq_wake(queue, &queue->control->items_event, &queue->control->items_waiting);
        /* What was put under a policy that does not flush is visible under this one when it is. */
        if ((given & MPQ_GIVEN_DURABILITY) != 0 && mpq_visible_is_durable(queue))
            status = mpq_flush(queue, call, error);
    }
    mpq_exit(queue);
    return status;
}

static void set_sealed(struct mpq_meta_slot *meta, void *arg)
{
    meta->sealed = *(const uint32_t *)arg;
}

mpq_status mpq_seal(struct mpq_queue *queue, bool undo, const struct mpq_call *call,
                    struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    uint32_t sealed = undo ? 0 : 1;
    status = mpq_meta_update(queue, set_sealed, &sealed, call, error);
    if (status == MPQ_OK)
        status = lock_wait(queue, call, error);
    if (status == MPQ_OK) {
        mpq_store(queue->control->sealed, sealed);
        mpq_lock_release(queue);
        mpq_wake(queue, &queue->control->space_event, &queue->control->space_waiting);
        mpq_wake(queue, &queue->control->items_event, &queue->control->items_waiting);
    }
    mpq_exit(queue);
    return status;
}

/* ---- alone with the queue */

struct alone {
    struct mpq_queue *queue;
    struct mpq_pin gate, range;
};

static int64_t somebody(struct mpq_queue *queue)
{
    struct mpq_control head;
    int fd = queue->io->open(queue->io, queue->dirfd, "control", O_RDWR, 0);
    int64_t pid = -1;
    if (fd < 0)
        return pid;
    if (mpq_io_read(queue->io, fd, &head, sizeof head, 0) == 0 && head.magic == MPQ_CONTROL_MAGIC &&
        mpq_control_map(queue, fd, mpq_control_bytes(&queue->created), NULL) == MPQ_OK) {
        for (uint32_t i = 0; i < queue->created.max_members && pid < 0; i++) {
            uint64_t incarnation = mpq_load(queue->members[i].incarnation);
            if (incarnation != 0 && !mpq_dead(queue, incarnation))
                pid = (int64_t)mpq_load(queue->members[i].pid);
        }
        mpq_control_unmap(queue);
    }
    queue->io->close(queue->io, fd);
    return pid;
}

static mpq_status attached(struct mpq_queue *queue, const char *what, struct mpq_error *error)
{
    int64_t pid = somebody(queue);
    mpq_fail(error, MPQ_ATTACHED,
             "%s: cannot %s it while others have it open (process %lld, perhaps more); close them "
             "first: nothing was changed",
             queue->path, what, (long long)pid);
    if (error != NULL)
        error->pid = pid;
    return MPQ_ATTACHED;
}

/* Opens meta and takes the gate and the range, without joining. */
static mpq_status take_alone(struct alone *alone, const char *path, const struct mpq_io *io,
                             const struct mpq_call *call, const char *what, struct mpq_error *error)
{
    const struct mpq_open_args args = {.path = path, .io = io};
    alone->gate = (struct mpq_pin){NULL, -1};
    alone->range = (struct mpq_pin){NULL, -1};
    mpq_guard_install();
    mpq_status status = mpq_handle_open(&args, &alone->queue, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_pin_wait(alone->queue, MPQ_BYTE_GATE, call, &alone->gate, "the gate", error);
    if (status == MPQ_TIMEOUT)
        status = attached(alone->queue, what, error);
    if (status != MPQ_OK)
        return status;
    int rc = mpq_pin_take(alone->queue, MPQ_BYTE_MEMBERS, 0, &alone->range);
    if (rc < 0)
        return mpq_fail_errno(error, "%s: cannot lock the members' bytes", path);
    return rc == 0 ? MPQ_OK : attached(alone->queue, what, error);
}

static void leave_alone(struct alone *alone)
{
    if (alone->queue == NULL)
        return;
    mpq_pin_drop(alone->queue, &alone->range);
    mpq_pin_drop(alone->queue, &alone->gate);
    atomic_store(&alone->queue->closing, 1);
    mpq_free(alone->queue);
}

/* What control knows and the disk does not (acks, the watermark) goes to the cursor first. A queue
 * too damaged for that is repaired from what its disk says. */
static void persist_acks(const char *path, const struct mpq_io *io, const struct mpq_call *call)
{
    const struct mpq_call now = {0, call->check, call->arg};
    const struct mpq_open_args args = {.path = path, .io = io};
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
    if (mpq_open(&args, call, &queue, NULL) != MPQ_OK)
        return;
    if (mpq_consumer_open(queue, &now, &consumer, NULL) == MPQ_OK) {
        (void)mpq_consumer_close(consumer, NULL);
        mpq_consumer_free(consumer);
    }
    (void)mpq_close(queue, call, NULL);
    mpq_free(queue);
}

mpq_status mpq_repair_queue(const char *path, const struct mpq_io *io, bool dry_run,
                            const struct mpq_call *call, struct mpq_repair *report,
                            struct mpq_error *error)
{
    struct alone alone = {.queue = NULL};
    memset(report, 0, sizeof *report);
    if (!dry_run)
        persist_acks(path, io, call);
    mpq_status status = take_alone(&alone, path, io, call, "repair", error);
    struct mpq_meta_slot meta;
    char boot_id[40];
    if (status == MPQ_OK)
        status = mpq_meta_read(alone.queue, &meta, error);
    if (status == MPQ_OK && alone.queue->io->boot_id(alone.queue->io, boot_id) != 0)
        status = mpq_fail_errno(error, "%s: cannot read the kernel's boot id", path);
    if (status == MPQ_OK) {
        const struct mpq_rebuild_how how = {
            .repair = true, .dry = dry_run, .poisoned = meta.poison_errno != 0};
        status = mpq_rebuild(alone.queue, &meta, boot_id, &how, report, error);
    }
    leave_alone(&alone);
    return status;
}

static int remove_ours(void *argument, const char *name)
{
    struct mpq_queue *queue = argument;
    uint64_t generation;
    if (mpq_segment_parse(name, &generation) || strncmp(name, "preparing-", 10) == 0 ||
        strncmp(name, "making-", 7) == 0 || strcmp(name, "control") == 0 ||
        strcmp(name, "control-new") == 0 || strcmp(name, "cursor") == 0)
        (void)queue->io->unlink(queue->io, queue->dirfd, name);
    return 0;
}

struct shelf {
    mpq_io *io;
    int dirfd;
};

static int remove_saved(void *argument, const char *name)
{
    struct shelf *shelf = argument;
    (void)shelf->io->unlink(shelf->io, shelf->dirfd, name);
    return 0;
}

mpq_status mpq_destroy(const char *path, const struct mpq_io *io, char gate_name[48],
                       struct mpq_error *error)
{
    struct alone alone = {.queue = NULL};
    const struct mpq_call call = {mpq_monotonic_ns() + 1000 * MPQ_MS, NULL, NULL};
    mpq_status status = take_alone(&alone, path, io, &call, "destroy", error);
    if (status == MPQ_OK) {
        struct mpq_queue *queue = alone.queue;
        mpq_io *table = queue->io;
        memcpy(gate_name, queue->gate_name, sizeof queue->gate_name);
        struct shelf shelf = {
            table, table->open(table, queue->dirfd, "corrupt", O_RDONLY | O_DIRECTORY, 0)};
        if (shelf.dirfd >= 0) {
            (void)table->list(table, shelf.dirfd, remove_saved, &shelf);
            table->close(table, shelf.dirfd);
            (void)table->rmdir(table, queue->dirfd, "corrupt");
        }
        /* meta first: without it nobody takes what is left for a queue. */
        if (table->unlink(table, queue->dirfd, "meta") != 0)
            status = mpq_fail_errno(error, "%s: cannot remove meta", path);
        else if (table->list(table, queue->dirfd, remove_ours, queue) != 0)
            status = mpq_fail_errno(error, "%s: cannot list the directory", path);
        else if (table->sync(table, queue->dirfd) != 0)
            status = mpq_fail_errno(error, "%s: cannot sync the directory", path);
        else
            (void)table->rmdir(table, AT_FDCWD, path); /* foreign files keep it */
    }
    leave_alone(&alone);
    return status;
}
