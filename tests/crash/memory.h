/* memory.h - an I/O table over memory: one queue directory and what is inside it, without a kernel.
 *
 * The directories that a queue may have are known by name: corrupt/, its dead letters, and theirs.
 * Files are page-aligned heap blocks, so a mapping is the block itself and the address sanitizer
 * sees every read beyond a file's end. Locks follow open file descriptions as in Linux: they end
 * with the last descriptor or mapping of their description. Sleeping only moves the clock. Opening
 * a queue costs what the core itself computes, which makes a hundred thousand openings cheap. One
 * thread only; a threadless world (spawn fails), so cursors are written where a caller asks. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdint.h>

#include "io.h"

#define MEMORY_FILES 256
#define MEMORY_SLOTS 256 /* descriptors, mappings, locks: each */
#define MEMORY_NAME 96
#define MEMORY_ROOT "/q"

enum memory_directory {
    MEMORY_TOP,
    MEMORY_SHELF, /* corrupt/ */
    MEMORY_DEAD, /* dead/ */
    MEMORY_DEAD_SHELF, /* dead/corrupt/ */
    MEMORY_DIRECTORIES
};

struct memory_file {
    char name[MEMORY_NAME]; /* from the root: "dead/meta" */
    bool used;
    uint64_t inode;
    uint8_t *data;
    uint64_t bytes, room;
    uint32_t holds; /* descriptors and mappings */
    uint32_t links;
    uint8_t *base; /* what memory_keep saw */
    uint64_t base_bytes, base_inode;
    char base_name[MEMORY_NAME];
    bool dirty; /* may differ from base */
};

struct memory {
    struct mpq_io io; /* first: the table is the world */
    struct memory_file files[MEMORY_FILES];
    struct {
        struct memory_file *file; /* NULL: a directory */
        uint64_t description; /* 0 = free slot */
        enum memory_directory directory; /* without a file */
    } fds[MEMORY_SLOTS];
    struct {
        void *address;
        struct memory_file *file;
        uint64_t description;
    } maps[MEMORY_SLOTS];
    struct {
        uint64_t owner; /* description; 0 = free slot */
        uint64_t inode, from, to;
        short type;
    } locks[MEMORY_SLOTS];
    bool directories[MEMORY_DIRECTORIES]; /* are there */
    bool base_directories[MEMORY_DIRECTORIES];
    uint64_t inodes, descriptions;
    uint64_t clock_ns; /* both clocks */
    uint64_t random;
    char boot_id[40];
    uint64_t blocks; /* allocations alive */
    uint64_t syncs; /* msync, datasync, sync calls that succeeded */
};

void memory_start(struct memory *world, uint64_t seed);
/* Remembers everything as it is now; memory_restore goes back to it (no descriptor may be open). */
void memory_keep(struct memory *world);
void memory_restore(struct memory *world);
void memory_end(struct memory *world);
/* By name, NULL when there is none. The caller may change data in place (then: dirty = true). */
struct memory_file *memory_find(struct memory *world, const char *name);
/* A file with these bytes; replaces one of that name. */
struct memory_file *memory_put(struct memory *world, const char *name, const void *data,
                               uint64_t bytes);
void memory_drop(struct memory *world, const char *name);
void memory_resize(struct memory *world, struct memory_file *file, uint64_t bytes);
/* Descriptors, mappings and allocations that are still open: 0 after everything was closed. */
uint64_t memory_leaks(const struct memory *world);
uint64_t memory_random(struct memory *world);
/* Told before the program ends because the core did what no kernel takes (a double close). */
extern void (*memory_complaint)(const char *what);

#endif
