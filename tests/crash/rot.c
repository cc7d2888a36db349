/* rot.c - damage: one flipped bit anywhere, and coarser harm, in a small closed queue.
 *
 * usage: rot SEED STRIDE [all | PART]     every bit of what is used, every STRIDE-th of the rest;
 *                                         all: goes on after a violation; PART: a file or "harm"
 *        rot replay SEED HOW FILE OFFSET BIT   HOW: 1 under another boot id, 2 repaired first, 3
 * both rot replay SEED HOW harm NUMBER
 *
 * The store has several segments: small items, a batch, a gap, a padded end, a segment of its own
 * for an oversized item, a roll; acks at the floor and out of order; items handed out twice. One
 * bit is flipped, the store opened (under the same boot id, so that control is trusted, and under
 * another one, so that it is rebuilt), drained, used for one more item, closed, opened again:
 *
 *   - it opens; at most one item is missing, the counters say exactly so, one MPQ_CORRUPT says so
 *     once; nothing altered, out of order, twice, or never put is handed out;
 *   - only damage of cursor or control may bring an acked item back;
 *   - the next item goes in, is flushed and comes out; depth ends at 0;
 *   - the second opening finds nothing more; nothing stays open or allocated;
 *   - where it was repaired first, the repair's report counts all of it, and a dry run before it
 *     the same, changing nothing; later readers are told of none.
 *
 * Harm: files truncated at every sector, sectors and pages zeroed, segments swapped, copied over
 * each other, missing, of another queue; garbage appended. Then opening may be refused with a
 * documented error that touches nothing; otherwise every missing item is counted and nothing wrong
 * is handed out. STRIDE also thins the oversized item's inside and the harm, above 1000 all. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "internal.h"
#include "memory.h"
#include "workers.h"

#define ITEMS 64

struct expected {
    uint64_t seq; /* 0 = never put */
    uint64_t generation; /* of its segment */
    uint32_t length;
    bool acked, gap;
};

struct store {
    struct memory world;
    struct expected items[ITEMS];
    uint32_t count;
    uint64_t gaps;
    struct mpq_stats before; /* as the last closer left it */
};

#define OTHER_BOOT 1u
#define REPAIRED 2u /* before it is opened */
#define HOWS 4u

struct where { /* what was done to the store */
    const char *file;
    uint64_t offset;
    unsigned bit;
    int harm; /* -1 = a flipped bit */
    unsigned how; /* OTHER_BOOT, REPAIRED */
    bool redelivers; /* acked items may come back */
    bool unknown; /* what was acked is gone as well: losses cannot be counted exactly */
};

static const struct mpq_call hasty = {0, NULL, NULL};
static uint64_t run_seed;
static struct where now;
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

static void failed(const char *what, uint64_t a, uint64_t b)
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

/* ---- the store */

static void fill(uint32_t item, uint8_t *body, uint32_t length)
{
    memcpy(body, &item, 4);
    for (uint32_t i = 4; i < length; i++)
        body[i] = (uint8_t)(item * 37 + i * 11 + (i >> 8));
}

static bool is_right(uint32_t item, const uint8_t *body, uint32_t length)
{
    static uint8_t *right[ITEMS]; /* made once: an item's length never changes */
    if (right[item] == NULL) {
        right[item] = malloc(length);
        if (right[item] == NULL)
            exit(2);
        fill(item, right[item], length);
    }
    return memcmp(body, right[item], length) == 0;
}

static struct mpq_queue *attach(struct memory *world, mpq_status *status, struct mpq_error *error)
{
    struct mpq_open_args args = {.path = MEMORY_ROOT, .create = true, .io = &world->io};
    struct mpq_queue *queue = NULL;
    mpq_options_default(&args.options);
    args.options.segment_size = 65536;
    args.options.max_segments = 16;
    args.options.keep_segments = 0;
    args.options.ack_window = 64;
    args.options.max_members = 2;
    *status = mpq_open(&args, &hasty, &queue, error);
    if (*status == MPQ_OK)
        mpq_open_gate(queue, "/gate");
    return *status == MPQ_OK ? queue : NULL;
}

static void must(mpq_status status, const struct mpq_error *error)
{
    if (status == MPQ_OK)
        return;
    fprintf(stderr, "rot: making the store: %s: %s\n", mpq_status_name(status), error->message);
    exit(2);
}

static mpq_status put_all(struct mpq_queue *queue, const struct mpq_item_in *in, uint32_t count,
                          uint64_t *seq, struct mpq_error *error)
{
    uint64_t ticket = 0;
    mpq_status status = mpq_put_batch(queue, in, count, &hasty, seq, &ticket, error);
    return status == MPQ_FLUSH ? mpq_put_flush(queue, ticket, &hasty, error) : status;
}

static void put(struct store *store, struct mpq_queue *queue, uint32_t count, uint32_t length)
{
    static uint8_t bodies[4][60000];
    struct mpq_item_in in[4] = {{0}};
    struct mpq_error error;
    uint64_t seq;
    for (uint32_t i = 0; i < count; i++) {
        fill(store->count + i, bodies[i], length);
        in[i] = (struct mpq_item_in){.body = bodies[i], .length = length};
    }
    must(put_all(queue, in, count, &seq, &error), &error);
    const uint64_t generation = MPQ_POSITION_GEN(mpq_tail_read(queue->control).position);
    for (uint32_t i = 0; i < count; i++)
        store->items[store->count++] = (struct expected){seq + i, generation, length, false, false};
}

/* A source that cannot be read: its claim becomes a gap. */
static void put_gap(struct store *store, struct mpq_queue *queue)
{
    struct mpq_error error;
    uint64_t seq;
    int fd = memfd_create("empty", MFD_CLOEXEC);
    void *nothing = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || nothing == MAP_FAILED)
        exit(2);
    struct mpq_item_in in = {.body = nothing, .length = 100};
    if (put_all(queue, &in, 1, &seq, &error) != MPQ_SYSTEM)
        exit(2);
    munmap(nothing, 4096);
    close(fd);
    store->gaps++;
}

/* Hands out `count` items and acks those that the pattern says; the others are returned. */
static void consume(struct store *store, struct mpq_consumer *consumer, const char *pattern)
{
    struct mpq_error error;
    struct mpq_item items[32];
    uint32_t taken, id;
    const uint32_t count = (uint32_t)strlen(pattern);
    must(mpq_reserve_many_try(consumer, items, count, 0, &taken, &error), &error);
    for (uint32_t i = 0; i < taken; i++) {
        memcpy(&id, items[i].body, 4);
        mpq_segment_release(items[i].segment);
        if (pattern[i] == 'a')
            must(mpq_ack(consumer, items[i].seq, items[i].token, &error), &error);
        else
            must(mpq_nack(consumer, items[i].seq, items[i].token, &error), &error);
        store->items[id].acked = pattern[i] == 'a';
    }
}

/* Between the two cursor slots the floor moves out of the first segment: one of them needs it. */
static void make(struct store *store)
{
    struct memory *world = &store->world;
    struct mpq_error error;
    struct mpq_consumer *consumer;
    mpq_status status;
    memory_start(world, run_seed);
    struct mpq_queue *queue = attach(world, &status, &error);
    must(status, &error);
    for (uint32_t i = 0; i < 11; i++)
        put(store, queue, 1, 4000 + i);
    put(store, queue, 1, 4900); /* too little room is left for the next ones */
    must(mpq_consumer_open(queue, &hasty, &consumer, &error), &error);
    consume(store, consumer, "aaaa");
    must(mpq_consumer_sync(consumer, &error), &error);
    consume(store, consumer, "aaaaaaaa");
    put(store, queue, 1, 400);
    for (uint32_t i = 0; i < 7; i++)
        put(store, queue, 1, 20 + 13 * i);
    put_gap(store, queue);
    put(store, queue, 4, 60);
    put(store, queue, 1, 200);
    put(store, queue, 1, 50000); /* a segment of its own */
    for (uint32_t i = 0; i < 6; i++)
        put(store, queue, 1, 33 + 7 * i);
    consume(store, consumer, "aanananna");
    consume(store, consumer, "nn");
    must(mpq_consumer_sync(consumer, &error), &error);
    mpq_reclaim(consumer, false);
    memory_keep(world); /* as a kill leaves it: to close would move the other slot, too */
    for (uint32_t i = 0; i < MEMORY_FILES; i++)
        world->files[i].dirty = true; /* mapped: it changes unseen */
    must(mpq_consumer_close(consumer, &error), &error);
    must(mpq_close(queue, &hasty, &error), &error);
    mpq_consumer_free(consumer);
    mpq_free(queue);
    memory_restore(world);
    queue = attach(world, &status, &error);
    must(status, &error);
    mpq_stats_get(queue, &store->before);
    must(mpq_close(queue, &hasty, &error), &error);
    mpq_free(queue);
    if (memory_leaks(world) != 0)
        exit(2);
    memory_keep(world);
}

/* ---- looking at a damaged one */

static uint64_t counted(const struct mpq_stats *stats)
{
    return stats->lost_items + stats->torn_items;
}

struct seen {
    bool item[ITEMS];
    uint64_t events, told, again; /* told: by events of the handle, which name every loss */
};

static void see(struct store *store, const struct mpq_item *item, uint64_t *last, struct seen *seen)
{
    uint32_t id = ITEMS;
    if (item->length >= 4)
        memcpy(&id, item->body, 4);
    if (id >= store->count || item->length != store->items[id].length ||
        !is_right(id, item->body, item->length) || item->ext_length != 0)
        failed("an item that was never put", id, item->seq);
    if (item->seq != store->items[id].seq)
        failed("an item under another seq", id, item->seq);
    if (item->segment->generation != store->items[id].generation)
        failed("an item out of a misplaced file", id, item->segment->generation);
    if (item->seq <= *last)
        failed("out of order", item->seq, *last);
    if (store->items[id].acked)
        seen->again++;
    seen->item[id] = true;
    *last = item->seq;
}

static void drain(struct store *store, struct mpq_queue *queue, struct mpq_consumer *consumer,
                  struct seen *seen)
{
    struct mpq_error error;
    uint64_t last = 0;
    for (int idle = 0; idle < 40;) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK) {
            see(store, &item, &last, seen);
            mpq_segment_release(item.segment);
            if (mpq_ack(consumer, item.seq, item.token, &error) != MPQ_OK)
                failed(error.message, item.seq, 0);
        } else if (status == MPQ_CORRUPT) {
            seen->events++;
            if (seen->events > 1000)
                failed("reports without end", 0, 0);
        } else if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
            if (mpq_depth(queue) == 0)
                return;
            const struct mpq_call wait = {UINT64_MAX, NULL, NULL};
            idle++;
            status = mpq_reserve_wait(consumer, &wait, &error);
            if (status != MPQ_OK)
                failed(error.message, status, 0);
        } else {
            failed(error.message, status, last);
        }
    }
    failed("items are left that nobody gets", mpq_depth(queue), last);
}

static void one_more(struct store *store, struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    struct mpq_error error;
    struct mpq_item item;
    struct mpq_item_in in = {.body = "next", .length = 4};
    uint64_t seq, syncs = store->world.syncs;
    if (put_all(queue, &in, 1, &seq, &error) != MPQ_OK)
        failed(error.message, 0, 0);
    if (store->world.syncs == syncs)
        failed("a put returned without a flush", 0, 0);
    if (seq <= store->items[store->count - 1].seq)
        failed("a seq was issued again", seq, 0);
    mpq_status status = MPQ_EMPTY;
    for (int i = 0; i < 40 && status == MPQ_EMPTY; i++) {
        status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_EMPTY &&
            mpq_reserve_wait(consumer, &(struct mpq_call){UINT64_MAX, NULL, NULL}, &error) !=
                MPQ_OK)
            failed(error.message, 0, 0);
    }
    if (status != MPQ_OK || item.seq != seq || item.length != 4 ||
        memcmp(item.body, "next", 4) != 0)
        failed("the next item does not come out", status, seq);
    mpq_segment_release(item.segment);
    if (mpq_ack(consumer, item.seq, item.token, &error) != MPQ_OK)
        failed(error.message, 0, 0);
}

static void leave(struct store *store, struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    struct mpq_error error;
    if (mpq_consumer_close(consumer, &error) != MPQ_OK ||
        mpq_close(queue, &hasty, &error) != MPQ_OK)
        failed(error.message, 0, 0);
    mpq_consumer_free(consumer);
    mpq_free(queue);
    if (memory_leaks(&store->world) != 0)
        failed("something stays open", memory_leaks(&store->world), 0);
}

static void judge(struct store *store, const struct seen *seen, const struct mpq_stats *stats)
{
    uint64_t missing = 0;
    for (uint32_t id = 0; id < store->count; id++)
        missing += !store->items[id].acked && !seen->item[id];
    const uint64_t lost = counted(stats) - counted(&store->before);
    /* A gap inside lost bytes cannot be told from an item. */
    if (!now.unknown && (lost < missing || lost > missing + (now.harm >= 0 ? store->gaps : 0)))
        failed("loss is not counted exactly", missing, lost);
    if (seen->told != stats->lost_items - store->before.lost_items)
        failed("loss is not told exactly", seen->told, stats->lost_items);
    if (seen->again != 0 && !now.redelivers)
        failed("acked items come back", seen->again, 0);
    if (stats->depth != 0 || stats->backlog_bytes != 0)
        failed("something is left", stats->depth, stats->backlog_bytes);
    if ((now.how & REPAIRED) != 0 ? seen->events != 0
                                  : now.harm < 0 && (missing > 1 || seen->events != missing))
        failed("more than one item lost, or told more than once", missing, seen->events);
}

static void second(struct store *store, const struct mpq_stats *first)
{
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_item item;
    struct mpq_stats stats;
    mpq_status status;
    struct mpq_queue *queue = attach(&store->world, &status, &error);
    if (queue == NULL || mpq_consumer_open(queue, &hasty, &consumer, &error) != MPQ_OK)
        failed(error.message, status, 1);
    status = mpq_reserve_try(consumer, &item, &error);
    mpq_stats_get(queue, &stats);
    if (status != MPQ_EMPTY || stats.depth != 0 || counted(&stats) != counted(first))
        failed("the second opening found something", status, stats.depth);
    leave(store, queue, consumer);
}

static bool refusal(mpq_status status)
{
    return status == MPQ_FORMAT || status == MPQ_NOT_A_QUEUE || status == MPQ_CORRUPT;
}

static uint64_t digest(const struct memory *world)
{
    uint64_t sum = 0;
    for (int i = 0; i < MEMORY_FILES; i++)
        if (world->files[i].used && world->files[i].links != 0)
            sum += mpq_xxh64(world->files[i].data, world->files[i].bytes,
                             mpq_xxh64(world->files[i].name, strlen(world->files[i].name), 0));
    return sum;
}

/* False: refused, and nothing was touched. */
static bool repaired(struct store *store, struct seen *seen)
{
    struct memory *world = &store->world;
    struct mpq_error error;
    struct mpq_repair dry, report;
    const uint64_t was = digest(world);
    mpq_status status = mpq_repair_queue(MEMORY_ROOT, &world->io, true, &hasty, &dry, &error);
    if (digest(world) != was)
        failed("a dry repair changed files", status, 0);
    if (status == MPQ_OK)
        status = mpq_repair_queue(MEMORY_ROOT, &world->io, false, &hasty, &report, &error);
    else if (now.harm < 0 || !refusal(status))
        failed(error.message, status, 0);
    if (memory_leaks(world) != 0)
        failed("a repair leaks", memory_leaks(world), 0);
    if (status != MPQ_OK)
        return false;
    seen->told = report.lost_items;
    return true;
}

static void look(struct store *store)
{
    struct memory *world = &store->world;
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_stats stats;
    struct mpq_event_info info;
    struct seen seen = {0};
    mpq_status status;
    snprintf(world->boot_id, sizeof world->boot_id, "boot-%s",
             (now.how & OTHER_BOOT) != 0 ? "b" : "a");
    if ((now.how & REPAIRED) != 0 && !repaired(store, &seen))
        return;
    const uint64_t was = now.harm >= 0 ? digest(world) : 0;
    struct mpq_queue *queue = attach(world, &status, &error);
    if (queue == NULL) {
        if (now.harm < 0 || !refusal(status))
            failed(error.message, status, 0);
        if (digest(world) != was)
            failed("a refused opening changed files", status, 0);
        if (memory_leaks(world) != 0)
            failed("a refused opening leaks", memory_leaks(world), 0);
        return;
    }
    if (mpq_consumer_open(queue, &hasty, &consumer, &error) != MPQ_OK)
        failed(error.message, 0, 0);
    drain(store, queue, consumer, &seen);
    mpq_stats_get(queue, &stats);
    if ((mpq_events_take(queue, &info) & MPQ_EVENT_LOSS) != 0)
        seen.told += info.lost_items;
    judge(store, &seen, &stats);
    one_more(store, queue, consumer);
    leave(store, queue, consumer);
    second(store, &stats);
}

static void probe(struct store *store)
{
    if (setjmp(next_one) == 0) {
        look(store);
        return;
    }
    /* What was open stays so for ever: a new store. */
    memset(store, 0, sizeof *store);
    make(store);
}

/* ---- single bits */

struct region {
    char file[64];
    uint64_t from, to;
    unsigned stride; /* of bits */
};

/* Every bit, unless the run is to be a very short one. */
#define DENSE(stride) (1 + (stride) / 1000)

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
                                unsigned stride)
{
    const unsigned dense = DENSE(stride);
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

static uint32_t all_regions(struct store *store, struct region *regions, unsigned stride)
{
    struct memory *world = &store->world;
    const unsigned dense = DENSE(stride);
    uint32_t n = 0;
    for (uint64_t slot = 0; slot < 2; slot++) {
        const uint64_t meta = slot * MPQ_PAGE, cursor = slot * MPQ_CURSOR_SLOT_BYTES(64);
        n = add(regions, n, "meta", meta, meta + 520, dense);
        n = add(regions, n, "meta", meta + 520, meta + 4088, stride * 4);
        n = add(regions, n, "meta", meta + 4088, meta + 4096, dense);
        n = add(regions, n, "cursor", cursor, cursor + 640, dense);
        n = add(regions, n, "cursor", cursor + 640, cursor + MPQ_CURSOR_SLOT_BYTES(64), stride * 8);
    }
    const struct memory_file *control = memory_find(world, "control");
    const struct mpq_control *head = (const void *)control->base;
    const uint64_t members = sizeof *head, ring = head->ring_offset;
    n = add(regions, n, "control", 0, members, dense);
    n = add(regions, n, "control", head->members_offset, head->members_offset + 384, dense);
    n = add(regions, n, "control", ring, ring + 10 * sizeof(struct mpq_ring_entry), dense);
    n = add(regions, n, "control", ring + 10 * sizeof(struct mpq_ring_entry), head->window_offset,
            stride * 512);
    n = add(regions, n, "control", head->window_offset, head->window_offset + 32, dense);
    n = add(regions, n, "control", head->attempts_offset, head->attempts_offset + 64 * 8, dense);
    for (int i = 0; i < MEMORY_FILES; i++)
        if (world->files[i].base != NULL && strncmp(world->files[i].base_name, "segment-", 8) == 0)
            n = segment_regions(regions, n, &world->files[i], stride);
    return n;
}

static void flip(struct store *store, const char *file, uint64_t offset, unsigned bit, unsigned how)
{
    memory_restore(&store->world);
    struct memory_file *hit = memory_find(&store->world, file);
    if (hit == NULL || offset >= hit->bytes)
        exit(2);
    const bool state = strcmp(file, "cursor") == 0 || strcmp(file, "control") == 0;
    now = (struct where){file, offset, bit, -1, how, state, false};
    hit->data[offset] ^= (uint8_t)(1u << bit);
    hit->dirty = true;
    probe(store);
}

static uint64_t flips(struct store *store, unsigned stride, unsigned worker)
{
    static struct region regions[128];
    const uint32_t count = all_regions(store, regions, stride);
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
            flip(store, region->file, at / 8, at % 8, 0);
            /* Another boot makes control anew, whatever is in it. */
            if (strcmp(region->file, "control") != 0 || index % 64 == 0)
                flip(store, region->file, at / 8, at % 8, OTHER_BOOT);
            if (index % 16 == 0)
                flip(store, region->file, at / 8, at % 8, REPAIRED | (index / 16 & OTHER_BOOT));
            done++;
        }
    }
    return done;
}

/* ---- harm */

static const char *file_names[] = {"meta",
                                   "cursor",
                                   "control",
                                   "segment-000000000001",
                                   "segment-000000000002",
                                   "segment-000000000003",
                                   "segment-000000000004",
                                   "segment-000000000005"};
#define NAMES ((int)(sizeof file_names / sizeof *file_names))
#define SECTORS 160 /* at most so many sectors of a file are harmed one by one */
#define KINDS 3 /* truncated there; that sector zeroed; that page zeroed */
#define LAST_HARM (NAMES * SECTORS * KINDS)
#define PAIRS (NAMES * NAMES)
#define HARMS (LAST_HARM + 2 * PAIRS + 3 * NAMES)

/* A store of the same shape, other uuid and seed. */
static struct store *foreign(void)
{
    static struct store *other;
    if (other == NULL) {
        other = calloc(1, sizeof *other);
        const uint64_t mine = run_seed;
        if (other == NULL)
            exit(2);
        run_seed = mine + 1000003;
        make(other);
        run_seed = mine;
    }
    return other;
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
        struct memory_file *theirs = memory_find(&foreign()->world, file_names[which]);
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

static bool harm(struct store *store, int number, unsigned how)
{
    struct memory *world = &store->world;
    memory_restore(world);
    const char *file = "";
    bool done, unknown = false;
    if (number < LAST_HARM) {
        file = file_names[number / KINDS / SECTORS];
        done = harm_sector(world, number);
    } else if (number < LAST_HARM + 2 * PAIRS) {
        int pair = number - LAST_HARM;
        file = "control";
        unknown = pair % PAIRS / NAMES == 1 || (pair < PAIRS && pair % NAMES == 1);
        done = harm_pair(world, pair % PAIRS / NAMES, pair % NAMES, pair >= PAIRS);
    } else {
        int rest = number - LAST_HARM - 2 * PAIRS;
        file = file_names[rest / 3];
        done = harm_file(world, rest / 3, rest % 3);
    }
    if (!done)
        return false;
    const bool state = strncmp(file, "segment-", 8) != 0;
    now = (struct where){file, 0, 0, number, how, state, unknown};
    probe(store);
    return true;
}

static uint64_t harms(struct store *store, unsigned stride, unsigned worker)
{
    uint64_t done = 0;
    const int end = part == NULL || strcmp(part, "harm") == 0 ? HARMS : 0;
    for (int i = 0; i < end; i++) {
        if ((unsigned)i % WORKERS != worker ||
            (i < LAST_HARM && stride > 8 && (unsigned)(i / KINDS) % (stride / 8) != 0))
            continue;
        alarm(120);
        const bool same = harm(store, i, 0);
        done += same;
        for (unsigned how = 1; same && how < HOWS; how++)
            (void)harm(store, i, how);
    }
    return done;
}

/* ---- the runs */

static int replay(int argc, char **argv)
{
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL || argc < 6)
        return 2;
    run_seed = strtoull(argv[2], NULL, 10);
    make(store);
    const unsigned how = (unsigned)atoi(argv[3]);
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
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return 2;
    make(store);
    figures->sum[0] = flips(store, stride, worker);
    figures->sum[1] = harms(store, stride, worker);
    memory_end(&store->world);
    free(store);
    return violations == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: rot SEED STRIDE | rot replay SEED BOOT FILE OFFSET BIT\n");
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
