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

uint64_t hash_of_ext(const struct mpq_item *item)
{
    return mpq_xxh64(item->ext, item->ext_length, 0);
}

/* The dead letters are there, or the move makes them. */
struct mpq_queue *attach(struct store *store, enum side side, mpq_status *status,
                         struct mpq_error *error)
{
    struct mpq_open_args args = {.path = side == QUEUE ? MEMORY_ROOT : MEMORY_ROOT "/dead",
                                 .create = side == QUEUE,
                                 .io = &store->world.io};
    struct mpq_queue *queue = NULL;
    mpq_options_default(&args.options);
    args.options.segment_size = 65536;
    args.options.max_segments = 16;
    args.options.keep_segments = 0;
    args.options.ack_window = 64;
    args.options.max_members = 2;
    args.options.key_window = store->keyed ? KEY_WINDOW : 0;
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

mpq_status put_keyed(struct mpq_queue *queue, struct mpq_item_in *in, uint32_t count,
                     uint32_t first_key, uint64_t *seq, struct mpq_error *error)
{
    static uint8_t exts[4][8]; /* the caller may look at them */
    struct mpq_keyed keyed;
    uint64_t ticket = 0;
    for (uint32_t i = 0; i < count; i++, first_key++) {
        const uint16_t head[2] = {MPQ_EXT_KEY, sizeof first_key};
        memcpy(exts[i], head, sizeof head);
        memcpy(exts[i] + sizeof head, &first_key, sizeof first_key);
        in[i].ext = exts[i];
        in[i].ext_length = 8;
    }
    mpq_status status = mpq_keyed_begin(queue, &keyed, in, count, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_put_keyed(queue, &keyed, &hasty, &ticket, error);
    *seq = keyed.keys[0].seq;
    mpq_keyed_end(queue, &keyed);
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
    must(store->keyed ? put_keyed(queue, in, count, store->count, &seq, &error)
                      : put_all(queue, in, count, &seq, &error),
         &error);
    struct contents *contents = &store->sides[QUEUE];
    const uint64_t generation = MPQ_POSITION_GEN(mpq_tail_read(queue->control).position);
    for (uint32_t i = 0; i < count; i++) {
        store->lengths[store->count] = length;
        contents->items[store->count++] = (struct expected){
            seq + i, generation, mpq_xxh64(in[i].ext, in[i].ext_length, 0), false};
    }
    contents->last_seq = seq + count - 1;
}

/* A source that cannot be read: its claim becomes a gap. */
static void put_gap(struct store *store, enum side side, struct mpq_queue *queue)
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
    store->sides[side].gaps++;
}

/* Hands out as many items as the pattern has letters: a is acked, n returned, d dead. */
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
        else if (pattern[i] == 'd')
            must(mpq_dead_letter(consumer, items[i].seq, items[i].token, "rot", 3, &error), &error);
        else
            must(mpq_nack(consumer, items[i].seq, items[i].token, &error), &error);
        store->sides[QUEUE].items[id].acked = pattern[i] != 'n';
    }
}

/* What the letters are, and every second one is dropped. They stay open, as the queue does. */
static struct mpq_queue *note_letters(struct store *store, struct mpq_consumer **consumer)
{
    struct contents *contents = &store->sides[LETTERS];
    struct mpq_error error;
    struct mpq_item item;
    mpq_status status;
    struct mpq_queue *queue = attach(store, LETTERS, &status, &error);
    must(status, &error);
    must(mpq_consumer_open(queue, &hasty, consumer, &error), &error);
    put_gap(store, LETTERS, queue);
    for (uint32_t i = 0, id; (status = mpq_reserve_try(*consumer, &item, &error)) == MPQ_OK; i++) {
        memcpy(&id, item.body, 4);
        contents->items[id] =
            (struct expected){item.seq, item.segment->generation, hash_of_ext(&item), i % 2 == 0};
        contents->last_seq = item.seq;
        mpq_segment_release(item.segment);
        if (i % 2 == 0)
            must(mpq_ack(*consumer, item.seq, item.token, &error), &error);
    }
    if (status != MPQ_AGAIN) /* the gap is not durable yet */
        exit(2);
    must(mpq_reserve_wait(*consumer, &hasty, &error), &error);
    must(mpq_consumer_sync(*consumer, &error), &error);
    return queue;
}

static void let_go(struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    struct mpq_error error;
    must(mpq_consumer_close(consumer, &error), &error);
    must(mpq_close(queue, &hasty, &error), &error);
    mpq_consumer_free(consumer);
    mpq_free(queue);
}

/* Between the two cursor slots the floor moves out of the first segment: one of them needs it. */
void make(struct store *store)
{
    struct memory *world = &store->world;
    struct mpq_error error;
    struct mpq_consumer *consumer, *reader;
    mpq_status status;
    store->count = 0;
    memset(store->sides, 0, sizeof store->sides);
    memory_start(world, run_seed);
    struct mpq_queue *queue = attach(store, QUEUE, &status, &error);
    must(status, &error);
    for (uint32_t i = 0; i < 11; i++)
        put(store, queue, 1, 4000 + i);
    put(store, queue, 1, 4900); /* too little room is left for the next ones */
    must(mpq_consumer_open(queue, &hasty, &consumer, &error), &error);
    consume(store, consumer, "aaaa");
    must(mpq_consumer_sync(consumer, &error), &error);
    consume(store, consumer, "aaaaaaaa");
    put(store, queue, 1, 400);
    for (uint32_t i = 0; i < 11; i++)
        put(store, queue, 1, 20 + 13 * i);
    put_gap(store, QUEUE, queue);
    put(store, queue, 4, 60);
    put(store, queue, 1, 200);
    put(store, queue, 1, 50000); /* a segment of its own */
    for (uint32_t i = 0; i < 6; i++)
        put(store, queue, 1, 33 + 7 * i);
    consume(store, consumer, "aanandnndddna");
    consume(store, consumer, "nn");
    must(mpq_consumer_sync(consumer, &error), &error);
    mpq_reclaim(consumer, false);
    struct mpq_queue *letters = note_letters(store, &reader);
    memory_keep(world); /* as a kill leaves it: to close would move the other slot, too */
    for (uint32_t i = 0; i < MEMORY_FILES; i++)
        world->files[i].dirty = true; /* mapped: it changes unseen */
    let_go(letters, reader);
    let_go(queue, consumer);
    memory_restore(world);
    for (int side = 0; side < SIDES; side++) {
        queue = attach(store, (enum side)side, &status, &error);
        must(status, &error);
        mpq_stats_get(queue, &store->sides[side].before);
        must(mpq_close(queue, &hasty, &error), &error);
        mpq_free(queue);
    }
    if (memory_leaks(world) != 0)
        exit(2);
    memory_keep(world);
}
