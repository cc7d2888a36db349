/* open.c - opening, joining, leaving.
 *
 * Everything that decides whether this process is alone happens under the gate byte: try the range
 * of all members' bytes; granted means that nobody lives, so check or rebuild control and drop
 * the range; refused means that a member lives, so control is the truth. Then join. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

uint64_t mpq_monotonic_ns(void)
{
    return mpq_io_system.monotonic_ns(&mpq_io_system);
}

uint64_t mpq_wall_ns(void)
{
    return mpq_io_system.wall_ns(&mpq_io_system);
}

void mpq_event(struct mpq_queue *queue, uint32_t event)
{
    atomic_fetch_or_explicit(&queue->events, event, memory_order_relaxed);
}

uint32_t mpq_events_take(struct mpq_queue *queue, struct mpq_event_info *info)
{
    if (mpq_load(queue->events) == 0)
        return 0;
    uint32_t events = atomic_exchange(&queue->events, 0);
    *info = queue->event_info;
    if ((events & MPQ_EVENT_LOSS) != 0)
        queue->event_info.lost_items = queue->event_info.lost_bytes = 0;
    return events;
}

/* ---- the directory and its filesystem */

struct filesystem {
    uint32_t magic;
    const char *name;
};

/* No coherent shared mappings, or locks that another machine does not see. */
static const struct filesystem refused_types[] = {
    {0x6969, "nfs"},        {0x01021997, "9p"},     {0x65735546, "fuse"}, {0x517B, "smb"},
    {0xFE534D42, "smb2"},   {0xFF534D42, "cifs"},   {0x5346414F, "afs"},  {0x73757245, "coda"},
    {0x00C36400, "ceph"},   {0x0BD00BD0, "lustre"}, {0x47504653, "gpfs"}, {0x01161970, "gfs2"},
    {0x7461636F, "ocfs2"},  {0x19830326, "fhgfs"},  {0x564C, "ncp"},      {0x786F4256, "vboxsf"},
    {0xBACBACBC, "vmhgfs"}, {0xAAD7AAEA, "panfs"},
};

#define BTRFS_MAGIC 0x9123683Eu

static bool named_in(const char *list, const char *name)
{
    const size_t length = strlen(name);
    while (list != NULL && *list != '\0') {
        const char *end = strchr(list, ',');
        size_t span = end != NULL ? (size_t)(end - list) : strlen(list);
        if ((span == length && strncmp(list, name, span) == 0) || (span == 1 && *list == '*'))
            return true;
        list = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static mpq_status check_filesystem(struct mpq_queue *queue, const char *allowed,
                                   struct mpq_error *error)
{
    struct statfs now;
    if (queue->io->statfs(queue->io, queue->dirfd, &now) != 0)
        return mpq_fail_errno(error, "%s: cannot tell its filesystem", queue->path);
    const uint32_t magic = (uint32_t)now.f_type;
    for (size_t i = 0; i < sizeof refused_types / sizeof *refused_types; i++)
        if (refused_types[i].magic == magic && !named_in(allowed, refused_types[i].name)) {
            mpq_fail(error, MPQ_FILESYSTEM,
                     "%s: on %s, where mappings shared between processes are not dependable; use "
                     "a local directory (ext4, XFS, btrfs, tmpfs). MPQUEUE_ALLOW_FILESYSTEM=%s "
                     "overrides, at your own risk",
                     queue->path, refused_types[i].name, refused_types[i].name);
            if (error != NULL)
                error->fstype = refused_types[i].name;
            return MPQ_FILESYSTEM;
        }
    return MPQ_OK;
}

static mpq_status no_queue(const struct mpq_queue *queue, const char *why, struct mpq_error *error)
{
    return mpq_fail(error, MPQ_NOT_A_QUEUE,
                    "%s: no queue here (%s); check the path, or make one with `mpqueue init`",
                    queue->path, why);
}

static mpq_status open_directory(struct mpq_queue *queue, const struct mpq_open_args *args,
                                 bool *made, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    const int flags = O_RDONLY | O_DIRECTORY | (args->inner ? O_NOFOLLOW : 0);
    *made = false;
    queue->dirfd = io->open(io, AT_FDCWD, queue->path, flags, 0);
    if (queue->dirfd < 0 && errno == ENOENT && args->create) {
        mpq_status status = mpq_options_check(&args->options, error);
        if (status != MPQ_OK)
            return status; /* not even the directory is made */
        const mode_t files = args->options.file_mode;
        const mode_t mode = files | ((files & 0444) >> 2);
        if (io->mkdir(io, AT_FDCWD, queue->path, 0700) != 0 && errno != EEXIST)
            return mpq_fail_errno(error,
                                  errno == ENOENT
                                      ? "%s: cannot make the directory, as its parent is not there"
                                      : "%s: cannot make the directory",
                                  queue->path);
        queue->dirfd = io->open(io, AT_FDCWD, queue->path, flags, 0);
        *made = true;
        if (queue->dirfd >= 0 && io->chmod(io, queue->dirfd, mode) != 0)
            return mpq_fail_errno(error, "%s: cannot set the directory's mode", queue->path);
    }
    if (queue->dirfd >= 0) {
        queue->directory_id = mpq_fd_id(io, queue->dirfd);
        return MPQ_OK;
    }
    if (errno == ENOENT && *made)
        return mpq_fail(error, MPQ_REMOVED, "%s: the directory was removed while it was made",
                        queue->path);
    if (errno == ENOENT)
        return no_queue(queue, "no such directory", error);
    if (errno == ENOTDIR)
        return mpq_fail(error, MPQ_NOT_A_QUEUE,
                        "%s: not a directory%s; a queue is a directory: check the path",
                        queue->path, args->inner ? ", or a link to one" : "");
    return mpq_fail_errno(error, "%s: cannot open the directory", queue->path);
}

static int ours(void *argument, const char *name)
{
    uint64_t generation;
    bool *found = argument;
    if (strcmp(name, "control") == 0 || strcmp(name, "cursor") == 0 ||
        mpq_segment_parse(name, &generation))
        *found = true;
    return 0;
}

mpq_status mpq_sync_parent(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    mpq_status status = MPQ_OK;
    int parent = io->open(io, queue->dirfd, "..", O_RDONLY | O_DIRECTORY, 0);
    if (parent < 0) /* of another user: whoever made the directory there has synced it */
        return MPQ_OK;
    if (io->sync(io, parent) != 0)
        status = mpq_fail_errno(error, "%s: cannot sync the parent directory", queue->path);
    io->close(io, parent);
    return status;
}

static mpq_status make_queue(struct mpq_queue *queue, const struct mpq_open_args *args,
                             const struct mpq_call *call, bool made_directory,
                             struct mpq_error *error)
{
    mpq_io *io = queue->io;
    char before[48];
    mpq_status status = mpq_options_check(&args->options, error);
    if (status == MPQ_OK)
        status = mpq_destroy_rest(queue, call, before, error);
    if (status != MPQ_OK && status != MPQ_EMPTY)
        return status;
    bool remains = false;
    if (io->list(io, queue->dirfd, ours, &remains) != 0)
        return mpq_fail_errno(error, "%s: cannot list the directory", queue->path);
    /* Another process may have made the queue just now. */
    if (remains && !mpq_meta_exists(queue))
        return mpq_fail(
            error, MPQ_NOT_A_QUEUE,
            "%s: there are files of a queue but no `meta`; nothing was touched. Restore meta, or "
            "move them away",
            queue->path);
    struct statfs fs;
    if (io->statfs(io, queue->dirfd, &fs) == 0 && (uint32_t)fs.f_type == BTRFS_MAGIC &&
        io->no_cow(io, queue->dirfd) != 0) {
        mpq_fail(error, MPQ_FILESYSTEM,
                 "%s: btrfs without NOCOW copies on write, so a full disk would kill processes; "
                 "make the directory with chattr +C",
                 queue->path);
        if (error != NULL)
            error->fstype = "btrfs";
        return MPQ_FILESYSTEM;
    }
    status = mpq_meta_create(queue, &args->options, error);
    if (status != MPQ_OK)
        return status;
    return made_directory ? mpq_sync_parent(queue, error) : MPQ_OK;
}

/* ---- identity */

void mpq_gate_of(const uint8_t uuid[16], char name[48])
{
    char *at = name + snprintf(name, 48, "/mpq-");
    for (int i = 0; i < 16; i++)
        at += snprintf(at, 3, "%02x", uuid[i]);
}

static mpq_status open_meta(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct stat now;
    queue->checker = io->open(io, queue->dirfd, "meta", O_RDWR, 0);
    if (queue->checker < 0)
        return errno == ENOENT ? MPQ_EMPTY
                               : mpq_fail_errno(error, "%s: cannot open meta", queue->path);
    if (io->fstat(io, queue->checker, &now) != 0)
        return mpq_fail_errno(error, "%s: cannot look at meta", queue->path);
    queue->meta_inode = now.st_ino;
    queue->meta_device = now.st_dev;
    struct mpq_meta_slot meta;
    mpq_status status = mpq_meta_read(queue, &meta, error);
    if (status != MPQ_OK)
        return status;
    queue->created = meta.options;
    queue->hash_seed = meta.hash_seed;
    queue->segment_size = meta.options.segment_size;
    memcpy(queue->uuid, meta.uuid, 16);
    mpq_gate_of(queue->uuid, queue->gate_name);
    return MPQ_OK;
}

/* ---- attaching */

static mpq_status join_living(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    int fd = io->open(io, queue->dirfd, "control", O_RDWR, 0);
    if (fd < 0 && errno == ENOENT)
        return mpq_fail(error, MPQ_REMOVED,
                        "%s: control is missing while other processes have the queue open; close "
                        "them all, then open it again: it will be rebuilt",
                        queue->path);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot open control", queue->path);
    struct mpq_control head;
    struct stat now;
    mpq_status status = MPQ_OK;
    memset(&head, 0, sizeof head);
    if (io->fstat(io, fd, &now) != 0 ||
        ((uint64_t)now.st_size >= sizeof head && mpq_io_read(io, fd, &head, sizeof head, 0) != 0))
        status = mpq_fail_errno(error, "%s: cannot read control", queue->path);
    else if (head.magic != MPQ_CONTROL_MAGIC || head.version != MPQ_FORMAT_VERSION ||
             head.identity_hash !=
                 mpq_xxh64(&head, offsetof(struct mpq_control, identity_hash), 0) ||
             head.total_bytes != mpq_control_bytes(&queue->created) ||
             head.total_bytes > (uint64_t)now.st_size || memcmp(head.uuid, queue->uuid, 16) != 0 ||
             head.ring_entries != MPQ_RING)
        status = mpq_fail(error, MPQ_FORMAT,
                          "%s: control is damaged, or of another version of mpqueue that has the "
                          "queue open; close "
                          "all processes that have it open, then try again",
                          queue->path);
    else
        status = mpq_control_map(queue, fd, head.total_bytes, error);
    io->close(io, fd);
    return status;
}

mpq_status mpq_attach(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_pin gate = {NULL, -1}, range = {NULL, -1};
    mpq_status status = mpq_pin_wait(queue, MPQ_BYTE_GATE, call, &gate, "the gate", error);
    if (status != MPQ_OK)
        return status;
    int alone = mpq_pin_take(queue, MPQ_BYTE_MEMBERS, 0, &range);
    if (alone < 0) {
        status = mpq_fail_errno(error, "%s: cannot lock the members' bytes", queue->path);
    } else if (alone == 0) {
        status = mpq_recover(queue, error);
        mpq_pin_drop(queue, &range);
    } else {
        status = join_living(queue, error);
    }
    if (status == MPQ_OK)
        status = mpq_join(queue, error);
    mpq_pin_drop(queue, &gate);
    return status;
}

static struct mpq_queue *handle_new(const struct mpq_open_args *args)
{
    mpq_io *io = args->io != NULL ? args->io : &mpq_io_system;
    struct mpq_queue *queue = io->alloc(io, sizeof *queue);
    if (queue == NULL)
        return NULL;
    queue->io = io;
    queue->dirfd = queue->checker = -1;
    queue->pin.fd = -1;
    queue->path = io->alloc(io, strlen(args->path) + 1);
    queue->fork = mmap(NULL, MPQ_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (queue->path == NULL || queue->fork == MAP_FAILED ||
        madvise(queue->fork, MPQ_PAGE, MADV_WIPEONFORK) != 0) {
        if (queue->fork != MAP_FAILED)
            munmap(queue->fork, MPQ_PAGE);
        io->free(io, queue->path);
        io->free(io, queue);
        return NULL;
    }
    strcpy(queue->path, args->path);
    mpq_mutex_init(&queue->mutex);
    pthread_mutex_init(&queue->flush_mutex, NULL);
    return queue;
}

mpq_status mpq_handle_open(const struct mpq_open_args *args, bool half, struct mpq_queue **out,
                           struct mpq_error *error)
{
    struct mpq_queue *queue = handle_new(args);
    bool made;
    if (queue == NULL)
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", args->path);
    mpq_status status = open_directory(queue, args, &made, error);
    if (status == MPQ_OK && !half)
        status = open_meta(queue, error);
    if (status == MPQ_EMPTY)
        status = no_queue(queue, "no file `meta`", error);
    if (status != MPQ_OK) {
        atomic_store(&queue->closing, 1);
        mpq_free(queue);
        return status;
    }
    *out = queue;
    return MPQ_OK;
}

/* Files that were not found are no error of the system when their directory itself is gone. */
static bool directory_is_gone(const struct mpq_queue *queue)
{
    struct stat now;
    return queue->dirfd >= 0 && queue->io->fstat(queue->io, queue->dirfd, &now) == 0 &&
           now.st_nlink == 0;
}

static mpq_status open_inside(struct mpq_queue *queue, const struct mpq_open_args *args,
                              const struct mpq_call *call, struct mpq_error *error)
{
    bool made_directory = false;
    mpq_status status = open_directory(queue, args, &made_directory, error);
    if (status == MPQ_OK)
        status = check_filesystem(queue, args->allow_filesystem, error);
    if (status == MPQ_OK) {
        status = open_meta(queue, error);
        if (status == MPQ_EMPTY && args->create) {
            status = make_queue(queue, args, call, made_directory, error);
            if (status == MPQ_OK)
                status = open_meta(queue, error);
        }
        if (status == MPQ_EMPTY && args->create)
            status =
                mpq_fail(error, MPQ_REMOVED, "%s: it was destroyed while it was made", queue->path);
        if (status == MPQ_EMPTY)
            status = no_queue(queue, "no file `meta`", error);
    }
    if (status == MPQ_OK) /* before joining, which may recover: a refusal touches nothing */
        status = mpq_options_agree(queue, args->given, &args->options, error);
    if (status == MPQ_OK)
        status = mpq_attach(queue, call, error);
    if (status == MPQ_SYSTEM && directory_is_gone(queue))
        status = mpq_fail(error, MPQ_REMOVED, "%s: the directory was removed while it was opened",
                          queue->path);
    if (status != MPQ_OK && made_directory)
        (void)queue->io->rmdir(queue->io, AT_FDCWD, queue->path); /* only when it is still empty */
    return status;
}

static mpq_status open_new(const struct mpq_open_args *args, const struct mpq_call *call,
                           struct mpq_queue **out, struct mpq_error *error)
{
    struct mpq_queue *queue = handle_new(args);
    if (queue == NULL)
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", args->path);
    mpq_status status = open_inside(queue, args, call, error);
    if (status != MPQ_OK) {
        atomic_store(&queue->closing, 1);
        mpq_free(queue);
        return status;
    }
    *out = queue;
    return MPQ_OK;
}

#define MAKE_TRIES 1000

mpq_status mpq_open(const struct mpq_open_args *args, const struct mpq_call *call,
                    struct mpq_queue **queue, struct mpq_error *error)
{
    struct mpq_error local;
    mpq_guard_install();
    if (error == NULL)
        error = &local;
    mpq_io *io = args->io != NULL ? args->io : &mpq_io_system;
    for (int tries = 1;; tries++) {
        mpq_status status = open_new(args, call, queue, error);
        /* Somebody destroys the queue that was there, and its directory, while this one is made. */
        if (!args->create || status != MPQ_REMOVED || tries == MAKE_TRIES)
            return status;
        if (call->check != NULL && call->check(call->arg) != 0)
            return MPQ_INTERRUPTED;
        io->pause(io, MPQ_MS);
    }
}

/* ---- the semaphore */

/* Takes the place of an unknown word, or compares with a known one. */
static bool agrees(_Atomic uint64_t *word, uint64_t mine)
{
    uint64_t found = 0;
    return atomic_compare_exchange_strong(word, &found, mine) || found == mine;
}

/* The device comes first: whoever finds his own there may add the inode, so that the pair is one
 * even when its first writer was killed between the two. */
static bool gate_is_theirs(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    return queue->gate_inode == 0 || (agrees(&control->gate_device, queue->gate_device) &&
                                      agrees(&control->gate_inode, queue->gate_inode));
}

void mpq_gate_join(struct mpq_queue *queue)
{
    if (queue->gate != NULL && !gate_is_theirs(queue)) {
        queue->io->sem_close(queue->io, queue->gate);
        queue->gate = NULL;
        mpq_event(queue, MPQ_EVENT_GATE);
    }
    if (queue->gate == NULL)
        mpq_store(queue->control->gateless, 1);
}

void mpq_open_gate(struct mpq_queue *queue, const char *semaphore_name)
{
    if (semaphore_name != NULL && queue->gate == NULL)
        queue->gate = queue->io->sem_open(queue->io, semaphore_name);
    if (queue->gate == NULL)
        mpq_event(queue, MPQ_EVENT_GATE);
    mpq_gate_join(queue);
}

void mpq_gate_identity(struct mpq_queue *queue, uint64_t device, uint64_t inode)
{
    queue->gate_device = device;
    queue->gate_inode = inode;
    mpq_gate_join(queue);
}

const char *mpq_gate_name(const struct mpq_queue *queue)
{
    return queue->gate_name;
}

/* ---- leaving */

static void wait_for_calls(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    while (atomic_load(&queue->inflight) != 0) {
        mpq_wake(queue, &control->items_event, &control->items_waiting);
        mpq_wake(queue, &control->space_event, &control->space_waiting);
        mpq_wake(queue, &control->flush_event, &control->flush_waiting);
        mpq_wake(queue, &control->segment_event, &control->segment_waiting);
        queue->io->pause(queue->io, MPQ_MS);
    }
}

static mpq_status last_flush(struct mpq_queue *queue, const struct mpq_call *call,
                             struct mpq_error *error)
{
    if (!queue->published || mpq_load(queue->control->poison_errno) != 0 ||
        mpq_load(queue->control->durability) >= MPQ_DURABILITY_GROUP)
        return MPQ_OK;
    struct mpq_error local;
    mpq_mutex_lock(&queue->mutex);
    queue->published = false;
    mpq_mutex_unlock(&queue->mutex);
    mpq_status status = mpq_flush(queue, call, error != NULL ? error : &local);
    return status == MPQ_INTERRUPTED ? MPQ_OK : status;
}

/* Was told by the call before; or nothing was owed any more. */
static mpq_status worth_telling(struct mpq_queue *queue, mpq_status status, bool was_told)
{
    return status == MPQ_REMOVED && (was_told || mpq_depth(queue) == 0) ? MPQ_OK : status;
}

/* What keeps the directory and its filesystem in use. */
static void release(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    mpq_pin_drop(queue, &queue->pin);
    if (queue->gate != NULL)
        io->sem_close(io, queue->gate);
    const struct mpq_file_id meta = {queue->meta_inode, queue->meta_device};
    mpq_fd_close(io, queue->checker, &meta);
    mpq_fd_close(io, queue->dirfd, &queue->directory_id);
    queue->gate = NULL;
    queue->checker = queue->dirfd = -1;
}

mpq_status mpq_close(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error)
{
    if (atomic_load(&queue->closing) != 0)
        return MPQ_OK;
    mpq_status status = MPQ_OK;
    const bool joined = !mpq_forked(queue);
    bool was_told = false;
    if (joined) {
        mpq_mutex_lock(&queue->mutex);
        const bool other = atomic_exchange(&queue->leaving, 1) != 0;
        mpq_mutex_unlock(&queue->mutex);
        if (other) { /* another thread does it: what is promised holds when this returns, too */
            while (atomic_load(&queue->left) == 0)
                queue->io->pause(queue->io, MPQ_MS);
            return MPQ_OK;
        }
        struct mpq_consumer *consumer = mpq_consumer_hold(queue);
        if (consumer != NULL) {
            status = mpq_consumer_close(consumer, error);
            mpq_consumer_free(consumer);
        }
        was_told = mpq_load(queue->removed) != 0;
        const mpq_status flushed = last_flush(queue, call, status == MPQ_OK ? error : NULL);
        if (status == MPQ_OK)
            status = worth_telling(queue, flushed, was_told);
        mpq_stats_get(queue, &queue->last_stats);
    } else { /* at the fork a thread of the parent may have held it, which does not exist here */
        mpq_mutex_init(&queue->mutex);
    }
    mpq_mutex_lock(&queue->mutex);
    const uint32_t closing = atomic_exchange(&queue->closing, 1);
    mpq_mutex_unlock(&queue->mutex);
    if (closing != 0)
        return status;
    if (joined) {
        struct mpq_error local;
        wait_for_calls(queue);
        /* What was put while it flushed, or has yet to call for its flush, is flushed as well. */
        const mpq_status flushed =
            mpq_flush_leave(queue, status == MPQ_OK && error != NULL ? error : &local);
        if (status == MPQ_OK)
            status = worth_telling(queue, flushed, was_told);
        mpq_leave(queue);
    }
    mpq_mutex_lock(&queue->mutex);
    mpq_segments_forget(queue);
    mpq_mutex_unlock(&queue->mutex);
    mpq_control_unmap(queue);
    release(queue);
    atomic_store(&queue->left, 1);
    return status;
}

bool mpq_is_closed(const struct mpq_queue *queue)
{
    return atomic_load(&queue->closing) != 0;
}

void mpq_free(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    mpq_segments_forget(queue);
    mpq_control_unmap(queue);
    release(queue);
    munmap(queue->fork, MPQ_PAGE);
    io->free(io, queue->flush_marks);
    io->free(io, queue->path);
    io->free(io, queue);
}

const uint8_t *mpq_uuid(const struct mpq_queue *queue)
{
    return queue->uuid;
}

uint64_t mpq_incarnation(const struct mpq_queue *queue)
{
    return queue->incarnation;
}

const char *mpq_path(const struct mpq_queue *queue)
{
    return queue->path;
}
