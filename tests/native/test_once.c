/* The ring of remembered keys while others store in it: a reader without the lock may stop at any
 * word of it for as long as it likes.
 *
 * It is stopped where it is wanted: the first load from a protected page faults, and the handler
 * is the others. */
#include <signal.h>
#include <sys/mman.h>

#include "fixture.h"
#include "internal.h"

#define WINDOW 16384u
#define POSITION MPQ_POSITION(1, MPQ_SEGMENT_FIRST)

static struct mpq_queue *queue;
static struct {
    uint8_t *page;
    size_t bytes;
    uint64_t appended; /* by the others, when the page is met */
    unsigned met;
} trap;

static void append(uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t seq = mpq_load(queue->keys->count) + 1;
        mpq_keys_append(queue, (uint64_t[2]){seq, ~seq}, seq, POSITION);
    }
}

static void met(int number)
{
    (void)number;
    if (mprotect(trap.page, trap.bytes, PROT_READ | PROT_WRITE) != 0)
        _exit(9);
    trap.met++;
    append(trap.appended);
}

static void set_trap(uint64_t number, uint64_t appended)
{
    struct sigaction action = {.sa_handler = met};
    const uintptr_t at = (uintptr_t)mpq_key_at(queue, number);
    trap.bytes = (size_t)sysconf(_SC_PAGESIZE);
    trap.page = (uint8_t *)queue->keys + (at / trap.bytes * trap.bytes - (uintptr_t)queue->keys);
    trap.appended = appended;
    trap.met = 0;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    CHECK(mprotect(trap.page, trap.bytes, PROT_NONE) == 0);
}

static uint64_t position_of(uint64_t number)
{
    return mpq_load(mpq_key_at(queue, number)->position);
}

/* Of a gap whose key is as old as told, while others put so many. */
static void void_amid(uint64_t age, uint64_t appended)
{
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.key_window = WINDOW;
    args.given |= MPQ_GIVEN_KEY_WINDOW;
    queue = open_queue(&args);
    append(2 * WINDOW);
    const uint64_t gap = 2 * WINDOW - age;
    set_trap(2 * WINDOW - WINDOW / 2, appended); /* about where a search begins */
    mpq_keys_void(queue, gap);
    signal(SIGSEGV, SIG_DFL);
    CHECK_EQ(trap.met, 1);
    const bool remembered = age + appended < WINDOW;
    CHECK_EQ(position_of(gap), remembered ? MPQ_KEY_VOID : POSITION);
    for (uint64_t number = gap + 1; number <= 2 * WINDOW + appended; number++)
        CHECK_EQ(position_of(number), POSITION);
    close_queue(queue);
    fixture_remove(&fixture);
}

static void the_key_of_a_gap_is_voided_whatever_others_put_meanwhile(void)
{
    static const uint64_t ages[] = {0, 1, WINDOW / 8, WINDOW / 2, WINDOW - 1};
    static const uint64_t appended[] = {
        0, 1, MPQ_BATCH_MAX - 1, MPQ_BATCH_MAX, WINDOW / 2, WINDOW - 1, WINDOW - WINDOW / 8 - 1};
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++)
        for (size_t j = 0; j < sizeof appended / sizeof *appended; j++)
            if (ages[i] + appended[j] < WINDOW)
                void_amid(ages[i], appended[j]);
}

static void what_left_the_window_meanwhile_ends_the_search(void)
{
    static const uint64_t rounds[] = {1, 2, 5};
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) /* stored anew as often */
        void_amid(WINDOW / 8, rounds[i] * MPQ_KEY_SLOTS(WINDOW));
}

int main(void)
{
    RUN(the_key_of_a_gap_is_voided_whatever_others_put_meanwhile);
    RUN(what_left_the_window_meanwhile_ends_the_search);
    return 0;
}
