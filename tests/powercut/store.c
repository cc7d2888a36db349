/* store.c - the disk, its journal, and how an image is cut out of them (store.h). */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "store.h"

uint64_t mix(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("powercut: mmap");
        exit(2);
    }
    return memory;
}

struct store *store_new(uint64_t disk_bytes, uint64_t data_bytes)
{
    struct store *store = shared(sizeof *store);
    const uint64_t pages = disk_bytes / PAGE;
    store->disk_bytes = disk_bytes;
    store->data_bytes = data_bytes;
    store->disk = shared(disk_bytes);
    store->data = shared(data_bytes);
    store->before = shared(disk_bytes);
    store->changed = shared(pages * sizeof *store->changed);
    store->is_changed = shared(pages);
    return store;
}

/* ---- the device's side */

static void put(struct store *store, uint64_t offset, const uint8_t *bytes, uint32_t count)
{
    for (uint64_t page = offset / PAGE; page * PAGE < offset + count; page++)
        if (!store->is_changed[page]) {
            store->is_changed[page] = 1;
            memcpy(store->before + (uint64_t)store->changes * PAGE, store->disk + page * PAGE,
                   PAGE);
            store->changed[store->changes++] = (uint32_t)page;
        }
    memcpy(store->disk + offset, bytes, count);
}

static void append(struct store *store, uint32_t kind, uint64_t offset, const void *bytes,
                   uint32_t count)
{
    const uint32_t position = atomic_load(&store->position);
    if (position == ENTRIES_MAX || store->data_used + count > store->data_bytes) {
        store->overflow = true;
        return;
    }
    if (count != 0)
        memcpy(store->data + store->data_used, bytes, count);
    store->entries[position] = (struct entry){offset, store->data_used, count, kind};
    store->data_used += count;
    atomic_store(&store->position, position + 1); /* I1 */
}

void store_write(struct store *store, uint64_t offset, const void *bytes, uint32_t count)
{
    put(store, offset, bytes, count);
    append(store, WRITE, offset, bytes, count);
}

void store_flush(struct store *store)
{
    append(store, FLUSH, 0, NULL, 0);
}

/* ---- the checker's side */

void store_revert(struct store *store)
{
    for (uint32_t i = store->changes; i-- > 0;) {
        const uint64_t page = store->changed[i];
        memcpy(store->disk + page * PAGE, store->before + (uint64_t)i * PAGE, PAGE);
        store->is_changed[page] = 0;
    }
    store->changes = 0;
}

void store_advance(struct store *store, uint32_t to)
{
    for (; store->base < to; store->base++) {
        const struct entry *entry = &store->entries[store->base];
        if (entry->kind == WRITE)
            memcpy(store->disk + entry->offset, store->data + entry->data, entry->bytes);
    }
}

uint32_t store_flushed(const struct store *store, uint32_t from, uint32_t at)
{
    while (at > from && store->entries[at - 1].kind != FLUSH)
        at--;
    return at;
}

/* One pending write, whole, in part or not at all. */
static void perhaps(struct store *store, const struct entry *entry, const struct cut *cut,
                    bool in_prefix, bool is_torn, uint64_t *random, struct cut_figures *figures)
{
    bool keeps = cut->mode == ALL || (cut->mode == PREFIX && in_prefix);
    if (cut->mode == WRITES || cut->mode == TORN)
        keeps = mix(random) % 100 < cut->percent;
    const bool in_sectors = cut->mode == SECTORS || is_torn;
    uint32_t sectors = 0, kept = 0;
    for (uint32_t at = 0, count; at < entry->bytes; at += count) {
        const uint64_t place = entry->offset + at;
        const uint64_t left = entry->bytes - at, to_next = SECTOR - place % SECTOR;
        const bool decides = at == 0 || place <= store->whole_from || place >= store->whole_to;
        count = (uint32_t)(left < to_next ? left : to_next);
        sectors++;
        if (in_sectors && decides)
            keeps = mix(random) % 100 < (is_torn ? 50 : cut->percent);
        if (!keeps)
            continue;
        put(store, place, store->data + entry->data + at, count);
        kept++;
    }
    figures->kept += kept == sectors;
    figures->torn += kept != 0 && kept != sectors;
}

struct cut_figures store_cut(struct store *store, const struct cut *cut)
{
    struct cut_figures figures = {0, 0, 0};
    uint64_t random = cut->seed;
    const uint32_t flushed = store_flushed(store, cut->from, cut->at);
    for (uint32_t i = cut->from; i < flushed; i++) { /* I2 */
        const struct entry *entry = &store->entries[i];
        if (entry->kind == WRITE)
            put(store, entry->offset, store->data + entry->data, entry->bytes);
    }
    figures.pending = cut->at - flushed;
    if (figures.pending == 0)
        return figures;
    const uint32_t chosen = (uint32_t)(mix(&random) % (figures.pending + 1));
    for (uint32_t i = 0; i < figures.pending; i++)
        perhaps(store, &store->entries[flushed + i], cut, i < chosen,
                cut->mode == TORN && i == chosen % figures.pending, &random, &figures);
    return figures;
}

void store_forget(struct store *store, uint32_t position)
{
    if (position < atomic_load(&store->position))
        store->data_used = store->entries[position].data;
    atomic_store(&store->position, position);
    store->overflow = false;
}

/* ---- keeping a recording */

int store_save(const struct store *store, FILE *file)
{
    const uint32_t position = atomic_load(&store->position);
    return fwrite(&position, sizeof position, 1, file) == 1 &&
                   fwrite(store->entries, sizeof *store->entries, position, file) == position &&
                   fwrite(store->data, 1, store->data_used, file) == store->data_used
               ? 0
               : -1;
}

int store_load(struct store *store, FILE *file)
{
    uint32_t position;
    if (fread(&position, sizeof position, 1, file) != 1 || position > ENTRIES_MAX ||
        fread(store->entries, sizeof *store->entries, position, file) != position)
        return -1;
    store->data_used = fread(store->data, 1, store->data_bytes, file);
    atomic_store(&store->position, position);
    return ferror(file) ? -1 : 0;
}
