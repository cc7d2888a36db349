/* test_dead.c - the move of a dead letter where a system call fails: the item stays until its
 * letter is durable, and there is one of it in the end. */
#include "fixture.h"
#include "internal.h"

static struct fixture fixture;
static struct mpq_io table;
static bool msync_fails, mkdir_fails;

static int failing_msync(mpq_io *io, void *address, size_t bytes)
{
    if (!msync_fails)
        return mpq_io_system.msync(io, address, bytes);
    errno = EIO;
    return -1;
}

static int failing_mkdir(mpq_io *io, int dirfd, const char *name, mode_t mode)
{
    if (!mkdir_fails)
        return mpq_io_system.mkdir(io, dirfd, name, mode);
    errno = ENOSPC;
    return -1;
}

static struct mpq_queue *start(uint32_t max_attempts)
{
    fixture_make(&fixture);
    table = mpq_io_system;
    table.msync = failing_msync;
    table.mkdir = failing_mkdir;
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.max_attempts = max_attempts;
    args.io = &table;
    return open_queue(&args);
}

static uint64_t letters(void)
{
    char name[128];
    snprintf(name, sizeof name, "%s/dead", fixture.path);
    struct mpq_open_args args = {.path = name};
    struct mpq_queue *queue = open_queue(&args);
    const uint64_t depth = mpq_depth(queue);
    close_queue(queue);
    return depth;
}

static void test_an_item_is_acked_only_when_its_letter_is_on_disk(void)
{
    struct mpq_queue *queue = start(0);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    put_ok(queue, "first", 5);
    put_ok(queue, "item", 4);
    struct mpq_item first = reserve_ok(consumer), item = reserve_ok(consumer);
    mkdir_fails = true;
    CHECK_STATUS(mpq_dead_letter(consumer, item.seq, item.token, "why", 3, &error), MPQ_NO_SPACE,
                 error);
    mkdir_fails = false;
    CHECK(mpq_handed_out(consumer, item.seq, item.token));
    CHECK_STATUS(mpq_dead_letter(consumer, first.seq, first.token, "why", 3, &error), MPQ_OK,
                 error);
    CHECK_EQ(letters(), 1);
    msync_fails = true;
    CHECK_STATUS(mpq_dead_letter(consumer, item.seq, item.token, "why", 3, &error),
                 MPQ_FLUSH_FAILED, error);
    CHECK(mpq_handed_out(consumer, item.seq, item.token));
    CHECK_EQ(mpq_depth(queue), 1);
    msync_fails = false;
    /* Opened anew, dead/ is proved again: whatever the failed flush left there counts. */
    const uint64_t left = letters();
    CHECK(left == 1 || left == 2);
    CHECK_STATUS(mpq_dead_letter(consumer, item.seq, item.token, "why", 3, &error), MPQ_OK, error);
    CHECK_EQ(mpq_depth(queue), 0);
    CHECK_EQ(letters(), left + 1);
    CHECK_STATUS(mpq_dead_letter(consumer, item.seq, item.token, "why", 3, &error), MPQ_STALE,
                 error);
    mpq_segment_release(first.segment);
    mpq_segment_release(item.segment);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void test_what_cannot_be_moved_is_passed_and_tried_again(void)
{
    struct mpq_queue *queue = start(1);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    struct mpq_event_info info;
    struct mpq_call hasty = {0};
    put_ok(queue, "poison", 6);
    put_ok(queue, "good", 4);
    struct mpq_item item = reserve_ok(consumer), next;
    CHECK_STATUS(mpq_nack(consumer, item.seq, item.token, &error), MPQ_OK, error);
    mpq_segment_release(item.segment);
    (void)mpq_events_take(queue, &info);
    mkdir_fails = true;
    CHECK_STATUS(mpq_reserve_try(consumer, &next, &error), MPQ_AGAIN, error);
    (void)!mpq_reserve_wait(consumer, &hasty, &error);
    CHECK_EQ(mpq_events_take(queue, &info), MPQ_EVENT_DEAD);
    CHECK_EQ(info.dead_status, MPQ_NO_SPACE);
    next = reserve_ok(consumer);
    CHECK(next.length == 4);
    ack_ok(consumer, &next);
    CHECK_EQ(mpq_depth(queue), 1);
    mkdir_fails = false;
    CHECK_STATUS(mpq_seal(queue, false, &FOREVER, &error), MPQ_OK, error);
    CHECK_STATUS(reserve(consumer, &next, &error), MPQ_SEALED, error);
    CHECK_EQ(mpq_depth(queue), 0);
    CHECK_EQ(letters(), 1);
    CHECK_EQ(mpq_events_take(queue, &info), 0);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
}

int main(void)
{
    RUN(test_an_item_is_acked_only_when_its_letter_is_on_disk);
    RUN(test_what_cannot_be_moved_is_passed_and_tried_again);
    return 0;
}
