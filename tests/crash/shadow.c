/* shadow.c - see shadow.h. */
#include "shadow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct shadow *self(mpq_io *io)
{
    return (struct shadow *)(uintptr_t)io;
}

static const struct mpq_io *real = &mpq_io_system;

uint64_t shadow_random(struct shadow *s)
{
    s->random += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
    uint64_t z = s->random;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void die(const char *what)
{
    perror(what);
    abort();
}

/* Every call that changes files or makes them durable is a place to crash: before it takes effect.
 */
static void step(struct shadow *s)
{
    s->calls++;
    if (s->crash_at != 0 && s->calls >= s->crash_at)
        longjmp(s->crash, 1);
}

static struct shadow_file *file_of(struct shadow *s, uint64_t inode)
{
    for (uint32_t i = s->file_count; i-- > 0;)
        if (s->files[i].inode == inode)
            return &s->files[i];
    return NULL;
}

static struct shadow_file *file_add(struct shadow *s, uint64_t inode, int fd)
{
    struct shadow_file *file = file_of(s, inode);
    if (file != NULL)
        return file;
    if (s->file_count == SHADOW_FILES)
        die("too many files");
    file = &s->files[s->file_count++];
    memset(file, 0, sizeof *file);
    file->inode = inode;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    file->keep = open(path, O_RDONLY | O_CLOEXEC);
    if (file->keep < 0)
        die("dup");
    return file;
}

static void file_room(struct shadow_file *file, uint64_t bytes)
{
    if (bytes <= file->room)
        return;
    file->durable = realloc(file->durable, bytes);
    if (file->durable == NULL)
        die("realloc");
    memset(file->durable + file->room, 0, bytes - file->room);
    file->room = bytes;
}

static uint64_t size_of(int fd)
{
    struct stat now;
    if (fstat(fd, &now) != 0)
        die("fstat");
    return (uint64_t)now.st_size;
}

static void make_durable(struct shadow_file *file, uint64_t from, uint64_t to)
{
    uint64_t bytes = size_of(file->keep);
    file_room(file, bytes);
    file->durable_bytes = bytes;
    if (to > bytes)
        to = bytes;
    if (to > from &&
        pread(file->keep, file->durable + from, to - from, (off_t)from) != (ssize_t)(to - from))
        die("pread");
}

static int fd_slot(struct shadow *s, int fd)
{
    for (int i = 0; i < SHADOW_FDS; i++)
        if (s->fds[i].fd == fd + 1)
            return i;
    return -1;
}

static int shadow_open(mpq_io *io, int dirfd, const char *name, int flags, mode_t mode)
{
    struct shadow *s = self(io);
    if ((flags & O_CREAT) != 0)
        step(s);
    int fd = real->open(real, dirfd, name, flags, mode);
    if (fd < 0)
        return fd;
    struct stat now;
    if (fstat(fd, &now) != 0)
        die("fstat");
    for (int i = 0; i < SHADOW_FDS; i++)
        if (s->fds[i].fd == 0) {
            s->fds[i].fd = fd + 1;
            s->fds[i].inode = now.st_ino;
            s->fds[i].description = ++s->descriptions;
            s->fds[i].directory = S_ISDIR(now.st_mode);
            if (S_ISREG(now.st_mode) && name[0] != '/' && s->crash_at != 0)
                file_add(s, now.st_ino, fd);
            return fd;
        }
    die("too many descriptors");
    return -1;
}

static void description_end(struct shadow *s, uint64_t description)
{
    for (int i = 0; i < SHADOW_FDS; i++)
        if (s->fds[i].fd != 0 && s->fds[i].description == description)
            return;
    for (int i = 0; i < SHADOW_MAPS; i++)
        if (s->maps[i].address != NULL && s->maps[i].description == description)
            return;
    for (int i = 0; i < SHADOW_LOCKS; i++)
        if (s->locks[i].owner == description)
            s->locks[i].owner = 0;
}

static int shadow_close(mpq_io *io, int fd)
{
    struct shadow *s = self(io);
    int slot = fd_slot(s, fd);
    if (slot >= 0) {
        s->fds[slot].fd = 0;
        description_end(s, s->fds[slot].description);
    }
    return close(fd);
}

static int shadow_mkdir(mpq_io *io, int dirfd, const char *name, mode_t mode)
{
    step(self(io));
    return real->mkdir(real, dirfd, name, mode);
}

static int shadow_rename(mpq_io *io, int dirfd, const char *from, const char *to)
{
    step(self(io));
    return real->rename(real, dirfd, from, to);
}

static int shadow_link(mpq_io *io, int dirfd, const char *from, const char *to)
{
    step(self(io));
    return real->link(real, dirfd, from, to);
}

static int shadow_unlink(mpq_io *io, int dirfd, const char *name)
{
    step(self(io));
    return real->unlink(real, dirfd, name);
}

static int shadow_allocate(mpq_io *io, int fd, uint64_t bytes)
{
    step(self(io));
    return real->allocate(real, fd, bytes);
}

static ssize_t shadow_pwrite(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset)
{
    step(self(io));
    return real->pwrite(real, fd, data, bytes, offset);
}

struct listing {
    int dirfd;
    struct shadow_directory *into;
};

static int list_name(void *argument, const char *name)
{
    struct listing *listing = argument;
    struct shadow_directory *into = listing->into;
    struct stat now;
    if (fstatat(listing->dirfd, name, &now, AT_SYMLINK_NOFOLLOW) != 0)
        return 0;
    struct shadow_name *entry = &into->names[into->count++];
    if (into->count == SHADOW_NAMES || strlen(name) >= sizeof entry->name)
        die("too many names, or a long one");
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->inode = now.st_ino;
    entry->directory = S_ISDIR(now.st_mode);
    return 0;
}

/* The names in a directory as they are now. */
static void list_names(int dirfd, struct shadow_directory *into)
{
    struct listing listing = {dirfd, into};
    struct stat now;
    if (fstat(dirfd, &now) != 0)
        die("fstat");
    into->inode = now.st_ino;
    into->count = 0;
    if (real->list(real, dirfd, list_name, &listing) != 0)
        die("list");
}

/* What is durable of a directory; NULL: nothing. */
static struct shadow_directory *directory_of(struct shadow *s, uint64_t inode)
{
    for (uint32_t i = 0; i < s->directory_count; i++)
        if (s->directories[i].inode == inode)
            return &s->directories[i];
    return NULL;
}

static const struct shadow_directory *names_durable(struct shadow *s, int dirfd)
{
    struct stat now;
    if (fstat(dirfd, &now) != 0)
        die("fstat");
    struct shadow_directory *directory = directory_of(s, now.st_ino);
    if (directory == NULL) {
        if (s->directory_count == SHADOW_DIRECTORIES)
            die("too many directories");
        directory = &s->directories[s->directory_count++];
    }
    list_names(dirfd, directory);
    return directory;
}

/* It and what is in it. */
static void adopt(struct shadow *s, int dirfd)
{
    const struct shadow_directory *directory = names_durable(s, dirfd);
    for (uint32_t i = 0; i < directory->count; i++) {
        const struct shadow_name *entry = &directory->names[i];
        int fd = openat(dirfd, entry->name, entry->directory ? O_RDONLY : O_RDWR);
        if (fd < 0)
            die(entry->name);
        if (entry->directory)
            adopt(s, fd);
        else
            make_durable(file_add(s, entry->inode, fd), 0, UINT64_MAX);
        close(fd);
    }
}

static int failing(struct shadow *s)
{
    if (s->fail_sync == 0)
        return 0;
    s->fail_sync--;
    errno = EIO;
    return 1;
}

static int shadow_sync(mpq_io *io, int fd)
{
    struct shadow *s = self(io);
    step(s);
    if (failing(s))
        return -1;
    int slot = fd_slot(s, fd);
    if (slot < 0)
        die("sync of an unknown descriptor");
    if (s->crash_at == 0)
        return 0;
    if (s->fds[slot].directory) {
        (void)names_durable(s, fd);
        return 0;
    }
    struct shadow_file *file = file_of(s, s->fds[slot].inode);
    make_durable(file, 0, UINT64_MAX);
    return 0;
}

static void *shadow_map(mpq_io *io, int fd, size_t bytes, bool writable)
{
    struct shadow *s = self(io);
    void *address = real->map(real, fd, bytes, writable);
    int slot = fd_slot(s, fd);
    if (address == NULL || slot < 0)
        return address;
    for (int i = 0; i < SHADOW_MAPS; i++)
        if (s->maps[i].address == NULL) {
            s->maps[i].address = address;
            s->maps[i].bytes = bytes;
            s->maps[i].inode = s->fds[slot].inode;
            s->maps[i].description = s->fds[slot].description;
            return address;
        }
    die("too many maps");
    return NULL;
}

static int shadow_unmap(mpq_io *io, void *address, size_t bytes)
{
    struct shadow *s = self(io);
    for (int i = 0; i < SHADOW_MAPS; i++)
        if (s->maps[i].address == address) {
            s->maps[i].address = NULL;
            description_end(s, s->maps[i].description);
        }
    return munmap(address, bytes);
}

static int shadow_msync(mpq_io *io, void *address, size_t bytes)
{
    struct shadow *s = self(io);
    step(s);
    if (failing(s))
        return -1;
    for (int i = 0; i < SHADOW_MAPS; i++) {
        uint8_t *base = s->maps[i].address;
        if (base == NULL || (uint8_t *)address < base ||
            (uint8_t *)address >= base + s->maps[i].bytes)
            continue;
        if (s->crash_at == 0)
            return 0;
        uint64_t from = (uint64_t)((uint8_t *)address - base);
        make_durable(file_of(s, s->maps[i].inode), from & ~4095ULL,
                     (from + bytes + 4095) & ~4095ULL);
        return 0;
    }
    die("msync of an unknown mapping");
    return -1;
}

static int shadow_lock(mpq_io *io, int fd, short type, uint64_t offset, uint64_t bytes)
{
    struct shadow *s = self(io);
    int slot = fd_slot(s, fd);
    uint64_t to = bytes == 0 ? UINT64_MAX : offset + bytes;
    uint64_t owner = s->fds[slot].description, inode = s->fds[slot].inode;
    if (type == F_UNLCK) {
        for (int i = 0; i < SHADOW_LOCKS; i++)
            if (s->locks[i].owner == owner && s->locks[i].from == offset)
                s->locks[i].owner = 0;
        return 0;
    }
    int spare = -1;
    for (int i = 0; i < SHADOW_LOCKS; i++) {
        struct shadow_lock *lock = &s->locks[i];
        if (lock->owner == 0)
            spare = i;
        else if (lock->owner != owner && lock->inode == inode && lock->from < to &&
                 offset < lock->to && (lock->type == F_WRLCK || type == F_WRLCK)) {
            errno = EAGAIN;
            return -1;
        }
    }
    if (spare < 0)
        die("too many locks");
    s->locks[spare] = (struct shadow_lock){owner, offset, to, inode, type};
    return 0;
}

static int shadow_locked(mpq_io *io, int fd, uint64_t offset)
{
    struct shadow *s = self(io);
    int slot = fd_slot(s, fd);
    for (int i = 0; i < SHADOW_LOCKS; i++)
        if (s->locks[i].owner != 0 && s->locks[i].owner != s->fds[slot].description &&
            s->locks[i].inode == s->fds[slot].inode && s->locks[i].from <= offset &&
            offset < s->locks[i].to)
            return 1;
    return 0;
}

static int shadow_boot_id(mpq_io *io, char out[40])
{
    memcpy(out, self(io)->boot_id, 40);
    return 0;
}

static int shadow_random_bytes(mpq_io *io, void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)data)[i] = (uint8_t)shadow_random(self(io));
    return 0;
}

struct block { /* so that a world that died leaves no memory behind */
    struct block *next, *before;
};

static void *shadow_alloc(mpq_io *io, size_t bytes)
{
    struct shadow *s = self(io);
    struct block *block = calloc(1, sizeof *block + bytes);
    if (block == NULL)
        return NULL;
    block->next = s->blocks;
    if (block->next != NULL)
        block->next->before = block;
    s->blocks = block;
    return block + 1;
}

static void shadow_free(mpq_io *io, void *memory)
{
    if (memory == NULL)
        return;
    struct shadow *s = self(io);
    struct block *block = (struct block *)memory - 1;
    if (block->before != NULL)
        block->before->next = block->next;
    else
        s->blocks = block->next;
    if (block->next != NULL)
        block->next->before = block->before;
    free(block);
}

static int shadow_spawn(mpq_io *io, pthread_t *thread, void *(*run)(void *), void *arg)
{
    (void)io;
    (void)thread;
    (void)run;
    (void)arg;
    return EAGAIN; /* no threads in here: cursor writes happen where the test asks for them */
}

void shadow_start(struct shadow *s, const char *root, uint64_t seed)
{
    memset(s, 0, sizeof *s);
    s->io = mpq_io_system;
    s->io.open = shadow_open;
    s->io.close = shadow_close;
    s->io.mkdir = shadow_mkdir;
    s->io.rename = shadow_rename;
    s->io.link = shadow_link;
    s->io.unlink = shadow_unlink;
    s->io.allocate = shadow_allocate;
    s->io.pwrite = shadow_pwrite;
    s->io.datasync = shadow_sync;
    s->io.sync = shadow_sync;
    s->io.map = shadow_map;
    s->io.unmap = shadow_unmap;
    s->io.msync = shadow_msync;
    s->io.lock = shadow_lock;
    s->io.locked = shadow_locked;
    s->io.boot_id = shadow_boot_id;
    s->io.random = shadow_random_bytes;
    s->io.alloc = shadow_alloc;
    s->io.free = shadow_free;
    s->io.spawn = shadow_spawn;
    s->random = seed;
    snprintf(s->root, sizeof s->root, "%s", root);
    snprintf(s->boot_id, sizeof s->boot_id, "boot-%016llx", (unsigned long long)shadow_random(s));
}

void shadow_adopt(struct shadow *s)
{
    if (s->crash_at == 0)
        return;
    int fd = open(s->root, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        die("open root");
    adopt(s, fd);
    close(fd);
}

/* ---- crash states */

static int from_live(struct shadow *s, unsigned percent)
{
    return percent != 0 && shadow_random(s) % 100 < percent;
}

static void see_live(struct shadow_file *file)
{
    if (file->live != NULL)
        return;
    file->live_bytes = size_of(file->keep);
    file->live = malloc(file->live_bytes + 1);
    if (file->live == NULL ||
        pread(file->keep, file->live, file->live_bytes, 0) != (ssize_t)file->live_bytes)
        die("the live state");
}

/* Holes stay holes. */
static void write_some(int fd, const uint8_t *image, uint64_t from, uint64_t to)
{
    if (from != to && pwrite(fd, image + from, to - from, (off_t)from) != (ssize_t)(to - from))
        die("pwrite");
}

static void write_file(struct shadow *s, const char *root, const char *name, uint64_t inode,
                       unsigned percent, unsigned unit)
{
    static const uint8_t zeros[4096];
    static uint8_t *image;
    static uint64_t room;
    struct shadow_file *file = file_of(s, inode);
    if (file == NULL)
        die("unknown inode");
    see_live(file);
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0)
        die(path);
    uint64_t bytes = file->durable_bytes;
    if (file->live_bytes != bytes && from_live(s, percent))
        bytes = file->live_bytes;
    if (bytes > room) {
        room = bytes;
        image = realloc(image, room);
    }
    if ((image == NULL && bytes != 0) || ftruncate(fd, (off_t)bytes) != 0)
        die(path);
    uint64_t from = 0; /* where what is not written yet begins */
    for (uint64_t at = 0; at < bytes; at += unit) {
        const uint64_t span = bytes - at < unit ? bytes - at : unit;
        const uint8_t *old = at + span <= file->durable_bytes ? file->durable + at : zeros;
        const uint8_t *now = at + span <= file->live_bytes ? file->live + at : zeros;
        const uint8_t *pick = old;
        if (memcmp(old, now, span) != 0 && from_live(s, percent))
            pick = now;
        if (memcmp(pick, zeros, span) != 0) {
            memcpy(image + at, pick, span);
            continue;
        }
        write_some(fd, image, from, at);
        from = at + span;
    }
    write_some(fd, image, from, bytes);
    close(fd);
}

static const struct shadow_name *find(const struct shadow_directory *directory, const char *name)
{
    for (uint32_t i = 0; i < directory->count; i++)
        if (strcmp(directory->names[i].name, name) == 0)
            return &directory->names[i];
    return NULL;
}

static void write_directory(struct shadow *s, const char *from, uint64_t inode, const char *root,
                            unsigned percent, unsigned unit);

static void write_entry(struct shadow *s, const char *from, const struct shadow_name *entry,
                        const char *root, unsigned percent, unsigned unit)
{
    char live[512], path[512];
    if (!entry->directory) {
        write_file(s, root, entry->name, entry->inode, percent, unit);
        return;
    }
    snprintf(live, sizeof live, "%s/%s", from, entry->name);
    snprintf(path, sizeof path, "%s/%s", root, entry->name);
    if (mkdir(path, 0700) != 0)
        die(path);
    write_directory(s, live, entry->inode, path, percent, unit);
}

/* from: where it lies in the dead world, unless it was removed. */
static void write_directory(struct shadow *s, const char *from, uint64_t inode, const char *root,
                            unsigned percent, unsigned unit)
{
    struct shadow_directory *live = calloc(1, sizeof *live);
    const struct shadow_directory *durable = directory_of(s, inode);
    int fd = open(from, O_RDONLY | O_DIRECTORY);
    if (live == NULL)
        die("crash");
    if (fd >= 0) {
        list_names(fd, live);
        close(fd);
        if (live->inode != inode)
            live->count = 0;
    }
    for (uint32_t i = 0; durable != NULL && i < durable->count; i++) {
        const struct shadow_name *entry = &durable->names[i], *now = find(live, entry->name);
        const bool same = now != NULL && now->inode == entry->inode;
        if (!same && from_live(s, percent))
            entry = now;
        if (entry != NULL)
            write_entry(s, from, entry, root, percent, unit);
    }
    for (uint32_t i = 0; i < live->count; i++)
        if ((durable == NULL || find(durable, live->names[i].name) == NULL) &&
            from_live(s, percent))
            write_entry(s, from, &live->names[i], root, percent, unit);
    free(live);
}

void shadow_crash(struct shadow *s, const char *root, unsigned percent, unsigned unit)
{
    struct stat now;
    if (stat(s->root, &now) != 0)
        die("crash");
    write_directory(s, s->root, now.st_ino, root, percent, unit);
}

void shadow_end(struct shadow *s)
{
    for (int i = 0; i < SHADOW_MAPS; i++)
        if (s->maps[i].address != NULL)
            munmap(s->maps[i].address, s->maps[i].bytes);
    for (int i = 0; i < SHADOW_FDS; i++)
        if (s->fds[i].fd != 0)
            close(s->fds[i].fd - 1);
    for (uint32_t i = 0; i < s->file_count; i++) {
        close(s->files[i].keep);
        free(s->files[i].durable);
        free(s->files[i].live);
    }
    for (struct block *block = s->blocks; block != NULL;) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
}
