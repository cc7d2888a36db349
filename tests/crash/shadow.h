/* shadow.h - an I/O table that knows what is durable.
 *
 * Files live in a directory of tmpfs, and in directories inside it. Beside them the shadow keeps,
 * for each inode, the bytes that a sync has covered, and for each directory the entries that a sync
 * of that directory has covered: what lies in one whose own name is not durable is gone with it.
 * Nothing else makes anything durable. A crash is: the shadow, plus each differing page (or
 * 512-byte sector) and each differing name taken from the live state by chance. Lock bytes are
 * simulated, so that a whole world of handles can die inside one process. */
#ifndef SHADOW_H
#define SHADOW_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "io.h"

#define SHADOW_FILES 1024
#define SHADOW_NAMES 128 /* in a directory */
#define SHADOW_DIRECTORIES 8
#define SHADOW_LOCKS 256
#define SHADOW_MAPS 256
#define SHADOW_FDS 256

struct shadow_file {
    uint64_t inode;
    int keep; /* descriptor that keeps it readable after unlink */
    uint8_t *durable;
    uint64_t durable_bytes, room;
    uint8_t *live; /* of a dead world, when its first crash state was made */
    uint64_t live_bytes;
};

struct shadow_name {
    char name[80];
    uint64_t inode; /* 0 = none */
    bool directory;
};

struct shadow_directory { /* names of files and directories */
    uint64_t inode;
    uint32_t count;
    struct shadow_name names[SHADOW_NAMES];
};

struct shadow_lock {
    uint64_t owner; /* description number */
    uint64_t from, to;
    uint64_t inode;
    short type;
};

struct shadow {
    struct mpq_io io; /* first: the table is the shadow */
    uint64_t random;
    uint64_t calls; /* made so far */
    uint64_t crash_at; /* 0 = never: then nobody notes what is durable */
    jmp_buf crash;
    char boot_id[40];
    struct shadow_file files[SHADOW_FILES];
    uint32_t file_count;
    struct shadow_directory directories[SHADOW_DIRECTORIES]; /* what is durable of them */
    uint32_t directory_count;
    struct shadow_lock locks[SHADOW_LOCKS];
    struct {
        void *address;
        uint64_t bytes, inode, description;
    } maps[SHADOW_MAPS];
    struct {
        int fd;
        uint64_t inode, description;
        int directory;
    } fds[SHADOW_FDS];
    uint64_t descriptions;
    char root[256];
    struct block *blocks; /* memory that the core has */
    int fail_sync; /* the next so many syncs fail with EIO, their pages stay volatile */
};

uint64_t shadow_random(struct shadow *shadow);
/* A world whose live state is the directory `root` (made empty when fresh). */
void shadow_start(struct shadow *shadow, const char *root, uint64_t seed);
/* Everything live is durable: after materialising a crash state, and with crash_at set. */
void shadow_adopt(struct shadow *shadow);
/* Writes one crash state of a world that has ended into `root`. percent: chance of each differing
 * page or name to come from the live state; 0 = only what is durable. unit: 4096 or 512. */
void shadow_crash(struct shadow *shadow, const char *root, unsigned percent, unsigned unit);
void shadow_end(struct shadow *shadow);

#endif
