/* nth.c - the N-th call of each kind fails: for N = 1, 2, ... until a run meets no failure.
 *
 * usage: nth [group | all | KIND] [on]    all policies, or group, or one kind under group;
 *                                         on: goes on after a violation
 *        nth POLICY KIND ERRNO N once|always
 *
 * One script (create, put, batch, roll, flush, consume, ack, checkpoint with reclaim, a second
 * handle, set, seal, key, close, reopen, reopen under another boot id) runs over an I/O table in
 * memory whose N-th call of one kind fails with one errno, once or from then on. Then the fault is
 * lifted.
 *
 *   - The call that met it returns an error of a documented class or hides it (a retry, work done
 *     ahead of need); a failed write-back of something published is never hidden.
 *   - A failed put is absent, or, where its flush failed, of unknown outcome; after a single fault
 *     the same call works, unless the queue is poisoned.
 *   - Poison holds for a handle that is opened later while another one lives; reading goes on; the
 *     next opener that is alone clears it. What is not known to be durable is not handed out.
 *   - Whatever had been accepted is delivered, in order, once; acks hold; nothing counts as lost
 *     and nothing is put aside as corrupt, because nothing was damaged.
 *   - A failed opening leaves the files as they were and nothing open or allocated; so does a
 * failed repair, except for conclusions that the next one draws again.
 *
 * `all` runs every policy. Built with the address sanitizer. */
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faulty.h"
#include "internal.h"
#include "workers.h"

#define ITEMS 256

enum fate { ABSENT, UNKNOWN, KEPT };

struct run {
    struct faulty *f;
    uint32_t policy;
    uint64_t n;
    struct mpq_queue *a, *b;
    struct mpq_consumer *consumer;
    uint8_t put[ITEMS], ack[ITEMS]; /* enum fate; ack: KEPT = durable */
    uint32_t next;
    struct mpq_item out[64];
    uint32_t out_count;
    bool poisoned, over, cut;
    const char *step;
};

static const struct mpq_call patient = {UINT64_MAX, NULL, NULL};
static struct run *current;
static bool survey;
static jmp_buf next_one;
static uint64_t violations;

static void failed(const char *what, const char *detail, uint64_t a, uint64_t b)
{
    const struct run *run = current;
    const struct faulty *f = run->f;
    fprintf(stderr, "FAILED at %s: %s%s%s (%llu, %llu)\nreplay: nth %u %s %d %llu %s\n", run->step,
            what, detail[0] != '\0' ? ": " : "", detail, (unsigned long long)a,
            (unsigned long long)b, run->policy, faulty_names[f->kind], f->error,
            (unsigned long long)run->n, f->always ? "always" : "once");
    violations++;
    if (survey)
        longjmp(next_one, 1);
    exit(1);
}

static void on_complaint(const char *what)
{
    failed("the core misuses its table", what, 0, 0);
}

/* ---- classes of errors */

static bool documented(const struct faulty *f, mpq_status status)
{
    switch (status) {
    case MPQ_SYSTEM:
    case MPQ_NO_SPACE:
    case MPQ_MEMORY:
    case MPQ_FLUSH_FAILED:
    case MPQ_POISONED: return true;
    case MPQ_FILESYSTEM: return f->kind == KIND_lock || f->kind == KIND_locked;
    default: return false;
    }
}

static bool is_poisoned(const struct mpq_queue *queue)
{
    return queue != NULL && queue->control != NULL && mpq_load(queue->control->poison_errno) != 0;
}

/* ... or says so to the next opener. */
static bool is_latched(const struct run *run)
{
    struct memory *world = &run->f->world;
    const struct memory_file *meta = memory_find(world, "meta");
    for (uint64_t i = 0; meta != NULL && (i + 1) * MPQ_PAGE <= meta->bytes; i++) {
        const struct mpq_meta_slot *slot = (const void *)(meta->data + i * MPQ_PAGE);
        if (slot->poison_errno != 0)
            return true;
    }
    return is_poisoned(run->a);
}

static bool write_back(enum kind kind)
{
    return kind == KIND_msync || kind == KIND_datasync;
}

/* ---- the script's calls. Each is made; when it fails, checked; when a single fault made it fail,
 * made again. */

static bool has_keys(const struct run *run)
{
    return run->policy % 2 == 0; /* none and group */
}

static mpq_status attach(struct run *run, struct mpq_queue **queue, struct mpq_error *error)
{
    struct mpq_open_args args = {.path = MEMORY_ROOT, .create = true, .io = &run->f->io};
    mpq_options_default(&args.options);
    args.options.segment_size = 65536;
    args.options.max_segments = 8;
    args.options.keep_segments = 1;
    args.options.ack_window = 64;
    args.options.max_members = 2;
    args.options.interval_items = 5;
    args.options.durability = run->policy;
    args.options.key_window = has_keys(run) ? 16 : 0;
    mpq_status status = mpq_open(&args, &patient, queue, error);
    if (status == MPQ_OK)
        mpq_open_gate(*queue, "/gate");
    return status;
}

static void fill(uint32_t id, uint8_t *body, uint32_t length)
{
    memset(body, (int)(id * 7 + 1), length);
    memcpy(body, &id, 4);
}

/* The id is the key. Once more: nothing is put, and the seqs are the same. */
static mpq_status put_keyed(struct mpq_queue *queue, struct mpq_item_in *in, uint32_t count,
                            uint32_t first, uint64_t *ticket, struct mpq_error *error)
{
    struct mpq_keyed keyed;
    uint16_t exts[4][4] = {0}; /* type, length, id */
    for (uint32_t i = 0; i < count; i++) {
        exts[i][0] = MPQ_EXT_KEY;
        exts[i][1] = 2;
        exts[i][2] = (uint16_t)(first + i);
        in[i].ext = exts[i];
        in[i].ext_length = sizeof exts[i];
    }
    uint64_t seq = 0, again;
    for (int round = 0;; round++) {
        mpq_status status = mpq_keyed_begin(queue, &keyed, in, count, error);
        if (status != MPQ_OK)
            return round == 0 ? status : *ticket != 0 ? MPQ_FLUSH : MPQ_OK;
        status = mpq_put_keyed(queue, &keyed, &patient, round == 0 ? ticket : &again, error);
        const uint64_t told = keyed.keys[0].seq;
        mpq_keyed_end(queue, &keyed);
        if (round != 0 && (status == MPQ_OK || status == MPQ_FLUSH) &&
            (told != seq || keyed.fresh_count != 0))
            failed("a key was accepted again", "", first, told);
        if (round != 0)
            return *ticket != 0 ? MPQ_FLUSH : MPQ_OK;
        if (status != MPQ_OK && status != MPQ_FLUSH)
            return status;
        seq = told;
    }
}

static mpq_status put(struct run *run, struct mpq_queue *queue, uint32_t count, bool large,
                      struct mpq_error *error)
{
    static uint8_t bodies[4][9000];
    struct mpq_item_in in[4];
    uint64_t seq, ticket = 0;
    const uint32_t first = run->next;
    run->next += count;
    if (run->next > ITEMS)
        failed("out of ids", "", 0, 0);
    for (uint32_t i = 0; i < count; i++) {
        in[i] =
            (struct mpq_item_in){.body = bodies[i], .length = large ? 9000 : 20 + (first + i) % 50};
        fill(first + i, bodies[i], in[i].length);
    }
    const uint64_t fired = run->f->fired;
    mpq_status status = has_keys(run)
                            ? put_keyed(queue, in, count, first, &ticket, error)
                            : mpq_put_batch(queue, in, count, &patient, &seq, &ticket, error);
    if (status != MPQ_OK && status != MPQ_FLUSH)
        return status; /* absent */
    memset(&run->put[first], UNKNOWN, count);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &patient, error);
    if (status == MPQ_OK)
        memset(&run->put[first], KEPT, count);
    else if (status != MPQ_FLUSH_FAILED && status != MPQ_POISONED)
        failed("a published put failed as if it were absent", error->message, status, first);
    if (status == MPQ_OK && ticket != 0 && run->f->fired != fired && write_back(run->f->kind) &&
        !run->f->aside && !is_poisoned(queue))
        failed("a failed write-back was hidden", "", 0, 0);
    return status;
}

typedef mpq_status step_call(struct run *run, struct mpq_error *error);

static mpq_status open_a(struct run *run, struct mpq_error *error)
{
    return attach(run, &run->a, error);
}

static mpq_status open_b(struct run *run, struct mpq_error *error)
{
    return attach(run, &run->b, error);
}

static mpq_status put_a(struct run *run, struct mpq_error *error)
{
    return put(run, run->a, 1, false, error);
}

static mpq_status put_b(struct run *run, struct mpq_error *error)
{
    return put(run, run->b, 1, false, error);
}

static mpq_status put_large(struct run *run, struct mpq_error *error)
{
    return put(run, run->a, 1, true, error);
}

static mpq_status put_batch(struct run *run, struct mpq_error *error)
{
    return put(run, run->a, 4, false, error);
}

static void all_kept(struct run *run)
{
    for (uint32_t i = 0; i < run->next; i++)
        if (run->ack[i] == UNKNOWN)
            run->ack[i] = KEPT;
}

static void not_hidden(const struct run *run, mpq_status status, uint64_t fired)
{
    if (status == MPQ_OK && run->f->fired != fired && write_back(run->f->kind) && !run->f->aside &&
        !is_poisoned(run->a))
        failed("a failed write-back was hidden", "", 0, 0);
}

static mpq_status flush(struct run *run, struct mpq_error *error)
{
    const uint64_t fired = run->f->fired;
    mpq_status status = mpq_flush(run->a, &patient, error);
    not_hidden(run, status, fired);
    if (status == MPQ_OK && run->consumer != NULL)
        all_kept(run);
    return status;
}

static mpq_status consume(struct run *run, struct mpq_error *error)
{
    return mpq_consumer_open(run->a, &patient, &run->consumer, error);
}

static void check_item(struct run *run, const struct mpq_item *item)
{
    uint32_t id = ITEMS;
    uint8_t want[9000];
    if (item->length >= 20 && item->length <= 9000)
        memcpy(&id, item->body, 4);
    if (id >= run->next || run->put[id] == ABSENT)
        failed("an item that was never accepted", "", id, item->seq);
    fill(id, want, item->length);
    if (memcmp(want, item->body, item->length) != 0)
        failed("an altered item", "", id, item->seq);
}

static mpq_status reserve(struct run *run, struct mpq_error *error)
{
    uint32_t taken = 0;
    mpq_status status =
        mpq_reserve_many_try(run->consumer, &run->out[run->out_count], 6, 0, &taken, error);
    for (uint32_t i = 0; i < taken; i++)
        check_item(run, &run->out[run->out_count++]);
    return status == MPQ_EMPTY ? MPQ_OK : status;
}

static mpq_status ack_at(struct run *run, uint32_t at, struct mpq_error *error)
{
    uint32_t id;
    if (at >= run->out_count)
        return MPQ_OK;
    const struct mpq_item *item = &run->out[at];
    memcpy(&id, item->body, 4);
    mpq_status status = mpq_ack(run->consumer, item->seq, item->token, error);
    if (status == MPQ_OK && run->ack[id] == ABSENT)
        run->ack[id] = UNKNOWN; /* asked; not durable yet */
    return status;
}

static mpq_status ack_some(struct run *run, struct mpq_error *error)
{
    static const uint32_t order[] = {2, 0, 1, 4};
    for (int i = 0; i < 4; i++) {
        mpq_status status = ack_at(run, order[i], error);
        if (status != MPQ_OK)
            return status;
    }
    return MPQ_OK;
}

static mpq_status ack_rest(struct run *run, struct mpq_error *error)
{
    mpq_status status = MPQ_OK;
    for (uint32_t i = 0; i < run->out_count && status == MPQ_OK; i++)
        status = ack_at(run, i, error);
    return status;
}

static mpq_status sync_acks(struct run *run, struct mpq_error *error)
{
    const uint64_t fired = run->f->fired;
    mpq_status status = mpq_consumer_sync(run->consumer, error);
    not_hidden(run, status, fired);
    if (status == MPQ_OK)
        all_kept(run);
    return status;
}

static mpq_status checkpoint(struct run *run, struct mpq_error *error)
{
    const uint64_t fired = run->f->fired;
    mpq_status status = mpq_checkpoint(run->consumer, &patient, error);
    not_hidden(run, status, fired);
    if (status == MPQ_OK)
        all_kept(run);
    return status;
}

static mpq_status set_option(struct run *run, struct mpq_error *error)
{
    struct mpq_options options;
    mpq_options_get(run->a, &options);
    options.capacity = 1000 + run->next;
    return mpq_options_set(run->a, MPQ_GIVEN_CAPACITY, &options, &patient, error);
}

static mpq_status seal(struct run *run, struct mpq_error *error)
{
    return mpq_seal(run->a, false, &patient, error);
}

static mpq_status unseal(struct run *run, struct mpq_error *error)
{
    return mpq_seal(run->a, true, &patient, error);
}

static mpq_status add_key(struct run *run, struct mpq_error *error)
{
    struct mpq_look look;
    mpq_status status = mpq_keys_get(run->a, &look, &patient, error);
    if (status != MPQ_OK)
        return status;
    const struct mpq_key *newest = look.keys_count != 0 ? &look.keys[look.keys_count - 1] : NULL;
    const struct mpq_key key = {.id = look.keys_count + 1};
    return mpq_key_add(run->a, newest, &key, &patient, error);
}

static void drop_items(struct run *run)
{
    for (uint32_t i = 0; i < run->out_count; i++)
        mpq_segment_release(run->out[i].segment);
    run->out_count = 0;
}

static mpq_status leave_role(struct run *run, struct mpq_error *error)
{
    drop_items(run);
    if (run->consumer == NULL)
        return MPQ_OK;
    mpq_status status = mpq_consumer_close(run->consumer, error);
    mpq_consumer_free(run->consumer);
    run->consumer = NULL;
    if (status == MPQ_OK && !is_poisoned(run->a))
        all_kept(run);
    return status;
}

static mpq_status close_handle(struct mpq_queue **queue, struct mpq_error *error)
{
    if (*queue == NULL)
        return MPQ_OK;
    mpq_status status = mpq_close(*queue, &patient, error);
    mpq_free(*queue);
    *queue = NULL;
    return status;
}

static mpq_status close_a(struct run *run, struct mpq_error *error)
{
    return close_handle(&run->a, error);
}

static mpq_status close_b(struct run *run, struct mpq_error *error)
{
    return close_handle(&run->b, error);
}

static mpq_status reboot(struct run *run, struct mpq_error *error)
{
    (void)error;
    snprintf(run->f->world.boot_id, sizeof run->f->world.boot_id, "boot-%u", run->next);
    return MPQ_OK;
}

static mpq_status repair_as(struct run *run, bool dry, struct mpq_error *error)
{
    struct mpq_repair report;
    mpq_status status = mpq_repair_queue(MEMORY_ROOT, &run->f->io, dry, &patient, &report, error);
    if (status == MPQ_OK && (report.lost_items != 0 || report.torn_items != 0))
        failed("a repair found damage", "", report.lost_items, report.torn_items);
    return status;
}

static mpq_status repair(struct run *run, struct mpq_error *error)
{
    return repair_as(run, false, error);
}

static mpq_status repair_dry(struct run *run, struct mpq_error *error)
{
    return repair_as(run, true, error);
}

struct step {
    const char *name;
    step_call *call;
};

static const struct step script[] = {
    {"create", open_a},
    {"put", put_a},
    {"put", put_a},
    {"batch", put_batch},
    {"put large", put_large},
    {"put large", put_large},
    {"consumer", consume},
    {"reserve", reserve},
    {"ack", ack_some},
    {"sync", sync_acks},
    {"join", open_b},
    {"put joined", put_b},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"flush", flush},
    {"close joined", close_b},
    {"reserve", reserve},
    {"reserve", reserve},
    {"ack", ack_rest},
    {"checkpoint", checkpoint},
    {"set", set_option},
    {"seal", seal},
    {"unseal", unseal},
    {"key", add_key},
    {"batch", put_batch},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"put large", put_large},
    {"flush", flush},
    {"leave", leave_role},
    {"close", close_a},
    {"reopen", open_a},
    {"put", put_a},
    {"consumer", consume},
    {"reserve", reserve},
    {"ack", ack_some},
    {"leave", leave_role},
    {"close", close_a},
    {"reboot", reboot},
    {"rebuild", open_a},
    {"put", put_a},
    {"consumer", consume},
    {"reserve", reserve},
    {"ack", ack_some},
    {"leave", leave_role},
    {"close", close_a},
    {"reboot", reboot},
    {"rebuild", open_a},
    {"put", put_a},
    {"close", close_a},
    {"look", repair_dry},
    {"repair", repair},
    {"reopen", open_a},
    {"put", put_a},
    {"close", close_a},
};

/* ---- openings that fail */

struct image {
    uint64_t files, leaks;
};

/* All but control, which is volatile, and what lies in preparation. */
static struct image image_of(const struct run *run)
{
    const struct memory *world = &run->f->world;
    struct image image = {0, memory_leaks(world)};
    for (int i = 0; i < MEMORY_FILES; i++) {
        const struct memory_file *file = &world->files[i];
        if (file->used && file->links != 0 &&
            (strcmp(file->name, "meta") == 0 || strcmp(file->name, "cursor") == 0 ||
             strncmp(file->name, "segment-", 8) == 0))
            image.files +=
                mpq_xxh64(file->data, file->bytes, mpq_xxh64(file->name, strlen(file->name), 0));
    }
    return image;
}

static bool is_opening(const struct step *step)
{
    return step->call == open_a || step->call == open_b;
}

static void check_failed_opening(const struct run *run, const struct step *step,
                                 const struct image *before)
{
    const struct image after = image_of(run);
    if (after.leaks != before->leaks)
        failed("a failed opening leaves something open", "", after.leaks, before->leaks);
    /* Rebuilding writes what it concluded, and making a queue makes it. */
    if (strcmp(step->name, "reopen") == 0 && after.files != before->files)
        failed("a failed opening changed files", "", 0, 0);
}

/* ---- afterwards */

static void drain(struct run *run)
{
    bool seen[ITEMS] = {false};
    struct mpq_error error;
    uint64_t last = 0;
    for (int idle = 0;;) {
        struct mpq_item item;
        uint32_t id;
        mpq_status status = mpq_reserve_try(run->consumer, &item, &error);
        if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
            if (mpq_depth(run->a) == 0)
                break;
            if (idle++ == 40)
                failed("items are left that nobody gets", "", mpq_depth(run->a), last);
            status = mpq_reserve_wait(run->consumer, &patient, &error);
            if (status == MPQ_OK)
                continue;
        }
        if (status != MPQ_OK)
            failed("the drain", error.message, status, last);
        check_item(run, &item);
        memcpy(&id, item.body, 4);
        if (seen[id] || item.seq <= last)
            failed("out of order or twice", "", id, item.seq);
        if (run->ack[id] == KEPT)
            failed("an ack was undone", "", id, item.seq);
        seen[id] = true;
        last = item.seq;
        mpq_segment_release(item.segment);
        if (mpq_ack(run->consumer, item.seq, item.token, &error) != MPQ_OK)
            failed("ack", error.message, 0, 0);
    }
    for (uint32_t id = 0; id < run->next; id++)
        if (run->put[id] == KEPT && run->ack[id] == ABSENT && !seen[id])
            failed("lost", "", id, 0);
    struct mpq_stats stats;
    mpq_stats_get(run->a, &stats);
    if (stats.depth != 0 || stats.lost_items != 0 || stats.torn_items != 0 ||
        stats.corrupt_saved != 0)
        failed("something is left, lost or put aside", "", stats.lost_items, stats.corrupt_saved);
}

static void must(mpq_status status, const struct mpq_error *error, const char *what)
{
    if (status != MPQ_OK)
        failed(what, error->message, status, 0);
}

/* Somebody is still attached: everybody else meets the poison, and reading goes on. */
static void poison_holds(struct run *run)
{
    struct mpq_error error;
    struct mpq_queue *later = NULL;
    struct mpq_item_in in = {.body = "poisoned", .length = 8};
    uint64_t seq, ticket;
    must(attach(run, &later, &error), &error, "opening a poisoned queue beside a living member");
    mpq_status status = mpq_put(later, &in, &patient, &seq, &ticket, &error);
    if (status != MPQ_POISONED)
        failed("a put into a poisoned queue", mpq_status_name(status), status, 0);
    if (mpq_flush(later, &patient, &error) != MPQ_POISONED)
        failed("a flush of a poisoned queue", "", 0, 0);
    must(close_handle(&later, &error), &error, "close");
    if (run->consumer == NULL)
        return;
    status = mpq_consumer_sync(run->consumer, &error);
    if (status != MPQ_POISONED && status != MPQ_OK)
        failed("a sync of a poisoned queue", error.message, status, 0);
    struct mpq_item item;
    while ((status = mpq_reserve_try(run->consumer, &item, &error)) == MPQ_OK) {
        uint32_t id;
        check_item(run, &item);
        memcpy(&id, item.body, 4);
        mpq_segment_release(item.segment);
        if (run->put[id] == UNKNOWN && mpq_visible_is_durable(run->a))
            failed("an item whose flush failed is visible", "", id, item.seq);
    }
    if (status != MPQ_EMPTY && status != MPQ_SEALED && status != MPQ_AGAIN)
        failed("reading a poisoned queue", error.message, status, 0);
}

static void afterwards(struct run *run)
{
    struct mpq_error error;
    run->f->at = 0;
    run->step = "afterwards";
    if (is_poisoned(run->a))
        poison_holds(run);
    (void)leave_role(run, &error);
    (void)close_b(run, &error);
    (void)close_a(run, &error);
    if (memory_leaks(&run->f->world) != 0)
        failed("something stays open", "", memory_leaks(&run->f->world), 0);
    if (run->n % 2 == 0) {
        (void)reboot(run, &error);
        for (uint32_t i = 0; i < run->next; i++) /* those are in the cursor, or may come again */
            if (run->policy == MPQ_DURABILITY_NONE && run->ack[i] == KEPT)
                run->ack[i] = UNKNOWN;
    }
    must(attach(run, &run->a, &error), &error, "opening again");
    if (is_poisoned(run->a))
        failed("a sole opener leaves the poison", "", 0, 0);
    must(mpq_seal(run->a, true, &patient, &error), &error, "lifting the seal");
    must(put(run, run->a, 1, false, &error), &error, "the next put");
    must(consume(run, &error), &error, "the next consumer");
    drain(run);
    must(leave_role(run, &error), &error, "leaving");
    must(close_a(run, &error), &error, "closing");
    if (memory_leaks(&run->f->world) != 0)
        failed("something stays open at the end", "", memory_leaks(&run->f->world), 0);
    if (run->f->world.directories[MEMORY_SHELF])
        failed("something was put aside as corrupt", "", 0, 0);
}

static void perform(struct run *run, const struct step *step)
{
    struct mpq_error error;
    run->step = step->name;
    for (int attempt = 0;; attempt++) {
        const struct image before = image_of(run);
        const uint64_t fired = run->f->fired;
        mpq_status status = step->call(run, &error);
        if (status == MPQ_OK)
            return;
        if (run->f->fired == 0)
            failed("without any fault", error.message, status, 0);
        if (!documented(run->f, status))
            failed("an error of another class", error.message, status, 0);
        if (status == MPQ_FLUSH_FAILED && write_back(run->f->kind) && !is_latched(run))
            failed("a failed write-back is not latched", error.message, 0, 0);
        if (is_opening(step))
            check_failed_opening(run, step, &before);
        const bool gone =
            step->call == close_a || step->call == close_b || step->call == leave_role;
        if (is_poisoned(run->a) || status == MPQ_FLUSH_FAILED || run->f->always || gone) {
            run->over = true;
            return;
        }
        if (attempt > 0 && run->f->fired == fired)
            failed("it does not work again after a single fault", error.message, status, 0);
    }
}

/* True when the fault was met. */
static bool one(uint32_t policy, enum kind kind, int error, uint64_t n, bool always)
{
    struct faulty *f = calloc(1, sizeof *f);
    struct run *run = calloc(1, sizeof *run);
    if (f == NULL || run == NULL)
        exit(2);
    faulty_start(f);
    f->kind = kind;
    f->error = error;
    f->always = always;
    f->at = n;
    run->f = f;
    run->policy = policy;
    run->n = n;
    current = run;
    if (setjmp(next_one) != 0)
        return true;
    for (size_t i = 0; i < sizeof script / sizeof *script && !run->over; i++)
        perform(run, &script[i]);
    const bool met = f->fired != 0;
    afterwards(run);
    memory_end(&f->world);
    free(f);
    free(run);
    return met;
}

static bool all;
static const char *only; /* kind */

static uint64_t all_of(uint32_t policy, unsigned worker, uint64_t *most)
{
    uint64_t runs = 0;
    unsigned job = 0;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int i = 0; faulty_errnos[kind][i] != 0; i++)
            for (int always = 0; always < 2; always++) {
                if ((only != NULL && strcmp(only, faulty_names[kind]) != 0) ||
                    job++ % WORKERS != worker)
                    continue;
                /* A write that is interrupted for ever is no fault but a livelock. */
                if (always && faulty_errnos[kind][i] == EINTR &&
                    (kind == KIND_pread || kind == KIND_pwrite))
                    continue;
                uint64_t n = 1;
                while (one(policy, (enum kind)kind, faulty_errnos[kind][i], n, always))
                    n++;
                runs += n;
                *most = mpq_max64(*most, n);
                if (n == 1 && kind != KIND_mkdir)
                    failed("no call of this kind was met", faulty_names[kind], 0, 0);
            }
    return runs;
}

static int replay(char **argv)
{
    int kind = 0;
    while (kind < KIND_COUNT && strcmp(faulty_names[kind], argv[2]) != 0)
        kind++;
    if (kind == KIND_COUNT)
        return 2;
    bool met = one((uint32_t)atoi(argv[1]), (enum kind)kind, atoi(argv[3]),
                   strtoull(argv[4], NULL, 10), strcmp(argv[5], "always") == 0);
    printf("nth: the fault was %s, 0 violations\n", met ? "met" : "not met");
    return 0;
}

static int work(unsigned worker, struct figures *figures)
{
    for (uint32_t policy = 0; policy < 4; policy++)
        if (all || policy == MPQ_DURABILITY_GROUP)
            figures->sum[0] += all_of(policy, worker, &figures->most);
    return violations == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    memory_complaint = on_complaint;
    if (argc > 5)
        return replay(argv);
    survey = argc > 2;
    all = argc > 1 && strcmp(argv[1], "all") == 0;
    only = argc > 1 && !all && strcmp(argv[1], "group") != 0 ? argv[1] : NULL;
    struct figures total;
    const int rc = workers_run(work, &total);
    printf("nth: %llu runs, up to %llu calls of a kind, %s\n", (unsigned long long)total.sum[0],
           (unsigned long long)total.most, rc == 0 ? "0 violations" : "FAILED");
    return rc;
}
