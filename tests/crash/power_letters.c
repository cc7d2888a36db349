/* power_letters.c - dead letters under power cuts: an item is in the queue, or settled, or here.
 *
 *   - a letter is there from when its move returned, under every policy, until it is dropped; its
 *     item is not in the queue any more once that ack is durable;
 *   - a letter was asked for, by name or by too many hand-outs, and is of an item that was put; it
 *     is there twice at most;
 *   - the next item moves, whatever was left of dead/. */
#include <stdio.h>
#include <string.h>

#include "power.h"

#define APART 8 /* pairs of seeds: one without keys, one with them */
#define CHOSEN 3 /* of so many */
#define ATTEMPTS 2

static uint64_t roll(struct run *run)
{
    run->letters_random += 0x9E3779B97F4A7C15ULL;
    return mpq_xxh64(&run->letters_random, sizeof run->letters_random, 0);
}

void letters_begin(struct run *run)
{
    const uint64_t pair = run->seed / 2;
    run->has_letters = pair % APART == CHOSEN;
    run->letters_random = run->seed;
    if (run->has_letters && pair / APART % 2 == 0)
        run->options.max_attempts = ATTEMPTS;
}

bool letters_move(struct run *run, const struct mpq_item *item, uint32_t id)
{
    struct oracle *oracle = &run->oracle;
    struct mpq_error error;
    oracle->outs[id]++;
    if (!run->has_letters || roll(run) % 6 != 0)
        return false;
    oracle->dead[id] = ASKED;
    if (mpq_dead_letter(run->consumer, item->seq, item->token, "power", 5, &error) != MPQ_OK)
        fail(run, -1, error.message, id, item->seq);
    oracle->dead[id] = DURABLE;
    return true;
}

/* NULL: there are none. */
static struct mpq_queue *open_letters(const struct run *run, struct shadow *world, int state)
{
    struct mpq_error error;
    struct mpq_queue *queue;
    char path[300];
    snprintf(path, sizeof path, "%s/dead", world->root);
    struct mpq_open_args args = {.path = path, .io = &world->io};
    mpq_options_default(&args.options);
    mpq_status status = mpq_open(&args, &patient, &queue, &error);
    if (status == MPQ_NOT_A_QUEUE)
        return NULL;
    if (status != MPQ_OK)
        fail(run, state, error.message, status, 0);
    mpq_open_gate(queue, NULL);
    return queue;
}

static void close_letters(const struct run *run, int state, struct mpq_queue *queue)
{
    struct mpq_error error;
    if (mpq_close(queue, &patient, &error) != MPQ_OK)
        fail(run, state, error.message, 0, 0);
    mpq_free(queue);
}

void letters_drop(struct run *run)
{
    struct mpq_error error = {.message = "nothing comes out"};
    struct mpq_consumer *consumer;
    struct mpq_item item;
    if (!run->has_letters || roll(run) % 8 != 0)
        return;
    struct mpq_queue *queue = open_letters(run, run->world, -1);
    if (queue == NULL)
        return;
    if (mpq_consumer_open(queue, &patient, &consumer, &error) != MPQ_OK)
        fail(run, -1, error.message, 0, 0);
    mpq_status status = mpq_reserve_try(consumer, &item, &error);
    if (status == MPQ_OK) {
        run->oracle.dropped[id_of(&item)] = true;
        mpq_segment_release(item.segment);
        status = mpq_ack(consumer, item.seq, item.token, &error);
    }
    if (status != MPQ_OK && status != MPQ_EMPTY)
        fail(run, -1, error.message, status, 0);
    if (mpq_consumer_close(consumer, &error) != MPQ_OK)
        fail(run, -1, error.message, 0, 0);
    mpq_consumer_free(consumer);
    close_letters(run, -1, queue);
}

/* ---- after the crash */

static bool move_one(const struct run *run, int state, struct mpq_queue *queue,
                     struct mpq_consumer *consumer)
{
    struct mpq_error error = {.message = "nothing comes out"};
    struct mpq_item item;
    uint64_t seq;
    if (!put_one(run, state, queue, consumer, "move", &seq))
        return false;
    mpq_status status = mpq_reserve_try(consumer, &item, &error);
    if (status != MPQ_OK)
        fail(run, state, error.message, status, seq);
    mpq_segment_release(item.segment);
    if (mpq_dead_letter(consumer, item.seq, item.token, "more", 4, &error) != MPQ_OK)
        fail(run, state, error.message, item.seq, seq);
    return true;
}

static void see_letter(const struct run *run, int state, const struct mpq_item *item,
                       uint8_t *letters)
{
    const struct oracle *oracle = &run->oracle;
    const uint32_t id = id_of(item);
    if (id >= oracle->items || oracle->put[id] == NOTHING)
        fail(run, state, "a letter of what was never put", id, item->seq);
    if (!is_right(run->seed, id, item->body, item->length) || item->ext_length == 0)
        fail(run, state, "an altered letter", id, item->seq);
    if (oracle->seq[id] != 0 && item->origin_seq != oracle->seq[id])
        fail(run, state, "a letter of another item", id, item->origin_seq);
    /* The last hand-out may have been cut before it was seen. */
    const bool worn =
        run->options.max_attempts != 0 && oracle->outs[id] + 1 >= run->options.max_attempts;
    if (oracle->ack[id] == DURABLE || (oracle->dead[id] == NOTHING && !worn))
        fail(run, state, "a letter that nobody asked for", id, item->seq);
    if (++letters[id] > 2)
        fail(run, state, "one more letter of the same item", id, item->seq);
}

static void read_letters(const struct run *run, int state, struct mpq_queue *queue, bool moved,
                         uint8_t *letters)
{
    struct mpq_error error = {.message = "nothing comes out"};
    struct mpq_consumer *consumer;
    uint64_t last = 0, others = 0;
    if (mpq_consumer_open(queue, &patient, &consumer, &error) != MPQ_OK)
        fail(run, state, error.message, 0, 0);
    for (;;) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_EMPTY)
            break;
        if (status != MPQ_OK)
            fail(run, state, error.message, status, last);
        if (item.seq <= last)
            fail(run, state, "letters out of order", item.seq, last);
        last = item.seq;
        if (item.length == 4 && memcmp(item.body, "move", 4) == 0)
            others++;
        else
            see_letter(run, state, &item, letters);
        mpq_segment_release(item.segment);
        if (mpq_ack(consumer, item.seq, item.token, &error) != MPQ_OK)
            fail(run, state, error.message, 0, 0);
    }
    if (others != moved)
        fail(run, state, "the next letter is not there once", others, moved);
    if (mpq_consumer_close(consumer, &error) != MPQ_OK)
        fail(run, state, error.message, 0, 0);
    mpq_consumer_free(consumer);
}

/* Returns how often they were rebuilt. */
static uint64_t check_counters(const struct run *run, int state, struct mpq_queue *queue)
{
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    if (stats.lost_items != 0 || stats.depth != 0)
        fail(run, state, "letters lost or left", stats.lost_items, stats.depth);
    return stats.recoveries;
}

void letters_drain(const struct run *run, struct shadow *after, int state, struct mpq_queue *queue,
                   struct mpq_consumer *consumer, uint8_t *letters)
{
    memset(letters, 0, ITEMS_MAX);
    if (!run->has_letters)
        return;
    const bool moved = move_one(run, state, queue, consumer);
    struct mpq_queue *dead = open_letters(run, after, state);
    if (dead != NULL) {
        read_letters(run, state, dead, moved, letters);
        const uint64_t recoveries = check_counters(run, state, dead);
        close_letters(run, state, dead);
        dead = open_letters(run, after, state);
        if (dead == NULL || check_counters(run, state, dead) != recoveries)
            fail(run, state, "the second opening found something in dead/", 0, 0);
        close_letters(run, state, dead);
    } else if (moved) {
        fail(run, state, "there is no dead/", 0, 0);
    }
    for (uint32_t id = 0; id < run->oracle.items; id++)
        if (run->oracle.dead[id] >= DURABLE && !run->oracle.dropped[id] && letters[id] == 0)
            fail(run, state, "a letter is lost", id, run->oracle.seq[id]);
}
