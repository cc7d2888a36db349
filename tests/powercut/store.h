/* store.h - a disk in shared memory, with the journal of everything that reached it.
 *
 * The device process appends to the journal and writes to the disk; the workers of a recording read
 * the position; the checker moves the disk back and forth while no filesystem is mounted. One
 * mapping made before any fork holds it all, so nothing is copied and nothing has to be told.
 *
 * I1 position counts the entries that are whole; it moves before the request is answered. So a
 *    worker that reads p after a call returned knows: every write and flush that the call waited
 *    for is among the first p entries. One that reads p before a call knows: none of its are.
 * I2 what was written before a flush entry arrived is on the medium in every image cut behind it.
 * I3 every page of the disk that differs from the permanent image is saved in `before`. */
#ifndef STORE_H
#define STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PAGE 4096u
#define ENTRIES_MAX (1u << 20)
#define NEVER UINT32_MAX

enum kind { WRITE = 1, FLUSH = 2 };

struct entry {
    uint64_t offset; /* on the disk */
    uint64_t data; /* in the journal's bytes */
    uint32_t bytes;
    uint32_t kind;
};

struct store {
    _Atomic uint32_t position; /* entries received */
    uint32_t base; /* entries that are part of the permanent image */
    uint64_t disk_bytes, data_bytes, data_used;
    /* The filesystem's own superblock, larger than a sector and not protected by it against
     * tearing: old or new as a whole, so that what is tested is above the filesystem. */
    uint64_t whole_from, whole_to;
    uint8_t *disk, *data;
    uint8_t *before; /* old contents of changed pages, in the order of changed[] */
    uint32_t *changed; /* page numbers */
    uint8_t *is_changed; /* by page number */
    uint32_t changes;
    bool overflow; /* the journal was too small: the recording is void */
    struct entry entries[ENTRIES_MAX];
};

/* What of the writes since the last flush got to the medium: all, none, the first ones, some, some
 * sectors of each, or some with one of them in part. */
enum mode { ALL, NOTHING, PREFIX, WRITES, SECTORS, TORN, MODES };

#define SECTOR 512u /* bytes that a torn write keeps or loses together */

struct cut {
    uint32_t from; /* first entry */
    uint32_t at; /* entries from..at-1 were received when the power went */
    enum mode mode;
    uint32_t percent; /* of writes (WRITES, TORN) or sectors (SECTORS) that persist */
    uint64_t seed;
};

struct cut_figures {
    uint32_t pending, kept, torn; /* writes since the last flush; persisted whole; in part */
};

struct store *store_new(uint64_t disk_bytes, uint64_t data_bytes); /* exits when it cannot */
/* The device: one write, one flush. */
void store_write(struct store *store, uint64_t offset, const void *bytes, uint32_t count);
void store_flush(struct store *store);

/* Back to the permanent image. */
void store_revert(struct store *store);
/* The permanent image takes in the writes of entries base..to-1. */
void store_advance(struct store *store, uint32_t to);
/* The disk as the power cut leaves it, on top of what it is now. */
struct cut_figures store_cut(struct store *store, const struct cut *cut);
/* The first entry after the last flush among from..at-1; from when there is none. */
uint32_t store_flushed(const struct store *store, uint32_t from, uint32_t at);
/* Forgets the entries from `position` on, with their bytes. */
void store_forget(struct store *store, uint32_t position);

int store_save(const struct store *store, FILE *file); /* journal up to the position */
int store_load(struct store *store, FILE *file);

uint64_t mix(uint64_t *state); /* splitmix64 */

#endif
