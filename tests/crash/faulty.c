/* faulty.c - see faulty.h. */
#include "faulty.h"

#include <errno.h>
#include <string.h>

const char *const faulty_names[KIND_COUNT] = {
#define X(name) #name,
    KINDS
#undef X
};

const int faulty_errnos[KIND_COUNT][7] = {
    [KIND_open] = {EACCES, EMFILE, EIO, ENOSPC, EROFS, ENOMEM},
    [KIND_mkdir] = {EACCES, ENOSPC, EROFS},
    [KIND_rename] = {EIO, ENOSPC, EROFS},
    [KIND_link] = {EIO, ENOSPC, EPERM},
    [KIND_unlink] = {EIO, EROFS, EACCES},
    [KIND_list] = {EIO, EMFILE, ENOMEM},
    [KIND_stat] = {EIO, EACCES, ENOMEM},
    [KIND_fstat] = {EIO, EOVERFLOW},
    [KIND_statfs] = {EIO, ENOSYS},
    [KIND_chmod] = {EPERM, EROFS},
    [KIND_allocate] = {ENOSPC, EIO, EFBIG, EDQUOT},
    [KIND_pread] = {EIO, EINTR, EISDIR},
    [KIND_pwrite] = {EIO, ENOSPC, EINTR, EDQUOT},
    [KIND_datasync] = {EIO, ENOSPC, EDQUOT},
    [KIND_sync] = {EIO, ENOSPC, EINTR},
    [KIND_map] = {ENOMEM, EACCES, EAGAIN},
    [KIND_msync] = {EIO, ENOSPC, ENOMEM},
    [KIND_lock] = {ENOLCK, EINTR, EIO},
    [KIND_locked] = {ENOLCK, EIO},
    [KIND_sem_open] = {ENOENT, EACCES, EMFILE},
    [KIND_alloc] = {ENOMEM},
    [KIND_random] = {EIO, ENOSYS},
    [KIND_boot_id] = {EIO, EACCES},
};

static struct faulty *self(mpq_io *io)
{
    return (struct faulty *)(uintptr_t)io;
}

static bool trip(mpq_io *io, enum kind kind, const struct memory_file *file)
{
    struct faulty *f = self(io);
    if (f->at == 0 || f->kind != kind)
        return false;
    f->calls++;
    if (f->calls < f->at || (f->calls > f->at && !f->always))
        return false;
    f->fired++;
    f->aside |= file != NULL && (strncmp(file->name, "preparing-", 10) == 0 ||
                                 strncmp(file->name, "making-", 7) == 0);
    errno = f->error;
    return true;
}

static const struct memory_file *file_of(mpq_io *io, int fd)
{
    return self(io)->world.fds[fd].file;
}

#define UNDER(io) (&self(io)->world.io)
#define PASS(type, name, parameters, arguments, failure)                                           \
    static type faulty_##name parameters                                                           \
    {                                                                                              \
        if (trip(io, KIND_##name, NULL))                                                           \
            return failure;                                                                        \
        return UNDER(io)->name arguments;                                                          \
    }

PASS(int, open, (mpq_io * io, int d, const char *name, int flags, mode_t mode),
     (UNDER(io), d, name, flags, mode), -1)
PASS(int, mkdir, (mpq_io * io, int d, const char *name, mode_t mode), (UNDER(io), d, name, mode),
     -1)
PASS(int, rename, (mpq_io * io, int d, const char *a, const char *b), (UNDER(io), d, a, b), -1)
PASS(int, link, (mpq_io * io, int d, const char *a, const char *b), (UNDER(io), d, a, b), -1)
PASS(int, unlink, (mpq_io * io, int d, const char *name), (UNDER(io), d, name), -1)
PASS(int, list, (mpq_io * io, int d, int (*each)(void *, const char *), void *arg),
     (UNDER(io), d, each, arg), -1)
PASS(int, stat, (mpq_io * io, int d, const char *name, struct stat *out), (UNDER(io), d, name, out),
     -1)
PASS(int, fstat, (mpq_io * io, int fd, struct stat *out), (UNDER(io), fd, out), -1)
PASS(int, statfs, (mpq_io * io, int fd, struct statfs *out), (UNDER(io), fd, out), -1)
PASS(int, chmod, (mpq_io * io, int fd, mode_t mode), (UNDER(io), fd, mode), -1)
PASS(int, allocate, (mpq_io * io, int fd, uint64_t bytes), (UNDER(io), fd, bytes), -1)
PASS(ssize_t, pread, (mpq_io * io, int fd, void *data, size_t bytes, uint64_t at),
     (UNDER(io), fd, data, bytes, at), -1)
PASS(void *, map, (mpq_io * io, int fd, size_t bytes, bool writable),
     (UNDER(io), fd, bytes, writable), NULL)
PASS(int, lock, (mpq_io * io, int fd, short type, uint64_t at, uint64_t bytes),
     (UNDER(io), fd, type, at, bytes), -1)
PASS(int, locked, (mpq_io * io, int fd, uint64_t at), (UNDER(io), fd, at), -1)
PASS(void *, sem_open, (mpq_io * io, const char *name), (UNDER(io), name), NULL)
PASS(int, random, (mpq_io * io, void *data, size_t bytes), (UNDER(io), data, bytes), -1)
PASS(int, boot_id, (mpq_io * io, char out[40]), (UNDER(io), out), -1)
PASS(void *, alloc, (mpq_io * io, size_t bytes), (UNDER(io), bytes), NULL)

/* Half of it is written, the worst that a failing write may do. */
static ssize_t faulty_pwrite(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t at)
{
    if (trip(io, KIND_pwrite, file_of(io, fd))) {
        if (self(io)->error != EINTR)
            (void)UNDER(io)->pwrite(UNDER(io), fd, data, bytes / 2, at);
        errno = self(io)->error;
        return -1;
    }
    return UNDER(io)->pwrite(UNDER(io), fd, data, bytes, at);
}

static int faulty_datasync(mpq_io *io, int fd)
{
    return trip(io, KIND_datasync, file_of(io, fd)) ? -1 : UNDER(io)->datasync(UNDER(io), fd);
}

static int faulty_sync(mpq_io *io, int fd)
{
    return trip(io, KIND_sync, file_of(io, fd)) ? -1 : UNDER(io)->sync(UNDER(io), fd);
}

static int faulty_msync(mpq_io *io, void *address, size_t bytes)
{
    const struct memory *world = &self(io)->world;
    const struct memory_file *file = NULL;
    for (int i = 0; i < MEMORY_SLOTS; i++) {
        const uint8_t *base = world->maps[i].address;
        if (base != NULL && (uint8_t *)address >= base &&
            (uint8_t *)address < base + world->maps[i].file->room)
            file = world->maps[i].file;
    }
    return trip(io, KIND_msync, file) ? -1 : UNDER(io)->msync(UNDER(io), address, bytes);
}

/* What never fails is handed to the world below under its own name. */
#define PLAIN(type, name, parameters, arguments)                                                   \
    static type plain_##name parameters                                                            \
    {                                                                                              \
        return UNDER(io)->name arguments;                                                          \
    }

PLAIN(int, close, (mpq_io * io, int fd), (UNDER(io), fd))
PLAIN(int, rmdir, (mpq_io * io, int d, const char *name), (UNDER(io), d, name))
PLAIN(int, unmap, (mpq_io * io, void *address, size_t bytes), (UNDER(io), address, bytes))
PLAIN(int, advise, (mpq_io * io, void *at, size_t bytes, int how), (UNDER(io), at, bytes, how))
PLAIN(int, futex_wait, (mpq_io * io, _Atomic uint32_t *word, uint32_t value, uint64_t ns),
      (UNDER(io), word, value, ns))
PLAIN(int, futex_wake, (mpq_io * io, _Atomic uint32_t *word, int count), (UNDER(io), word, count))
PLAIN(int, sem_close, (mpq_io * io, void *sem), (UNDER(io), sem))
PLAIN(int, sem_wait, (mpq_io * io, void *sem, uint64_t ns), (UNDER(io), sem, ns))
PLAIN(int, sem_post, (mpq_io * io, void *sem), (UNDER(io), sem))
PLAIN(void, pause, (mpq_io * io, uint64_t ns), (UNDER(io), ns))
PLAIN(uint64_t, monotonic_ns, (mpq_io * io), (UNDER(io)))
PLAIN(uint64_t, wall_ns, (mpq_io * io), (UNDER(io)))
PLAIN(void, free, (mpq_io * io, void *memory), (UNDER(io), memory))
PLAIN(int, spawn, (mpq_io * io, pthread_t *thread, void *(*run)(void *), void *arg),
      (UNDER(io), thread, run, arg))

void faulty_start(struct faulty *f)
{
    memory_start(&f->world, 1);
    f->io = f->world.io;
#define X(name) f->io.name = faulty_##name;
    KINDS
#undef X
    f->io.close = plain_close;
    f->io.rmdir = plain_rmdir;
    f->io.no_cow = faulty_sync;
    f->io.unmap = plain_unmap;
    f->io.advise = plain_advise;
    f->io.futex_wait = plain_futex_wait;
    f->io.futex_wake = plain_futex_wake;
    f->io.sem_close = plain_sem_close;
    f->io.sem_wait = plain_sem_wait;
    f->io.sem_post = plain_sem_post;
    f->io.pause = plain_pause;
    f->io.monotonic_ns = plain_monotonic_ns;
    f->io.wall_ns = plain_wall_ns;
    f->io.free = plain_free;
    f->io.spawn = plain_spawn;
}
