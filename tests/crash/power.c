/* power.c - strict-POSIX crash states: what a power cut may leave, and what must survive it.
 *
 * usage: power FIRST_SEED RUNS STATES [verbose]
 *
 * A run makes a small queue under the shadow table, plays random operations of two producers and a
 * consumer, and stops at a random call or behind a random operation. From the wreck it builds crash
 * states: only what is durable, then random mixtures of durable and live pages (or sectors) and
 * names. Each is opened under another boot id, sometimes crashed again inside recovery, then
 * drained and compared:
 *
 *   - what a put (sync, group) or a flush had returned for is delivered, unless its ack was asked
 * for;
 *   - a durable ack is never undone; nothing is delivered twice in one drain, altered, or out of
 * thin air;
 *   - in half of the runs every item has a key: put again within key_window, before the crash or
 * after it, it is there once, and whole puts tell the first seq;
 *   - in an eighth of the runs items become dead letters: power_letters.c;
 *   - batches are all or nothing; nothing counts as lost; new seqs are above all that were
 * returned;
 *   - the next open finds nothing more to do.
 * A failure prints the seed and the state; the same arguments replay it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "power.h"
#include "workers.h"

#define A_CHILD 25 /* seeds */

static const struct mpq_call hasty = {0, NULL, NULL};
static char base[200];
static int verbose, images; /* a seed */
static uint64_t first_seed, seeds;
static struct figures counted; /* crash states, letters in them, those beside their items */

void fail(const struct run *run, int state, const char *what, uint64_t a, uint64_t b)
{
    fprintf(stderr,
            "FAILED seed %llu state %d policy %u: %s (%llu, %llu)\nreplay: power %llu 1 %d v\n",
            (unsigned long long)run->seed, state, run->durability, what, (unsigned long long)a,
            (unsigned long long)b, (unsigned long long)run->seed, state + 1);
    exit(1);
}

static void empty(int fd)
{
    DIR *directory = fdopendir(fd);
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] != '.' && unlinkat(fd, entry->d_name, 0) != 0) {
            int inner = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY);
            if (inner >= 0)
                empty(inner);
            (void)unlinkat(fd, entry->d_name, AT_REMOVEDIR);
        }
    if (directory != NULL)
        closedir(directory);
}

static void wipe(const char *name, char path[256])
{
    snprintf(path, 256, "%s/%s", base, name);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd >= 0)
        empty(fd);
    else if (mkdir(path, 0700) != 0)
        exit(2);
}

/* ---- payloads tell whose they are */

static uint32_t length_of(uint64_t seed, uint32_t item)
{
    uint64_t mix = (seed * 31 + item) * 0x9E3779B97F4A7C15ULL;
    uint32_t kind = (uint32_t)(mix >> 60);
    uint32_t spread = (uint32_t)(mix >> 20);
    if (kind == 0)
        return 4;
    if (kind == 1)
        return 4 + spread % 9000;
    if (kind == 2 && (mix & 7) == 0)
        return 4 + 60000 + spread % 40000; /* larger than a segment's room */
    return 4 + spread % 700;
}

static void fill(uint64_t seed, uint32_t item, uint8_t *body, uint32_t length)
{
    memcpy(body, &item, 4);
    for (uint32_t i = 4; i < length; i++)
        body[i] = (uint8_t)(seed + item * 7 + i * 13);
}

int is_right(uint64_t seed, uint32_t item, const uint8_t *body, uint32_t length)
{
    if (length != length_of(seed, item))
        return 0;
    for (uint32_t i = 4; i < length; i++)
        if (body[i] != (uint8_t)(seed + item * 7 + i * 13))
            return 0;
    return 1;
}

/* ---- the live world */

static struct mpq_queue *attach(struct shadow *world, const struct mpq_options *options, int create,
                                mpq_status *status, struct mpq_error *error)
{
    struct mpq_open_args args = {.path = world->root, .create = create, .io = &world->io};
    struct mpq_queue *queue = NULL;
    args.options = *options;
    *status = mpq_open(&args, &patient, &queue, error);
    if (*status == MPQ_OK)
        mpq_open_gate(queue, NULL);
    return *status == MPQ_OK ? queue : NULL;
}

static void begin(struct run *run)
{
    struct mpq_error error;
    mpq_status status;
    struct mpq_queue **handles[3] = {&run->home, &run->producers[0], &run->producers[1]};
    for (int i = 0; i < 3; i++) {
        *handles[i] = attach(run->world, &run->options, 1, &status, &error);
        if (*handles[i] == NULL)
            fail(run, -1, error.message, status, 0);
    }
}

static void take_role(struct run *run)
{
    struct mpq_error error;
    if (mpq_consumer_open(run->home, &patient, &run->consumer, &error) != MPQ_OK)
        fail(run, -1, error.message, 0, 0);
}

/* One entry of an extension: the id is the key. */
static void key_of(uint32_t id, struct mpq_item_in *item, uint8_t ext[8])
{
    const uint16_t head[2] = {MPQ_EXT_KEY, sizeof id};
    memcpy(ext, head, sizeof head);
    memcpy(ext + sizeof head, &id, sizeof id);
    item->ext = ext;
    item->ext_length = 8;
}

static mpq_status put_items(const struct run *run, struct mpq_queue *queue,
                            const struct mpq_item_in *items, uint32_t count,
                            const struct mpq_call *call, uint64_t seqs[8], uint64_t *ticket,
                            struct mpq_error *error)
{
    struct mpq_keyed keyed;
    if (run->options.key_window == 0 && call == NULL)
        return mpq_put_batch_try(queue, items, count, seqs, ticket, error);
    if (run->options.key_window == 0)
        return mpq_put_batch(queue, items, count, call, seqs, ticket, error);
    mpq_status status = mpq_keyed_begin(queue, &keyed, items, count, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_put_keyed(queue, &keyed, call, ticket, error);
    for (uint32_t i = 0; i < count && (status == MPQ_OK || status == MPQ_FLUSH); i++)
        seqs[i] = keyed.keys[i].seq;
    mpq_keyed_end(queue, &keyed);
    return status;
}

/* Puts the key of item id again; returns the seq that is told. */
static uint64_t put_again(const struct run *run, int state, struct mpq_queue *queue, uint32_t id)
{
    struct mpq_item_in item = {"again", 5, NULL, 0};
    struct mpq_error error;
    uint64_t seqs[8], ticket;
    uint8_t ext[8];
    key_of(id, &item, ext);
    mpq_status status = put_items(run, queue, &item, 1, &hasty, seqs, &ticket, &error);
    if (status == MPQ_FULL)
        return 0;
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &patient, &error);
    if (status != MPQ_OK)
        fail(run, state, error.message, status, id);
    return seqs[0];
}

/* What was put before, and is still remembered: then it is as durable as any put. */
static void retry(struct run *run, struct mpq_queue *queue, uint32_t id)
{
    struct oracle *oracle = &run->oracle;
    if (oracle->items - id > run->options.key_window)
        return;
    const uint64_t seq = put_again(run, -1, queue, id);
    if (seq != oracle->seq[id])
        fail(run, -1, "a key was accepted again", id, seq);
    if (run->durability >= MPQ_DURABILITY_GROUP && oracle->put[id] == ASKED)
        oracle->put[id] = DURABLE;
}

static void retry_some(struct run *run, struct mpq_queue *queue)
{
    const uint64_t back = shadow_random(run->world) % run->options.key_window;
    if (back < run->oracle.items)
        retry(run, queue, run->oracle.items - 1 - (uint32_t)back);
}

static void put_some(struct run *run, struct mpq_queue *queue, uint32_t count)
{
    struct oracle *oracle = &run->oracle;
    struct mpq_item_in items[8];
    struct mpq_error error;
    uint64_t seq, ticket, seqs[8];
    static uint8_t bodies[8][110000];
    uint8_t exts[8][8];
    if (oracle->items + count > ITEMS_MAX)
        return;
    const uint32_t first = oracle->items;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = length_of(run->seed, first + i);
        if (count > 1 && length > 3000)
            count = i; /* batches stay small */
        fill(run->seed, first + i, bodies[i], length);
        items[i] = (struct mpq_item_in){bodies[i], length, NULL, 0};
        if (run->options.key_window != 0)
            key_of(first + i, &items[i], exts[i]);
    }
    if (count == 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        oracle->batch_first[first + i] = first;
        oracle->batch_count[first + i] = count;
    }
    mpq_status status = put_items(run, queue, items, count, NULL, seqs, &ticket, &error);
    if (status == MPQ_AGAIN) {
        /* Asked for: from here on a crash may leave it or not. */
        oracle->items = first + count;
        memset(&oracle->put[first], ASKED, count);
        status = put_items(run, queue, items, count, &hasty, seqs, &ticket, &error);
    }
    seq = seqs[0];
    if (status == MPQ_FULL || status == MPQ_TOO_LARGE) {
        oracle->items = first;
        memset(&oracle->put[first], NOTHING, count);
        return;
    }
    if (status != MPQ_OK && status != MPQ_FLUSH)
        fail(run, -1, error.message, status, 0);
    oracle->items = first + count;
    for (uint32_t i = 0; i < count; i++) {
        oracle->put[first + i] = ASKED;
        oracle->seq[first + i] = seq + i;
    }
    /* Some flush later, when the key is put again. */
    const bool waits = run->options.key_window == 0 || shadow_random(run->world) % 4 != 0;
    if (waits && status == MPQ_FLUSH && mpq_put_flush(queue, ticket, &patient, &error) != MPQ_OK)
        fail(run, -1, error.message, 0, 0);
    if (seq + count - 1 > oracle->max_seq)
        oracle->max_seq = seq + count - 1;
    if (waits && run->durability >= MPQ_DURABILITY_GROUP)
        memset(&oracle->put[first], DURABLE, count);
    if (!waits && shadow_random(run->world) % 2 == 0)
        retry(run, queue, first);
}

uint32_t id_of(const struct mpq_item *item)
{
    uint32_t id;
    memcpy(&id, item->body, 4);
    return id;
}

static void acks_durable(struct oracle *oracle)
{
    for (uint32_t i = 0; i < oracle->items; i++) {
        if (oracle->ack[i] == ASKED)
            oracle->ack[i] = DURABLE;
        if (oracle->dead[i] == DURABLE)
            oracle->dead[i] = SETTLED;
    }
}

static void consume_some(struct run *run)
{
    struct oracle *oracle = &run->oracle;
    struct mpq_error error;
    struct mpq_item items[16];
    uint32_t taken = 0, bad = 0;
    uint32_t want = 1 + (uint32_t)(shadow_random(run->world) % 16);
    mpq_status status = mpq_reserve_many_try(run->consumer, items, want, 0, &taken, &error);
    if (status == MPQ_AGAIN) { /* a claim of the dead, or padding that nobody flushes */
        status = mpq_reserve_wait(run->consumer, &patient, &error);
        if (status == MPQ_OK)
            return;
    }
    if (status != MPQ_OK && status != MPQ_EMPTY)
        fail(run, -1, error.message, status, 0);
    uint64_t seqs[16], tokens[16];
    uint32_t acks = 0;
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t id = id_of(&items[i]);
        if (!is_right(run->seed, id, items[i].body, items[i].length))
            fail(run, -1, "altered item while live", id, items[i].seq);
        mpq_segment_release(items[i].segment);
        uint64_t choice = shadow_random(run->world) % 10;
        if (letters_move(run, &items[i], id))
            continue;
        if (choice < 7) {
            seqs[acks] = items[i].seq;
            tokens[acks++] = items[i].token;
            oracle->ack[id] = ASKED;
        } else if (choice < 9 &&
                   mpq_nack(run->consumer, items[i].seq, items[i].token, &error) != MPQ_OK) {
            fail(run, -1, error.message, 0, 0);
        }
    }
    if (acks != 0 && mpq_ack_many(run->consumer, seqs, tokens, acks, &bad, &error) != MPQ_OK)
        fail(run, -1, error.message, bad, 0);
    if (mpq_ack_needs_sync(run->consumer) || shadow_random(run->world) % 6 == 0) {
        if (mpq_consumer_sync(run->consumer, &error) != MPQ_OK)
            fail(run, -1, error.message, 0, 0);
        acks_durable(oracle);
    }
    letters_drop(run);
}

static void all_durable(struct oracle *oracle, uint32_t items)
{
    for (uint32_t i = 0; i < items; i++)
        if (oracle->put[i] == ASKED && oracle->seq[i] != 0)
            oracle->put[i] = DURABLE;
}

static void change_hands(struct run *run)
{
    struct mpq_error error;
    if (mpq_consumer_close(run->consumer, &error) != MPQ_OK)
        fail(run, -1, error.message, 0, 0);
    mpq_consumer_free(run->consumer);
    acks_durable(&run->oracle);
    take_role(run);
}

static void play(struct run *run)
{
    struct mpq_error error;
    struct shadow *world = run->world;
    begin(run);
    /* A consumer may come late, and what none or interval put before makes no call to crash at. */
    const int consumer_at = (int)(shadow_random(world) % 2 * (shadow_random(world) % 100));
    const int operations = 400 - (int)(shadow_random(world) % 2 * (shadow_random(world) % 400));
    for (int i = 0; i < operations; i++) {
        if (i == consumer_at)
            take_role(run);
        struct mpq_queue *queue = run->producers[shadow_random(world) % 2];
        uint64_t choice = shadow_random(world) % 100;
        uint32_t items = run->oracle.items;
        const bool alone = run->consumer == NULL;
        if (run->options.key_window != 0 && shadow_random(world) % 4 == 0)
            retry_some(run, queue);
        if (alone && ((choice >= 55 && choice < 85) || (choice >= 90 && choice < 97)))
            continue;
        if (choice < 45) {
            put_some(run, queue, 1);
        } else if (choice < 55) {
            put_some(run, queue, 2 + (uint32_t)(shadow_random(world) % 7));
        } else if (choice < 85) {
            consume_some(run);
        } else if (choice < 90) {
            if (mpq_flush(queue, &patient, &error) != MPQ_OK)
                fail(run, -1, error.message, 0, 0);
            all_durable(&run->oracle, items);
        } else if (choice < 95) {
            if (mpq_checkpoint(run->consumer, &patient, &error) != MPQ_OK)
                fail(run, -1, error.message, 0, 0);
            all_durable(&run->oracle, items);
            acks_durable(&run->oracle);
        } else if (choice < 97) {
            change_hands(run);
        } else {
            int which = (int)(shadow_random(world) % 2);
            mpq_status status = mpq_close(run->producers[which], &patient, &error);
            if (status != MPQ_OK)
                fail(run, -1, error.message, status, 0);
            mpq_free(run->producers[which]);
            run->producers[which] = attach(world, &run->options, 1, &status, &error);
            if (status != MPQ_OK)
                fail(run, -1, error.message, status, 0);
        }
    }
}

/* ---- after the crash */

/* All keys that must be remembered, newest first. What is gone and was never promised is accepted,
 * once; what was there, or had been consumed, is not. Returns how many were accepted. */
static uint64_t retry_all(const struct run *run, int state, struct mpq_queue *queue,
                          const uint8_t *seen, const uint8_t *letters, uint64_t above)
{
    const struct oracle *oracle = &run->oracle;
    uint64_t fresh = 0;
    for (uint32_t back = 0; back < oracle->items; back++) {
        const uint32_t id = oracle->items - 1 - back;
        if (run->options.key_window == 0 || back + fresh >= run->options.key_window)
            break;
        const uint64_t seq = put_again(run, state, queue, id);
        const bool told = seq > above;
        fresh += told;
        if (seq == 0)
            break; /* no room */
        if (put_again(run, state, queue, id) != seq)
            fail(run, state, "a key was accepted twice", id, seq);
        const bool gone = !seen[id] && oracle->ack[id] == NOTHING && letters[id] == 0 &&
                          oracle->dead[id] == NOTHING && !oracle->dropped[id];
        if (gone && !told)
            fail(run, state, "the key of what is gone is refused", id, seq);
        if (seen[id] && told)
            fail(run, state, "the key of what is there is accepted again", id, seq);
        /* Under none and interval a power cut may take an item and leave its ack. */
        if (told && !gone && run->durability >= MPQ_DURABILITY_GROUP)
            fail(run, state, "the key of what was consumed is accepted again", id, seq);
        if (!told && oracle->seq[id] != 0 && seq != oracle->seq[id])
            fail(run, state, "another seq than the first is told", id, seq);
    }
    return fresh;
}

bool put_one(const struct run *run, int state, struct mpq_queue *queue,
             struct mpq_consumer *consumer, const char body[4], uint64_t *seq)
{
    struct mpq_error error;
    struct mpq_item_in in = {body, 4, NULL, 0};
    uint64_t ticket;
    mpq_status status = mpq_put(queue, &in, &hasty, seq, &ticket, &error);
    if (status == MPQ_FULL && mpq_checkpoint(consumer, &patient, &error) == MPQ_OK)
        status = mpq_put(queue, &in, &hasty, seq, &ticket, &error);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &patient, &error);
    if (status != MPQ_OK && status != MPQ_FULL)
        fail(run, state, error.message, status, 0);
    return status == MPQ_OK;
}

static void drain(const struct run *run, struct shadow *after, int state)
{
    const struct oracle *oracle = &run->oracle;
    struct mpq_error error;
    mpq_status status;
    static uint8_t seen[ITEMS_MAX], letters[ITEMS_MAX];
    memset(seen, 0, sizeof seen);
    struct mpq_queue *queue = attach(after, &run->options, 0, &status, &error);
    after->crash_at = 0; /* only opening is cut: the drain's own acks are not in the oracle */
    struct mpq_consumer *consumer;
    if (status == MPQ_NOT_A_QUEUE && oracle->items == 0)
        return; /* it had not been made yet */
    if (status != MPQ_OK)
        fail(run, state, error.message, status, 0);
    if (mpq_consumer_open(queue, &patient, &consumer, &error) != MPQ_OK)
        fail(run, state, error.message, 0, 0);
    uint64_t last = 0;
    for (;;) {
        struct mpq_item item;
        status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_EMPTY)
            break;
        if (status == MPQ_AGAIN && run->options.max_attempts != 0) { /* it moves */
            status = mpq_reserve_wait(consumer, &patient, &error);
            if (status == MPQ_OK)
                continue;
        }
        if (status != MPQ_OK)
            fail(run, state, error.message, status, last);
        uint32_t id = id_of(&item);
        if (id >= ITEMS_MAX || oracle->put[id] == NOTHING)
            fail(run, state, "an item that was never put", id, item.seq);
        if (!is_right(run->seed, id, item.body, item.length))
            fail(run, state, "an altered item", id, item.seq);
        if (seen[id]++)
            fail(run, state, "delivered twice", id, item.seq);
        if (item.seq <= last)
            fail(run, state, "out of order", item.seq, last);
        if (oracle->ack[id] == DURABLE || oracle->dead[id] == SETTLED)
            fail(run, state, "a durable ack was undone", id, item.seq);
        last = item.seq;
        mpq_segment_release(item.segment);
        if (mpq_ack(consumer, item.seq, item.token, &error) != MPQ_OK)
            fail(run, state, error.message, 0, 0);
    }
    letters_drain(run, after, state, queue, consumer, letters);
    for (uint32_t id = 0; id < oracle->items; id++) {
        counted.sum[1] += letters[id];
        counted.sum[2] += letters[id] != 0 && seen[id];
        if (oracle->put[id] == DURABLE && oracle->ack[id] == NOTHING && !oracle->dropped[id] &&
            !seen[id] && letters[id] == 0)
            fail(run, state, "lost", id, oracle->seq[id]);
        uint32_t first = oracle->batch_first[id], count = oracle->batch_count[id];
        if (id != first || count < 2)
            continue;
        uint32_t there = 0, acked = 0;
        for (uint32_t i = first; i < first + count; i++) {
            there += seen[i];
            acked += oracle->ack[i] != NOTHING || oracle->dead[i] != NOTHING || letters[i] != 0;
        }
        if (acked == 0 && there != 0 && there != count)
            fail(run, state, "part of a batch", first, there);
    }
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    if (stats.lost_items != 0 || stats.depth != 0)
        fail(run, state, "lost or left", stats.lost_items, stats.depth);
    uint64_t seq = 0;
    if (!put_one(run, state, queue, consumer, "next", &seq))
        fail(run, state, "there is no room in an empty queue", 0, 0);
    if (seq <= oracle->max_seq)
        fail(run, state, "a seq was issued again", seq, oracle->max_seq);
    const uint64_t fresh = retry_all(run, state, queue, seen, letters, seq);
    (void)mpq_consumer_close(consumer, &error);
    (void)mpq_close(queue, &patient, &error);
    mpq_consumer_free(consumer);
    mpq_free(queue);
    /* Same boot: control is trusted, and nothing more is found. */
    queue = attach(after, &run->options, 0, &status, &error);
    if (status != MPQ_OK)
        fail(run, state, error.message, status, 0);
    uint64_t recoveries = stats.recoveries;
    mpq_stats_get(queue, &stats);
    if (stats.depth != 1 + fresh || stats.lost_items != 0 || stats.recoveries != recoveries)
        fail(run, state, "the second open found something", stats.depth, stats.recoveries);
    (void)mpq_close(queue, &patient, &error);
    mpq_free(queue);
}

/* Recovery itself is cut short, up to three times; each wreck is the next one's start. */
static void verify(const struct run *run, int state, char path[256])
{
    for (volatile int depth = 0;; depth = depth + 1) {
        struct shadow *after = calloc(1, sizeof *after);
        if (after == NULL)
            exit(2);
        shadow_start(after, path, run->seed * 7919 + (uint64_t)state * 31 + (uint64_t)depth);
        counted.sum[0]++;
        if (depth < 3 && shadow_random(after) % 3 == 0)
            after->crash_at = 1 + shadow_random(after) % 40;
        shadow_adopt(after);
        if (setjmp(after->crash) == 0) {
            drain(run, after, state);
            shadow_end(after);
            free(after);
            return;
        }
        mpq_guard_top = NULL;
        char name[32], next[256];
        snprintf(name, sizeof name, "again%d", depth);
        wipe(name, next);
        shadow_crash(after, next, (unsigned)(shadow_random(after) % 5) * 25, 4096);
        shadow_end(after);
        free(after);
        strcpy(path, next);
    }
}

static void one(uint64_t seed)
{
    static const unsigned percents[] = {0, 10, 50, 90, 100};
    struct run *run = calloc(1, sizeof *run);
    struct shadow *world = calloc(1, sizeof *world);
    char path[256], image[256];
    if (run == NULL || world == NULL)
        exit(2);
    wipe("live", path);
    shadow_start(world, path, seed);
    shadow_adopt(world);
    run->world = world;
    run->seed = seed;
    mpq_options_default(&run->options);
    run->options.segment_size = 65536;
    run->options.max_segments = 4 + (uint32_t)(shadow_random(world) % 6);
    run->options.keep_segments = (uint32_t)(shadow_random(world) % 3);
    run->options.ack_window = 64u << (shadow_random(world) % 3);
    run->options.max_members = 8;
    run->options.interval_items = 5;
    run->durability = run->options.durability = (uint32_t)(shadow_random(world) % 4);
    if (seed % 2 != 0)
        run->options.key_window = 1 + (uint32_t)(shadow_random(world) % 100);
    letters_begin(run);
    world->crash_at = 20 + shadow_random(world) % 900;
    if (setjmp(world->crash) == 0)
        play(run);
    mpq_guard_top = NULL;
    world->crash_at = 0;
    for (int state = 0; state < images; state++) {
        unsigned percent = state == 0 ? 0 : percents[shadow_random(world) % 5];
        unsigned unit = shadow_random(world) % 3 == 0 ? 512 : 4096;
        wipe("state", image);
        shadow_crash(world, image, percent, unit);
        if (verbose)
            fprintf(stderr, "seed %llu state %d policy %u percent %u unit %u items %u calls %llu\n",
                    (unsigned long long)seed, state, run->durability, percent, unit,
                    run->oracle.items, (unsigned long long)world->calls);
        verify(run, state, image);
    }
    shadow_end(world);
    free(world);
    free(run);
}

/* A child for a few runs at a time: handles of dead worlds are never closed. */
static int some(uint64_t from, uint64_t to, struct figures *figures)
{
    int counts[2], status = 0;
    if (pipe(counts) != 0)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint64_t seed = from; seed < to; seed++)
            one(seed);
        _exit(write(counts[1], &counted, sizeof counted) == sizeof counted ? 0 : 2);
    }
    close(counts[1]);
    struct figures theirs;
    if (read(counts[0], &theirs, sizeof theirs) == sizeof theirs)
        for (int i = 0; i < 3; i++)
            figures->sum[i] += theirs.sum[i];
    close(counts[0]);
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    fprintf(stderr, "the child of seeds %llu.. ended with wait status %x\n",
            (unsigned long long)from, (unsigned)status);
    return 1;
}

static int work(unsigned worker, struct figures *figures)
{
    const char *root = getenv("MPQ_CRASH_DIR");
    snprintf(base, sizeof base, "%s/mpq-power-%d", root != NULL ? root : "/dev/shm", getpid());
    if (mkdir(base, 0700) != 0)
        return 2;
    for (uint64_t seed = first_seed + worker * A_CHILD; seed < first_seed + seeds;
         seed += WORKERS * A_CHILD)
        if (some(seed, mpq_min64(seed + A_CHILD, first_seed + seeds), figures) != 0)
            return 1;
    static const char *const names[] = {"live", "state", "again0", "again1", "again2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        wipe(names[i], path);
        (void)rmdir(path);
    }
    (void)rmdir(base);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: power FIRST_SEED RUNS STATES [v]\n");
        return 2;
    }
    first_seed = strtoull(argv[1], NULL, 10);
    seeds = strtoull(argv[2], NULL, 10);
    images = atoi(argv[3]);
    verbose = argc > 4;
    struct figures total;
    const int rc = workers_run(work, &total);
    printf("power: seeds %llu..%llu, %llu crash states, %llu dead letters, %llu of them beside "
           "their items, %s\n",
           (unsigned long long)first_seed, (unsigned long long)(first_seed + seeds - 1),
           (unsigned long long)total.sum[0], (unsigned long long)total.sum[1],
           (unsigned long long)total.sum[2], rc == 0 ? "0 violations" : "FAILED");
    return rc;
}
