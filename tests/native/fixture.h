/* fixture.h - a queue in a directory of its own, and the calls of mpq.h as a binding makes them. */
#ifndef MPQ_TEST_FIXTURE_H
#define MPQ_TEST_FIXTURE_H

#include <ftw.h>
#include <unistd.h>

#include "check.h"
#include "mpq.h"

#define FOREVER ((struct mpq_call){.deadline_ns = UINT64_MAX})

struct fixture {
    char directory[64];
    char path[96]; /* of the queue */
};

static inline void fixture_make(struct fixture *fixture)
{
    strcpy(fixture->directory, "/tmp/mpq-native-XXXXXX");
    CHECK(mkdtemp(fixture->directory) != NULL);
    snprintf(fixture->path, sizeof fixture->path, "%s/queue", fixture->directory);
}

static inline int fixture_remove_one(const char *path, const struct stat *status, int kind,
                                     struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static inline void fixture_remove(struct fixture *fixture)
{
    CHECK(nftw(fixture->directory, fixture_remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}

/* Small segments, so that a test meets their ends. */
static inline struct mpq_open_args fixture_args(const struct fixture *fixture, uint32_t durability)
{
    struct mpq_open_args args = {.path = fixture->path, .create = true};
    mpq_options_default(&args.options);
    args.options.segment_size = 64 << 10;
    args.options.max_segments = 16;
    args.options.durability = durability;
    args.given = MPQ_GIVEN_SEGMENT_SIZE | MPQ_GIVEN_MAX_SEGMENTS | MPQ_GIVEN_DURABILITY;
    return args;
}

static inline struct mpq_queue *open_queue(const struct mpq_open_args *args)
{
    struct mpq_error error;
    struct mpq_queue *queue = NULL;
    struct mpq_call call = FOREVER;
    CHECK_STATUS(mpq_open(args, &call, &queue, &error), MPQ_OK, error);
    return queue;
}

static inline void close_queue(struct mpq_queue *queue)
{
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    CHECK_STATUS(mpq_close(queue, &call, &error), MPQ_OK, error);
    mpq_free(queue);
}

/* One put as a binding does it: try, wait if told to, flush if told to. */
static inline mpq_status put(struct mpq_queue *queue, const void *body, uint32_t length,
                             uint64_t *seq, struct mpq_error *error)
{
    struct mpq_item_in item = {.body = body, .length = length};
    struct mpq_call call = FOREVER;
    uint64_t ticket = 0;
    mpq_status status = mpq_put_try(queue, &item, seq, &ticket, error);
    if (status == MPQ_AGAIN)
        status = mpq_put(queue, &item, &call, seq, &ticket, error);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &call, error);
    return status;
}

static inline uint64_t put_ok(struct mpq_queue *queue, const void *body, uint32_t length)
{
    struct mpq_error error;
    uint64_t seq = 0;
    CHECK_STATUS(put(queue, body, length, &seq, &error), MPQ_OK, error);
    return seq;
}

static inline struct mpq_consumer *open_consumer(struct mpq_queue *queue)
{
    struct mpq_error error;
    struct mpq_consumer *consumer = NULL;
    struct mpq_call call = FOREVER;
    CHECK_STATUS(mpq_consumer_open(queue, &call, &consumer, &error), MPQ_OK, error);
    return consumer;
}

static inline void close_consumer(struct mpq_consumer *consumer)
{
    struct mpq_error error;
    CHECK_STATUS(mpq_consumer_close(consumer, &error), MPQ_OK, error);
    mpq_consumer_free(consumer);
}

/* The next item, however long it takes; MPQ_SEALED and MPQ_CORRUPT are passed on. */
static inline mpq_status reserve(struct mpq_consumer *consumer, struct mpq_item *item,
                                 struct mpq_error *error)
{
    struct mpq_call call = FOREVER;
    for (;;) {
        mpq_status status = mpq_reserve_try(consumer, item, error);
        if (status != MPQ_EMPTY && status != MPQ_AGAIN)
            return status;
        CHECK_STATUS(mpq_reserve_wait(consumer, &call, error), MPQ_OK, *error);
    }
}

static inline struct mpq_item reserve_ok(struct mpq_consumer *consumer)
{
    struct mpq_error error;
    struct mpq_item item;
    CHECK_STATUS(reserve(consumer, &item, &error), MPQ_OK, error);
    return item;
}

static inline void ack_ok(struct mpq_consumer *consumer, const struct mpq_item *item)
{
    struct mpq_error error;
    CHECK_STATUS(mpq_ack(consumer, item->seq, item->token, &error), MPQ_OK, error);
    if (mpq_ack_needs_sync(consumer))
        CHECK_STATUS(mpq_consumer_sync(consumer, &error), MPQ_OK, error);
    mpq_segment_release(item->segment);
}

/* True when nothing is ready although everything that could make it ready was done. */
static inline bool nothing_ready(struct mpq_consumer *consumer)
{
    struct mpq_error error;
    struct mpq_item item;
    struct mpq_call call = {.deadline_ns = mpq_monotonic_ns() + 50000000u};
    for (;;) {
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK) {
            mpq_segment_release(item.segment);
            return false;
        }
        CHECK(status == MPQ_EMPTY || status == MPQ_AGAIN);
        status = mpq_reserve_wait(consumer, &call, &error);
        if (status == MPQ_TIMEOUT)
            return true;
        CHECK_STATUS(status, MPQ_OK, error);
    }
}

#endif
