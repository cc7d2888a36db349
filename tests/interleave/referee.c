/* referee.c - see referee.h.
 *
 * On the disk is what a write-back that has ended covered, as it was when the write-back began.
 * Under group and sync a put that returned and an item that was handed out must be there. */
#include "referee.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tracer.h"

#define SEGMENT 65536u
#define SHADOWS 32u
#define TURNS_MAX 20000

static uint8_t known[IDS]; /* to be on the disk */

static struct {
    uint64_t generation;
    uint64_t copied[SEGMENT / MPQ_PAGE]; /* a page never goes back to an older copy */
    uint8_t bytes[SEGMENT];
} shadow[SHADOWS];

/* ---- the disk */

static bool file_bytes(const struct referee *referee, uint64_t generation, uint8_t *out)
{
    char name[MPQ_NAME_MAX], path[300];
    mpq_segment_name(generation, name);
    snprintf(path, sizeof path, "%s/%s", referee->path, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool whole = pread(fd, out, SEGMENT, 0) == SEGMENT;
    close(fd);
    return whole;
}

static bool frame_in(const uint8_t *bytes, uint32_t id)
{
    struct mpq_frame frame;
    for (uint64_t at = MPQ_SEGMENT_FIRST; at + sizeof frame <= SEGMENT;
         at += MPQ_FRAME_EXTENT(frame.ext_length, frame.length)) {
        memcpy(&frame, bytes + at, sizeof frame);
        const uint8_t *body = bytes + at + sizeof frame;
        if (frame.state == 0)
            return false;
        const struct mpq_item item = {.body = body, .length = frame.length};
        if (MPQ_STATE_CODE(frame.state) == MPQ_READY && at + 48 + frame.length <= SEGMENT &&
            frame.length >= 4 && memcmp(body, &id, 4) == 0)
            return item_id(&item) == id;
    }
    return false;
}

static bool on_disk(uint32_t id)
{
    for (unsigned i = 0; i < SHADOWS; i++)
        if (shadow[i].generation != 0 && frame_in(shadow[i].bytes, id))
            return true;
    return false;
}

static void follow_writing(struct referee *referee, unsigned index)
{
    struct led *led = &referee->led[index];
    const struct writing *writing = &referee->shared->actor[index].writing;
    static uint64_t copies;
    if (writing->phase == 1 && !led->captured) {
        led->captured = file_bytes(referee, writing->generation, led->copy);
        led->copied = ++copies;
    }
    if (writing->phase != 2 || !led->captured)
        return;
    const unsigned slot = (unsigned)(writing->generation % SHADOWS);
    if (shadow[slot].generation != writing->generation)
        memset(&shadow[slot], 0, sizeof shadow[slot]);
    shadow[slot].generation = writing->generation;
    for (uint64_t at = writing->from; at < writing->to && at < SEGMENT; at += MPQ_PAGE) {
        if (shadow[slot].copied[at / MPQ_PAGE] > led->copied)
            continue;
        shadow[slot].copied[at / MPQ_PAGE] = led->copied;
        memcpy(shadow[slot].bytes + at, led->copy + at, MPQ_PAGE);
    }
    led->captured = false;
    referee->figures.flushes++;
}

void referee_watch(struct referee *referee)
{
    struct shared *shared = referee->shared;
    referee->checked = mpq_load(shared->next);
    memset(known, 0, sizeof known);
    for (unsigned i = 0; i < SHADOWS; i++) {
        memset(&shadow[i], 0, sizeof shadow[i]);
        if (i != 0 && file_bytes(referee, i, shadow[i].bytes))
            shadow[i].generation = i;
    }
}

static void check_durable(struct referee *referee)
{
    struct shared *shared = referee->shared;
    if (referee->durability < MPQ_DURABILITY_GROUP)
        return;
    for (uint32_t id = referee->checked; id < mpq_load(shared->next); id++) {
        const bool promised = shared->put[id] == RETURNED || shared->out[id] != 0;
        if (promised && !known[id] && !on_disk(id))
            failed("%s before it was on the disk: id %u",
                   shared->put[id] == RETURNED ? "a put returned" : "an item was handed out", id);
        known[id] = promised;
    }
}

/* ---- leading */

void referee_start(struct referee *referee, unsigned index, const char *program)
{
    struct led *led = &referee->led[index];
    struct shared *shared = referee->shared;
    uint8_t *copy = led->copy != NULL ? led->copy : malloc(SEGMENT);
    memset(&shared->actor[index], 0, sizeof shared->actor[index]);
    memset(led, 0, sizeof *led);
    led->copy = copy;
    led->actor = (struct actor){.shared = shared,
                                .index = index,
                                .program = program,
                                .path = referee->path,
                                .durability = referee->durability};
    led->pid = tracer_start(actor_setup, actor_op, &led->actor);
}

void referee_kill(struct referee *referee, unsigned index)
{
    if (referee->led[index].pid != 0)
        tracer_kill(referee->led[index].pid);
    referee->led[index].pid = 0;
}

/* It stands at a stop of its own: a sleep, a write-back, its end. */
static bool stood(struct referee *referee, unsigned index)
{
    follow_writing(referee, index);
    if (referee->shared->actor[index].ended != 0)
        referee_kill(referee, index);
    return referee->led[index].pid != 0;
}

static bool turn(struct referee *referee, unsigned index, bool stopped)
{
    const bool there = !stopped || stood(referee, index);
    referee->figures.turns++;
    check_durable(referee);
    return there;
}

bool referee_steps(struct referee *referee, unsigned index, uint64_t steps)
{
    bool going = true;
    for (uint64_t i = 0; going && i < steps; i++) {
        going = tracer_step(referee->led[index].pid);
        referee->figures.steps++;
    }
    return turn(referee, index, !going);
}

bool referee_call(struct referee *referee, unsigned index)
{
    return turn(referee, index, !tracer_skip(referee->led[index].pid));
}

bool referee_run(struct referee *referee, unsigned index)
{
    tracer_finish(referee->led[index].pid);
    return turn(referee, index, true);
}

void referee_finish(struct referee *referee)
{
    bool going = true;
    for (int i = 0; going; i++) {
        if (i == TURNS_MAX)
            failed("they wait for each other: %s, %s, %s", referee->led[0].actor.program,
                   referee->led[1].actor.program, referee->led[2].actor.program);
        going = false;
        for (unsigned index = 0; index < ACTORS; index++)
            if (referee->led[index].pid != 0)
                going |= referee_run(referee, index);
    }
}

/* ---- the queue */

static void must(mpq_status status, const char *what, const struct mpq_error *error)
{
    if (status != MPQ_OK)
        failed("the survivor's %s: %s: %s", what, mpq_status_name(status), error->message);
}

static void boot(struct referee *referee)
{
    char name[40];
    snprintf(name, sizeof name, "boot-%llu", (unsigned long long)++referee->serial);
    setenv("MPQ_BOOT_ID", name, 1);
}

void referee_begin(struct referee *referee, uint32_t durability)
{
    memset(referee->shared, 0, sizeof *referee->shared);
    (void)actor_io(referee->shared, NULL);
    boot(referee);
    snprintf(referee->path, sizeof referee->path, "%s/q%llu", referee->base,
             (unsigned long long)referee->serial);
    referee->durability = durability;
    referee->figures.runs++;
}

void referee_open(struct referee *referee)
{
    struct mpq_error error;
    const struct actor like = {.path = referee->path, .durability = referee->durability};
    if (referee->home == NULL)
        must(actor_attach(&like, &referee->home, &error), "open", &error);
}

void referee_close(struct referee *referee)
{
    struct mpq_error error;
    if (referee->home == NULL)
        return;
    must(mpq_close(referee->home, &forever, &error), "close", &error);
    mpq_free(referee->home);
    referee->home = NULL;
}

void referee_put(struct referee *referee, uint32_t count, uint32_t length)
{
    struct mpq_error error;
    must(actor_put(referee->shared, referee->home, count, length, &error), "put", &error);
}

/* ---- the judgement */

static uint64_t drain(struct referee *referee, struct mpq_consumer *consumer, uint8_t *seen,
                      uint32_t sentinel)
{
    struct shared *shared = referee->shared;
    struct mpq_error error;
    uint64_t delivered = 0, last = 0;
    const uint32_t before = actor_sleeps();
    for (uint32_t id = IDS; id != sentinel;) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
            must(mpq_reserve_wait(consumer, &forever, &error), "wait", &error);
            if (actor_sleeps() - before > 2000)
                failed("the survivor waits for ever");
            continue;
        }
        must(status, "reserve", &error);
        id = item_id(&item);
        if (id == IDS || shared->put[id] == NOT)
            failed("an altered item, seq %llu", (unsigned long long)item.seq);
        if (seen[id]++ != 0)
            failed("delivered twice: id %u", id);
        if (shared->ack[id] == RETURNED)
            failed("an ack was undone: id %u", id);
        if (item.seq <= last)
            failed("out of order: seq %llu after %llu", (unsigned long long)item.seq,
                   (unsigned long long)last);
        last = item.seq;
        delivered++;
        mpq_segment_release(item.segment);
        must(mpq_ack(consumer, item.seq, item.token, &error), "ack", &error);
    }
    return delivered;
}

static void compare(struct referee *referee, const uint8_t *seen)
{
    const struct shared *shared = referee->shared;
    for (uint32_t id = 0; id < mpq_load(shared->next); id++) {
        if (shared->put[id] == RETURNED && shared->ack[id] == NOT && !seen[id])
            failed("lost: id %u", id);
        referee->figures.unfinished += shared->put[id] == ASKED;
        if (shared->first[id] != id || shared->count[id] < 2)
            continue;
        uint32_t there = 0;
        for (uint32_t i = id; i < id + shared->count[id]; i++)
            there += seen[i] != 0 || shared->ack[i] != NOT;
        if (there != 0 && there != shared->count[id])
            failed("part of a batch: %u of %u from id %u", there, shared->count[id], id);
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

/* Opened by itself after a new boot, nothing of it comes back. */
static void judge_rebuilt(struct referee *referee)
{
    boot(referee);
    referee_open(referee);
    struct mpq_stats stats;
    mpq_stats_get(referee->home, &stats);
    if (stats.depth != 0 || stats.lost_items != 0 || stats.torn_items != 0)
        failed("after a boot: depth %llu, lost %llu, torn %llu", (unsigned long long)stats.depth,
               (unsigned long long)stats.lost_items, (unsigned long long)stats.torn_items);
    referee_close(referee);
}

void referee_judge(struct referee *referee)
{
    static uint8_t seen[IDS];
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_stats before, after;
    for (unsigned index = 0; index < ACTORS; index++)
        referee_kill(referee, index);
    memset(seen, 0, sizeof seen);
    referee_open(referee);
    mpq_stats_get(referee->home, &before);
    referee_put(referee, 1, 0);
    must(mpq_consumer_open(referee->home, &forever, &consumer, &error), "consumer", &error);
    const uint64_t depth = mpq_depth(referee->home);
    const uint64_t delivered = drain(referee, consumer, seen, mpq_load(referee->shared->next) - 1);
    compare(referee, seen);
    mpq_stats_get(referee->home, &after);
    const uint64_t gaps = after.gap_items - before.gap_items;
    if (depth != delivered + gaps)
        failed("depth was %llu, not %llu delivered and %llu gaps", (unsigned long long)depth,
               (unsigned long long)delivered, (unsigned long long)gaps);
    if (after.depth != 0 || after.lost_items != 0 || after.fault != 0 || after.poison_errno != 0)
        failed("depth %llu, lost %llu, fault %u, poison %u are left",
               (unsigned long long)after.depth, (unsigned long long)after.lost_items, after.fault,
               after.poison_errno);
    referee->figures.gaps += gaps;
    referee->figures.takeovers += after.takeovers;
    must(mpq_checkpoint(consumer, &forever, &error), "checkpoint", &error);
    must(mpq_consumer_close(consumer, &error), "consumer", &error);
    mpq_consumer_free(consumer);
    referee_close(referee);
    if (referee->figures.runs % 4 == 0)
        judge_rebuilt(referee);
    nftw(referee->path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
