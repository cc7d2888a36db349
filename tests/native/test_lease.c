/* test_lease.c - leases against a model that is a table, under a clock that the test moves.
 *
 * usage: test_lease [SEED]. Prints the seed, which replays it. */
#include "fixture.h"
#include "internal.h"

#define ITEMS 400u
#define ROUNDS 30000u
#define SECOND 1000000000ULL
#define UNIT (1ULL << 18) /* a lease may last so much longer */

static struct fixture fixture;
static struct mpq_io table;
static uint64_t now = 5 * SECOND, random_state;

static uint64_t fake_clock(mpq_io *io)
{
    (void)io;
    return now;
}

static uint64_t dice(uint64_t sides)
{
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random_state >> 33) % sides;
}

static struct mpq_queue *start(uint64_t lease_ns)
{
    fixture_make(&fixture);
    table = mpq_io_system;
    table.monotonic_ns = fake_clock;
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.lease_timeout_ns = lease_ns;
    args.options.ack_window = 512;
    args.io = &table;
    return open_queue(&args);
}

static void end(struct mpq_queue *queue)
{
    close_queue(queue);
    fixture_remove(&fixture);
}

static struct {
    enum { READY, OUT, DONE } state;
    struct mpq_item item;
    uint64_t due, attempts;
} model[ITEMS + 1];

static void lapse(uint64_t *expired)
{
    for (uint32_t seq = 1; seq <= ITEMS; seq++)
        if (model[seq].state == OUT && model[seq].due <= now) {
            model[seq].state = READY;
            ++*expired;
        }
}

static void test_a_lease_ends_when_it_is_due_and_no_other(void)
{
    struct mpq_queue *queue = start(10 * SECOND);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    struct mpq_item item;
    uint64_t expired = 0, late = 0;
    for (uint32_t seq = 1; seq <= ITEMS; seq++) {
        CHECK_EQ(put_ok(queue, &seq, sizeof seq), seq);
        model[seq].state = READY;
    }
    uint32_t done = 0;
    for (uint32_t round = 0; round < ROUNDS && done < ITEMS; round++) {
        now += dice(20) == 0 ? dice(5) * SECOND : dice(100) * UNIT;
        now &= ~(UNIT - 1); /* whole units: the model rounds nothing */
        const uint32_t seq = 1 + (uint32_t)dice(ITEMS);
        const bool held = model[seq].state == OUT && model[seq].due > now;
        const mpq_status want = held ? MPQ_OK : MPQ_STALE;
        late += model[seq].state == OUT && !held;
        switch (model[seq].attempts == 0 ? 0 : dice(8)) {
        default: { /* reserve */
            uint32_t first = 1;
            lapse(&expired);
            while (first <= ITEMS && model[first].state != READY)
                first++;
            mpq_status status = mpq_reserve_try(consumer, &item, &error);
            if (first > ITEMS) {
                CHECK_STATUS(status, MPQ_EMPTY, error);
                break;
            }
            CHECK_STATUS(status, MPQ_OK, error);
            CHECK_EQ(item.seq, first);
            CHECK_EQ(item.attempts, ++model[first].attempts);
            mpq_segment_release(item.segment);
            model[first].item = item;
            model[first].state = OUT;
            model[first].due = (now + 10 * SECOND + UNIT - 1) & ~(UNIT - 1);
            break;
        }
        case 1:
            if (model[seq].state == DONE || dice(3) != 0)
                break;
            item = model[seq].item;
            CHECK_STATUS(mpq_ack(consumer, seq, item.token, &error), want, error);
            if (held) {
                model[seq].state = DONE;
                done++;
            }
            break;
        case 2:
            item = model[seq].item;
            CHECK_STATUS(mpq_nack(consumer, seq, item.token, &error), want, error);
            if (held)
                model[seq].state = READY;
            break;
        case 3:
        case 4: {
            const uint64_t more = dice(20) * UNIT * 1000;
            item = model[seq].item;
            CHECK_EQ(mpq_handed_out(consumer, seq, item.token), held);
            CHECK_STATUS(mpq_extend(consumer, seq, item.token, more, &error), want, error);
            if (held)
                model[seq].due = now + more;
            break;
        }
        case 5:
            if (dice(50) == 0) {
                uint64_t items, bytes, there = 0;
                for (uint32_t i = 1; i <= ITEMS; i++)
                    if (model[i].state == OUT) {
                        there++;
                        model[i].state = READY;
                    }
                CHECK_STATUS(mpq_rewind(consumer, &items, &bytes, &error), MPQ_OK, error);
                CHECK_EQ(items, there);
            }
        }
    }
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    CHECK(expired > 1000 && late > 20 && done > 50);
    CHECK_EQ(stats.expired_leases, expired);
    close_consumer(consumer);
    end(queue);
}

static void test_a_look_ends_what_is_overdue(void)
{
    struct mpq_queue *queue = start(SECOND);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    struct mpq_item item, next;
    uint64_t seq;
    put_ok(queue, "a", 1);
    item = reserve_ok(consumer);
    CHECK_STATUS(mpq_consumer_peek(consumer, &next, &error), MPQ_EMPTY, error);
    now += 2 * SECOND;
    CHECK_STATUS(mpq_consumer_peek(consumer, &next, &error), MPQ_OK, error);
    CHECK_EQ(next.seq, item.seq);
    mpq_segment_release(next.segment);
    CHECK_STATUS(mpq_ack(consumer, item.seq, item.token, &error), MPQ_STALE, error);
    CHECK_STATUS(mpq_skip(consumer, &seq, &error), MPQ_OK, error);
    CHECK_EQ(seq, item.seq);
    CHECK_STATUS(mpq_extend(consumer, item.seq, item.token, 1, &error), MPQ_STALE, error);
    mpq_segment_release(item.segment);
    close_consumer(consumer);
    end(queue);
}

static void test_leases_follow_the_option_and_count_across_consumers(void)
{
    struct mpq_queue *queue = start(0);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_error error;
    struct mpq_options options = {.lease_timeout_ns = SECOND};
    struct mpq_call call = FOREVER;
    put_ok(queue, "a", 1);
    put_ok(queue, "b", 1);
    struct mpq_item without = reserve_ok(consumer);
    CHECK_STATUS(mpq_options_set(queue, MPQ_GIVEN_LEASE_TIMEOUT, &options, &call, &error), MPQ_OK,
                 error);
    struct mpq_item with = reserve_ok(consumer);
    now += 3600 * SECOND;
    struct mpq_item again = reserve_ok(consumer);
    CHECK_EQ(again.seq, with.seq);
    CHECK_EQ(again.attempts, 2);
    CHECK_STATUS(mpq_extend(consumer, without.seq, without.token, 0, &error), MPQ_OK, error);
    ack_ok(consumer, &without); /* it never had a lease */
    options.lease_timeout_ns = 0;
    CHECK_STATUS(mpq_options_set(queue, MPQ_GIVEN_LEASE_TIMEOUT, &options, &call, &error), MPQ_OK,
                 error);
    now += SECOND + UNIT;
    struct mpq_item last = reserve_ok(consumer); /* what had one keeps it */
    CHECK_EQ(last.attempts, 3);
    now += 1000000 * SECOND;
    close_consumer(consumer);
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    CHECK_EQ(stats.expired_leases, 2);
    CHECK_EQ(stats.nacked_items, 0);
    mpq_segment_release(with.segment);
    mpq_segment_release(again.segment);
    mpq_segment_release(last.segment);
    end(queue);
}

static void test_a_lease_costs_eight_bytes(void)
{
    CHECK(sizeof(struct mpq_entry) + sizeof(uint64_t) <= 48);
}

int main(int argc, char **argv)
{
    random_state = argc > 1 ? strtoull(argv[1], NULL, 10) : mpq_wall_ns();
    printf("seed %llu\n", (unsigned long long)random_state);
    RUN(test_a_lease_ends_when_it_is_due_and_no_other);
    RUN(test_a_look_ends_what_is_overdue);
    RUN(test_leases_follow_the_option_and_count_across_consumers);
    RUN(test_a_lease_costs_eight_bytes);
    return 0;
}
