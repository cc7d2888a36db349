/* io.h - every system call of the core, in one table that tests replace.
 *
 * Each function gets the table as its first argument, so a replacement can embed it in a larger
 * structure and keep its state there. Results follow the system: -1 and errno. Names are relative
 * to the directory descriptor. The core calls nothing of the system behind the back of this table,
 * except for memcpy-like access to mappings.
 */
#ifndef MPQ_IO_H
#define MPQ_IO_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/vfs.h>

struct mpq_io;
typedef const struct mpq_io mpq_io;

struct mpq_io {
    /* names */
    /* Relative to a descriptor: regular files, or directories where O_DIRECTORY asks for one; a
     * link or another kind of file is ELOOP. */
    int (*open)(mpq_io *io, int dirfd, const char *name, int flags, mode_t mode);
    int (*close)(mpq_io *io, int fd);
    int (*mkdir)(mpq_io *io, int dirfd, const char *name, mode_t mode);
    int (*rmdir)(mpq_io *io, int dirfd, const char *name);
    int (*rename)(mpq_io *io, int dirfd, const char *from, const char *to);
    int (*link)(mpq_io *io, int dirfd, const char *from, const char *to); /* never replaces */
    int (*unlink)(mpq_io *io, int dirfd, const char *name);
    int (*list)(mpq_io *io, int dirfd, int (*each)(void *arg, const char *name), void *arg);
    /* Of struct stat: st_dev, st_ino, st_mode, st_nlink, st_size, st_blocks. */
    int (*stat)(mpq_io *io, int dirfd, const char *name, struct stat *out);
    int (*fstat)(mpq_io *io, int fd, struct stat *out);
    int (*statfs)(mpq_io *io, int fd, struct statfs *out);
    int (*chmod)(mpq_io *io, int fd, mode_t mode);
    int (*no_cow)(mpq_io *io, int fd); /* btrfs: files made in here are written in place */
    /* bytes */
    int (*allocate)(mpq_io *io, int fd, uint64_t bytes); /* real blocks, not a sparse size */
    ssize_t (*pread)(mpq_io *io, int fd, void *data, size_t bytes, uint64_t offset);
    ssize_t (*pwrite)(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset);
    int (*datasync)(mpq_io *io, int fd);
    int (*sync)(mpq_io *io, int fd); /* directories too */
    /* mappings */
    void *(*map)(mpq_io *io, int fd, size_t bytes, bool writable); /* NULL and errno */
    int (*unmap)(mpq_io *io, void *address, size_t bytes);
    int (*advise)(mpq_io *io, void *address, size_t bytes, int advice);
    int (*msync)(mpq_io *io, void *address, size_t bytes);
    /* open-file-description locks */
    int (*lock)(mpq_io *io, int fd, short type, uint64_t offset, uint64_t bytes); /* never waits */
    int (*locked)(mpq_io *io, int fd, uint64_t offset); /* 1 held by others, 0 free, -1 error */
    /* sleeping; timeouts are relative */
    int (*futex_wait)(mpq_io *io, _Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns);
    int (*futex_wake)(mpq_io *io, _Atomic uint32_t *word, int count);
    void *(*sem_open)(mpq_io *io, const char *name); /* NULL and errno */
    int (*sem_close)(mpq_io *io, void *sem);
    int (*sem_wait)(mpq_io *io, void *sem, uint64_t timeout_ns);
    int (*sem_post)(mpq_io *io, void *sem); /* only when nobody has posted already */
    void (*pause)(mpq_io *io, uint64_t ns);
    /* a descriptor that is readable while it is set: an eventfd; neither call waits */
    int (*event_make)(mpq_io *io);
    int (*event_set)(mpq_io *io, int fd);
    int (*event_clear)(mpq_io *io, int fd);
    /* the rest */
    uint64_t (*monotonic_ns)(mpq_io *io);
    uint64_t (*wall_ns)(mpq_io *io);
    int (*boot_id)(mpq_io *io, char out[40]); /* MPQ_BOOT_ID in the environment overrides it */
    int (*random)(mpq_io *io, void *data, size_t bytes);
    void *(*alloc)(mpq_io *io, size_t bytes); /* zeroed */
    void (*free)(mpq_io *io, void *memory);
    int (*spawn)(mpq_io *io, pthread_t *thread, void *(*run)(void *),
                 void *arg); /* 0 or an errno */
};

/* The real one. */
extern const struct mpq_io mpq_io_system;

/* Whole transfers: retries short ones and EINTR. 0 or -1 and errno; a read past the end is EIO. */
int mpq_io_read(mpq_io *io, int fd, void *data, size_t bytes, uint64_t offset);
int mpq_io_write(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset);

#endif
