/* test_queue.c - put, reserve, ack, nack, batches, segment ends and refusals through mpq.h. */
#include "fixture.h"
#include "internal.h"
#include "io.h"

static void items_come_in_order_and_leave_by_ack(void)
{
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_GROUP);
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    uint64_t first = put_ok(queue, "one", 3);
    CHECK_EQ(put_ok(queue, "", 0), first + 1);
    CHECK_EQ(mpq_depth(queue), 2);
    struct mpq_item one = reserve_ok(consumer);
    CHECK_EQ(one.seq, first);
    CHECK_EQ(one.attempts, 1);
    CHECK(one.length == 3 && memcmp(one.body, "one", 3) == 0);
    struct mpq_item empty = reserve_ok(consumer);
    CHECK_EQ(empty.seq, first + 1);
    CHECK_EQ(empty.length, 0);
    ack_ok(consumer, &empty); /* out of order */
    ack_ok(consumer, &one);
    CHECK(nothing_ready(consumer));
    CHECK_EQ(mpq_depth(queue), 0);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void a_nack_returns_the_item_to_its_place(void)
{
    struct fixture fixture;
    struct mpq_error error;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    for (int i = 0; i < 3; i++)
        put_ok(queue, &i, sizeof i);
    struct mpq_item a = reserve_ok(consumer), b = reserve_ok(consumer);
    CHECK_STATUS(mpq_nack(consumer, a.seq, a.token, &error), MPQ_OK, error);
    mpq_segment_release(a.segment);
    struct mpq_item again = reserve_ok(consumer);
    CHECK_EQ(again.seq, a.seq);
    CHECK_EQ(again.attempts, 2);
    CHECK_STATUS(mpq_ack(consumer, a.seq, a.token, &error), MPQ_STALE, error);
    ack_ok(consumer, &again);
    ack_ok(consumer, &b);
    struct mpq_item c = reserve_ok(consumer);
    CHECK_EQ(c.seq, b.seq + 1);
    ack_ok(consumer, &c);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void acks_out_of_order_survive_reopening(void)
{
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_GROUP);
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    for (int i = 0; i < 100; i++)
        put_ok(queue, &i, sizeof i);
    for (int i = 0; i < 100; i++) {
        struct mpq_item item = reserve_ok(consumer);
        if (i % 2)
            ack_ok(consumer, &item);
        else
            mpq_segment_release(item.segment);
    }
    close_consumer(consumer);
    close_queue(queue);
    queue = open_queue(&args);
    consumer = open_consumer(queue);
    CHECK_EQ(mpq_depth(queue), 50);
    for (int i = 0; i < 100; i += 2) {
        struct mpq_item item = reserve_ok(consumer);
        CHECK(memcmp(item.body, &i, sizeof i) == 0);
        ack_ok(consumer, &item);
    }
    CHECK(nothing_ready(consumer));
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

/* Many laps over few small segments: ends, padding, files of their own for what is too large. */
static void segments_roll_and_are_used_again(void)
{
    static uint8_t body[100000];
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    uint64_t seq = 0;
    for (uint32_t i = 0; i < 6000; i++) {
        uint32_t length = i % 500 == 499 ? (uint32_t)sizeof body : i * 37 % 3000;
        memset(body, (int)(i & 0xFF), length);
        uint64_t got = put_ok(queue, body, length);
        CHECK(i == 0 || got == seq + 1);
        seq = got;
        if (i % 3 != 2)
            continue;
        for (uint32_t j = i - 2; j <= i; j++) {
            struct mpq_item item = reserve_ok(consumer);
            CHECK_EQ(item.seq, seq - (i - j));
            CHECK_EQ(item.length, j % 500 == 499 ? sizeof body : j * 37 % 3000);
            for (uint32_t at = 0; at < item.length; at += 97)
                CHECK_EQ(item.body[at], j & 0xFF);
            ack_ok(consumer, &item);
        }
    }
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    CHECK_EQ(stats.depth, 0);
    CHECK_EQ(stats.enqueued_items, 6000);
    CHECK_EQ(stats.lost_items + stats.gap_items, 0);
    CHECK(stats.tail_generation > 100);
    CHECK(stats.segments <= 16 + 2);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void a_batch_has_consecutive_seqs_and_a_bound(void)
{
    struct fixture fixture;
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_SYNC);
    struct mpq_queue *queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    static uint8_t body[40000];
    struct mpq_item_in items[100];
    for (size_t i = 0; i < 100; i++)
        items[i] = (struct mpq_item_in){.body = body, .length = (uint32_t)i};
    uint64_t first = 0, ticket = 0;
    mpq_status status = mpq_put_batch(queue, items, 100, &call, &first, &ticket, &error);
    CHECK(status == MPQ_OK || status == MPQ_FLUSH);
    if (status == MPQ_FLUSH)
        CHECK_STATUS(mpq_put_flush(queue, ticket, &call, &error), MPQ_OK, error);
    for (uint64_t i = 0; i < 100; i++) {
        struct mpq_item item = reserve_ok(consumer);
        CHECK_EQ(item.seq, first + i);
        CHECK_EQ(item.length, i);
        ack_ok(consumer, &item);
    }
    items[0].length = items[1].length = sizeof body; /* together more than half a segment */
    CHECK_STATUS(mpq_put_batch(queue, items, 2, &call, &first, &ticket, &error), MPQ_TOO_LARGE,
                 error);
    CHECK_EQ(mpq_depth(queue), 0);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void refusals_change_nothing(void)
{
    struct fixture fixture;
    struct mpq_error error;
    struct mpq_call call = FOREVER, now = {.deadline_ns = 0};
    uint64_t seq = 0, ticket = 0;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.capacity = 3;
    args.options.max_item = 1000;
    args.given |= MPQ_GIVEN_CAPACITY | MPQ_GIVEN_MAX_ITEM;
    struct mpq_queue *queue = open_queue(&args);
    static uint8_t body[1001];
    CHECK_STATUS(put(queue, body, sizeof body, &seq, &error), MPQ_TOO_LARGE, error);
    for (int i = 0; i < 3; i++)
        put_ok(queue, body, 10);
    struct mpq_item_in item = {.body = body, .length = 10};
    CHECK_STATUS(mpq_put(queue, &item, &now, &seq, &ticket, &error), MPQ_FULL, error);
    CHECK_EQ(error.reason, MPQ_FULL_CAPACITY);
    CHECK_STATUS(mpq_seal(queue, false, &call, &error), MPQ_OK, error);
    CHECK_STATUS(put(queue, body, 1, &seq, &error), MPQ_SEALED, error);
    CHECK_EQ(mpq_depth(queue), 3);

    struct mpq_consumer *consumer = open_consumer(queue), *second = NULL;
    struct mpq_queue *other = open_queue(&args);
    CHECK_STATUS(mpq_consumer_open(other, &now, &second, &error), MPQ_CONSUMER_BUSY, error);
    for (int i = 0; i < 3; i++) {
        struct mpq_item got = reserve_ok(consumer);
        ack_ok(consumer, &got);
    }
    struct mpq_item none;
    CHECK_STATUS(reserve(consumer, &none, &error), MPQ_SEALED, error);
    char gate[48];
    CHECK_STATUS(mpq_destroy(fixture.path, NULL, gate, &error), MPQ_ATTACHED, error);
    close_queue(other);
    close_consumer(consumer);
    close_queue(queue);
    args.options.segment_size = 128 << 10;
    CHECK_STATUS(mpq_open(&args, &call, &queue, &error), MPQ_MISMATCH, error);
    CHECK_STATUS(mpq_destroy(fixture.path, NULL, gate, &error), MPQ_OK, error);
    CHECK(access(fixture.path, F_OK) != 0);
    fixture_remove(&fixture);
}

/* A producer prepares ahead and dies, or gives up: what it left may be too small for the next item.
 */
static void a_large_item_passes_segments_that_are_too_small(void)
{
    static const uint8_t body[200 << 10];
    for (uint32_t policy = 0; policy < 4; policy++) {
        struct fixture fixture;
        fixture_make(&fixture);
        struct mpq_open_args args = fixture_args(&fixture, policy);
        args.options.max_segments = 4;
        struct mpq_queue *queue = open_queue(&args);
        struct mpq_consumer *consumer = open_consumer(queue);
        put_ok(queue, body, 100);
        struct mpq_item item = reserve_ok(consumer);
        ack_ok(consumer, &item);
        struct mpq_call call = FOREVER;
        struct mpq_error error;
        const uint64_t tail = MPQ_POSITION_GEN(mpq_tail_position(queue->control));
        for (uint64_t ahead = 1; ahead <= 2; ahead++)
            CHECK_STATUS(mpq_segment_prepare(queue, tail + ahead, queue->segment_size, &call,
                                             &error),
                         MPQ_OK, error);
        uint64_t seq = 0, ticket = 0;
        const struct mpq_item_in large = {.body = body, .length = sizeof body};
        const struct mpq_call now = {.deadline_ns = 0};
        CHECK_STATUS(mpq_put(queue, &large, &now, &seq, &ticket, &error), MPQ_FULL, error);
        do /* the walk goes on */
            CHECK(nothing_ready(consumer));
        while (MPQ_POSITION_GEN(mpq_consumer_read(queue->control).floor_position) < tail + 2);
        CHECK_STATUS(mpq_consumer_sync(consumer, &error), MPQ_OK, error);
        const struct mpq_call soon = {.deadline_ns = mpq_monotonic_ns() + 10000 * MPQ_MS};
        mpq_status status = mpq_put(queue, &large, &soon, &seq, &ticket, &error);
        if (status == MPQ_FLUSH)
            status = mpq_put_flush(queue, ticket, &soon, &error);
        CHECK_STATUS(status, MPQ_OK, error);
        CHECK_EQ(seq, 2);
        item = reserve_ok(consumer);
        CHECK_EQ(item.seq, 2);
        CHECK_EQ(item.length, sizeof body);
        ack_ok(consumer, &item);
        CHECK_EQ(mpq_depth(queue), 0);
        close_consumer(consumer);
        close_queue(queue);
        fixture_remove(&fixture);
    }
}

static int nfs_statfs(mpq_io *io, int fd, struct statfs *out)
{
    int rc = mpq_io_system.statfs(io, fd, out);
    out->f_type = 0x6969;
    return rc;
}

static void a_refused_filesystem_is_named(void)
{
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    const struct mpq_call call = FOREVER;
    struct mpq_io io = mpq_io_system;
    io.statfs = nfs_statfs;
    args.io = &io;
    struct mpq_queue *queue;
    struct mpq_error error;
    CHECK_STATUS(mpq_open(&args, &call, &queue, &error), MPQ_FILESYSTEM, error);
    CHECK(strcmp(error.fstype, "nfs") == 0);
    fixture_remove(&fixture);
}

static struct {
    unsigned flushes;
    bool fails;
} disk;

static int counted_msync(mpq_io *io, void *address, size_t bytes)
{
    (void)io;
    disk.flushes++;
    if (disk.fails) {
        errno = EIO;
        return -1;
    }
    return mpq_io_system.msync(&mpq_io_system, address, bytes);
}

static void a_put_whose_handle_is_closed_before_its_flush_is_flushed_by_the_close(void)
{
    for (uint32_t policy = MPQ_DURABILITY_GROUP; policy <= MPQ_DURABILITY_SYNC; policy++) {
        for (unsigned fails = 0; fails < 2; fails++) {
            struct fixture fixture;
            fixture_make(&fixture);
            struct mpq_open_args args = fixture_args(&fixture, policy);
            struct mpq_io io = mpq_io_system;
            io.msync = counted_msync;
            args.io = &io;
            struct mpq_queue *queue = open_queue(&args);
            const struct mpq_call forever = FOREVER, now = {.deadline_ns = 0};
            const struct mpq_item_in item = {.body = "owed", .length = 4};
            struct mpq_error error;
            uint64_t seq, ticket;
            put_ok(queue, "flushed", 7);
            CHECK_STATUS(mpq_put_try(queue, &item, &seq, &ticket, &error), MPQ_FLUSH, error);
            atomic_store(&queue->closing, 1); /* the close has come so far: who must not wait */
            CHECK_STATUS(mpq_put_flush(queue, ticket, &now, &error), MPQ_FLUSH_FAILED, error);
            CHECK(strstr(error.message, "is in the queue") != NULL);
            atomic_store(&queue->closing, 0);
            disk.flushes = 0;
            disk.fails = fails != 0;
            CHECK_STATUS(mpq_close(queue, &forever, &error), disk.fails ? MPQ_FLUSH_FAILED : MPQ_OK,
                         error);
            CHECK(disk.flushes != 0);
            CHECK_STATUS(mpq_put_flush(queue, ticket, &forever, &error),
                         disk.fails ? MPQ_FLUSH_FAILED : MPQ_OK, error);
            CHECK(!disk.fails || error.os_errno == EIO);
            CHECK_STATUS(mpq_put_flush(queue, 0, &forever, &error), MPQ_OK, error);
            CHECK_STATUS(mpq_put_try(queue, &item, &seq, &ticket, &error), MPQ_CLOSED, error);
            mpq_free(queue);
            disk.fails = false;
            queue = open_queue(&args);
            CHECK_EQ(mpq_depth(queue), 2);
            disk.flushes = 0;
            close_queue(queue);
            CHECK_EQ(disk.flushes, 0); /* nothing was owed */
            fixture_remove(&fixture);
        }
    }
}

static unsigned opened;

static int counted_open(mpq_io *io, int directory, const char *name, int flags, mode_t mode)
{
    (void)io;
    opened += strncmp(name, "segment-", 8) == 0;
    return mpq_io_system.open(&mpq_io_system, directory, name, flags, mode);
}

/* Each of these losses once was counted by a walk over the whole backlog. */
static void a_damaged_body_is_counted_exactly_without_a_look_at_the_backlog(void)
{
    enum { ITEMS = 200, BROKEN = 30 };
    static char body[4000];
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_io io = mpq_io_system;
    struct mpq_queue *queue = open_queue(&args);
    for (uint32_t i = 0; i < ITEMS; i++)
        put_ok(queue, body, i % 2 == 0 ? 900 : sizeof body);
    close_queue(queue);
    io.open = counted_open;
    args.io = &io;
    queue = open_queue(&args);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_item item = reserve_ok(consumer);
    struct mpq_stats stats;
    struct mpq_error error;
    uint64_t bytes = 0, lost = 0;
    CHECK_EQ(consumer->segment->generation, 1);
    for (uint64_t offset = MPQ_SEGMENT_FIRST, seq = 1; seq <= BROKEN;) {
        struct mpq_seen seen;
        if (mpq_frame_see(queue, consumer->segment, offset, 0, &seen) != MPQ_SEE_FRAME ||
            seen.code == MPQ_PAD)
            break;
        if (seq % 3 == 0) {
            consumer->segment->base[offset + MPQ_FRAME_HEADER + 7] ^= 1;
            lost++;
        }
        bytes += seen.extent;
        offset += seen.extent;
        seq++;
    }
    CHECK(lost > 3);
    mpq_segment_release(item.segment);
    opened = 0;
    mpq_stats_get(queue, &stats);
    const uint64_t backlog = stats.backlog_bytes;
    uint64_t done = 0;
    for (uint64_t left = lost; left != 0;) {
        const mpq_status status = reserve(consumer, &item, &error);
        CHECK(status == MPQ_OK || status == MPQ_CORRUPT);
        left -= status == MPQ_CORRUPT;
        done += status == MPQ_CORRUPT ? error.lost_bytes : 0;
        if (status == MPQ_OK)
            mpq_segment_release(item.segment);
        mpq_stats_get(queue, &stats);
        CHECK_EQ(stats.lost_items, lost - left);
        CHECK_EQ(stats.depth, ITEMS - (lost - left));
        CHECK_EQ(stats.backlog_bytes, backlog - done);
    }
    CHECK(done < bytes);
    CHECK(opened <= 1);
    mpq_recount(consumer);
    mpq_stats_get(queue, &stats);
    CHECK_EQ(stats.depth, ITEMS - lost);
    CHECK_EQ(stats.backlog_bytes, backlog - done);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

int main(void)
{
    RUN(items_come_in_order_and_leave_by_ack);
    RUN(a_nack_returns_the_item_to_its_place);
    RUN(acks_out_of_order_survive_reopening);
    RUN(segments_roll_and_are_used_again);
    RUN(a_batch_has_consecutive_seqs_and_a_bound);
    RUN(refusals_change_nothing);
    RUN(a_large_item_passes_segments_that_are_too_small);
    RUN(a_refused_filesystem_is_named);
    RUN(a_damaged_body_is_counted_exactly_without_a_look_at_the_backlog);
    RUN(a_put_whose_handle_is_closed_before_its_flush_is_flushed_by_the_close);
    return 0;
}
