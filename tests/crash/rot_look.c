/* rot_look.c - a damaged store is opened, drained, used, opened again, and judged. */
#include <stdio.h>
#include <string.h>

#include "rot.h"

static const struct mpq_call forever = {UINT64_MAX, NULL, NULL};

static uint64_t counted(const struct mpq_stats *stats)
{
    return stats->lost_items + stats->torn_items;
}

struct seen { /* of one side */
    bool looked; /* it was opened */
    bool item[ITEMS];
    uint64_t events, told, again; /* told: by events of the handle, which name every loss */
    struct mpq_stats stats; /* after the drain */
};

/* With MOVES it came here just now. */
static bool is_new(const struct store *store, enum side side, uint32_t id)
{
    return side == LETTERS && (now.how & MOVES) != 0 && store->sides[LETTERS].items[id].seq == 0 &&
           store->sides[QUEUE].items[id].seq != 0 &&
           (!store->sides[QUEUE].items[id].acked || now.redelivers[QUEUE]);
}

static void see(struct store *store, enum side side, const struct mpq_item *item, uint64_t *last,
                struct seen *seen)
{
    const struct contents *contents = &store->sides[side];
    const struct expected *expected = contents->items;
    uint32_t id = ITEMS;
    if (item->length >= 4)
        memcpy(&id, item->body, 4);
    if (id >= store->count || item->length != store->lengths[id] ||
        !is_right(id, item->body, item->length))
        failed("an item that was never put", id, item->seq);
    if (seen->item[id])
        failed("an item twice", id, item->seq);
    if (item->seq <= *last)
        failed("out of order", item->seq, *last);
    seen->item[id] = true;
    *last = item->seq;
    if (is_new(store, side, id)) {
        if (item->seq <= contents->last_seq || item->ext_length == 0 ||
            item->origin_seq != store->sides[QUEUE].items[id].seq)
            failed("a letter of another item", id, item->seq);
        return;
    }
    expected += id;
    if (item->seq != expected->seq)
        failed("an item under another seq", id, item->seq);
    if (hash_of_ext(item) != expected->ext)
        failed("an item with another extension", id, item->seq);
    if (item->segment->generation != expected->generation)
        failed("an item out of a misplaced file", id, item->segment->generation);
    if (expected->acked)
        seen->again++;
}

static void drain(struct store *store, enum side side, struct mpq_queue *queue,
                  struct mpq_consumer *consumer, struct seen *seen)
{
    struct mpq_error error;
    uint64_t last = 0;
    for (int idle = 0; idle < 40;) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK) {
            see(store, side, &item, &last, seen);
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
            idle++;
            status = mpq_reserve_wait(consumer, &forever, &error);
            if (status != MPQ_OK)
                failed(error.message, status, 0);
        } else {
            failed(error.message, status, last);
        }
    }
    failed("items are left that nobody gets", mpq_depth(queue), last);
}

static void one_more(struct store *store, enum side side, struct mpq_queue *queue,
                     struct mpq_consumer *consumer)
{
    struct mpq_error error;
    struct mpq_item item;
    struct mpq_item_in in = {.body = "next", .length = 4};
    uint64_t seq, syncs = store->world.syncs;
    if (put_all(queue, &in, 1, &seq, &error) != MPQ_OK)
        failed(error.message, 0, 0);
    if (store->world.syncs == syncs)
        failed("a put returned without a flush", 0, 0);
    if (seq <= store->sides[side].last_seq)
        failed("a seq was issued again", seq, 0);
    mpq_status status = MPQ_EMPTY;
    for (int i = 0; i < 40 && status == MPQ_EMPTY; i++) {
        status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_EMPTY && mpq_reserve_wait(consumer, &forever, &error) != MPQ_OK)
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

static void second(struct store *store, enum side side, const struct mpq_stats *first)
{
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_item item;
    struct mpq_stats stats;
    mpq_status status;
    struct mpq_queue *queue = attach(store, side, &status, &error);
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

/* Both sides. False: refused, and nothing was touched. */
static bool repaired(struct store *store, uint64_t *lost)
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
    *lost = report.lost_items;
    return true;
}

static void limit_attempts(struct mpq_queue *queue)
{
    struct mpq_error error;
    struct mpq_options options;
    mpq_options_get(queue, &options);
    options.max_attempts = 2;
    if (mpq_options_set(queue, MPQ_GIVEN_MAX_ATTEMPTS, &options, &hasty, &error) != MPQ_OK)
        failed(error.message, 0, 0);
}

static void look_at(struct store *store, enum side side, struct seen *seen)
{
    struct memory *world = &store->world;
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_event_info info;
    mpq_status status;
    const uint64_t was = now.harm >= 0 ? digest(world) : 0;
    struct mpq_queue *queue = attach(store, side, &status, &error);
    if (queue == NULL) {
        now.refused = true;
        if (now.harm < 0 || !now.hit[side] || !refusal(status))
            failed(error.message, status, 0);
        if (digest(world) != was)
            failed("a refused opening changed files", status, 0);
        if (memory_leaks(world) != 0)
            failed("a refused opening leaks", memory_leaks(world), 0);
        return;
    }
    seen->looked = true;
    if (side == QUEUE && (now.how & MOVES) != 0)
        limit_attempts(queue);
    if (mpq_consumer_open(queue, &hasty, &consumer, &error) != MPQ_OK)
        failed(error.message, 0, 0);
    drain(store, side, queue, consumer, seen);
    mpq_stats_get(queue, &seen->stats);
    if ((mpq_events_take(queue, &info) & MPQ_EVENT_LOSS) != 0)
        seen->told += info.lost_items;
    if (side == QUEUE && store->keyed)
        put_again(store, queue, consumer);
    one_more(store, side, queue, consumer);
    leave(store, queue, consumer);
    second(store, side, &seen->stats);
}

struct sums {
    uint64_t lost, missing; /* by the counters; by what came out */
};

static void judge(struct store *store, enum side side, const struct seen seen[SIDES],
                  struct sums *sums)
{
    const struct contents *contents = &store->sides[side];
    const struct mpq_stats *stats = &seen[side].stats;
    uint64_t missing = 0, moved = 0;
    for (uint32_t id = 0; id < store->count; id++) {
        const bool gone = side == QUEUE && seen[LETTERS].item[id] && is_new(store, LETTERS, id);
        const bool owed = contents->items[id].seq != 0 && !contents->items[id].acked;
        missing += owed && !seen[side].item[id] && !gone;
        moved += gone;
    }
    if (side == QUEUE && !now.redelivers[QUEUE] &&
        moved != stats->dead_items - contents->before.dead_items)
        failed("what was moved did not arrive", moved, stats->dead_items);
    const uint64_t lost = counted(stats) - counted(&contents->before);
    /* A gap inside lost bytes cannot be told from an item. */
    if (!now.unknown[side] &&
        (lost < missing || lost > missing + (now.harm >= 0 ? contents->gaps : 0)))
        failed("loss is not counted exactly", missing, lost);
    if (seen[side].again != 0 && !now.redelivers[side])
        failed("acked items come back", seen[side].again, 0);
    if (stats->depth != 0 || stats->backlog_bytes != 0)
        failed("something is left", stats->depth, stats->backlog_bytes);
    if ((now.how & REPAIRED) != 0 ? seen[side].events != 0
                                  : now.harm < 0 && seen[side].events != missing)
        failed("told more than once, or not at all", missing, seen[side].events);
    if ((now.how & REPAIRED) == 0 &&
        seen[side].told != stats->lost_items - contents->before.lost_items)
        failed("loss is not told exactly", seen[side].told, stats->lost_items);
    sums->lost += stats->lost_items - contents->before.lost_items;
    sums->missing += missing;
}

/* A side is looked at where damage, a repair or a move may have reached it. */
void look(struct store *store)
{
    struct seen seen[SIDES] = {{0}};
    struct sums sums = {0, 0};
    uint64_t reported = 0;
    snprintf(store->world.boot_id, sizeof store->world.boot_id, "boot-%s",
             (now.how & OTHER_BOOT) != 0 ? "b" : "a");
    if ((now.how & REPAIRED) != 0 && !repaired(store, &reported))
        return;
    const bool all = now.harm >= 0 || (now.how & (REPAIRED | MOVES)) != 0;
    for (int side = 0; side < SIDES; side++)
        if (all || now.hit[side])
            look_at(store, (enum side)side, &seen[side]);
    for (int side = 0; side < SIDES; side++)
        if (seen[side].looked)
            judge(store, (enum side)side, seen, &sums);
    if ((now.how & REPAIRED) != 0 && reported != sums.lost)
        failed("a repair reports another loss", reported, sums.lost);
    if (now.harm < 0 && sums.missing > 1)
        failed("more than one item lost", sums.missing, 0);
}
