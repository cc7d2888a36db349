/* rot_store.c - the store that rot damages: how it is made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rot.h"

static void fill(uint32_t item, uint8_t *body, uint32_t length)
{
    memcpy(body, &item, 4);
    for (uint32_t i = 4; i < length; i++)
        body[i] = (uint8_t)(item * 37 + i * 11 + (i >> 8));
}

bool is_right(uint32_t item, const uint8_t *body, uint32_t length)
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

struct mpq_queue *attach(struct memory *world, mpq_status *status, struct mpq_error *error)
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

mpq_status put_all(struct mpq_queue *queue, const struct mpq_item_in *in, uint32_t count,
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
void make(struct store *store)
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
