/* member.c - who is attached, and who is dead.
 *
 * A member holds an exclusive open-file-description lock on byte MPQ_BYTE_MEMBERS + incarnation
 * of meta. The lock is pinned by a mapping of that description marked MADV_DONTFORK and the
 * descriptor is closed: a stray close cannot drop it and a forked child does not keep it alive.
 *
 * I1 incarnations are never reused. I2 a byte that is free means that the address space of its
 * incarnation is gone: no store of it can still arrive. I3 others probe with GETLK and never take
 * the byte. I4 every error means alive. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

static int meta_open(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    int fd = io->open(io, queue->dirfd, "meta", O_RDWR, 0);
    if (fd < 0)
        return -1;
    struct stat now;
    if (io->fstat(io, fd, &now) != 0) {
        io->close(io, fd);
        return -1;
    }
    if (now.st_ino != queue->meta_inode || now.st_dev != queue->meta_device) {
        io->close(io, fd);
        errno = ESTALE;
        return -1;
    }
    return fd;
}

int mpq_pin_take(struct mpq_queue *queue, uint64_t offset, uint64_t bytes, struct mpq_pin *pin)
{
    mpq_io *io = queue->io;
    pin->map = NULL;
    pin->fd = -1;
    int fd = meta_open(queue);
    if (fd < 0)
        return -1;
    if (io->lock(io, fd, F_WRLCK, offset, bytes) != 0) {
        int saved = errno;
        io->close(io, fd);
        errno = saved;
        return saved == EAGAIN || saved == EACCES ? 1 : -1;
    }
    void *map = io->map(io, fd, MPQ_PAGE, false);
    if (map == NULL) {
        int saved = errno;
        io->close(io, fd);
        errno = saved;
        return -1;
    }
    (void)io->advise(io, map, MPQ_PAGE, MADV_DONTFORK);
    io->close(io, fd);
    pin->map = map;
    if (io->locked(io, queue->checker, offset) == 1)
        return 0;
    /* The mapping does not pin here (overlayfs maps another description): keep the descriptor. */
    io->unmap(io, map, MPQ_PAGE);
    pin->map = NULL;
    fd = meta_open(queue);
    if (fd < 0)
        return -1;
    if (io->lock(io, fd, F_WRLCK, offset, bytes) != 0) {
        int saved = errno;
        io->close(io, fd);
        errno = saved;
        return saved == EAGAIN || saved == EACCES ? 1 : -1;
    }
    if (io->locked(io, queue->checker, offset) != 1) {
        io->close(io, fd);
        errno = ENOLCK;
        return -1;
    }
    pin->fd = fd;
    return 0;
}

void mpq_pin_drop(struct mpq_queue *queue, struct mpq_pin *pin)
{
    if (pin->map != NULL)
        queue->io->unmap(queue->io, pin->map, MPQ_PAGE);
    if (pin->fd >= 0)
        queue->io->close(queue->io, pin->fd);
    pin->map = NULL;
    pin->fd = -1;
}

mpq_status mpq_pin_wait(struct mpq_queue *queue, uint64_t offset, const struct mpq_call *call,
                        struct mpq_pin *pin, const char *what, struct mpq_error *error)
{
    uint64_t slice = MPQ_MS / 4;
    struct mpq_call patient = *call;
    mpq_guard_install();
    if (offset == MPQ_BYTE_GATE)
        patient.deadline_ns =
            mpq_max64(call->deadline_ns, queue->io->monotonic_ns(queue->io) + MPQ_GRACE_NS);
    for (;;) {
        int rc = mpq_pin_take(queue, offset, 1, pin);
        if (rc == 0)
            return MPQ_OK;
        if (rc < 0) {
            if (errno == ESTALE || errno == ENOENT)
                return mpq_fail(error, MPQ_REMOVED,
                                "%s: the queue was deleted or replaced; open it again",
                                queue->path);
            return mpq_fail_errno(error, "%s: cannot lock %s", queue->path, what);
        }
        mpq_status status = mpq_pause(queue, &patient, slice, error);
        if (atomic_load(&queue->leaving) != 0)
            return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
        if (status == MPQ_TIMEOUT)
            return mpq_fail(error, MPQ_TIMEOUT, "%s: %s is still held by another process",
                            queue->path, what);
        if (status != MPQ_OK)
            return status;
        slice = mpq_min64(slice * 2, 20 * MPQ_MS);
    }
}

static struct mpq_member *member_find(const struct mpq_queue *queue, uint64_t incarnation)
{
    for (uint32_t i = 0; i < queue->created.max_members; i++)
        if (mpq_load(queue->members[i].incarnation) == incarnation)
            return &queue->members[i];
    return NULL;
}

int64_t mpq_pid_of(struct mpq_queue *queue, uint64_t incarnation)
{
    struct mpq_member *member = member_find(queue, incarnation);
    return member == NULL ? -1 : (int64_t)mpq_load(member->pid);
}

/* Field 22 of /proc/<pid>/stat, and the state letter; 0 when it cannot be read. */
static uint64_t start_time(struct mpq_queue *queue, uint64_t pid, char *state)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    mpq_io *io = queue->io;
    int fd = io->open(io, AT_FDCWD, path, O_RDONLY, 0);
    if (fd < 0)
        return 0;
    ssize_t got = io->pread(io, fd, text, sizeof text - 1, 0);
    io->close(io, fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    char *at = strrchr(text, ')');
    if (at == NULL || at[1] == '\0')
        return 0;
    at += 2;
    *state = *at;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return 0;
        at++;
    }
    return strtoull(at, NULL, 10);
}

static uint64_t pid_namespace(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    struct stat now;
    int fd = io->open(io, AT_FDCWD, "/proc/self/ns/pid", O_RDONLY, 0);
    if (fd < 0)
        return 0;
    int rc = io->fstat(io, fd, &now);
    io->close(io, fd);
    return rc == 0 ? now.st_ino : 0;
}

/* Weak locks end when somebody closes our descriptor, so they need a second witness. */
static bool weak_but_alive(struct mpq_queue *queue, uint64_t incarnation)
{
    struct mpq_member *member = member_find(queue, incarnation);
    if (member == NULL || mpq_load(member->weak) == 0)
        return false;
    if (mpq_load(member->pid_namespace) != pid_namespace(queue))
        return false;
    char state = 'X';
    uint64_t started = start_time(queue, mpq_load(member->pid), &state);
    return started != 0 && started == mpq_load(member->start_time) && state != 'Z' && state != 'X';
}

bool mpq_dead(struct mpq_queue *queue, uint64_t incarnation)
{
    mpq_io *io = queue->io;
    if (incarnation == queue->incarnation)
        return false; /* another thread of this process */
    if (incarnation == 0 || incarnation > MPQ_INCARNATION_MAX ||
        incarnation > mpq_load(queue->control->next_incarnation))
        return true; /* never given out: damage, nobody will ever store under it */
    struct stat now;
    if (io->fstat(io, queue->checker, &now) != 0 || now.st_ino != queue->meta_inode ||
        now.st_dev != queue->meta_device)
        return false; /* somebody closed our descriptor and its number was reused */
    if (io->locked(io, queue->checker, MPQ_BYTE_MEMBERS + incarnation) != 0)
        return false;
    if (weak_but_alive(queue, incarnation))
        return false;
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

#define COUNTERS                                                                                   \
    X(enqueued_items)                                                                              \
    X(enqueued_bytes)                                                                              \
    X(full) X(waits) X(lock_waits) X(flushes) X(flush_ns) X(dropped_items) X(duplicate_items)

static void fold(struct mpq_control *control, struct mpq_member *member)
{
#define X(name)                                                                                    \
    atomic_fetch_add_explicit(&control->retired.name, mpq_load(member->name),                      \
                              memory_order_relaxed);                                               \
    mpq_store(member->name, 0);
    COUNTERS
#undef X
    mpq_raise_to(&control->retired.lock_wait_max_ns, mpq_load(member->lock_wait_max_ns));
    mpq_store(member->lock_wait_max_ns, 0);
    mpq_store(member->flushed_bytes, 0);
    for (unsigned i = 0; i < MPQ_HISTOGRAM; i++) {
        atomic_fetch_add_explicit(&control->retired.flush_histogram[i],
                                  mpq_load(member->flush_histogram[i]), memory_order_relaxed);
        mpq_store(member->flush_histogram[i], 0);
    }
}

void mpq_members_clear(struct mpq_queue *queue)
{
    for (uint32_t i = 0; i < queue->created.max_members; i++) {
        struct mpq_member *member = &queue->members[i];
        if (mpq_load(member->incarnation) == 0)
            continue;
        fold(queue->control, member);
        mpq_store(member->role, 0);
        mpq_store(member->incarnation, 0);
    }
}

struct mpq_flush_mark {
    uint64_t incarnation, bytes;
};

/* I5 a member counts its bytes when they are published: what is counted before the snapshot of a
 * flush lies below its tail and is covered. Entries are taken in order, so a free one ends them. */
void mpq_members_mark(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    const uint32_t max = queue->created.max_members;
    if (queue->flush_marks == NULL)
        queue->flush_marks = io->alloc(io, max * sizeof *queue->flush_marks);
    if (queue->flush_marks == NULL)
        return; /* then a later flush covers them */
    for (uint32_t i = 0; i < max; i++) {
        struct mpq_flush_mark *mark = &queue->flush_marks[i];
        mark->incarnation =
            atomic_load_explicit(&queue->members[i].incarnation, memory_order_acquire);
        if (mark->incarnation == 0)
            return;
        mark->bytes = atomic_load_explicit(&queue->members[i].enqueued_bytes, memory_order_acquire);
    }
}

void mpq_members_sum(struct mpq_queue *queue, uint64_t *full, uint64_t *dropped)
{
    const struct mpq_control *control = queue->control;
    *full = mpq_load(control->retired.full) + mpq_load(control->shared.full);
    *dropped = mpq_load(control->retired.dropped_items) + mpq_load(control->shared.dropped_items);
    for (uint32_t i = 0; i < queue->created.max_members; i++) {
        const struct mpq_member *member = &queue->members[i];
        if (mpq_load(member->incarnation) == 0)
            return;
        *full += mpq_load(member->full);
        *dropped += mpq_load(member->dropped_items);
    }
}

void mpq_members_flushed(struct mpq_queue *queue)
{
    const struct mpq_flush_mark *marks = queue->flush_marks;
    for (uint32_t i = 0; marks != NULL && i < queue->created.max_members; i++) {
        struct mpq_member *member = &queue->members[i];
        if (marks[i].incarnation == 0)
            return;
        if (marks[i].incarnation == mpq_load(member->incarnation))
            mpq_raise_to(&member->flushed_bytes, marks[i].bytes);
    }
}

static void member_enter(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    struct mpq_member *entry = NULL;
    for (uint32_t i = 0; entry == NULL && i < queue->created.max_members; i++)
        if (mpq_load(queue->members[i].incarnation) == 0)
            entry = &queue->members[i];
    for (uint32_t i = 0; entry == NULL && i < queue->created.max_members; i++)
        if (mpq_dead(queue, mpq_load(queue->members[i].incarnation))) {
            entry = &queue->members[i];
            mpq_bump(control->members_dead, 1);
        }
    queue->me_shared = entry == NULL;
    if (entry == NULL) {
        queue->me = &control->shared;
        return;
    }
    fold(control, entry);
    char state = 'R';
    uint64_t pid = (uint64_t)getpid();
    mpq_store(entry->pid, pid);
    mpq_store(entry->start_time, start_time(queue, pid, &state));
    mpq_store(entry->pid_namespace, pid_namespace(queue));
    mpq_store(entry->role, MPQ_ROLE_PRODUCER);
    mpq_store(entry->weak, queue->weak ? 1u : 0u);
    mpq_store(entry->joined_at, queue->io->wall_ns(queue->io));
    memset(entry->command, 0, sizeof entry->command);
    int fd = queue->io->open(queue->io, AT_FDCWD, "/proc/self/comm", O_RDONLY, 0);
    if (fd >= 0) {
        ssize_t got = queue->io->pread(queue->io, fd, entry->command, 15, 0);
        if (got > 0 && entry->command[got - 1] == '\n')
            entry->command[got - 1] = '\0';
        queue->io->close(queue->io, fd);
    }
    atomic_store_explicit(&entry->incarnation, queue->incarnation, memory_order_release);
    queue->me = entry;
}

mpq_status mpq_join(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    mpq_status status = mpq_control_ours(queue, error);
    if (status != MPQ_OK)
        return status;
    uint64_t incarnation = atomic_fetch_add(&control->next_incarnation, 1) + 1;
    if (incarnation > MPQ_INCARNATION_MAX)
        return mpq_fail(error, MPQ_INTERNAL, "%s: incarnation numbers are used up", queue->path);
    int rc = mpq_pin_take(queue, MPQ_BYTE_MEMBERS + incarnation, 1, &queue->pin);
    if (rc != 0) {
        if (rc > 0)
            errno = EBUSY;
        if (errno == ENOLCK)
            return mpq_fail(error, MPQ_FILESYSTEM,
                            "%s: this filesystem does not keep open-file-description locks; use a "
                            "local one (ext4, XFS, btrfs, tmpfs)",
                            queue->path);
        return mpq_fail_errno(error, "%s: cannot take a member's lock byte", queue->path);
    }
    queue->incarnation = incarnation;
    queue->weak = queue->pin.fd >= 0;
    member_enter(queue);
    if (queue->weak)
        mpq_event(queue, MPQ_EVENT_WEAK);
    /* Stored last: nothing is owned before it. */
    atomic_store_explicit(&queue->fork->incarnation, incarnation, memory_order_release);
    return MPQ_OK;
}

void mpq_leave(struct mpq_queue *queue)
{
    if (queue->me != NULL && !queue->me_shared &&
        mpq_load(queue->me->incarnation) == queue->incarnation) {
        mpq_store(queue->me->role, 0);
    }
    /* SYNC parted: release here, acquire in flush_of_close */
    atomic_store_explicit(&queue->fork->incarnation, 0, memory_order_release);
    mpq_pin_drop(queue, &queue->pin);
}

/* A child that has not joined yet keeps nobody out: an opener may have found the queue alone and
 * made control anew. What the child has mapped is nobody's then. */
static mpq_status same_control(struct mpq_queue *queue, struct mpq_error *error)
{
    struct stat now;
    const int rc = queue->io->stat(queue->io, queue->dirfd, "control", &now);
    if (rc != 0 && errno != ENOENT)
        return mpq_fail_errno(error, "%s: cannot look at control", queue->path);
    if (rc == 0 && now.st_ino == queue->control_inode)
        return MPQ_OK;
    return mpq_fail(error, MPQ_REMOVED,
                    "%s: the queue was rebuilt after its handle was inherited and before it was "
                    "used here; open it again: nothing was changed",
                    queue->path);
}

/* Calls inside queues, of this thread: of all that were inside at a fork, those alone go on in the
 * child, where the handle counts anew. They nest where a signal handler forks and uses queues. */
#define VISITS 16
static _Thread_local struct {
    const struct mpq_queue *queue;
    uint32_t calls;
} visits[VISITS];

static uint32_t visit(const struct mpq_queue *queue, int change)
{
    unsigned at = 0;
    while (at < VISITS && (visits[at].calls == 0 || visits[at].queue != queue))
        at++;
    for (unsigned i = 0; at == VISITS && change > 0 && i < VISITS; i++)
        if (visits[i].calls == 0)
            at = i;
    if (at == VISITS)
        return 0;
    visits[at].queue = queue;
    return visits[at].calls += (uint32_t)change;
}

mpq_status mpq_rejoin(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error)
{
    if (mpq_load(queue->vanished) != 0)
        return mpq_vanished(queue, error);
    uint64_t free_word = 0;
    if (!atomic_compare_exchange_strong(&queue->fork->joining, &free_word, 1)) {
        while (mpq_forked(queue) && mpq_load(queue->fork->joining) != 0) {
            mpq_status status = mpq_pause(queue, call, MPQ_MS, error);
            if (status != MPQ_OK)
                return status;
        }
        return mpq_forked(queue) ? MPQ_AGAIN : MPQ_OK;
    }
    /* The parent's mutexes may have been held by a thread that does not exist here. */
    mpq_mutex_init(&queue->mutex);
    pthread_mutex_init(&queue->flush_mutex, NULL);
    mpq_store(queue->inflight, visit(queue, 0));
    mpq_store(queue->events, 0);
    if (queue->pin.fd >= 0)
        queue->io->close(queue->io,
                         queue->pin.fd); /* weak mode: only close, the lock is the parent's */
    queue->pin.map = NULL; /* not inherited */
    queue->pin.fd = -1;
    queue->consumer = NULL; /* the role stays with the parent, as does a close that it was in */
    atomic_store(&queue->leaving, 0);
    queue->published = false;
    queue->me = NULL;
    for (unsigned i = 0; i < MPQ_MAPS; i++)
        if (queue->maps[i] != NULL)
            queue->maps[i]->flushed_before = false;
    struct mpq_pin gate = {NULL, -1};
    mpq_status status = mpq_pin_wait(queue, MPQ_BYTE_GATE, call, &gate, "the gate", error);
    if (status == MPQ_OK) {
        status = same_control(queue, error);
        if (status == MPQ_OK) {
            /* Who was alone since the fork may use another semaphore. Before other threads of this
             * process go on, as they do once it has joined. */
            mpq_gate_join(queue);
            status = mpq_join(queue, error);
        }
        mpq_pin_drop(queue, &gate);
    }
    mpq_store(queue->fork->joining, 0);
    return status;
}

mpq_status mpq_still_there(struct mpq_queue *queue, struct mpq_error *error)
{
    struct stat now;
    mpq_status status = mpq_control_ours(queue, error);
    if (status != MPQ_OK)
        return status;
    if (queue->io->fstat(queue->io, queue->checker, &now) != 0)
        return mpq_fail_errno(error, "%s: cannot look at meta", queue->path);
    const bool meta = now.st_nlink > 0 && now.st_ino == queue->meta_inode;
    if (meta && queue->incarnation == 0)
        return MPQ_OK; /* opening: control may not have its name yet */
    if (meta) {
        if (queue->io->stat(queue->io, queue->dirfd, "control", &now) == 0) {
            if (now.st_ino == queue->control_inode)
                return MPQ_OK;
        } else if (errno != ENOENT) {
            return mpq_fail_errno(error, "%s: cannot look at control", queue->path);
        }
    }
    mpq_store(queue->removed, 1);
    return mpq_fail(
        error, MPQ_REMOVED,
        "%s: the queue's directory, its meta or its control file was deleted or replaced while it "
        "was open; close every process that has it open, then open it again",
        queue->path);
}

mpq_status mpq_enter_leaving(struct mpq_queue *queue, const struct mpq_call *call,
                             struct mpq_error *error)
{
    while (mpq_forked(queue)) {
        if (atomic_load(&queue->closing) != 0)
            break;
        mpq_status status = mpq_rejoin(queue, call, error);
        if (status != MPQ_OK && status != MPQ_AGAIN)
            return status;
    }
    atomic_fetch_add(&queue->inflight, 1);
    visit(queue, 1);
    if (atomic_load(&queue->closing) != 0) {
        mpq_exit(queue);
        return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
    return MPQ_OK;
}

mpq_status mpq_enter(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error)
{
    mpq_status status = mpq_enter_leaving(queue, call, error);
    if (status == MPQ_OK && MPQ_UNLIKELY(mpq_load(queue->vanished) != 0)) {
        mpq_exit(queue);
        status = mpq_vanished(queue, error);
    }
    return status;
}

mpq_status mpq_call_check(struct mpq_queue *queue, const struct mpq_call *call,
                          struct mpq_error *error)
{
    const bool joined = !mpq_forked(queue);
    if (call->check == NULL)
        return MPQ_OK;
    if (call->check(call->arg) != 0)
        return MPQ_INTERRUPTED;
    if (!joined || !mpq_forked(queue))
        return MPQ_OK;
    mpq_status status = mpq_enter(queue, call, error);
    if (status == MPQ_OK)
        mpq_exit(queue); /* it has been inside since before the fork */
    return status;
}

void mpq_exit(struct mpq_queue *queue)
{
    visit(queue, -1);
    atomic_fetch_sub(&queue->inflight, 1);
}

/* ---- descriptors */

struct mpq_file_id mpq_fd_id(mpq_io *io, int fd)
{
    struct stat now;
    if (io->fstat(io, fd, &now) != 0)
        return (struct mpq_file_id){0, 0};
    return (struct mpq_file_id){now.st_ino, now.st_dev};
}

bool mpq_fd_is(mpq_io *io, int fd, const struct mpq_file_id *id)
{
    struct stat now;
    if (id->inode == 0)
        return true;
    if (io->fstat(io, fd, &now) != 0)
        return errno != EBADF; /* what comes next will tell */
    return now.st_ino == id->inode && now.st_dev == id->device;
}

void mpq_fd_close(mpq_io *io, int fd, const struct mpq_file_id *id)
{
    if (fd >= 0 && mpq_fd_is(io, fd, id))
        io->close(io, fd);
}
