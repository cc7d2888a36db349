/* test_threads.c - four producer threads and a consumer, each with a handle of its own, over shared
 * mappings: the whole protocol between processes, where ThreadSanitizer can see it. */
#include <pthread.h>

#include "fixture.h"
#include "shared_io.h"

#define PRODUCERS 4u
#define ITEMS 3000u /* of each producer */
#define BATCH 8u

static struct mpq_io table;
static struct fixture fixture;
static struct mpq_open_args args;

struct record {
    uint32_t producer, n;
    uint8_t filler[200];
};

static uint32_t fill(struct record *record, uint32_t producer, uint32_t n)
{
    record->producer = producer;
    record->n = n;
    memset(record->filler, (int)((producer * 31 + n) & 0xFF), sizeof record->filler);
    return 8 + n % sizeof record->filler;
}

static void *produce(void *arg)
{
    uint32_t producer = (uint32_t)(uintptr_t)arg;
    struct mpq_queue *queue = open_queue(&args);
    struct record records[BATCH];
    struct mpq_item_in items[BATCH];
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    for (uint32_t n = 0; n < ITEMS;) {
        if (n % 100 == 0) {
            uint64_t first = 0, ticket = 0;
            for (uint32_t i = 0; i < BATCH; i++)
                items[i] = (struct mpq_item_in){.body = &records[i],
                                                .length = fill(&records[i], producer, n + i)};
            mpq_status status = mpq_put_batch(queue, items, BATCH, &call, &first, &ticket, &error);
            if (status == MPQ_FLUSH)
                status = mpq_put_flush(queue, ticket, &call, &error);
            CHECK_STATUS(status, MPQ_OK, error);
            n += BATCH;
        } else {
            put_ok(queue, records, fill(records, producer, n));
            n++;
        }
    }
    close_queue(queue);
    return NULL;
}

static void consume(void)
{
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    uint32_t next[PRODUCERS] = {0};
    uint64_t last = 0;
    uint32_t total = 0;
    for (uint32_t want = PRODUCERS * ITEMS; total < want; total++) {
        struct mpq_item item = reserve_ok(consumer);
        CHECK(total == 0 || item.seq > last);
        last = item.seq;
        struct record seen, expected;
        CHECK(item.length >= 8 && item.length <= sizeof seen);
        memcpy(&seen, item.body, item.length);
        CHECK(seen.producer < PRODUCERS);
        CHECK_EQ(seen.n, next[seen.producer]);
        CHECK_EQ(item.length, fill(&expected, seen.producer, seen.n));
        CHECK(memcmp(&seen, &expected, item.length) == 0);
        next[seen.producer]++;
        ack_ok(consumer, &item);
        if (total % 1000 == 0) {
            struct mpq_stats stats;
            mpq_stats_get(queue, &stats);
            CHECK(stats.settled_items <= stats.enqueued_items);
        }
    }
    CHECK_EQ(mpq_depth(queue), 0);
    close_consumer(consumer);
    close_queue(queue);
}

static void run(uint32_t durability, uint32_t keep_segments)
{
    fixture_make(&fixture);
    table = shared_io();
    args = fixture_args(&fixture, durability);
    args.options.keep_segments = keep_segments;
    args.given |= MPQ_GIVEN_KEEP_SEGMENTS;
    args.io = &table;
    struct mpq_queue *keeper = open_queue(&args); /* so that the queue exists for all alike */
    pthread_t threads[PRODUCERS];
    for (uintptr_t i = 0; i < PRODUCERS; i++)
        CHECK(pthread_create(&threads[i], NULL, produce, (void *)i) == 0);
    consume();
    for (size_t i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    close_queue(keeper);
    fixture_remove(&fixture);
}

static void threads_under_none(void)
{
    run(MPQ_DURABILITY_NONE, 0);
}

static void threads_under_interval(void)
{
    run(MPQ_DURABILITY_INTERVAL, 0);
}

static void threads_under_group(void)
{
    run(MPQ_DURABILITY_GROUP, 0);
}

static void threads_under_sync(void)
{
    run(MPQ_DURABILITY_SYNC, 0);
}

static void threads_over_reused_segments(void)
{
    run(MPQ_DURABILITY_NONE, 2);
    run(MPQ_DURABILITY_GROUP, 2);
}

/* Both, or one of "fresh" and "reused". A flusher may still look at headers of a file that is
 * already used again. The hash seed tells it so, but to ThreadSanitizer it is a race, which the
 * run "reused" excuses. */
int main(int argc, char **argv)
{
    if (argc == 1 || strcmp(argv[1], "fresh") == 0) {
        RUN(threads_under_none);
        RUN(threads_under_interval);
        RUN(threads_under_group);
        RUN(threads_under_sync);
    }
    if (argc == 1 || strcmp(argv[1], "fresh") != 0)
        RUN(threads_over_reused_segments);
    return 0;
}
