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

static ino_t copy, original;

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static int as_original(int rc, struct stat *out)
{
    if (rc == 0 && copy != 0 && out->st_ino == copy)
        out->st_ino = original;
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

static uint64_t hash_entry(const char *path, const char *name, uint64_t seed)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0)
        die(path);
    uint64_t hash = mpq_xxh64(name, strlen(name), seed + (uint64_t)info.st_size);
    if (S_ISDIR(info.st_mode)) {
        hash = copied_hash(path, hash);
    } else if (info.st_size != 0) {
        const size_t bytes = (size_t)info.st_size;
        void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (base == MAP_FAILED)
            die(path);
        hash = mpq_xxh64(base, bytes, hash);
        munmap(base, bytes);
    }
    close(fd);
    return hash;
}

uint64_t copied_hash(const char *from, uint64_t seed)
{
    char path[512];
    uint64_t sum = seed; /* in whatever order they are listed */
    DIR *directory = opendir(from);
    if (directory == NULL && errno == ENOENT)
        return seed;
    if (directory == NULL)
        die(from);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        sum += hash_entry(path, entry->d_name, seed);
    }
    closedir(directory);
    return sum;
}

void copied_make(const char *from, const char *to)
{
    char path[512], target[512];
    struct stat info, made;
    copied_remove(to);
    copy = 0;
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
            copied_make(path, target);
        else
            copy_file(fd, &info, target);
        close(fd);
    }
    closedir(directory);
    snprintf(path, sizeof path, "%s/meta", from);
    snprintf(target, sizeof target, "%s/meta", to);
    if (stat(path, &info) == 0 && stat(target, &made) == 0) {
        original = info.st_ino;
        copy = made.st_ino;
    }
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
