/* steps.c - SIGKILL at every instruction of an operation, on a real queue with real processes.
 *
 * usage: steps SEED STRIDE POINTS [SCENARIO [SYSCALLS STEPS]]
 *        steps SEED STRIDE copies [SCENARIO [INSTRUCTION]]
 *
 * A child attaches to the queue, stops, and does one operation under ptrace. First it is stepped
 * through once, to learn how many instructions lie between its system calls. Then, for every
 * STRIDE-th instruction (from a phase that SEED gives; longer paths are thinned to POINTS points
 * spread evenly), a new child runs to that instruction and is killed there; one time in four a
 * second one is killed on top, at another instruction of the same operation. A survivor must then
 * put, reserve and ack within the watchdog, and everything must add up:
 *
 *   - what a put had returned for is delivered, once, in order, unaltered, unless it was acked;
 *     what an ack had returned for is not; the killed item is whole or absent, a batch all or
 *     nothing;
 *   - where items have keys, all of it is put again: each is delivered once;
 *   - depth = what is delivered + what became a dead letter, a gap or is lost; afterwards it is 0,
 *     and lost is exactly what was destroyed on purpose.
 *
 * Where a scenario stops its child instead, the survivor puts (or is told that the lock is held)
 * and reads what lies before the stopped one's items, and takes nothing from it: no takeover, no
 * gap; the child then goes on and succeeds.
 *
 * With `copies` a child goes through its operation once, and at every STRIDE-th instruction the
 * queue is copied as a death there would leave it (copied.h). The survivor's checks run on the
 * copy; three times in four a member lives in it, else the next opener is alone. A death that
 * leaves what an earlier one left (most instructions write nothing that is shared) is not run
 * again.
 *
 * The figures at the end show that it bites: lock takeovers, gaps, children that were killed with
 * the operation half done. A failure prints its scenario and point, which replay it. */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copied.h"
#include "steps.h"
#include "tracer.h"
#include "workers.h"

static uint64_t seed_given, random_state;
static uint64_t stride, points; /* every STRIDE-th instruction, at most so many of a path */
static bool copying;
static const char *scenario_given; /* NULL: all */
static char **rest_given; /* what follows it */
static struct run *current;

static uint64_t dice(void)
{
    random_state += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void replay_line(void)
{
    if (copying) {
        fprintf(stderr, "replay: steps %llu %llu copies %s %llu\n", (unsigned long long)seed_given,
                (unsigned long long)stride, current->scenario->name,
                (unsigned long long)current->instructions);
        return;
    }
    fprintf(stderr, "replay: steps %llu 1 1 %s %u %u\n", (unsigned long long)seed_given,
            current->scenario->name, current->at_syscall, current->at_step);
}

__attribute__((format(printf, 1, 2), noreturn)) void failed(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAILED ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    replay_line();
    exit(1);
}

void tracer_failed(const char *what, int detail)
{
    failed("%s %d; it says: %s", what, detail, current->shared->failure);
}

static void on_alarm(int number)
{
    (void)number;
    fprintf(stderr, "FAILED the survivor hangs\n");
    replay_line();
    _exit(1);
}

/* ---- the survivor */

static void survivor_put(struct run *run, uint32_t count, uint32_t length)
{
    struct mpq_error error;
    if (run->next + count >= IDS)
        failed("out of ids");
    mpq_status status = put(run, run->home, run->next, count, length, &error);
    if (status != MPQ_OK)
        failed("the survivor's put: %s: %s", mpq_status_name(status), error.message);
    run->next += count;
}

static void survivor_open(struct run *run)
{
    struct mpq_error error;
    if (run->home != NULL)
        return;
    mpq_status status = attach(run, &run->home, &error);
    if (status != MPQ_OK)
        failed("the survivor's open: %s: %s", mpq_status_name(status), error.message);
}

static void survivor_close(struct run *run)
{
    struct mpq_error error;
    if (run->home == NULL)
        return;
    if (mpq_close(run->home, &forever, &error) != MPQ_OK)
        failed("the survivor's close: %s", error.message);
    mpq_free(run->home);
    run->home = NULL;
}

/* Takes an item into account; false when it is the sentinel. */
static bool account(struct run *run, const struct mpq_item *item, uint8_t *seen)
{
    const struct shared *shared = run->shared;
    uint32_t id = IDS;
    if (item->length >= 4)
        memcpy(&id, item->body, 4);
    if (id < run->base || id >= run->next || shared->put[id] == NOT || shared->put[id] == SPOILED)
        failed("an item that was never put: id %u seq %llu", id, (unsigned long long)item->seq);
    if (!is_right(item, id))
        failed("an altered item: id %u", id);
    if (seen[id]++ != 0)
        failed("delivered twice: id %u", id);
    if (shared->ack[id] == RETURNED)
        failed("an ack was undone: id %u", id);
    if (shared->dead[id] == RETURNED)
        failed("a dead letter was handed out: id %u", id);
    if (item->seq <= run->last_seq)
        failed("out of order: seq %llu after %llu", (unsigned long long)item->seq,
               (unsigned long long)run->last_seq);
    run->last_seq = item->seq;
    return id != run->next - 1;
}

static uint64_t drain(struct run *run, struct mpq_consumer *consumer, uint8_t *seen)
{
    struct mpq_error error;
    const struct mpq_call call = soon();
    uint64_t delivered = 0;
    for (bool more = true; more;) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK) {
            delivered++;
            more = account(run, &item, seen);
            mpq_segment_release(item.segment);
            status = mpq_ack(consumer, item.seq, item.token, &error);
            if (status == MPQ_OK && mpq_ack_needs_sync(consumer))
                status = mpq_consumer_sync(consumer, &error);
        } else if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
            status = mpq_reserve_wait(consumer, &call, &error);
            if (status == MPQ_TIMEOUT)
                failed("the survivor gets nothing within the watchdog");
        }
        if (status != MPQ_OK && (status != MPQ_CORRUPT || run->spoiled == 0))
            failed("the survivor's reserve: %s: %s", mpq_status_name(status), error.message);
    }
    return delivered;
}

static void compare(struct run *run, const uint8_t *seen)
{
    const struct shared *shared = run->shared;
    for (uint32_t id = run->base; id < run->next; id++) {
        if (shared->put[id] == RETURNED && shared->ack[id] == NOT && !seen[id])
            failed("lost: id %u", id);
        if (shared->put[id] == ASKED)
            run->half++;
        const uint32_t first = shared->first[id], count = shared->count[id];
        uint32_t there = 0, acked = 0;
        for (uint32_t i = first; i < first + count && id == first; i++) {
            there += seen[i];
            acked += shared->ack[i] != NOT;
        }
        if (id == first && acked == 0 && there != 0 && there != count)
            failed("part of a batch: %u of %u from id %u", there, count, first);
    }
}

/* Everything once more, with its keys: it must not be there twice. */
static void put_again(struct run *run)
{
    struct mpq_error error;
    const uint32_t next = run->next;
    for (uint32_t id = run->base; id < next; id++) {
        if (run->shared->put[id] == NOT || run->shared->first[id] != id)
            continue;
        mpq_status status = put(run, run->home, id, run->shared->count[id], 0, &error);
        if (status != MPQ_OK)
            failed("putting id %u again: %s: %s", id, mpq_status_name(status), error.message);
    }
}

/* The survivor goes on: one more item in, everything out, and the books agree. */
static void survive(struct run *run)
{
    static uint8_t seen[IDS], puts[IDS];
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_stats before, after;
    const uint64_t began = mpq_monotonic_ns();
    alarm(60);
    memset(seen + run->base, 0, run->next + 2 - run->base);
    survivor_open(run);
    mpq_stats_get(run->home, &before);
    memcpy(puts, run->shared->put, sizeof puts);
    const bool again = is_keyed(run->scenario), late = again && dice() % 2 == 0;
    if (again && !late)
        put_again(run);
    survivor_put(run, 1, 0);
    const struct mpq_call call = soon();
    if (mpq_consumer_open(run->home, &call, &consumer, &error) != MPQ_OK)
        failed("the survivor's consumer: %s", error.message);
    uint64_t depth = mpq_depth(run->home);
    uint64_t delivered = drain(run, consumer, seen);
    if (late) {
        put_again(run);
        survivor_put(run, 1, 0);
        depth += mpq_depth(run->home);
        delivered += drain(run, consumer, seen);
    }
    const uint64_t took = mpq_monotonic_ns() - began;
    mpq_stats_get(run->home, &after);
    drain_dead(run, seen);
    compare(run, seen);
    if (copying) /* the child goes on, and does not know */
        memcpy(run->shared->put, puts, sizeof puts);
    if (depth != delivered + after.dead_items - before.dead_items + after.gap_items -
                     before.gap_items + after.lost_items - before.lost_items)
        failed("depth was %llu, not %llu delivered + %llu dead + %llu gaps + %llu lost",
               (unsigned long long)depth, (unsigned long long)delivered,
               (unsigned long long)(after.dead_items - before.dead_items),
               (unsigned long long)(after.gap_items - before.gap_items),
               (unsigned long long)(after.lost_items - before.lost_items));
    if (after.depth != 0 || after.backlog_bytes != 0 || after.lost_items != run->spoiled ||
        after.fault != 0 || after.poison_errno != 0)
        failed("depth %llu, backlog %llu, lost %llu of %llu, fault %u, poison %u are left",
               (unsigned long long)after.depth, (unsigned long long)after.backlog_bytes,
               (unsigned long long)after.lost_items, (unsigned long long)run->spoiled, after.fault,
               after.poison_errno);
    run->gaps += after.gap_items - before.gap_items;
    run->takeovers += after.takeovers - before.takeovers;
    if (mpq_checkpoint(consumer, &call, &error) != MPQ_OK ||
        mpq_consumer_close(consumer, &error) != MPQ_OK)
        failed("the survivor's checkpoint: %s", error.message);
    mpq_consumer_free(consumer);
    run->longest_ns = mpq_max64(run->longest_ns, took);
    alarm(0);
    run->base = run->next;
    if (run->next > IDS - 2000) {
        memset(run->shared, 0, sizeof *run->shared);
        run->base = run->next = 0;
    }
}

/* ---- what the survivor prepares */

void before_few(struct run *run)
{
    survivor_put(run, 3, 0);
    survivor_put(run, 1, 0);
    survivor_put(run, 1, 0);
}

static uint64_t room_left(const struct run *run)
{
    const struct mpq_tail_now tail = mpq_tail_read(run->home->control);
    const uint64_t offset = MPQ_POSITION_OFF(tail.position);
    return offset < MPQ_SEGMENT_FIRST || offset > 65536 ? 0 : 65536 - offset;
}

/* The next page-sized put rolls into a segment that is prepared (group) or not (none). */
static void before_roll(struct run *run)
{
    survivor_put(run, 1, 0);
    while (room_left(run) >= 4096)
        survivor_put(run, 1, room_left(run) > 9000 ? 4000 : 300);
}

static void before_segments(struct run *run)
{
    for (int i = 0; i < 14; i++)
        survivor_put(run, 2, 4000);
}

/* ... of which some are acked, not all from the floor on. */
static void before_consumed(struct run *run)
{
    static const bool acks[6] = {true, false, true, true, false, true};
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_item items[6];
    uint32_t taken = 0;
    before_segments(run);
    const struct mpq_call call = soon();
    if (mpq_consumer_open(run->home, &call, &consumer, &error) != MPQ_OK ||
        mpq_reserve_many_try(consumer, items, 6, 0, &taken, &error) != MPQ_OK)
        failed("the survivor cannot consume: %s", error.message);
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t id;
        memcpy(&id, items[i].body, 4);
        if (acks[i] && mpq_ack(consumer, items[i].seq, items[i].token, &error) != MPQ_OK)
            failed("the survivor's ack: %s", error.message);
        run->shared->ack[id] = acks[i] ? RETURNED : NOT;
        mpq_segment_release(items[i].segment);
    }
    if (mpq_consumer_close(consumer, &error) != MPQ_OK)
        failed("the survivor's consumer: %s", error.message);
    mpq_consumer_free(consumer);
}

/* ... and the first of them freed: their keys are in the file alone. */
static void before_keys(struct run *run)
{
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_item items[20];
    uint32_t taken = 0, id;
    before_segments(run);
    const struct mpq_call call = soon();
    if (mpq_consumer_open(run->home, &call, &consumer, &error) != MPQ_OK ||
        mpq_reserve_many_try(consumer, items, 20, 0, &taken, &error) != MPQ_OK)
        failed("the survivor cannot consume: %s", error.message);
    for (uint32_t i = 0; i < taken; i++) {
        memcpy(&id, items[i].body, 4);
        run->shared->ack[id] = RETURNED;
        mpq_segment_release(items[i].segment);
        if (mpq_ack(consumer, items[i].seq, items[i].token, &error) != MPQ_OK)
            failed("the survivor's ack: %s", error.message);
    }
    if (mpq_checkpoint(consumer, &call, &error) != MPQ_OK ||
        mpq_consumer_close(consumer, &error) != MPQ_OK)
        failed("the survivor's consumer: %s", error.message);
    mpq_consumer_free(consumer);
}

/* More than the window of acks holds are destroyed between whole ones, in one place. */
static void before_lost(struct run *run)
{
    struct mpq_error error;
    while (room_left(run) < 40000)
        survivor_put(run, 1, 4000);
    survivor_put(run, 2, 0);
    const uint64_t from = mpq_tail_position(run->home->control);
    const uint32_t first = run->next;
    for (int i = 0; i < 25; i++)
        survivor_put(run, 4, 0);
    const uint64_t to = mpq_tail_position(run->home->control);
    struct mpq_segment *segment = mpq_segment_map(run->home, MPQ_POSITION_GEN(from), &error);
    if (segment == NULL || MPQ_POSITION_GEN(to) != MPQ_POSITION_GEN(from))
        failed("the survivor cannot destroy items in one segment");
    memset(segment->base + MPQ_POSITION_OFF(from), 0, (to - from) << 5);
    memset(&run->shared->put[first], SPOILED, run->next - first);
    run->spoiled += run->next - first;
    survivor_put(run, 1, 0);
}

static void before_new_place(struct run *run)
{
    char *slash = strrchr(run->path, '/');
    snprintf(slash, sizeof run->path - (size_t)(slash - run->path), "/new-%llu",
             (unsigned long long)++run->serial);
    run->last_seq = 0;
    run->spoiled = 0;
}

/* Leaves a dead owner in the header lock. */
static void before_dead_owner(struct run *run)
{
    before_few(run);
    struct mpq_control *control = run->home->control;
    run->mine = run->next;
    run->next += 1;
    pid_t child = tracer_start(child_open, op_put, run);
    while (mpq_load(control->owner) == 0)
        if (!tracer_step(child))
            failed("a put that never takes the lock");
    tracer_kill(child);
}

static const struct scenario scenarios[] = {
    {"put-none", 0, false, false, false, before_few, child_open, op_put},
    {"put-interval", 1, false, false, false, before_few, child_open, op_put},
    {"put-group", 2, false, false, false, before_few, child_open, op_put},
    {"put-sync", 3, false, false, false, before_few, child_open, op_put},
    {"put-forked", 2, false, false, false, before_few, child_inherit, op_put},
    {"batch", 2, false, false, false, before_few, child_open, op_batch},
    {"roll", 2, false, false, false, before_roll, child_open, op_put_page},
    {"roll-unprepared", 0, false, false, false, before_roll, child_open, op_put_page},
    {"put-large", 2, false, false, false, before_few, child_open, op_put_large},
    {"takeover", 2, false, false, false, before_dead_owner, child_open, op_put},
    {"put-stopped", 2, false, false, true, before_few, child_open, op_put},
    {"batch-stopped", 0, false, false, true, before_few, child_open, op_batch},
    {"key", 2, false, false, false, before_few, child_open, op_put},
    {"key-none", 0, false, false, false, before_few, child_open, op_put},
    {"key-batch", 2, false, false, false, before_few, child_open, op_batch},
    {"reserve", 2, false, false, false, before_few, child_consume, op_reserve},
    {"lose", 2, false, false, false, before_lost, ack_all, op_lose},
    {"ack", 2, false, false, false, before_few, take_all, op_ack},
    {"ack-many", 0, false, false, false, before_few, take_all, op_ack_many},
    {"sync", 3, false, false, false, before_few, ack_all, op_sync},
    {"checkpoint", 2, false, false, false, before_segments, ack_all, op_checkpoint},
    {"dead-letter", 2, false, false, false, before_no_dead, take_whatever, op_dead_letter},
    {"attempts", 2, false, false, false, before_dead, take_whatever, op_attempts},
    {"lease", 2, false, false, false, before_few, take_whatever, op_lease},
    {"role", 2, false, false, false, before_few, child_open, op_role},
    {"close", 1, false, false, false, before_few, take_all, op_close},
    {"join", 2, false, false, false, before_few, NULL, child_open},
    {"recover", 2, true, false, false, before_consumed, NULL, child_open},
    {"rebuild", 2, true, true, false, before_consumed, NULL, child_open},
    {"rebuild-none", 0, true, true, false, before_few, NULL, child_open},
    {"checkpoint-keys", 2, false, false, false, before_segments, ack_all, op_checkpoint},
    {"recover-keys", 2, true, false, false, before_keys, NULL, child_open},
    {"rebuild-keys", 2, true, true, false, before_keys, NULL, child_open},
    {"create", 2, true, false, false, before_new_place, NULL, child_open},
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

/* ---- stepping */

/* How many instructions lie behind each system call, up to `cap` each. */
static void measure(struct run *run, uint32_t cap)
{
    run->mine = run->next;
    run->next += 8;
    pid_t child = tracer_start(run->scenario->setup, run->scenario->op, run);
    memset(run->spans, 0, sizeof run->spans);
    run->span_count = 0;
    bool going = true;
    while (going && run->span_count < SPANS) {
        uint32_t *span = &run->spans[run->span_count++];
        while (going && *span < cap && !tracer_at_call(child)) {
            going = tracer_step(child);
            ++*span;
        }
        run->instructions += *span;
        if (going)
            going = tracer_skip(child);
    }
    tracer_kill(child);
}

/* One child to (at_syscall, at_step), and no further. */
static void kill_there(struct run *run)
{
    run->mine = run->next;
    run->next += 8;
    pid_t child = tracer_start(run->scenario->setup, run->scenario->op, run);
    bool going = true;
    for (uint32_t i = 0; going && i < run->at_syscall; i++)
        going = tracer_skip(child);
    for (uint32_t i = 0; going && i < run->at_step; i++)
        going = tracer_step(child);
    tracer_kill(child);
    run->kills += going;
    run->ended += !going;
}

static void locate(struct run *run, uint64_t instruction)
{
    run->at_syscall = 0;
    while (run->at_syscall + 1 < run->span_count && instruction >= run->spans[run->at_syscall])
        instruction -= run->spans[run->at_syscall++];
    run->at_step = (uint32_t)instruction;
}

static void prepare(struct run *run)
{
    const struct scenario *scenario = run->scenario;
    if (scenario->new_boot) { /* of the next opener: the child */
        char boot[40];
        snprintf(boot, sizeof boot, "boot-%llu", (unsigned long long)++run->serial);
        survivor_open(run);
        scenario->before(run);
        survivor_close(run);
        setenv("MPQ_BOOT_ID", boot, 1);
        return;
    }
    if (scenario->before != before_new_place) {
        survivor_open(run);
        scenario->before(run);
    }
    if (scenario->alone)
        survivor_close(run);
    if (scenario->before == before_new_place)
        scenario->before(run);
}

/* The child stands still: it is waited for, and nothing is taken from it. */
static void beside_stopped(struct run *run, pid_t child)
{
    struct mpq_error error;
    struct mpq_stats before, after;
    struct mpq_consumer *consumer;
    struct mpq_item_in in = {.body = bodies_of(run->next), .length = length_of(run->next)};
    uint64_t seq, ticket = 0;
    const struct mpq_call call = {mpq_monotonic_ns() + 25 * MPQ_MS, NULL, NULL};
    mpq_stats_get(run->home, &before);
    const uint64_t owner = mpq_load(run->home->control->owner);
    mpq_status status = mpq_put(run->home, &in, &call, &seq, &ticket, &error);
    if (status != MPQ_OK && status != MPQ_FLUSH && (status != MPQ_LOCK_TIMEOUT || owner == 0))
        failed("a put beside a stopped process: %s", error.message);
    const bool accepted = status != MPQ_LOCK_TIMEOUT;
    if (accepted && owner != 0)
        failed("the lock of a stopped process was taken");
    run->shared->put[run->next] = accepted ? RETURNED : NOT;
    run->shared->first[run->next] = run->next;
    run->shared->count[run->next++] = 1;
    if (status == MPQ_FLUSH && mpq_put_flush(run->home, ticket, &call, &error) != MPQ_OK)
        failed("a flush beside a stopped process: %s", error.message);
    if (mpq_consumer_open(run->home, &call, &consumer, &error) != MPQ_OK)
        failed("a consumer beside a stopped process: %s", error.message);
    struct mpq_item item;
    for (status = MPQ_OK; status != MPQ_TIMEOUT;) {
        status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK)
            mpq_segment_release(item.segment); /* not acked: it comes again */
        else if (status == MPQ_EMPTY)
            status = mpq_reserve_wait(consumer, &call, &error);
        if (status != MPQ_OK && status != MPQ_TIMEOUT)
            failed("reading beside a stopped process: %s", error.message);
    }
    if (mpq_consumer_close(consumer, &error) != MPQ_OK)
        failed("a consumer beside a stopped process: %s", error.message);
    mpq_consumer_free(consumer);
    mpq_stats_get(run->home, &after);
    if (after.takeovers != before.takeovers || after.gap_items != before.gap_items)
        failed("something was taken from a stopped process");
    run->takeovers += !accepted; /* here: times that the lock was found held */
    tracer_finish(child);
    for (uint32_t id = run->mine; id < run->mine + 8; id++)
        if (run->shared->put[id] == ASKED)
            failed("the stopped process did not go on: id %u", id);
}

static void stop_there(struct run *run)
{
    run->mine = run->next;
    run->next += 8;
    pid_t child = tracer_start(run->scenario->setup, run->scenario->op, run);
    bool going = true;
    for (uint32_t i = 0; going && i < run->at_syscall; i++)
        going = tracer_skip(child);
    for (uint32_t i = 0; going && i < run->at_step; i++)
        going = tracer_step(child);
    if (going)
        beside_stopped(run, child);
    tracer_kill(child);
    run->kills += going;
    run->ended += !going;
    survive(run);
}

static void point(struct run *run)
{
    prepare(run);
    if (run->scenario->stops) {
        stop_there(run);
        return;
    }
    const uint32_t syscall = run->at_syscall, instruction = run->at_step;
    kill_there(run);
    if (dice() % 4 == 0) {
        uint64_t total = 0;
        for (uint32_t i = 0; i < run->span_count; i++)
            total += run->spans[i];
        locate(run, dice() % (total + 1));
        kill_there(run);
        run->at_syscall = syscall;
        run->at_step = instruction;
    }
    survive(run);
    if (run->scenario->before == before_new_place) {
        survivor_close(run);
        copied_remove(run->path);
    }
}

/* ---- the runs */

static void begin(struct run *run, const struct scenario *scenario, const char *base)
{
    memset(run->shared, 0, sizeof *run->shared);
    run->scenario = scenario;
    run->base = run->next = 0;
    run->last_seq = 0;
    run->spoiled = 0;
    run->letters = run->kills = run->same = run->ended = run->takeovers = run->gaps = run->half =
        run->longest_ns = 0;
    run->instructions = 0;
    random_state = seed_given * 1000003 + (uint64_t)(scenario - scenarios);
    current = run;
    setenv("MPQ_BOOT_ID", "boot-0", 1);
    snprintf(run->path, sizeof run->path, "%s/queue", base);
}

static void end(struct run *run, const char *base)
{
    survivor_close(run);
    copied_remove(base);
    if (mkdir(base, 0700) != 0)
        failed("cannot make %s again", base);
}

static void whole(struct run *run, const struct scenario *scenario, const char *base)
{
    begin(run, scenario, base);
    prepare(run);
    measure(run, points == 0 ? 1000000 : 6000);
    survive(run);
    const uint64_t total = run->instructions;
    uint64_t apart = stride * 1000;
    if (points != 0 && total * 1000 / apart > points)
        apart = total * 1000 / points;
    for (uint64_t at = dice() % apart; at < total * 1000; at += apart) {
        locate(run, at / 1000);
        point(run);
    }
    printf("steps: %-15s %7llu instructions, %3u system calls, %5llu kills, %3llu ended before, "
           "%4llu half done, %4llu takeovers, %4llu gaps, longest wait %llu ms\n",
           scenario->name, (unsigned long long)total, run->span_count - 1,
           (unsigned long long)run->kills, (unsigned long long)run->ended,
           (unsigned long long)run->half, (unsigned long long)run->takeovers,
           (unsigned long long)run->gaps, (unsigned long long)(run->longest_ns / MPQ_MS));
    end(run, base);
}

#define STATES (1u << 20)

/* All that the survivor's checks depend on. False: an earlier death left the same. */
static bool is_new(const struct run *run, bool alone)
{
    static uint64_t seen[STATES];
    static const struct run *since;
    static uint64_t of_instruction;
    if (since != run || run->instructions < of_instruction)
        memset(seen, 0, sizeof seen);
    since = run;
    of_instruction = run->instructions;
    const uint32_t ids = run->next - run->base;
    uint64_t hash = mpq_xxh64(&run->shared->put[run->base], ids, alone);
    hash = mpq_xxh64(&run->shared->ack[run->base], ids, hash);
    hash = mpq_xxh64(&run->shared->dead[run->base], ids, hash);
    hash = copied_hash(run->path, hash) | 1;
    uint32_t at = (uint32_t)(hash >> 32) % STATES;
    while (seen[at] != 0 && seen[at] != hash)
        at = (at + 1) % STATES;
    const bool is_new = seen[at] == 0;
    seen[at] = hash;
    return is_new;
}

/* What a death at this instruction would leave, and who goes on from it. */
static void die_in_a_copy(struct run *run)
{
    const bool alone = run->home == NULL || dice() % 4 == 0;
    if (!is_new(run, alone)) {
        run->same++;
        return;
    }
    const struct run before = *run;
    char *name = strrchr(run->path, '/');
    snprintf(name, sizeof run->path - (size_t)(name - run->path), "/copy");
    copied_make(before.path, run->path);
    const int held = alone ? -1 : copied_hold(run->path, before.home->incarnation);
    run->home = NULL;
    survive(run);
    survivor_close(run);
    if (held >= 0)
        close(held);
    memcpy(run->path, before.path, sizeof run->path);
    run->home = before.home;
    run->base = before.base;
    run->next = before.next;
    run->last_seq = before.last_seq;
    run->kills++;
}

/* One child goes through its operation; `only`: to this instruction, and one copy there. */
static void copies(struct run *run, const struct scenario *scenario, const char *base,
                   uint64_t only)
{
    begin(run, scenario, base);
    prepare(run);
    const uint64_t phase = dice() % stride;
    run->mine = run->next;
    run->next += 8;
    pid_t child = tracer_start(scenario->setup, scenario->op, run);
    do {
        if (only != 0 ? run->instructions == only : run->instructions % stride == phase)
            die_in_a_copy(run);
        run->instructions++;
    } while (tracer_step(child) && (only == 0 || run->instructions <= only));
    tracer_kill(child);
    survive(run);
    printf("steps: %-15s %7llu instructions, %7llu deaths, %6llu of them differ, %6llu half done, "
           "%4llu takeovers, %5llu gaps, longest wait %llu ms\n",
           scenario->name, (unsigned long long)run->instructions,
           (unsigned long long)(run->kills + run->same), (unsigned long long)run->kills,
           (unsigned long long)run->half, (unsigned long long)run->takeovers,
           (unsigned long long)run->gaps, (unsigned long long)(run->longest_ns / MPQ_MS));
    end(run, base);
}

static void play(struct run *run, const struct scenario *scenario, const char *base)
{
    if (copying) {
        copies(run, scenario, base, rest_given[0] == NULL ? 0 : strtoull(rest_given[0], NULL, 10));
    } else if (rest_given[0] == NULL || rest_given[1] == NULL) {
        whole(run, scenario, base);
    } else {
        begin(run, scenario, base);
        run->span_count = 1;
        run->at_syscall = (uint32_t)strtoul(rest_given[0], NULL, 10);
        run->at_step = (uint32_t)strtoul(rest_given[1], NULL, 10);
        point(run);
        end(run, base);
    }
}

enum { KILLS, SAME, HALF, TAKEOVERS, GAPS, INSTRUCTIONS };

static int work(unsigned worker, struct figures *figures)
{
    static struct run run;
    char base[128];
    const char *root = getenv("MPQ_CRASH_DIR");
    snprintf(base, sizeof base, "%s/mpq-steps-%d", root != NULL ? root : "/dev/shm", getpid());
    run.shared =
        mmap(NULL, sizeof *run.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mkdir(base, 0700) != 0 || run.shared == MAP_FAILED)
        return 2;
    tracer_pin(worker);
    for (size_t i = 0; i < SCENARIOS; i++) {
        if (scenario_given != NULL ? worker != 0 || strcmp(scenario_given, scenarios[i].name) != 0
                                   : i % WORKERS != worker)
            continue;
        if (copying && scenarios[i].stops)
            continue; /* a stopped process is no copy: it lives */
        play(&run, &scenarios[i], base);
        fflush(stdout);
        figures->sum[KILLS] += run.kills;
        figures->sum[SAME] += run.same;
        figures->sum[HALF] += run.half;
        figures->sum[TAKEOVERS] += run.takeovers;
        figures->sum[GAPS] += run.gaps;
        figures->sum[INSTRUCTIONS] += run.instructions;
    }
    (void)rmdir(base);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4 || strtoull(argv[2], NULL, 10) == 0) {
        fprintf(stderr, "usage: steps SEED STRIDE POINTS|copies [SCENARIO [WHERE]]\n");
        return 2;
    }
    seed_given = strtoull(argv[1], NULL, 10);
    stride = strtoull(argv[2], NULL, 10);
    copying = strcmp(argv[3], "copies") == 0;
    points = strtoull(argv[3], NULL, 10);
    scenario_given = argv[4];
    rest_given = argc > 4 ? argv + 5 : argv + argc;
    steps_begin();
    signal(SIGALRM, on_alarm);
    struct figures total;
    const int rc = workers_run(work, &total);
    printf("steps: seed %llu, %llu instructions, %llu %s, %llu of them differ, %llu half done, "
           "%llu takeovers, %llu gaps, %s\n",
           (unsigned long long)seed_given, (unsigned long long)total.sum[INSTRUCTIONS],
           (unsigned long long)(total.sum[KILLS] + total.sum[SAME]), copying ? "deaths" : "kills",
           (unsigned long long)total.sum[KILLS], (unsigned long long)total.sum[HALF],
           (unsigned long long)total.sum[TAKEOVERS], (unsigned long long)total.sum[GAPS],
           rc == 0 ? "0 violations" : "FAILED");
    return rc;
}
