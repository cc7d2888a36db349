/* io.c - the real I/O table: one thin function per system call. */
#include "io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ULL

/* What root makes in somebody's directory is that somebody's: an operator's look at a queue must
 * not lock its owner out. */
static bool owner_is_served(int dirfd, struct stat *directory)
{
    return geteuid() == 0 && dirfd != AT_FDCWD && fstat(dirfd, directory) == 0 &&
           directory->st_uid != 0;
}

/* Who may write in the directory must not lead others, root for one, to a file elsewhere, nor into
 * a pipe that nobody feeds: below it, neither a link nor a special file is opened. */
static int sys_open(mpq_io *io, int dirfd, const char *name, int flags, mode_t mode)
{
    (void)io;
    const bool below = dirfd != AT_FDCWD;
    struct stat now;
    int fd = openat(dirfd, name, flags | O_CLOEXEC | (below ? O_NOFOLLOW | O_NONBLOCK : 0), mode);
    if (fd < 0 || !below)
        return fd;
    const mode_t kind = (flags & O_DIRECTORY) != 0 ? S_IFDIR : S_IFREG;
    if (fstat(fd, &now) != 0 || (now.st_mode & S_IFMT) != kind) {
        close(fd);
        errno = ELOOP;
        return -1;
    }
    if ((flags & O_EXCL) != 0 && owner_is_served(dirfd, &now)) /* made here and now */
        (void)!fchown(fd, now.st_uid, now.st_gid);
    return fd;
}

static int sys_close(mpq_io *io, int fd)
{
    (void)io;
    return close(fd);
}

static int sys_mkdir(mpq_io *io, int dirfd, const char *name, mode_t mode)
{
    (void)io;
    struct stat directory;
    int rc = mkdirat(dirfd, name, mode);
    if (rc == 0 && owner_is_served(dirfd, &directory))
        (void)!fchownat(dirfd, name, directory.st_uid, directory.st_gid, AT_SYMLINK_NOFOLLOW);
    return rc;
}

static int sys_rmdir(mpq_io *io, int dirfd, const char *name)
{
    (void)io;
    return unlinkat(dirfd, name, AT_REMOVEDIR);
}

static int sys_rename(mpq_io *io, int dirfd, const char *from, const char *to)
{
    (void)io;
    return renameat(dirfd, from, dirfd, to);
}

static int sys_link(mpq_io *io, int dirfd, const char *from, const char *to)
{
    (void)io;
    return linkat(dirfd, from, dirfd, to, 0);
}

static int sys_unlink(mpq_io *io, int dirfd, const char *name)
{
    (void)io;
    return unlinkat(dirfd, name, 0);
}

static int sys_list(mpq_io *io, int dirfd, int (*each)(void *arg, const char *name), void *arg)
{
    (void)io;
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        close(fd);
        return -1;
    }
    int rc = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            rc = errno ? -1 : 0;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        rc = each(arg, entry->d_name);
        if (rc != 0)
            break;
    }
    int saved = errno;
    closedir(dir);
    errno = saved;
    return rc;
}

/* Never asks for times: whoever reads the times of a file makes the next store to it move them, and
 * every flush after that writes the inode as well, another 4 KiB (kernels from 6.13 on). */
static int look(int fd, const char *name, int flags, struct stat *out)
{
#ifdef SYS_statx
    struct statx now;
    const unsigned mask =
        STATX_TYPE | STATX_MODE | STATX_NLINK | STATX_INO | STATX_SIZE | STATX_BLOCKS;
    if (syscall(SYS_statx, fd, name, flags, mask, &now) == 0) {
        memset(out, 0, sizeof *out);
        out->st_dev = makedev(now.stx_dev_major, now.stx_dev_minor);
        out->st_ino = now.stx_ino;
        out->st_mode = now.stx_mode;
        out->st_nlink = now.stx_nlink;
        out->st_size = (off_t)now.stx_size;
        out->st_blocks = (blkcnt_t)now.stx_blocks;
        return 0;
    }
    if (errno != ENOSYS && errno != EPERM) /* EPERM: a sandbox older than the call */
        return -1;
#endif
    return fstatat(fd, name, out, flags);
}

static int sys_stat(mpq_io *io, int dirfd, const char *name, struct stat *out)
{
    (void)io;
    return look(dirfd, name, AT_SYMLINK_NOFOLLOW, out);
}

static int sys_fstat(mpq_io *io, int fd, struct stat *out)
{
    (void)io;
    return look(fd, "", AT_EMPTY_PATH, out);
}

static int sys_statfs(mpq_io *io, int fd, struct statfs *out)
{
    (void)io;
    return fstatfs(fd, out);
}

static int sys_chmod(mpq_io *io, int fd, mode_t mode)
{
    (void)io;
    return fchmod(fd, mode);
}

static int sys_no_cow(mpq_io *io, int fd)
{
    (void)io;
    int flags = 0;
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0)
        return -1;
    if (flags & FS_NOCOW_FL)
        return 0;
    flags |= FS_NOCOW_FL;
    return ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

static int sys_allocate(mpq_io *io, int fd, uint64_t bytes)
{
    (void)io;
    int rc;
    do {
        rc = posix_fallocate(fd, 0, (off_t)bytes);
    } while (rc == EINTR);
    if (rc != 0) {
        errno = rc;
        return -1;
    }
    return 0;
}

static ssize_t sys_pread(mpq_io *io, int fd, void *data, size_t bytes, uint64_t offset)
{
    (void)io;
    return pread(fd, data, bytes, (off_t)offset);
}

static ssize_t sys_pwrite(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset)
{
    (void)io;
    return pwrite(fd, data, bytes, (off_t)offset);
}

static int sys_datasync(mpq_io *io, int fd)
{
    (void)io;
    return fdatasync(fd);
}

static int sys_sync(mpq_io *io, int fd)
{
    (void)io;
    return fsync(fd);
}

static void *sys_map(mpq_io *io, int fd, size_t bytes, bool writable)
{
    (void)io;
    void *address = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    return address == MAP_FAILED ? NULL : address;
}

static int sys_unmap(mpq_io *io, void *address, size_t bytes)
{
    (void)io;
    return munmap(address, bytes);
}

static int sys_advise(mpq_io *io, void *address, size_t bytes, int advice)
{
    (void)io;
    return madvise(address, bytes, advice);
}

static int sys_msync(mpq_io *io, void *address, size_t bytes)
{
    (void)io;
    return msync(address, bytes, MS_SYNC);
}

static struct flock byte_range(short type, uint64_t offset, uint64_t bytes)
{
    struct flock range;
    memset(&range, 0, sizeof range);
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = (off_t)offset;
    range.l_len = (off_t)bytes;
    return range;
}

static int sys_lock(mpq_io *io, int fd, short type, uint64_t offset, uint64_t bytes)
{
    (void)io;
    struct flock range = byte_range(type, offset, bytes);
    return fcntl(fd, F_OFD_SETLK, &range);
}

static int sys_locked(mpq_io *io, int fd, uint64_t offset)
{
    (void)io;
    struct flock range = byte_range(F_WRLCK, offset, 1);
    if (fcntl(fd, F_OFD_GETLK, &range) != 0)
        return -1;
    return range.l_type == F_UNLCK ? 0 : 1;
}

static int sys_futex_wait(mpq_io *io, _Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    (void)io;
    struct timespec timeout = {(time_t)(timeout_ns / NS), (long)(timeout_ns % NS)};
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static int sys_futex_wake(mpq_io *io, _Atomic uint32_t *word, int count)
{
    (void)io;
    return (int)syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
}

static void *sys_sem_open(mpq_io *io, const char *name)
{
    (void)io;
    sem_t *sem = sem_open(name, 0);
    return sem == SEM_FAILED ? NULL : sem;
}

static int sys_sem_close(mpq_io *io, void *sem)
{
    (void)io;
    return sem_close(sem);
}

static uint64_t sys_monotonic_ns(mpq_io *io)
{
    (void)io;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

static uint64_t sys_wall_ns(mpq_io *io)
{
    (void)io;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * NS + (uint64_t)now.tv_nsec;
}

static int sys_sem_wait(mpq_io *io, void *sem, uint64_t timeout_ns)
{
    uint64_t until = sys_monotonic_ns(io) + timeout_ns;
    struct timespec deadline = {(time_t)(until / NS), (long)(until % NS)};
    return sem_clockwait(sem, CLOCK_MONOTONIC, &deadline);
}

static int sys_sem_post(mpq_io *io, void *sem)
{
    (void)io;
    int value = 0;
    /* Bounds stale tokens by the number of concurrent unlockers. */
    if (sem_getvalue(sem, &value) == 0 && value > 0)
        return 0;
    return sem_post(sem);
}

static void sys_pause(mpq_io *io, uint64_t ns)
{
    (void)io;
    struct timespec time = {(time_t)(ns / NS), (long)(ns % NS)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static int sys_event_make(mpq_io *io)
{
    (void)io;
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static int sys_event_set(mpq_io *io, int fd)
{
    (void)io;
    return eventfd_write(fd, 1);
}

static int sys_event_clear(mpq_io *io, int fd)
{
    (void)io;
    eventfd_t count;
    return eventfd_read(fd, &count);
}

static int sys_boot_id(mpq_io *io, char out[40])
{
    memset(out, 0, 40);
    const char *override = getenv("MPQ_BOOT_ID");
    if (override != NULL && override[0] != '\0') {
        snprintf(out, 40, "%s", override);
        return 0;
    }
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = sys_pread(io, fd, out, 36, 0);
    close(fd);
    if (got != 36) {
        errno = EIO;
        return -1;
    }
    return 0;
}

static int sys_random(mpq_io *io, void *data, size_t bytes)
{
    (void)io;
    return getrandom(data, bytes, 0) == (ssize_t)bytes ? 0 : -1;
}

static void *sys_alloc(mpq_io *io, size_t bytes)
{
    (void)io;
    return calloc(1, bytes);
}

static void sys_free(mpq_io *io, void *memory)
{
    (void)io;
    free(memory);
}

/* Signals stay with the threads that the caller knows. */
static int sys_spawn(mpq_io *io, pthread_t *thread, void *(*run)(void *), void *arg)
{
    (void)io;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

const struct mpq_io mpq_io_system = {
    .open = sys_open,
    .close = sys_close,
    .mkdir = sys_mkdir,
    .rmdir = sys_rmdir,
    .rename = sys_rename,
    .link = sys_link,
    .unlink = sys_unlink,
    .list = sys_list,
    .stat = sys_stat,
    .fstat = sys_fstat,
    .statfs = sys_statfs,
    .chmod = sys_chmod,
    .no_cow = sys_no_cow,
    .allocate = sys_allocate,
    .pread = sys_pread,
    .pwrite = sys_pwrite,
    .datasync = sys_datasync,
    .sync = sys_sync,
    .map = sys_map,
    .unmap = sys_unmap,
    .advise = sys_advise,
    .msync = sys_msync,
    .lock = sys_lock,
    .locked = sys_locked,
    .futex_wait = sys_futex_wait,
    .futex_wake = sys_futex_wake,
    .sem_open = sys_sem_open,
    .sem_close = sys_sem_close,
    .sem_wait = sys_sem_wait,
    .sem_post = sys_sem_post,
    .pause = sys_pause,
    .event_make = sys_event_make,
    .event_set = sys_event_set,
    .event_clear = sys_event_clear,
    .monotonic_ns = sys_monotonic_ns,
    .wall_ns = sys_wall_ns,
    .boot_id = sys_boot_id,
    .random = sys_random,
    .alloc = sys_alloc,
    .free = sys_free,
    .spawn = sys_spawn,
};

int mpq_io_read(mpq_io *io, int fd, void *data, size_t bytes, uint64_t offset)
{
    uint8_t *at = data;
    while (bytes > 0) {
        ssize_t got = io->pread(io, fd, at, bytes, offset);
        if (got < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        if (got == 0) {
            errno = EIO;
            return -1;
        }
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return 0;
}

int mpq_io_write(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        ssize_t put = io->pwrite(io, fd, at, bytes, offset);
        if (put < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        at += put;
        offset += (uint64_t)put;
        bytes -= (size_t)put;
    }
    return 0;
}
