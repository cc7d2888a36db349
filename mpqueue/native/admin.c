/* admin.c - what an operator does to a queue: seal, repair, destroy. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "aside.h"
#include "dead.h"

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
        status = mpq_lock_take(queue, call, error);
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
static mpq_status take_alone(struct alone *alone, const struct mpq_open_args *args,
                             const struct mpq_call *call, const char *what, struct mpq_error *error)
{
    alone->gate = (struct mpq_pin){NULL, -1};
    alone->range = (struct mpq_pin){NULL, -1};
    mpq_guard_install();
    mpq_status status = mpq_handle_open(args, false, &alone->queue, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_pin_wait(alone->queue, MPQ_BYTE_GATE, call, &alone->gate, "the gate", error);
    if (status == MPQ_TIMEOUT)
        status = attached(alone->queue, what, error);
    if (status != MPQ_OK)
        return status;
    int rc = mpq_pin_take(alone->queue, MPQ_BYTE_MEMBERS, 0, &alone->range);
    if (rc < 0)
        return mpq_fail_errno(error, "%s: cannot lock the members' bytes", args->path);
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
static void persist_acks(const struct mpq_open_args *args, const struct mpq_call *call)
{
    const struct mpq_call now = {0, call->check, call->arg};
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
    if (mpq_open(args, call, &queue, NULL) != MPQ_OK)
        return;
    if (mpq_consumer_open(queue, &now, &consumer, NULL) == MPQ_OK) {
        (void)mpq_consumer_close(consumer, NULL);
        mpq_consumer_free(consumer);
    }
    (void)mpq_close(queue, call, NULL);
    mpq_free(queue);
}

static mpq_status repair_one(const struct mpq_open_args *args, bool dry_run,
                             const struct mpq_call *call, struct mpq_repair *report,
                             struct mpq_error *error)
{
    struct alone alone = {.queue = NULL};
    memset(report, 0, sizeof *report);
    if (!dry_run)
        persist_acks(args, call);
    mpq_status status = take_alone(&alone, args, call, "repair", error);
    struct mpq_meta_slot meta;
    char boot_id[40];
    if (status == MPQ_OK)
        status = mpq_meta_read(alone.queue, &meta, error);
    if (status == MPQ_OK && alone.queue->io->boot_id(alone.queue->io, boot_id) != 0)
        status = mpq_fail_errno(error, "%s: cannot read the kernel's boot id", args->path);
    if (status == MPQ_OK) {
        const struct mpq_rebuild_how how = {
            .repair = true, .dry = dry_run, .poisoned = meta.poison_errno != 0};
        status = mpq_rebuild(alone.queue, &meta, boot_id, &how, report, error);
    }
    leave_alone(&alone);
    return status;
}

/* The dead letters are repaired with the queue, and before it: they may be attached alone. */
mpq_status mpq_repair_queue(const char *path, const struct mpq_io *io, bool dry_run,
                            const struct mpq_call *call, struct mpq_repair *report,
                            struct mpq_error *error)
{
    struct mpq_repair inner = {0};
    char name[PATH_MAX];
    const struct mpq_open_args args = {.path = path, .io = io};
    const struct mpq_open_args dead = {.path = name, .inner = true, .io = io};
    const int length = snprintf(name, sizeof name, "%s/" MPQ_DEAD, path);
    mpq_status status = MPQ_OK;
    if (length > 0 && (size_t)length < sizeof name)
        status = repair_one(&dead, dry_run, call, &inner, error);
    if (status != MPQ_OK && status != MPQ_NOT_A_QUEUE) {
        *report = inner;
        return status;
    }
    status = repair_one(&args, dry_run, call, report, error);
    report->items += inner.items;
    report->gaps += inner.gaps;
    report->lost_items += inner.lost_items;
    report->lost_bytes += inner.lost_bytes;
    report->torn_items += inner.torn_items;
    report->quarantined += inner.quarantined;
    report->cleared_poison |= inner.cleared_poison;
    report->rebuilt |= inner.rebuilt;
    return status;
}

struct shelf {
    mpq_io *io;
    int dirfd;
};

static int remove_ours(void *argument, const char *name)
{
    struct shelf *shelf = argument;
    uint64_t generation;
    if (mpq_segment_parse(name, &generation) || strncmp(name, "preparing-", 10) == 0 ||
        strncmp(name, "making-", 7) == 0 || strcmp(name, "control") == 0 ||
        strcmp(name, "control-new") == 0 || strcmp(name, "cursor") == 0 ||
        strcmp(name, "keys") == 0 || strcmp(name, "keys-new") == 0)
        (void)shelf->io->unlink(shelf->io, shelf->dirfd, name);
    return 0;
}

static int remove_saved(void *argument, const char *name)
{
    struct shelf *shelf = argument;
    if (mpq_saved_parse(name))
        (void)shelf->io->unlink(shelf->io, shelf->dirfd, name);
    return 0;
}

/* The directory `name` and what `each` removes of it; foreign files keep it. */
static void remove_shelf(mpq_io *io, int dirfd, const char *name,
                         int (*each)(void *arg, const char *name))
{
    struct shelf shelf = {io, io->open(io, dirfd, name, O_RDONLY | O_DIRECTORY, 0)};
    if (shelf.dirfd < 0)
        return;
    (void)io->list(io, shelf.dirfd, each, &shelf);
    io->close(io, shelf.dirfd);
    (void)io->rmdir(io, dirfd, name);
}

/* The queue ends when `meta` gets the name DESTROYED, and its path is free for another one when
 * that name is gone: until then whoever holds the gate of the file removes what is left. So a
 * destroyer that dies is finished by the next one that comes, and a new queue waits for one that
 * lives. */
#define DESTROYED "destroyed"

/* False: there is none. */
static bool dead_path(struct mpq_queue *queue, char name[PATH_MAX])
{
    struct stat now;
    const int length = snprintf(name, PATH_MAX, "%s/" MPQ_DEAD, queue->path);
    return length > 0 && length < PATH_MAX &&
           queue->io->stat(queue->io, queue->dirfd, MPQ_DEAD, &now) == 0;
}

/* The dead letters can be destroyed: nobody has them open. Something else of that name is no
 * matter. */
static mpq_status dead_is_free(struct mpq_queue *queue, struct mpq_error *error)
{
    struct alone alone = {.queue = NULL};
    const struct mpq_call call = {mpq_monotonic_ns() + 1000 * MPQ_MS, NULL, NULL};
    char name[PATH_MAX];
    if (!dead_path(queue, name))
        return MPQ_OK;
    const struct mpq_open_args args = {.path = name, .inner = true, .io = queue->io};
    mpq_status status = take_alone(&alone, &args, &call, "destroy", error);
    leave_alone(&alone);
    return status == MPQ_NOT_A_QUEUE ? MPQ_OK : status;
}

static mpq_status destroy(const struct mpq_open_args *args, char gate_name[48],
                          struct mpq_error *error);

static mpq_status destroy_dead(struct mpq_queue *queue, struct mpq_error *error)
{
    char name[PATH_MAX], no_gate[48];
    if (!dead_path(queue, name))
        return MPQ_OK;
    const struct mpq_open_args args = {.path = name, .inner = true, .io = queue->io};
    mpq_status status = destroy(&args, no_gate, error);
    if (status != MPQ_NOT_A_QUEUE)
        return status;
    remove_shelf(queue->io, queue->dirfd, MPQ_DEAD, remove_ours); /* it was never made whole */
    return MPQ_OK;
}

static mpq_status remove_files(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    mpq_status status = destroy_dead(queue, error);
    if (status != MPQ_OK)
        return status;
    struct shelf shelf = {io, queue->dirfd};
    remove_shelf(io, queue->dirfd, MPQ_SAVED, remove_saved);
    if (io->list(io, queue->dirfd, remove_ours, &shelf) != 0)
        return mpq_fail_errno(error, "%s: cannot list the directory", queue->path);
    if (io->unlink(io, queue->dirfd, DESTROYED) != 0)
        return mpq_fail_errno(error, "%s: cannot remove what was meta", queue->path);
    if (io->sync(io, queue->dirfd) != 0)
        return mpq_fail_errno(error, "%s: cannot sync the directory", queue->path);
    return MPQ_OK;
}

static void name_gate(mpq_io *io, int fd, char gate_name[48])
{
    struct mpq_meta_slot slot;
    if (mpq_io_read(io, fd, &slot, sizeof slot, 0) == 0 && slot.magic == MPQ_META_MAGIC)
        mpq_gate_of(slot.uuid, gate_name);
}

mpq_status mpq_destroy_rest(struct mpq_queue *queue, const struct mpq_call *call,
                            char gate_name[48], struct mpq_error *error)
{
    mpq_io *io = queue->io;
    int fd = io->open(io, queue->dirfd, DESTROYED, O_RDWR, 0);
    if (fd < 0)
        return errno == ENOENT
                   ? MPQ_EMPTY
                   : mpq_fail_errno(error, "%s: cannot open what was meta", queue->path);
    mpq_status status = MPQ_OK;
    struct stat now;
    while (status == MPQ_OK && io->lock(io, fd, F_WRLCK, MPQ_BYTE_GATE, 1) != 0)
        status = errno == EAGAIN || errno == EACCES
                     ? mpq_pause(queue, call, MPQ_MS, error)
                     : mpq_fail_errno(error, "%s: cannot lock what was meta", queue->path);
    if (status == MPQ_OK && io->stat(io, queue->dirfd, DESTROYED, &now) == 0) {
        name_gate(io, fd, gate_name);
        status = remove_files(queue, error);
    }
    io->close(io, fd);
    return status;
}

static mpq_status destroy_half(const struct mpq_open_args *args, const struct mpq_call *call,
                               char gate_name[48], struct mpq_error *error)
{
    struct mpq_queue *queue;
    mpq_status status = mpq_handle_open(args, true, &queue, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_destroy_rest(queue, call, gate_name, error);
    if (status == MPQ_OK)
        (void)queue->io->rmdir(queue->io, AT_FDCWD, args->path);
    atomic_store(&queue->closing, 1);
    mpq_free(queue);
    return status;
}

static mpq_status destroy(const struct mpq_open_args *args, char gate_name[48],
                          struct mpq_error *error)
{
    struct alone alone = {.queue = NULL};
    const struct mpq_call call = {mpq_monotonic_ns() + 1000 * MPQ_MS, NULL, NULL};
    mpq_status status = take_alone(&alone, args, &call, "destroy", error);
    if (status == MPQ_NOT_A_QUEUE && destroy_half(args, &call, gate_name, NULL) == MPQ_OK)
        status = MPQ_OK;
    else if (status == MPQ_OK) {
        struct mpq_queue *queue = alone.queue;
        memcpy(gate_name, queue->gate_name, sizeof queue->gate_name);
        status = dead_is_free(queue, error);
        if (status == MPQ_OK && queue->io->rename(queue->io, queue->dirfd, "meta", DESTROYED) != 0)
            status = mpq_fail_errno(error, "%s: cannot rename meta", args->path);
        else if (status == MPQ_OK &&
                 queue->io->sync(queue->io, queue->dirfd) != 0) /* no file goes before the name */
            status = mpq_fail_errno(error, "%s: cannot sync the directory", args->path);
        else if (status == MPQ_OK)
            status = remove_files(queue, error);
        if (status == MPQ_OK)
            (void)queue->io->rmdir(queue->io, AT_FDCWD, args->path); /* foreign files keep it */
    }
    leave_alone(&alone);
    return status;
}

mpq_status mpq_destroy(const char *path, const struct mpq_io *io, char gate_name[48],
                       struct mpq_error *error)
{
    const struct mpq_open_args args = {.path = path, .io = io};
    return destroy(&args, gate_name, error);
}
