/* rot.c - damage: one flipped bit anywhere, and coarser harm, in a small closed queue and in its
 * dead letters.
 *
 * usage: rot SEED STRIDE [all | PART]     every bit of what is used, every STRIDE-th of the rest;
 *                                         all: goes on after a violation; PART: a file or "harm"
 *        rot replay SEED HOW FILE OFFSET BIT   HOW: the sum of 1 under another boot id, 2 repaired
 *                                              first, 4 what was handed out twice moves to dead/,
 *                                              8 the store that has keys
 *        rot replay SEED HOW harm NUMBER
 *
 * The store has several segments: small items, a batch, a gap, a padded end, a segment of its own
 * for an oversized item, a roll; acks at the floor and out of order; items handed out twice; dead
 * letters, some of them dropped, and a gap behind them. One bit of either queue is flipped, the
 * store opened (under the same boot id, so that control is trusted, and under another one, so that
 * it is rebuilt), drained, used for one more item, closed, opened again:
 *
 *   - it opens; at most one item is missing, in both queues together, the counters say exactly so,
 *     one MPQ_CORRUPT says so once; nothing altered, out of order, twice, or never put is handed
 *     out; a letter tells whose it is, and what moves arrives;
 *   - only damage of cursor or control may bring an acked item back;
 *   - the next item goes in, is flushed and comes out; depth ends at 0;
 *   - the second opening finds nothing more; nothing stays open or allocated;
 *   - where it was repaired first, the repair's report counts all of it, and a dry run before it
 *     the same, changing nothing; later readers are told of none.
 *
 * In a second store all items have keys. Bits of the file of keys, and of what control knows of
 * them, are flipped: one key is forgotten at most, and counted; put again, all others are refused.
 *
 * Harm: files truncated at every sector, sectors and pages zeroed, segments swapped, copied over
 * each other, missing, of another queue; garbage appended. Then opening may be refused with a
 * documented error that touches nothing; otherwise every missing item is counted and nothing wrong
 * is handed out. STRIDE also thins the oversized item's inside, the dead letters and the harm,
 * above 1000 all. */
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rot.h"
#include "workers.h"

uint64_t run_seed;
struct where now;
static char current[160];
static bool survey; /* go on after a violation */
static const char *part; /* flip bits of this file only, or "harm"; NULL: all */
static uint64_t violations;
static jmp_buf next_one;

static void describe(const struct where *where)
{
    if (where->harm >= 0)
        snprintf(current, sizeof current, "rot replay %llu %u harm %d",
                 (unsigned long long)run_seed, where->how, where->harm);
    else
        snprintf(current, sizeof current, "rot replay %llu %u %s %llu %u",
                 (unsigned long long)run_seed, where->how, where->file,
                 (unsigned long long)where->offset, where->bit);
}

void failed(const char *what, uint64_t a, uint64_t b)
{
    describe(&now);
    fprintf(stderr, "FAILED %s (%llu, %llu)\nreplay: %s\n", what, (unsigned long long)a,
            (unsigned long long)b, current);
    violations++;
    if (survey)
        longjmp(next_one, 1);
    exit(1);
}

static void on_complaint(const char *what)
{
    failed(what, 0, 0);
}

static void on_alarm(int number)
{
    (void)number;
    describe(&now);
    fprintf(stderr, "FAILED hangs\nreplay: %s\n", current);
    _exit(1);
}

static void probe(struct store *store)
{
    if (setjmp(next_one) == 0) {
        look(store);
        return;
    }
    make(store); /* what was open stays so for ever */
}

/* ---- files */

enum { META, CURSOR, CONTROL }; /* of a side's names, the first three */

static const char *const file_names[] = {"meta",
                                         "cursor",
                                         "control",
                                         "segment-000000000001",
                                         "segment-000000000002",
                                         "segment-000000000003",
                                         "segment-000000000004",
                                         "segment-000000000005",
                                         "dead/meta",
                                         "dead/cursor",
                                         "dead/control",
                                         "dead/segment-000000000001",
                                         "keys"};
#define NAMES ((int)(sizeof file_names / sizeof *file_names))
#define LETTERS_FILES 8 /* the first of theirs */
#define KEYS (NAMES - 1) /* of the store that has them */

static enum side side_of(const char *file)
{
    return strncmp(file, "dead/", 5) == 0 ? LETTERS : QUEUE;
}

/* In either directory. */
static bool is(const char *file, const char *begin)
{
    return strncmp(file + (side_of(file) == QUEUE ? 0 : 5), begin, strlen(begin)) == 0;
}

/* ---- single bits */

struct region {
    char file[64];
    uint64_t from, to;
    unsigned stride; /* of bits */
};

/* Every bit, unless the run is to be a very short one. */
#define DENSE(stride) (1 + (stride) / 1000)
#define LETTERS_APART 7 /* the same code reads them */

static uint32_t add(struct region *regions, uint32_t count, const char *file, uint64_t from,
                    uint64_t to, unsigned stride)
{
    snprintf(regions[count].file, 64, "%s", file);
    regions[count].from = from;
    regions[count].to = to;
    regions[count].stride = stride;
    return count + 1;
}

/* Where the last byte that is not zero lies, rounded up to a frame's alignment. */
static uint64_t used_end(const struct memory_file *file)
{
    uint64_t end = file->base_bytes;
    while (end > 0 && file->base[end - 1] == 0)
        end--;
    return (end + 31) & ~31ULL;
}

static uint32_t segment_regions(struct region *regions, uint32_t n, const struct memory_file *file,
                                unsigned dense, unsigned stride)
{
    static const uint32_t pages[] = {MPQ_SEGMENT_HEADER_A, MPQ_SEGMENT_HEADER_B, MPQ_SEGMENT_ROLL_A,
                                     MPQ_SEGMENT_ROLL_B};
    const char *name = file->base_name;
    for (int i = 0; i < 4; i++) {
        n = add(regions, n, name, pages[i], pages[i] + 128, dense);
        n = add(regions, n, name, pages[i] + 128, pages[i] + 4096, stride * 64);
    }
    const uint64_t end = used_end(file);
    const uint64_t near = end > MPQ_SEGMENT_FIRST + 8192 ? MPQ_SEGMENT_FIRST + 256 : end;
    if (end > MPQ_SEGMENT_FIRST) {
        n = add(regions, n, name, MPQ_SEGMENT_FIRST, near, dense);
        n = add(regions, n, name, near, end, stride);
    }
    return add(regions, n, name, end > MPQ_SEGMENT_FIRST ? end : MPQ_SEGMENT_FIRST,
               file->base_bytes, stride * 64);
}

static uint32_t side_regions(struct store *store, enum side side, struct region *regions,
                             uint32_t n, unsigned stride)
{
    struct memory *world = &store->world;
    const unsigned dense = DENSE(stride) * (side == LETTERS && stride > 1 ? LETTERS_APART : 1);
    const char *const *names = &file_names[side == QUEUE ? 0 : LETTERS_FILES];
    const struct memory_file *control = memory_find(world, names[CONTROL]);
    const struct mpq_control *head = (const void *)control->base;
    const uint64_t cursor_bytes = MPQ_CURSOR_SLOT_BYTES(head->ack_window);
    for (uint64_t slot = 0; slot < 2; slot++) {
        const uint64_t meta = slot * MPQ_PAGE, cursor = slot * cursor_bytes;
        n = add(regions, n, names[META], meta, meta + 520, dense);
        n = add(regions, n, names[META], meta + 520, meta + 4088, stride * 4);
        n = add(regions, n, names[META], meta + 4088, meta + 4096, dense);
        n = add(regions, n, names[CURSOR], cursor, cursor + 640, dense);
        n = add(regions, n, names[CURSOR], cursor + 640, cursor + cursor_bytes, stride * 8);
    }
    const uint64_t members = sizeof *head, ring = head->ring_offset;
    const uint64_t ring_end = ring + 10 * sizeof(struct mpq_ring_entry);
    const uint64_t window = head->window_offset, attempts = head->attempts_offset;
    n = add(regions, n, names[CONTROL], 0, members, dense);
    n = add(regions, n, names[CONTROL], head->members_offset, head->members_offset + 384, dense);
    n = add(regions, n, names[CONTROL], ring, ring_end, dense);
    n = add(regions, n, names[CONTROL], ring_end, window, stride * 512);
    n = add(regions, n, names[CONTROL], window, window + 32, dense);
    n = add(regions, n, names[CONTROL], attempts, attempts + 64 * 8, dense);
    for (int i = 0; i < MEMORY_FILES; i++) {
        const struct memory_file *file = &world->files[i];
        if (file->base != NULL && side_of(file->base_name) == side &&
            is(file->base_name, "segment-"))
            n = segment_regions(regions, n, file, dense, stride);
    }
    return n;
}

static uint32_t key_regions(struct store *store, struct region *regions, unsigned stride)
{
    const struct memory_file *keys = memory_find(&store->world, "keys");
    const struct memory_file *control = memory_find(&store->world, "control");
    const struct mpq_options options = {.key_window = KEY_WINDOW};
    const unsigned dense = DENSE(stride) * (stride > 1 ? LETTERS_APART : 1);
    const uint64_t end = used_end(keys), ring = control->base_bytes - mpq_keys_bytes(&options);
    const uint64_t buckets = ring + sizeof(struct mpq_key_ring);
    const uint64_t slots = buckets + mpq_key_bucket_count(KEY_WINDOW) * 8;
    const uint64_t used = slots + (store->count + 1) * sizeof(struct mpq_key_slot);
    uint32_t n = add(regions, 0, "keys", 0, end, DENSE(stride));
    n = add(regions, n, "keys", end, keys->base_bytes, stride * 64);
    n = add(regions, n, "control", ring, buckets, dense);
    n = add(regions, n, "control", buckets, slots, stride);
    return add(regions, n, "control", slots, used, dense);
}

static void flip(struct store *store, const char *file, uint64_t offset, unsigned bit, unsigned how)
{
    memory_restore(&store->world);
    struct memory_file *hit = memory_find(&store->world, file);
    if (hit == NULL || offset >= hit->bytes)
        exit(2);
    const enum side side = side_of(file);
    now = (struct where){.file = file, .offset = offset, .bit = bit, .harm = -1, .how = how};
    now.hit[side] = true;
    now.redelivers[side] = is(file, "cursor") || is(file, "control");
    hit->data[offset] ^= (uint8_t)(1u << bit);
    hit->dirty = true;
    probe(store);
}

static uint64_t flips(struct store *store, unsigned stride, unsigned worker)
{
    static struct region regions[128];
    const unsigned how = store->keyed ? KEYED : 0;
    uint32_t count;
    if (store->keyed) {
        count = key_regions(store, regions, stride);
    } else {
        count = side_regions(store, QUEUE, regions, 0, stride);
        count = side_regions(store, LETTERS, regions, count, stride);
    }
    uint64_t done = 0, index = 0;
    for (uint32_t r = 0; r < count; r++) {
        const struct region *region = &regions[r];
        if (part != NULL && strcmp(part, region->file) != 0)
            continue;
        for (uint64_t at = region->from * 8 + run_seed % region->stride; at < region->to * 8;
             at += region->stride) {
            if (index++ / 64 % WORKERS != worker)
                continue;
            if (done % 1024 == 0)
                alarm(120);
            flip(store, region->file, at / 8, at % 8, how);
            /* Another boot makes control anew, whatever is in it. */
            if (!is(region->file, "control") || index % 64 == 0)
                flip(store, region->file, at / 8, at % 8, how | OTHER_BOOT);
            if (index % 16 == 0)
                flip(store, region->file, at / 8, at % 8,
                     how | REPAIRED | (index / 16 & OTHER_BOOT));
            if (index % 16 == 8)
                flip(store, region->file, at / 8, at % 8, how | MOVES | (index / 16 & OTHER_BOOT));
            done++;
        }
    }
    return done;
}

/* ---- harm */

#define SECTORS 160 /* at most so many sectors of a file are harmed one by one */
#define KINDS 3 /* truncated there; that sector zeroed; that page zeroed */
#define LAST_HARM (NAMES * SECTORS * KINDS)
#define PAIRS (NAMES * NAMES)
#define HARMS (LAST_HARM + 2 * PAIRS + 3 * NAMES)

static struct store *store_new(bool keyed)
{
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL)
        exit(2);
    store->keyed = keyed;
    make(store);
    return store;
}

/* A store of the same shape, other uuid and seed. */
static struct store *foreign(bool keyed)
{
    static struct store *others[2];
    if (others[keyed] == NULL) {
        const uint64_t mine = run_seed;
        run_seed = mine + 1000003;
        others[keyed] = store_new(keyed);
        run_seed = mine;
    }
    return others[keyed];
}

static bool harm_sector(struct memory *world, int number)
{
    struct memory_file *file = memory_find(world, file_names[number / KINDS / SECTORS]);
    const uint64_t at = (uint64_t)(number / KINDS % SECTORS) * 512;
    if (file == NULL || at >= file->bytes)
        return false;
    file->dirty = true;
    if (number % KINDS == 0) {
        memory_resize(world, file, at);
        return true;
    }
    const uint64_t unit = number % KINDS == 1 ? 512 : 4096;
    if (at % unit != 0)
        return false;
    memset(file->data + at, 0, unit < file->bytes - at ? unit : file->bytes - at);
    return true;
}

/* Two files change names, or one becomes a copy of the other. */
static bool harm_pair(struct memory *world, int a, int b, bool copy)
{
    struct memory_file *to = memory_find(world, file_names[a]);
    struct memory_file *from = memory_find(world, file_names[b]);
    if (a == b || to == NULL || from == NULL || (!copy && a > b))
        return false;
    to->dirty = from->dirty = true;
    if (copy) {
        (void)memory_put(world, file_names[a], from->data, from->bytes);
    } else {
        snprintf(to->name, sizeof to->name, "%s", file_names[b]);
        snprintf(from->name, sizeof from->name, "%s", file_names[a]);
    }
    return true;
}

static bool harm_file(struct memory *world, int which, int kind)
{
    struct memory_file *file = memory_find(world, file_names[which]);
    if (file == NULL)
        return false;
    if (kind == 0) {
        memory_drop(world, file_names[which]);
    } else if (kind == 1) {
        struct memory_file *theirs = memory_find(&foreign(which == KEYS)->world, file_names[which]);
        if (theirs == NULL)
            return false;
        (void)memory_put(world, file_names[which], theirs->data, theirs->bytes);
    } else {
        uint64_t end = file->bytes;
        memory_resize(world, file, end + 5000);
        for (uint64_t i = end; i < end + 5000; i++)
            file->data[i] = (uint8_t)memory_random(world);
    }
    return true;
}

static void expect(const char *file, bool redelivers, bool unknown)
{
    const enum side side = side_of(file);
    now.hit[side] = true;
    now.redelivers[side] |= redelivers;
    now.unknown[side] |= unknown;
}

static bool is_of_keys(int number)
{
    return number < LAST_HARM ? number / KINDS / SECTORS == KEYS
                              : number >= HARMS - 3 && number < HARMS;
}

static bool harm(struct store *store, int number, unsigned how)
{
    struct memory *world = &store->world;
    memory_restore(world);
    now = (struct where){.file = "", .harm = number, .how = how};
    bool done;
    if (number < LAST_HARM) {
        const char *file = file_names[number / KINDS / SECTORS];
        done = harm_sector(world, number);
        expect(file, !is(file, "segment-"), false);
    } else if (number < LAST_HARM + 2 * PAIRS) {
        const int pair = (number - LAST_HARM) % PAIRS;
        const bool copy = number >= LAST_HARM + PAIRS;
        const char *to = file_names[pair / NAMES], *from = file_names[pair % NAMES];
        done = harm_pair(world, pair / NAMES, pair % NAMES, copy);
        expect(to, true, is(to, "cursor"));
        if (!copy)
            expect(from, true, is(from, "cursor"));
    } else {
        const int rest = number - LAST_HARM - 2 * PAIRS;
        const char *file = file_names[rest / 3];
        done = harm_file(world, rest / 3, rest % 3);
        expect(file, !is(file, "segment-"), false);
    }
    if (!done)
        return false;
    probe(store);
    return true;
}

static uint64_t harms(struct store *store, unsigned stride, unsigned worker)
{
    const unsigned first = store->keyed ? KEYED : 0;
    uint64_t done = 0;
    const int end = part == NULL || strcmp(part, "harm") == 0 ? HARMS : 0;
    for (int i = 0; i < end; i++) {
        if ((unsigned)i % WORKERS != worker || is_of_keys(i) != store->keyed ||
            (i < LAST_HARM && stride > 8 && (unsigned)(i / KINDS) % (stride / 8) != 0))
            continue;
        alarm(120);
        for (unsigned how = 0; how < HOWS && harm(store, i, first | how); how++) {
            done += how == 0;
            /* What letters meet that come into them. */
            if (how <= OTHER_BOOT && now.hit[LETTERS] && !now.hit[QUEUE] && !now.refused)
                (void)harm(store, i, how | MOVES);
        }
    }
    return done;
}

/* ---- the runs */

static int replay(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    run_seed = strtoull(argv[2], NULL, 10);
    const unsigned how = (unsigned)atoi(argv[3]);
    struct store *store = store_new((how & KEYED) != 0);
    if (strcmp(argv[4], "harm") == 0)
        return harm(store, atoi(argv[5]), how) ? 0 : 2;
    if (argc < 7)
        return 2;
    flip(store, argv[4], strtoull(argv[5], NULL, 10), (unsigned)atoi(argv[6]), how);
    return 0;
}

static unsigned stride;

static int work(unsigned worker, struct figures *figures)
{
    for (int keyed = 0; keyed < 2; keyed++) {
        struct store *store = store_new(keyed != 0);
        figures->sum[0] += flips(store, stride, worker);
        figures->sum[1] += harms(store, stride, worker);
        memory_end(&store->world);
        free(store);
    }
    return violations == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: rot SEED STRIDE | rot replay SEED HOW FILE OFFSET BIT\n");
        return 2;
    }
    signal(SIGALRM, on_alarm);
    memory_complaint = on_complaint;
    if (strcmp(argv[1], "replay") == 0)
        return replay(argc, argv);
    run_seed = strtoull(argv[1], NULL, 10);
    stride = (unsigned)atoi(argv[2]);
    survey = argc > 3 && strcmp(argv[3], "all") == 0;
    part = argc > 3 && !survey ? argv[3] : NULL;
    struct figures total;
    if (stride == 0)
        return 2;
    const int rc = workers_run(work, &total);
    printf("rot: seed %llu, %llu bits flipped, %llu other kinds of damage, %s\n",
           (unsigned long long)run_seed, (unsigned long long)total.sum[0],
           (unsigned long long)total.sum[1], rc == 0 ? "0 violations" : "FAILED");
    return rc;
}
