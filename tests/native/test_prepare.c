/* test_prepare.c - a preparer that stands still before its link, while others use its generation.
 *
 * The link of one handle's table runs what others do meanwhile, so every order is exact. */
#include "fixture.h"
#include "internal.h"

#define BODY 1000u

static struct fixture fixture;
static struct mpq_queue *others;
static struct mpq_consumer *consumer;
static bool linked; /* meanwhile ran: only the first link of segment 2 stands still */
static uint64_t upto; /* generation that the others reach meanwhile */

static const char *segment(uint64_t generation)
{
    static char path[160];
    char name[MPQ_NAME_MAX];
    mpq_segment_name(generation, name);
    snprintf(path, sizeof path, "%s/%s", fixture.path, name);
    return path;
}

static bool there(uint64_t generation)
{
    return access(segment(generation), F_OK) == 0;
}

/* Puts and acks until the tail is there, and gives back what the cursor has passed. */
static void go_on_to(uint64_t generation)
{
    struct mpq_error error;
    struct mpq_stats stats;
    do {
        uint8_t body[BODY] = {0};
        put_ok(others, body, sizeof body);
        const struct mpq_item item = reserve_ok(consumer);
        ack_ok(consumer, &item);
        CHECK_STATUS(mpq_consumer_sync(consumer, &error), MPQ_OK, error);
        mpq_reclaim(consumer, true);
        mpq_stats_get(others, &stats);
    } while (stats.tail_generation < generation);
}

static int late_link(mpq_io *io, int dirfd, const char *from, const char *to)
{
    if (!linked && strcmp(to, "segment-000000000002") == 0) {
        linked = true;
        go_on_to(upto);
    }
    return mpq_io_system.link(io, dirfd, from, to);
}

static uint32_t named; /* files of segments */
static int count_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind;
    named += strncmp(path + where->base, "segment-", 8) == 0;
    return 0;
}

/* The late one's file is gone, or is a file that control knows of. */
static void stand_still(uint32_t keep, uint64_t reach)
{
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.keep_segments = keep;
    args.given |= MPQ_GIVEN_KEEP_SEGMENTS;
    others = open_queue(&args);
    consumer = open_consumer(others);
    struct mpq_io io = mpq_io_system;
    io.link = late_link;
    args.io = &io;
    struct mpq_queue *late = open_queue(&args);
    linked = false;
    upto = reach;
    uint8_t body[BODY] = {0};
    while (!linked) {
        put_ok(late, body, sizeof body);
        const struct mpq_item item = reserve_ok(consumer);
        ack_ok(consumer, &item);
    }
    struct mpq_stats stats;
    mpq_stats_get(others, &stats);
    const uint64_t oldest = stats.oldest_generation;
    CHECK(oldest > 2);
    const uint64_t state = mpq_load(mpq_ring_at(others, 2)->state);
    CHECK(MPQ_STATE_CODE(state) != MPQ_RING_PREPARED);
    CHECK_EQ(there(2), MPQ_STATE_CODE(state) == MPQ_RING_KEPT);
    named = 0;
    CHECK(nftw(fixture.path, count_one, 16, FTW_PHYS) == 0);
    CHECK_EQ(named, stats.segments + stats.kept_segments);
    close_consumer(consumer);
    close_queue(late);
    close_queue(others);
    fixture_remove(&fixture);
}

static void the_freed_generation_has_no_file(void)
{
    stand_still(0, 4);
}

static void a_kept_file_is_left_to_reuse(void)
{
    stand_still(2, 4);
}

static void a_reused_file_is_not_named_again(void)
{
    stand_still(2, 6);
}

int main(void)
{
    RUN(the_freed_generation_has_no_file);
    RUN(a_kept_file_is_left_to_reuse);
    RUN(a_reused_file_is_not_named_again);
    return 0;
}
