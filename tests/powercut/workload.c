/* workload.c - what is recorded: four producers, a consumer with durable acks, early writeback.
 *
 * Every process opens the queue by itself. Positions are noted before and after each call, straight
 * into the shared ledger, so a kill loses none that counts. The writer-back starts the writing of
 * random pages without a flush: the kernel may do so at any time, and does it rarely by itself. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

#define MS 1000000ull

struct worker {
    struct store *store;
    struct ledger *ledger;
    const char *path;
    const char *name;
    uint64_t random;
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
};

static const struct mpq_call patient = {UINT64_MAX, NULL, NULL};

static struct mpq_call within(uint64_t ns)
{
    return (struct mpq_call){mpq_monotonic_ns() + ns, NULL, NULL};
}

static _Noreturn void fail(const struct worker *worker, const char *what, mpq_status status)
{
    fprintf(stderr, "powercut: recording of seed %llu, %s: %s (%s)\n",
            (unsigned long long)worker->ledger->seed, worker->name, what, mpq_status_name(status));
    _exit(1);
}

static uint32_t position(const struct worker *worker)
{
    return atomic_load(&worker->store->position);
}

static void lower(_Atomic uint32_t *word, uint32_t value)
{
    uint32_t old = atomic_load(word);
    while (value < old && !atomic_compare_exchange_weak(word, &old, value))
        ;
}

static void attach(struct worker *worker)
{
    struct mpq_open_args args = {.path = worker->path, .create = true};
    struct mpq_error error;
    args.options = worker->ledger->options;
    const mpq_status status = mpq_open(&args, &patient, &worker->queue, &error);
    if (status != MPQ_OK)
        fail(worker, error.message, status);
    mpq_open_gate(worker->queue, NULL);
    lower(&worker->ledger->created, position(worker));
}

static void leave(struct worker *worker)
{
    struct mpq_error error;
    const mpq_status status = mpq_close(worker->queue, &patient, &error);
    if (status != MPQ_OK)
        fail(worker, error.message, status);
    mpq_free(worker->queue);
}

/* ---- flush: what anybody had published before it is durable after it */

struct published {
    bool was[ITEMS];
};

static void look(const struct worker *worker, struct published *published)
{
    for (uint32_t id = 0; id < ITEMS; id++)
        published->was[id] = atomic_load(&worker->ledger->items[id].returned) != NEVER;
}

static void all_durable(struct worker *worker, const struct published *published)
{
    const uint32_t after = position(worker);
    for (uint32_t id = 0; id < ITEMS; id++)
        if (published->was[id])
            lower(&worker->ledger->items[id].durable, after);
}

static void flush(struct worker *worker)
{
    struct published published;
    struct mpq_error error;
    look(worker, &published);
    const mpq_status status = mpq_flush(worker->queue, &patient, &error);
    if (status != MPQ_OK)
        fail(worker, error.message, status);
    all_durable(worker, &published);
}

/* ---- producers */

/* Up to count items from `first`; returns how many ids it used. */
static uint32_t put(struct worker *worker, uint32_t first, uint32_t count)
{
    static uint8_t bodies[BATCH_MAX][128 * 1024];
    struct mpq_item_in in[BATCH_MAX];
    struct item *items = &worker->ledger->items[first];
    struct mpq_error error;
    uint64_t seq = 0, ticket = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t length = payload_length(worker->ledger->seed, first + i);
        if (i != 0 && length > 3000)
            count = i; /* batches stay small */
        payload_fill(worker->ledger->seed, first + i, bodies[i]);
        in[i] = (struct mpq_item_in){bodies[i], length, NULL, 0};
    }
    if (count > 1 && in[0].length > 3000)
        count = 1;
    for (uint32_t i = 0; i < count; i++) {
        items[i].first = first;
        items[i].count = count;
        atomic_store(&items[i].asked, position(worker));
    }
    const struct mpq_call call = within(100 * MS);
    mpq_status status = mpq_put_batch(worker->queue, in, count, &call, &seq, &ticket, &error);
    if (status == MPQ_FULL || status == MPQ_TOO_LARGE) {
        for (uint32_t i = 0; i < count; i++) /* a refused item is in no image */
            atomic_store(&items[i].asked, NEVER);
        atomic_fetch_add(&worker->ledger->refused, count);
        return count;
    }
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(worker->queue, ticket, &patient, &error);
    if (status != MPQ_OK)
        fail(worker, error.message, status);
    const uint32_t after = position(worker);
    for (uint32_t i = 0; i < count; i++) {
        atomic_store(&items[i].seq, seq + i);
        atomic_store(&items[i].returned, after);
        if (worker->ledger->durability >= MPQ_DURABILITY_GROUP)
            lower(&items[i].durable, after);
    }
    return count;
}

static void produce(struct worker *worker, uint32_t number)
{
    const uint32_t operations = 40 + (uint32_t)(mix(&worker->random) % 60);
    uint32_t used = 0;
    attach(worker);
    for (uint32_t i = 0; i < operations && used + BATCH_MAX <= ITEMS_EACH - 1; i++) {
        const uint64_t choice = mix(&worker->random) % 100;
        const uint32_t next = number * ITEMS_EACH + used;
        if (choice < 70) {
            used += put(worker, next, 1);
        } else if (choice < 85) {
            used += put(worker, next, 2 + (uint32_t)(mix(&worker->random) % (BATCH_MAX - 1)));
        } else if (choice < 92) {
            flush(worker);
        } else if (choice < 95) {
            struct published published;
            look(worker, &published);
            leave(worker); /* flushes what this process published */
            for (uint32_t id = 0; id < ITEMS; id++)
                published.was[id] &= id / ITEMS_EACH == number;
            all_durable(worker, &published);
            attach(worker);
            atomic_fetch_add(&worker->ledger->reopened, 1);
        } else {
            usleep((useconds_t)(mix(&worker->random) % 3000));
        }
    }
    leave(worker);
}

/* ---- the consumer */

static void acks_durable(struct worker *worker)
{
    const uint32_t after = position(worker);
    for (uint32_t id = 0; id < ITEMS; id++) /* all acks are this process's */
        if (atomic_load(&worker->ledger->items[id].ack_asked) != NEVER)
            lower(&worker->ledger->items[id].ack_durable, after);
}

static void take(struct worker *worker)
{
    struct mpq_error error;
    struct mpq_item items[16];
    uint64_t seqs[16], tokens[16];
    uint32_t taken = 0, acks = 0, bad = 0;
    const struct ledger *ledger = worker->ledger;
    mpq_status status =
        mpq_reserve_many_try(worker->consumer, items, 1 + (uint32_t)(mix(&worker->random) % 16), 0,
                             &taken, &error);
    if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
        const struct mpq_call call = within(2 * MS);
        status = mpq_reserve_wait(worker->consumer, &call, &error);
        if (status != MPQ_OK && status != MPQ_TIMEOUT)
            fail(worker, error.message, status);
        return;
    }
    if (status != MPQ_OK)
        fail(worker, error.message, status);
    for (uint32_t i = 0; i < taken; i++) {
        uint32_t id = 0;
        if (!payload_is_right(ledger->seed, items[i].body, items[i].length, &id))
            fail(worker, "an altered item while live", MPQ_CORRUPT);
        struct item *item = &worker->ledger->items[id];
        if (ledger->durability >= MPQ_DURABILITY_GROUP)
            lower(&item->durable, position(worker)); /* visible means durable */
        mpq_segment_release(items[i].segment);
        const uint64_t choice = mix(&worker->random) % 100;
        if (choice < 75) {
            lower(&item->ack_asked, position(worker));
            seqs[acks] = items[i].seq;
            tokens[acks++] = items[i].token;
        } else if (choice < 92) {
            status = mpq_nack(worker->consumer, items[i].seq, items[i].token, &error);
            if (status != MPQ_OK)
                fail(worker, error.message, status);
        }
    }
    if (acks != 0) {
        status = mpq_ack_many(worker->consumer, seqs, tokens, acks, &bad, &error);
        if (status != MPQ_OK)
            fail(worker, error.message, status);
    }
    if (mpq_ack_needs_sync(worker->consumer) || mix(&worker->random) % 5 == 0) {
        status = mpq_consumer_sync(worker->consumer, &error);
        if (status != MPQ_OK)
            fail(worker, error.message, status);
        acks_durable(worker);
    }
}

static void consume(struct worker *worker)
{
    struct mpq_error error;
    struct published published;
    mpq_status status;
    attach(worker);
    if ((status = mpq_consumer_open(worker->queue, &patient, &worker->consumer, &error)) != MPQ_OK)
        fail(worker, error.message, status);
    for (int rounds = 0; atomic_load(&worker->ledger->finished) < PRODUCERS || rounds++ < 8;) {
        const uint64_t choice = mix(&worker->random) % 100;
        uint64_t items, bytes;
        if (choice < 88) {
            take(worker);
        } else if (choice < 92) {
            look(worker, &published);
            status = mpq_checkpoint(worker->consumer, &patient, &error);
            if (status != MPQ_OK)
                fail(worker, error.message, status);
            all_durable(worker, &published);
            acks_durable(worker);
            atomic_fetch_add(&worker->ledger->checkpoints, 1);
        } else if (choice < 97) {
            if ((status = mpq_rewind(worker->consumer, &items, &bytes, &error)) != MPQ_OK)
                fail(worker, error.message, status);
        } else {
            if ((status = mpq_consumer_close(worker->consumer, &error)) != MPQ_OK)
                fail(worker, error.message, status);
            acks_durable(worker);
            mpq_consumer_free(worker->consumer);
            status = mpq_consumer_open(worker->queue, &patient, &worker->consumer, &error);
            if (status != MPQ_OK)
                fail(worker, error.message, status);
        }
    }
    if ((status = mpq_consumer_close(worker->consumer, &error)) != MPQ_OK)
        fail(worker, error.message, status);
    acks_durable(worker);
    mpq_consumer_free(worker->consumer);
    leave(worker);
}

/* ---- early writeback */

static void write_back_one(struct worker *worker, int folder, const char *name)
{
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return; /* renamed or removed meanwhile */
    const off_t end = lseek(file, 0, SEEK_END);
    if (end > 0) {
        const off_t page = (off_t)(mix(&worker->random) % ((uint64_t)end / PAGE + 1)) * PAGE;
        (void)sync_file_range(file, page, PAGE * (off_t)(1 + mix(&worker->random) % 8),
                              SYNC_FILE_RANGE_WRITE);
    }
    close(file);
}

static void write_back(struct worker *worker)
{
    while (atomic_load(&worker->ledger->finished) < PRODUCERS) {
        const int folder = open(worker->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *directory = folder < 0 ? NULL : fdopendir(folder);
        for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
            if (mix(&worker->random) % 2 == 0)
                write_back_one(worker, folder, entry->d_name);
        if (directory != NULL)
            closedir(directory);
        usleep((useconds_t)(mix(&worker->random) % 2000));
    }
}

/* ---- all of them */

static void kill_all(const pid_t *children, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (children[i] != 0)
            kill(children[i], SIGKILL);
}

static pid_t start(struct worker worker, uint32_t number)
{
    const pid_t child = fork();
    if (child != 0)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    worker.random = worker.ledger->seed * 1000 + number;
    worker.name = number < PRODUCERS    ? "producer"
                  : number == PRODUCERS ? "consumer"
                                        : "writer-back";
    if (number < PRODUCERS) {
        produce(&worker, number);
        atomic_fetch_add(&worker.ledger->finished, 1);
    } else if (number == PRODUCERS) {
        consume(&worker);
    } else {
        write_back(&worker);
    }
    _exit(0);
}

void workload_run(struct store *store, struct ledger *ledger, const char *path)
{
    struct worker worker = {.store = store, .ledger = ledger, .path = path};
    uint64_t random = ledger->seed;
    struct mpq_options *options = &ledger->options;
    mpq_options_default(options);
    options->segment_size = 65536;
    options->max_segments = 4 + (uint32_t)(mix(&random) % 6);
    options->keep_segments = (uint32_t)(mix(&random) % 3);
    options->ack_window = 64u << (mix(&random) % 3);
    options->max_members = 16;
    options->interval_items = 8;
    options->durability = ledger->durability;
    const bool with_write_back = mix(&random) % 3 != 0;
    const uint32_t kill_after = mix(&random) % 2 == 0 ? 0 : 200 + (uint32_t)(mix(&random) % 3000);

    pid_t children[PRODUCERS + 2];
    const uint32_t count = PRODUCERS + (with_write_back ? 2 : 1);
    for (uint32_t i = 0; i < count; i++)
        children[i] = start(worker, i);
    uint32_t left = count;
    bool killed = false, failed = false;
    while (left != 0) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, kill_after != 0 && !killed ? WNOHANG : 0);
        if (ended == 0) {
            killed = atomic_load(&store->position) - ledger->mounted >= kill_after;
            if (killed)
                kill_all(children, count);
            usleep(100);
            continue;
        }
        for (uint32_t i = 0; i < count; i++)
            if (children[i] == ended) {
                children[i] = 0;
                left--;
                if (status != 0 && !(killed && WIFSIGNALED(status)))
                    failed = killed = true;
            }
        if (failed)
            kill_all(children, count);
    }
    if (failed)
        exit(1);
}
