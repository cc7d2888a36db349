/* test_bell.c - the descriptor of a consumer: set and cleared by whom, under ThreadSanitizer.
 *
 * Whole slices of the core's sleeps end by a wake only, never by their time: what they would heal
 * hangs here. Shorter ones are the core's answer to a claim that it met before its publication. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "fixture.h"
#include "internal.h"
#include "shared_io.h"

#define PUTS 2000u

static struct mpq_io table;
static struct fixture fixture;
static struct mpq_open_args args;

static int wait_for_a_wake(mpq_io *io, _Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    const uint64_t slice_ns = 100000000u;
    if (timeout_ns >= slice_ns)
        timeout_ns = 10000 * slice_ns;
    return mpq_io_system.futex_wait(io, word, value, timeout_ns);
}

static struct mpq_queue *start(uint32_t durability)
{
    fixture_make(&fixture);
    table = shared_io();
    table.futex_wait = wait_for_a_wake;
    args = fixture_args(&fixture, durability);
    args.options.keep_segments = 0;
    args.given |= MPQ_GIVEN_KEEP_SEGMENTS;
    args.io = &table;
    return open_queue(&args);
}

static bool readable(int fd, int timeout)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, timeout) == 1;
}

static int descriptor(struct mpq_consumer *consumer)
{
    struct mpq_error error;
    int fd = -1;
    CHECK_STATUS(mpq_consumer_fd(consumer, &fd, &error), MPQ_OK, error);
    return fd;
}

/* What an event loop does: reserve until nothing is there, then poll. */
static struct mpq_item next(struct mpq_consumer *consumer, int fd)
{
    struct mpq_error error;
    struct mpq_item item;
    for (;;) {
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK)
            return item;
        CHECK(status == MPQ_EMPTY || status == MPQ_AGAIN);
        CHECK(readable(fd, -1));
    }
}

static _Atomic uint32_t consumed;

static void *produce(void *arg)
{
    struct mpq_queue *queue = open_queue(&args);
    const bool one_by_one = arg != NULL;
    for (uint32_t n = 0; n < PUTS; n++) {
        while (one_by_one && atomic_load(&consumed) != n)
            sched_yield(); /* else each item costs a time slice where processors are few */
        for (volatile uint32_t spin = 0; spin < n * 7 % 500; spin = spin + 1)
            ;
        put_ok(queue, &n, sizeof n);
    }
    close_queue(queue);
    return NULL;
}

static void run(uint32_t durability, bool one_by_one)
{
    struct mpq_queue *queue = start(durability);
    struct mpq_consumer *consumer = open_consumer(queue);
    const int fd = descriptor(consumer);
    CHECK(!readable(fd, 0));
    atomic_store(&consumed, 0);
    pthread_t producer;
    CHECK(pthread_create(&producer, NULL, produce, one_by_one ? &args : NULL) == 0);
    for (uint32_t n = 0; n < PUTS; n++) {
        struct mpq_item item = next(consumer, fd);
        CHECK(memcmp(item.body, &n, sizeof n) == 0);
        if (n % 3 == 0) { /* rings in its own process */
            struct mpq_error error;
            mpq_status (*back)(struct mpq_consumer *, uint64_t, uint64_t, struct mpq_error *) =
                n % 2 == 0 ? mpq_nack : mpq_unreserve;
            const uint32_t attempts = item.attempts;
            struct mpq_item none;
            CHECK(!one_by_one || mpq_reserve_try(consumer, &none, &error) == MPQ_EMPTY);
            CHECK_STATUS(back(consumer, item.seq, item.token, &error), MPQ_OK, error);
            mpq_segment_release(item.segment);
            item = next(consumer, fd);
            CHECK(memcmp(item.body, &n, sizeof n) == 0);
            CHECK_EQ(item.attempts, attempts + (n % 2 == 0));
        }
        ack_ok(consumer, &item);
        atomic_store(&consumed, n + 1);
    }
    pthread_join(producer, NULL);
    struct mpq_error error;
    struct mpq_item none;
    CHECK(readable(fd, 0));
    CHECK(mpq_reserve_try(consumer, &none, &error) == MPQ_EMPTY);
    CHECK(!readable(fd, 0));
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void no_ring_is_lost(void)
{
    run(MPQ_DURABILITY_NONE, true);
    run(MPQ_DURABILITY_NONE, false);
    run(MPQ_DURABILITY_GROUP, true);
}

static void *reserve_here_too(void *arg)
{
    struct mpq_consumer *consumer = arg;
    struct mpq_error error;
    struct mpq_item item;
    uintptr_t taken = 0;
    for (;;) {
        mpq_status status = reserve(consumer, &item, &error);
        if (status == MPQ_SEALED)
            return (void *)taken;
        CHECK_STATUS(status, MPQ_OK, error);
        ack_ok(consumer, &item);
        taken++;
    }
}

static void a_loop_and_a_thread_share_a_consumer(void)
{
    struct mpq_queue *queue = start(MPQ_DURABILITY_NONE);
    struct mpq_consumer *consumer = open_consumer(queue);
    const int fd = descriptor(consumer);
    pthread_t producer, other;
    CHECK(pthread_create(&producer, NULL, produce, NULL) == 0);
    CHECK(pthread_create(&other, NULL, reserve_here_too, consumer) == 0);
    struct mpq_call call = FOREVER;
    struct mpq_error error;
    struct mpq_item item;
    uint32_t taken = 0;
    bool sealed = false;
    for (;;) {
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_SEALED)
            break;
        if (status == MPQ_OK) {
            ack_ok(consumer, &item);
            taken++;
            continue;
        }
        CHECK(status == MPQ_EMPTY || status == MPQ_AGAIN);
        struct mpq_stats stats;
        mpq_stats_get(queue, &stats);
        if (!sealed && stats.enqueued_items == PUTS) {
            pthread_join(producer, NULL);
            CHECK_STATUS(mpq_seal(queue, false, &call, &error), MPQ_OK, error);
            sealed = true;
        } else {
            (void)readable(fd, sealed ? -1 : 1);
        }
    }
    void *others = NULL;
    pthread_join(other, &others);
    CHECK_EQ(taken + (uintptr_t)others, PUTS);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

/* Between a try and its wait: whoever waits then would wait for what will never come. */
static void a_seal_before_the_wait_ends_it(void)
{
    struct mpq_queue *queue = start(MPQ_DURABILITY_NONE);
    struct mpq_consumer *consumer = open_consumer(queue);
    const struct mpq_call now = {0};
    struct mpq_call call = FOREVER;
    struct mpq_error error;
    struct mpq_item item;
    CHECK(mpq_reserve_try(consumer, &item, &error) == MPQ_EMPTY);
    CHECK(mpq_reserve_wait(consumer, &now, &error) == MPQ_TIMEOUT);
    CHECK_STATUS(mpq_seal(queue, false, &call, &error), MPQ_OK, error);
    CHECK_STATUS(mpq_reserve_wait(consumer, &now, &error), MPQ_OK, error);
    CHECK(mpq_reserve_try(consumer, &item, &error) == MPQ_SEALED);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

/* Idle, armed, and between the two: whatever its thread does, close ends it. */
static void close_ends_its_thread(void)
{
    struct mpq_queue *queue = start(MPQ_DURABILITY_NONE);
    struct mpq_error error;
    struct mpq_item item;
    for (uint32_t n = 0; n < 300; n++) {
        struct mpq_consumer *consumer = open_consumer(queue);
        const int fd = descriptor(consumer);
        CHECK_EQ(descriptor(consumer), fd);
        if (n % 3 != 0)
            CHECK(mpq_reserve_try(consumer, &item, &error) == MPQ_EMPTY);
        for (volatile uint32_t spin = 0; spin < n * 37 % 5000; spin = spin + 1)
            ;
        while (n % 10 == 0 && n % 3 != 0 && mpq_load(queue->control->items_waiting) == 0)
            sched_yield();
        CHECK_STATUS(mpq_consumer_close(consumer, &error), MPQ_OK, error);
        CHECK(readable(fd, 0));
        int none;
        CHECK(mpq_consumer_fd(consumer, &none, &error) == MPQ_CLOSED);
        mpq_consumer_free(consumer);
        CHECK(fcntl(fd, F_GETFD) == -1);
    }
    close_queue(queue);
    fixture_remove(&fixture);
}

static int no_thread(mpq_io *io, pthread_t *thread, void *(*body)(void *), void *arg)
{
    (void)io, (void)thread, (void)body, (void)arg;
    return EAGAIN;
}

static void without_a_thread_there_is_no_descriptor(void)
{
    struct mpq_queue *queue = start(MPQ_DURABILITY_NONE);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    int fd;
    table.spawn = no_thread;
    CHECK(mpq_consumer_fd(consumer, &fd, &error) == MPQ_SYSTEM);
    CHECK_EQ(error.os_errno, EAGAIN);
    table.spawn = mpq_io_system.spawn;
    CHECK(!readable(descriptor(consumer), 0));
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

int main(void)
{
    RUN(no_ring_is_lost);
    RUN(a_loop_and_a_thread_share_a_consumer);
    RUN(a_seal_before_the_wait_ends_it);
    RUN(close_ends_its_thread);
    RUN(without_a_thread_there_is_no_descriptor);
    return 0;
}
