/* copied.c - see copied.h. */
#include "copied.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define UNIT 4096

static struct {
    ino_t copy, original;
} metas[2]; /* of the queue, and of its dead letters */

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static int as_original(int rc, struct stat *out)
{
    for (int i = 0; rc == 0 && i < 2; i++)
        if (metas[i].copy != 0 && out->st_ino == metas[i].copy)
            out->st_ino = metas[i].original;
    return rc;
}

static int copied_stat(mpq_io *io, int dirfd, const char *name, struct stat *out)
{
    (void)io;
    return as_original(mpq_io_system.stat(&mpq_io_system, dirfd, name, out), out);
}

static int copied_fstat(mpq_io *io, int fd, struct stat *out)
{
    (void)io;
    return as_original(mpq_io_system.fstat(&mpq_io_system, fd, out), out);
}

void copied_table(struct mpq_io *io)
{
    io->stat = copied_stat;
    io->fstat = copied_fstat;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

void copied_remove(const char *path)
{
    if (nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        die(path);
}

/* Holes stay holes, so that a copy costs what is used. */
static void copy_file(int from, const struct stat *info, const char *path)
{
    static uint8_t block[UNIT];
    static const uint8_t zeros[UNIT];
    int to = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, info->st_mode & 0777);
    if (to < 0 || ftruncate(to, info->st_size) != 0)
        die(path);
    for (off_t at = 0; at < info->st_size;) {
        const ssize_t got = pread(from, block, UNIT, at);
        if (got <= 0)
            die("pread");
        if (memcmp(block, zeros, (size_t)got) != 0 && pwrite(to, block, (size_t)got, at) != got)
            die("pwrite");
        at += got;
    }
    close(to);
}

/* ---- what it is now, compared page by page with what it was at the last look */

#define FILES 64

struct watched {
    ino_t inode; /* not used again as long as it is mapped */
    size_t bytes; /* 0 = a free slot */
    const uint8_t *live;
    uint8_t *known;
    uint64_t *pages; /* their hashes */
    uint64_t sum; /* of these */
    uint64_t look; /* the last that met it */
};

static struct watched watched[FILES];
static uint64_t look;

static void forget(struct watched *file)
{
    if (munmap((void *)(uintptr_t)file->live, file->bytes) != 0)
        die("munmap");
    free(file->known);
    free(file->pages);
    memset(file, 0, sizeof *file);
}

static struct watched *watch(int directory, const char *name, const struct stat *info)
{
    struct watched *spare = NULL;
    for (int i = 0; i < FILES; i++) {
        struct watched *file = &watched[i];
        if (file->bytes != 0 && file->inode == info->st_ino) {
            if (file->bytes == (size_t)info->st_size)
                return file;
            forget(file);
        }
        if (file->bytes == 0)
            spare = file;
    }
    const int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (spare == NULL || fd < 0)
        die(name);
    spare->inode = info->st_ino;
    spare->bytes = (size_t)info->st_size;
    spare->live = mmap(NULL, spare->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    spare->known = calloc(1, spare->bytes);
    spare->pages = calloc(spare->bytes / UNIT + 1, sizeof *spare->pages);
    if (spare->live == MAP_FAILED || spare->known == NULL || spare->pages == NULL)
        die(name);
    close(fd);
    return spare;
}

/* Pages of zeros add nothing. */
static uint64_t bytes_sum(struct watched *file)
{
    for (size_t at = 0; at < file->bytes; at += UNIT) {
        const size_t span = file->bytes - at < UNIT ? file->bytes - at : UNIT;
        uint64_t *page = &file->pages[at / UNIT];
        if (memcmp(file->known + at, file->live + at, span) == 0)
            continue;
        memcpy(file->known + at, file->live + at, span);
        file->sum -= *page;
        *page = mpq_xxh64(file->known + at, span, at + 1);
        file->sum += *page;
    }
    file->look = look;
    return file->sum;
}

static uint64_t names_sum(int fd, uint64_t seed)
{
    uint64_t sum = 0; /* in whatever order they are listed */
    DIR *directory = fdopendir(fd);
    if (directory == NULL)
        die("fdopendir");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct stat info;
        uint64_t inside = 0;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
            die(entry->d_name);
        const uint64_t name = mpq_xxh64(entry->d_name, strlen(entry->d_name), seed);
        if (S_ISDIR(info.st_mode))
            inside = names_sum(openat(fd, entry->d_name, O_RDONLY | O_CLOEXEC), name);
        else if (info.st_size != 0)
            inside = bytes_sum(watch(fd, entry->d_name, &info));
        const uint64_t whole[2] = {(uint64_t)info.st_size * !S_ISDIR(info.st_mode), inside};
        sum += mpq_xxh64(whole, sizeof whole, name);
    }
    closedir(directory);
    return sum;
}

uint64_t copied_hash(const char *from, uint64_t seed)
{
    look++;
    const int fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        die(from);
    const uint64_t sum = fd < 0 ? 0 : names_sum(fd, 0);
    for (int i = 0; i < FILES; i++)
        if (watched[i].bytes != 0 && watched[i].look != look)
            forget(&watched[i]);
    return mpq_xxh64(&sum, sizeof sum, seed);
}

static void make(const char *from, const char *to, int level)
{
    char path[512], target[512];
    struct stat info, made;
    copied_remove(to);
    metas[level].copy = 0;
    DIR *directory = opendir(from);
    if (directory == NULL && errno == ENOENT)
        return; /* its maker died before it was there */
    if (directory == NULL || mkdir(to, 0700) != 0)
        die(to);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &info) != 0)
            die(path);
        if (S_ISDIR(info.st_mode))
            make(path, target, level + (strcmp(entry->d_name, "dead") == 0));
        else
            copy_file(fd, &info, target);
        close(fd);
    }
    closedir(directory);
    snprintf(path, sizeof path, "%s/meta", from);
    snprintf(target, sizeof target, "%s/meta", to);
    if (stat(path, &info) == 0 && stat(target, &made) == 0) {
        metas[level].original = info.st_ino;
        metas[level].copy = made.st_ino;
    }
}

void copied_make(const char *from, const char *to)
{
    metas[1].copy = 0;
    make(from, to, 0);
}

int copied_hold(const char *path, uint64_t incarnation)
{
    char meta[512];
    snprintf(meta, sizeof meta, "%s/meta", path);
    int fd = open(meta, O_RDWR | O_CLOEXEC);
    struct flock byte = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)(MPQ_BYTE_MEMBERS + incarnation),
                         .l_len = 1};
    if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &byte) != 0)
        die("lock byte");
    return fd;
}
