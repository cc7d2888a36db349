/* memory.c - see memory.h. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPOCH_NS 1700000000000000000ULL
#define PAGE 4096u

static struct memory *self(mpq_io *io)
{
    return (struct memory *)(uintptr_t)io;
}

void (*memory_complaint)(const char *what);

static void die(const char *what)
{
    if (memory_complaint != NULL)
        memory_complaint(what);
    fprintf(stderr, "memory world: %s\n", what);
    abort();
}

static int fail(int error)
{
    errno = error;
    return -1;
}

uint64_t memory_random(struct memory *w)
{
    w->random += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
    uint64_t z = w->random;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

/* ---- blocks; large ones are used again, because fresh pages cost more than clearing old ones */

#define SPARE_BYTES (128u * 1024u)
#define SPARES 4

static struct {
    uint8_t *data;
    uint64_t room;
} spares[SPARES];

static uint8_t *block_new(uint64_t bytes, uint64_t *room)
{
    *room = (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    if (*room == 0)
        *room = PAGE;
    uint8_t *data = NULL;
    for (int i = 0; data == NULL && i < SPARES; i++)
        if (spares[i].data != NULL && spares[i].room == *room) {
            data = spares[i].data;
            spares[i].data = NULL;
        }
    if (data == NULL)
        data = aligned_alloc(PAGE, *room);
    if (data == NULL)
        die("out of memory");
    memset(data, 0, *room);
    return data;
}

static void block_free(uint8_t *data, uint64_t room)
{
    for (int i = 0; room >= SPARE_BYTES && i < SPARES; i++)
        if (spares[i].data == NULL) {
            spares[i].data = data;
            spares[i].room = room;
            return;
        }
    free(data);
}

/* ---- files */

static struct memory_file *file_new(struct memory *w)
{
    for (int i = 0; i < MEMORY_FILES; i++)
        if (!w->files[i].used && w->files[i].base == NULL) {
            struct memory_file *file = &w->files[i];
            memset(file, 0, sizeof *file);
            file->used = true;
            file->inode = ++w->inodes;
            file->dirty = true;
            return file;
        }
    die("too many files");
    return NULL;
}

static void file_gone(struct memory_file *file)
{
    if (!file->used || file->holds != 0 || file->links != 0)
        return;
    if (file->data != NULL)
        block_free(file->data, file->room);
    file->data = NULL;
    file->bytes = file->room = 0;
    file->used = false;
    file->dirty = true;
}

static bool mapped(const struct memory *w, const struct memory_file *file)
{
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->maps[i].address != NULL && w->maps[i].file == file)
            return true;
    return false;
}

void memory_resize(struct memory *w, struct memory_file *file, uint64_t bytes)
{
    file->dirty = true;
    if (bytes > file->room) {
        uint64_t room;
        if (mapped(w, file))
            die("a mapped file cannot grow");
        uint8_t *data = block_new(bytes, &room);
        if (file->data != NULL) {
            memcpy(data, file->data, file->bytes);
            block_free(file->data, file->room);
        }
        file->data = data;
        file->room = room;
    } else if (bytes < file->bytes) {
        memset(file->data + bytes, 0, file->bytes - bytes);
    }
    file->bytes = bytes;
}

static void link_name(struct memory_file *file, const char *name)
{
    snprintf(file->name, sizeof file->name, "%s", name);
    file->links = 1;
}

struct memory_file *memory_find(struct memory *w, const char *name)
{
    for (int i = 0; i < MEMORY_FILES; i++)
        if (w->files[i].used && w->files[i].links != 0 && strcmp(w->files[i].name, name) == 0)
            return &w->files[i];
    return NULL;
}

void memory_drop(struct memory *w, const char *name)
{
    struct memory_file *file = memory_find(w, name);
    if (file == NULL)
        return;
    file->links = 0;
    file->dirty = true;
    file_gone(file);
}

struct memory_file *memory_put(struct memory *w, const char *name, const void *data, uint64_t bytes)
{
    memory_drop(w, name);
    struct memory_file *file = file_new(w);
    memory_resize(w, file, bytes);
    if (bytes != 0)
        memcpy(file->data, data, bytes);
    link_name(file, name);
    return file;
}

/* ---- names */

static const char *const prefixes[] = {"", "corrupt/", "dead/", "dead/corrupt/"};
static const enum memory_directory above[] = {MEMORY_TOP, MEMORY_TOP, MEMORY_TOP, MEMORY_DEAD};

/* From the root; NULL: outside of this world (no /proc here). */
static const char *full(struct memory *w, int dirfd, const char *name, char out[MEMORY_NAME])
{
    const size_t root = sizeof MEMORY_ROOT - 1;
    const char *prefix = "";
    if (name[0] == '/') {
        if (strncmp(name, MEMORY_ROOT, root) != 0 || (name[root] != '/' && name[root] != '\0'))
            return NULL;
        name += root + (name[root] == '/');
    } else if (dirfd >= 0 && dirfd < MEMORY_SLOTS) {
        prefix = prefixes[w->fds[dirfd].directory];
    }
    if (snprintf(out, MEMORY_NAME, "%s%s", prefix, name) >= MEMORY_NAME)
        die("a name is too long");
    return out;
}

/* The directory with that path, there or not; MEMORY_DIRECTORIES: none of those known. */
static enum memory_directory directory_of(const char *path, size_t length)
{
    for (int i = MEMORY_SHELF; i < MEMORY_DIRECTORIES; i++)
        if (strlen(prefixes[i]) == length + 1 && strncmp(prefixes[i], path, length) == 0)
            return (enum memory_directory)i;
    return length == 0 ? MEMORY_TOP : MEMORY_DIRECTORIES;
}

/* What contains it. */
static enum memory_directory parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return directory_of(path, slash == NULL ? 0 : (size_t)(slash - path));
}

static bool is_there(const struct memory *w, enum memory_directory directory)
{
    return directory != MEMORY_DIRECTORIES && w->directories[directory];
}

/* What is called `path` lies there itself, not deeper inside. */
static bool lies_in(const char *path, enum memory_directory directory)
{
    const size_t length = strlen(prefixes[directory]);
    return strncmp(path, prefixes[directory], length) == 0 && strchr(path + length, '/') == NULL;
}

static int fd_new(struct memory *w, struct memory_file *file, enum memory_directory directory)
{
    for (int i = 3; i < MEMORY_SLOTS; i++)
        if (w->fds[i].description == 0) {
            w->fds[i].file = file;
            w->fds[i].description = ++w->descriptions;
            w->fds[i].directory = directory;
            if (file != NULL)
                file->holds++;
            return i;
        }
    return fail(EMFILE);
}

static int memory_open(mpq_io *io, int dirfd, const char *name, int flags, mode_t mode)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    (void)mode;
    if (strcmp(name, "..") == 0)
        return fd_new(w, NULL, above[w->fds[dirfd].directory]);
    if (full(w, dirfd, name, path) == NULL)
        return fail(ENOENT);
    struct memory_file *file = memory_find(w, path);
    if (file == NULL) {
        const enum memory_directory directory = directory_of(path, strlen(path));
        if (is_there(w, directory))
            return fd_new(w, NULL, directory);
        if ((flags & O_CREAT) == 0 || !is_there(w, parent_of(path)))
            return fail(ENOENT);
        file = file_new(w);
        link_name(file, path);
    } else if ((flags & O_EXCL) != 0) {
        return fail(EEXIST);
    } else if ((flags & O_DIRECTORY) != 0) {
        return fail(ENOTDIR);
    }
    return fd_new(w, file, MEMORY_TOP);
}

static void description_end(struct memory *w, uint64_t description)
{
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->fds[i].description == description ||
            (w->maps[i].address != NULL && w->maps[i].description == description))
            return;
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->locks[i].owner == description)
            w->locks[i].owner = 0;
}

static int memory_close(mpq_io *io, int fd)
{
    struct memory *w = self(io);
    if (fd < 0 || fd >= MEMORY_SLOTS || w->fds[fd].description == 0)
        die("close of a descriptor that is not open");
    uint64_t description = w->fds[fd].description;
    struct memory_file *file = w->fds[fd].file;
    w->fds[fd].description = 0;
    w->fds[fd].file = NULL;
    if (file != NULL) {
        file->holds--;
        file_gone(file);
    }
    description_end(w, description);
    return 0;
}

static int memory_mkdir(mpq_io *io, int dirfd, const char *name, mode_t mode)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    (void)mode;
    if (full(w, dirfd, name, path) == NULL)
        return fail(ENOENT);
    const enum memory_directory directory = directory_of(path, strlen(path));
    if (directory == MEMORY_DIRECTORIES)
        die("a directory that no queue has");
    if (is_there(w, directory) || memory_find(w, path) != NULL)
        return fail(EEXIST);
    if (directory != MEMORY_TOP && !is_there(w, parent_of(path)))
        return fail(ENOENT);
    w->directories[directory] = true;
    return 0;
}

static int memory_rmdir(mpq_io *io, int dirfd, const char *name)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    if (full(w, dirfd, name, path) == NULL)
        return fail(ENOENT);
    const enum memory_directory directory = directory_of(path, strlen(path));
    if (!is_there(w, directory))
        return fail(ENOENT);
    for (int i = 0; i < MEMORY_FILES; i++)
        if (w->files[i].used && w->files[i].links != 0 && lies_in(w->files[i].name, directory))
            return fail(ENOTEMPTY);
    for (int i = MEMORY_SHELF; i < MEMORY_DIRECTORIES; i++)
        if (w->directories[i] && above[i] == directory)
            return fail(ENOTEMPTY);
    w->directories[directory] = false;
    return 0;
}

static int memory_rename(mpq_io *io, int dirfd, const char *from, const char *to)
{
    struct memory *w = self(io);
    char a[MEMORY_NAME], b[MEMORY_NAME];
    struct memory_file *file = memory_find(w, full(w, dirfd, from, a));
    if (file == NULL || !is_there(w, parent_of(full(w, dirfd, to, b))))
        return fail(ENOENT);
    memory_drop(w, b);
    link_name(file, b);
    file->dirty = true;
    return 0;
}

/* A file has one name here; link is followed by unlink of the old one, which then finds nothing. */
static int memory_link(mpq_io *io, int dirfd, const char *from, const char *to)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    if (memory_find(w, full(w, dirfd, to, path)) != NULL)
        return fail(EEXIST);
    return memory_rename(io, dirfd, from, to);
}

static int memory_unlink(mpq_io *io, int dirfd, const char *name)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    if (memory_find(w, full(w, dirfd, name, path)) == NULL)
        return fail(ENOENT);
    memory_drop(w, path);
    return 0;
}

static int memory_list(mpq_io *io, int dirfd, int (*each)(void *arg, const char *name), void *arg)
{
    struct memory *w = self(io);
    const enum memory_directory directory = w->fds[dirfd].directory;
    const size_t length = strlen(prefixes[directory]);
    char names[MEMORY_FILES + MEMORY_DIRECTORIES][MEMORY_NAME];
    int count = 0, rc = 0;
    for (int i = MEMORY_SHELF; i < MEMORY_DIRECTORIES; i++)
        if (w->directories[i] && above[i] == directory) {
            strcpy(names[count], prefixes[i] + length);
            *strchr(names[count++], '/') = '\0';
        }
    for (int i = 0; i < MEMORY_FILES; i++) {
        const struct memory_file *file = &w->files[i];
        if (file->used && file->links != 0 && lies_in(file->name, directory))
            strcpy(names[count++], file->name + length);
    }
    for (int i = 0; rc == 0 && i < count; i++)
        rc = each(arg, names[i]);
    return rc;
}

/* file: NULL for a directory. */
static void describe(const struct memory *w, const struct memory_file *file,
                     enum memory_directory directory, struct stat *out)
{
    memset(out, 0, sizeof *out);
    out->st_dev = 7;
    out->st_ino = file == NULL ? (ino_t)directory + 1 : file->inode + MEMORY_DIRECTORIES;
    out->st_mode = file == NULL ? S_IFDIR | 0700 : S_IFREG | 0600;
    out->st_nlink = file == NULL ? w->directories[directory] * 2u : file->links;
    if (file != NULL) {
        out->st_size = (off_t)file->bytes;
        out->st_blocks = (blkcnt_t)((file->bytes + 511) / 512);
    }
}

static int memory_stat(mpq_io *io, int dirfd, const char *name, struct stat *out)
{
    struct memory *w = self(io);
    char path[MEMORY_NAME];
    if (full(w, dirfd, name, path) == NULL)
        return fail(ENOENT);
    const struct memory_file *file = memory_find(w, path);
    const enum memory_directory directory = directory_of(path, strlen(path));
    if (file == NULL && !is_there(w, directory))
        return fail(ENOENT);
    describe(w, file, directory, out);
    return 0;
}

static int memory_fstat(mpq_io *io, int fd, struct stat *out)
{
    struct memory *w = self(io);
    describe(w, w->fds[fd].file, w->fds[fd].directory, out);
    return 0;
}

static int memory_statfs(mpq_io *io, int fd, struct statfs *out)
{
    (void)io;
    (void)fd;
    memset(out, 0, sizeof *out);
    out->f_type = 0x01021994; /* tmpfs */
    return 0;
}

static int memory_chmod(mpq_io *io, int fd, mode_t mode)
{
    (void)io;
    (void)fd;
    (void)mode;
    return 0;
}

/* ---- bytes */

static int memory_allocate(mpq_io *io, int fd, uint64_t bytes)
{
    struct memory *w = self(io);
    struct memory_file *file = w->fds[fd].file;
    if (bytes > file->bytes)
        memory_resize(w, file, bytes);
    return 0;
}

static ssize_t memory_pread(mpq_io *io, int fd, void *data, size_t bytes, uint64_t offset)
{
    const struct memory_file *file = self(io)->fds[fd].file;
    if (offset >= file->bytes)
        return 0;
    if (bytes > file->bytes - offset)
        bytes = file->bytes - offset;
    memcpy(data, file->data + offset, bytes);
    return (ssize_t)bytes;
}

static ssize_t memory_pwrite(mpq_io *io, int fd, const void *data, size_t bytes, uint64_t offset)
{
    struct memory *w = self(io);
    struct memory_file *file = w->fds[fd].file;
    if (offset + bytes > file->bytes)
        memory_resize(w, file, offset + bytes);
    memcpy(file->data + offset, data, bytes);
    file->dirty = true;
    return (ssize_t)bytes;
}

static int memory_sync(mpq_io *io, int fd)
{
    (void)fd;
    self(io)->syncs++;
    return 0;
}

static int memory_msync(mpq_io *io, void *address, size_t bytes)
{
    struct memory *w = self(io);
    for (int i = 0; i < MEMORY_SLOTS; i++) {
        const uint8_t *base = w->maps[i].address;
        if (base != NULL && (uint8_t *)address >= base &&
            (uint8_t *)address + bytes <= base + w->maps[i].file->room) {
            w->syncs++;
            return 0;
        }
    }
    return fail(ENOMEM);
}

static void *memory_map(mpq_io *io, int fd, size_t bytes, bool writable)
{
    struct memory *w = self(io);
    struct memory_file *file = w->fds[fd].file;
    if (bytes > file->room) {
        errno = EINVAL; /* the system would map it and raise SIGBUS at the first touch */
        return NULL;
    }
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->maps[i].address == NULL) {
            /* Pins are read-only, never read, and must be told apart when they end. */
            w->maps[i].address = writable ? (void *)file->data : (void *)&w->maps[i];
            w->maps[i].file = file;
            w->maps[i].description = w->fds[fd].description;
            file->holds++;
            file->dirty |= writable;
            return w->maps[i].address;
        }
    errno = ENOMEM;
    return NULL;
}

static int memory_unmap(mpq_io *io, void *address, size_t bytes)
{
    struct memory *w = self(io);
    (void)bytes;
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->maps[i].address == address) {
            struct memory_file *file = w->maps[i].file;
            uint64_t description = w->maps[i].description;
            w->maps[i].address = NULL;
            description_end(w, description);
            file->holds--;
            file_gone(file);
            return 0;
        }
    die("unmap of what is not mapped");
    return -1;
}

static int memory_advise(mpq_io *io, void *address, size_t bytes, int advice)
{
    (void)io;
    (void)address;
    (void)bytes;
    (void)advice;
    return 0;
}

/* ---- locks */

static int memory_lock(mpq_io *io, int fd, short type, uint64_t offset, uint64_t bytes)
{
    struct memory *w = self(io);
    const uint64_t to = bytes == 0 ? UINT64_MAX : offset + bytes;
    const uint64_t owner = w->fds[fd].description, inode = w->fds[fd].file->inode;
    int spare = -1;
    for (int i = 0; i < MEMORY_SLOTS; i++) {
        if (w->locks[i].owner == 0) {
            spare = i;
        } else if (w->locks[i].owner == owner) {
            if (type == F_UNLCK && w->locks[i].from == offset)
                w->locks[i].owner = 0;
        } else if (type != F_UNLCK && w->locks[i].inode == inode && w->locks[i].from < to &&
                   offset < w->locks[i].to && (type == F_WRLCK || w->locks[i].type == F_WRLCK)) {
            return fail(EAGAIN);
        }
    }
    if (type == F_UNLCK)
        return 0;
    if (spare < 0)
        return fail(ENOLCK);
    w->locks[spare].owner = owner;
    w->locks[spare].inode = inode;
    w->locks[spare].from = offset;
    w->locks[spare].to = to;
    w->locks[spare].type = type;
    return 0;
}

static int memory_locked(mpq_io *io, int fd, uint64_t offset)
{
    struct memory *w = self(io);
    for (int i = 0; i < MEMORY_SLOTS; i++)
        if (w->locks[i].owner != 0 && w->locks[i].owner != w->fds[fd].description &&
            w->locks[i].inode == w->fds[fd].file->inode && w->locks[i].from <= offset &&
            offset < w->locks[i].to)
            return 1;
    return 0;
}

/* ---- the rest */

static int memory_futex_wait(mpq_io *io, _Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
    (void)word;
    (void)value;
    self(io)->clock_ns += ns;
    return fail(ETIMEDOUT);
}

static int memory_futex_wake(mpq_io *io, _Atomic uint32_t *word, int count)
{
    (void)io;
    (void)word;
    (void)count;
    return 0;
}

static void *memory_sem_open(mpq_io *io, const char *name)
{
    (void)name;
    return self(io); /* any address: nobody else is there to post or wait */
}

static int memory_sem_close(mpq_io *io, void *sem)
{
    (void)io;
    (void)sem;
    return 0;
}

static int memory_sem_wait(mpq_io *io, void *sem, uint64_t ns)
{
    (void)sem;
    self(io)->clock_ns += ns;
    return fail(ETIMEDOUT);
}

static int memory_sem_post(mpq_io *io, void *sem)
{
    (void)io;
    (void)sem;
    return 0;
}

static void memory_pause(mpq_io *io, uint64_t ns)
{
    self(io)->clock_ns += ns;
}

static uint64_t memory_monotonic_ns(mpq_io *io)
{
    return self(io)->clock_ns += 1000;
}

static uint64_t memory_wall_ns(mpq_io *io)
{
    return EPOCH_NS + (self(io)->clock_ns += 1000);
}

static int memory_boot_id(mpq_io *io, char out[40])
{
    memcpy(out, self(io)->boot_id, 40);
    return 0;
}

static int memory_random_bytes(mpq_io *io, void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)data)[i] = (uint8_t)memory_random(self(io));
    return 0;
}

static void *memory_alloc(mpq_io *io, size_t bytes)
{
    self(io)->blocks++;
    return calloc(1, bytes);
}

static void memory_free(mpq_io *io, void *memory)
{
    if (memory == NULL)
        return;
    self(io)->blocks--;
    free(memory);
}

static int memory_spawn(mpq_io *io, pthread_t *thread, void *(*run)(void *), void *arg)
{
    (void)io;
    (void)thread;
    (void)run;
    (void)arg;
    return EAGAIN;
}

void memory_start(struct memory *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->io = (struct mpq_io){
        .open = memory_open,
        .close = memory_close,
        .mkdir = memory_mkdir,
        .rmdir = memory_rmdir,
        .rename = memory_rename,
        .link = memory_link,
        .unlink = memory_unlink,
        .list = memory_list,
        .stat = memory_stat,
        .fstat = memory_fstat,
        .statfs = memory_statfs,
        .chmod = memory_chmod,
        .no_cow = memory_sync,
        .allocate = memory_allocate,
        .pread = memory_pread,
        .pwrite = memory_pwrite,
        .datasync = memory_sync,
        .sync = memory_sync,
        .map = memory_map,
        .unmap = memory_unmap,
        .advise = memory_advise,
        .msync = memory_msync,
        .lock = memory_lock,
        .locked = memory_locked,
        .futex_wait = memory_futex_wait,
        .futex_wake = memory_futex_wake,
        .sem_open = memory_sem_open,
        .sem_close = memory_sem_close,
        .sem_wait = memory_sem_wait,
        .sem_post = memory_sem_post,
        .pause = memory_pause,
        .monotonic_ns = memory_monotonic_ns,
        .wall_ns = memory_wall_ns,
        .boot_id = memory_boot_id,
        .random = memory_random_bytes,
        .alloc = memory_alloc,
        .free = memory_free,
        .spawn = memory_spawn,
    };
    w->random = seed;
    w->clock_ns = 1000000000ULL;
    snprintf(w->boot_id, sizeof w->boot_id, "boot-a");
}

/* ---- going back */

void memory_keep(struct memory *w)
{
    memcpy(w->base_directories, w->directories, sizeof w->directories);
    for (int i = 0; i < MEMORY_FILES; i++) {
        struct memory_file *file = &w->files[i];
        free(file->base);
        file->base = NULL;
        if (!file->used || file->links == 0)
            continue;
        file->base = malloc(file->bytes + 1);
        if (file->base == NULL)
            die("out of memory");
        memcpy(file->base, file->data, file->bytes);
        file->base_bytes = file->bytes;
        file->base_inode = file->inode;
        memcpy(file->base_name, file->name, sizeof file->name);
        file->dirty = false;
    }
}

void memory_restore(struct memory *w)
{
    memcpy(w->directories, w->base_directories, sizeof w->directories);
    for (int i = 0; i < MEMORY_FILES; i++) {
        struct memory_file *file = &w->files[i];
        if (file->holds != 0)
            die("restore with open files");
        if (file->base == NULL) {
            file->links = 0;
            file_gone(file);
        } else if (file->dirty) {
            file->used = true;
            file->links = 1;
            memcpy(file->name, file->base_name, sizeof file->name);
            file->inode = file->base_inode;
            memory_resize(w, file, file->base_bytes);
            memcpy(file->data, file->base, file->base_bytes);
            file->dirty = false;
        }
    }
}

void memory_end(struct memory *w)
{
    for (int i = 0; i < MEMORY_FILES; i++) {
        free(w->files[i].base);
        if (w->files[i].data != NULL)
            free(w->files[i].data);
    }
    memset(w->files, 0, sizeof w->files);
}

uint64_t memory_leaks(const struct memory *w)
{
    uint64_t leaks = w->blocks;
    for (int i = 0; i < MEMORY_SLOTS; i++) {
        leaks += w->fds[i].description != 0;
        leaks += w->maps[i].address != NULL;
    }
    return leaks;
}
