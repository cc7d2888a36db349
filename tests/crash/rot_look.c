/* rot_look.c - a damaged store is opened, drained, used, opened again, and judged. */
#include <stdio.h>
#include <string.h>

#include "rot.h"

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

void look(struct store *store)
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
