/* actor.c - see actor.h. */
#include "actor.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct mpq_io table;
static struct shared *common;
static struct actor *self; /* NULL in the referee */
static uint32_t sleeps;

/* ---- the I/O table */

static void stand_still(uint64_t ns)
{
    atomic_fetch_add(&common->clock_ns, ns);
    sleeps++;
    if (self != NULL)
        raise(SIGSTOP);
}

static int futex_wait(mpq_io *io, _Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    (void)io;
    if (atomic_load(word) == value)
        stand_still(timeout_ns);
    return 0;
}

static int futex_wake(mpq_io *io, _Atomic uint32_t *word, int count)
{
    (void)io;
    (void)word;
    (void)count;
    return 0;
}

static void pause_(mpq_io *io, uint64_t ns)
{
    (void)io;
    stand_still(ns);
}

static uint64_t monotonic_ns(mpq_io *io)
{
    (void)io;
    return atomic_fetch_add(&common->clock_ns, 1);
}

static uint64_t wall_ns(mpq_io *io)
{
    (void)io;
    return 1800000000000000000ULL + atomic_load(&common->clock_ns);
}

static int no_threads(mpq_io *io, pthread_t *thread, void *(*run)(void *), void *arg)
{
    (void)io;
    (void)thread;
    (void)run;
    (void)arg;
    return EAGAIN;
}

/* The segment whose bytes lie at address: its static header says which. */
static struct mpq_segment *segment_at(const uint8_t *address)
{
    for (unsigned i = 0; self->queue != NULL && i < MPQ_MAPS; i++) {
        struct mpq_segment *segment = self->queue->maps[i];
        if (segment != NULL && address >= segment->base && address < segment->base + segment->bytes)
            return segment;
    }
    return NULL;
}

static int msync_(mpq_io *io, void *address, size_t bytes)
{
    (void)io;
    const struct mpq_segment *segment = self != NULL ? segment_at(address) : NULL;
    if (segment != NULL) {
        struct writing *writing = &common->actor[self->index].writing;
        writing->generation = segment->generation;
        writing->from = (uint64_t)((const uint8_t *)address - segment->base);
        writing->to = writing->from + bytes;
        writing->phase = 1;
        raise(SIGSTOP);
        writing->phase = 2;
        raise(SIGSTOP);
        writing->phase = 0;
    }
    return 0;
}

static int no_sync(mpq_io *io, int fd)
{
    (void)io;
    (void)fd;
    return 0;
}

const struct mpq_io *actor_io(struct shared *shared, struct actor *actor)
{
    common = shared;
    self = actor;
    table = mpq_io_system;
    table.futex_wait = futex_wait;
    table.futex_wake = futex_wake;
    table.pause = pause_;
    table.monotonic_ns = monotonic_ns;
    table.wall_ns = wall_ns;
    table.spawn = no_threads;
    table.msync = msync_;
    table.sync = table.datasync = no_sync;
    return &table;
}

uint32_t actor_sleeps(void)
{
    return sleeps;
}

/* ---- items */

uint32_t item_length(uint32_t id)
{
    return 4 + (id * 2654435761u >> 8) % 200;
}

static uint8_t byte_of(uint32_t id, uint32_t i)
{
    return (uint8_t)(id * 31 + i * 7 + 1);
}

uint32_t item_id(const struct mpq_item *item)
{
    uint32_t id = IDS;
    if (item->length < 4)
        return IDS;
    memcpy(&id, item->body, 4);
    for (uint32_t i = 4; i < item->length; i++)
        if (item->body[i] != byte_of(id, i))
            return IDS;
    return id < IDS ? id : IDS;
}

/* ---- calls */

mpq_status actor_attach(const struct actor *actor, struct mpq_queue **queue,
                        struct mpq_error *error)
{
    struct mpq_open_args args = {.path = actor->path, .create = true, .io = &table};
    mpq_options_default(&args.options);
    args.options.segment_size = 65536;
    args.options.max_segments = 8;
    args.options.keep_segments = 1;
    args.options.ack_window = 64;
    args.options.max_members = 8;
    args.options.durability = actor->durability;
    mpq_status status = mpq_open(&args, &forever, queue, error);
    if (status == MPQ_OK)
        mpq_open_gate(*queue, NULL);
    return status;
}

mpq_status actor_put(struct shared *shared, struct mpq_queue *queue, uint32_t count,
                     uint32_t length, struct mpq_error *error)
{
    static uint8_t bodies[5][4096];
    struct mpq_item_in in[5];
    uint64_t seq, ticket = 0;
    const uint32_t first = atomic_fetch_add(&shared->next, count);
    if (first + count > IDS)
        return mpq_fail(error, MPQ_INTERNAL, "out of ids");
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t id = first + i;
        in[i] = (struct mpq_item_in){.body = bodies[i],
                                     .length = length != 0 ? length : item_length(id)};
        for (uint32_t k = 4; k < in[i].length; k++)
            bodies[i][k] = byte_of(id, k);
        memcpy(bodies[i], &id, 4);
        shared->first[id] = first;
        shared->count[id] = count;
        shared->put[id] = ASKED;
    }
    mpq_status status = mpq_put_batch_try(queue, in, count, &seq, &ticket, error);
    if (status == MPQ_AGAIN)
        status = mpq_put_batch(queue, in, count, &forever, &seq, &ticket, error);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &forever, error);
    if (status == MPQ_OK)
        memset(&shared->put[first], RETURNED, count);
    return status;
}

/* ---- programs */

static void complain(const struct actor *actor, char letter, mpq_status status,
                     const struct mpq_error *error)
{
    char *out = actor->shared->actor[actor->index].failure;
    snprintf(out, sizeof actor->shared->actor[0].failure, "'%c': %s: %s", letter,
             mpq_status_name(status), error->message);
    _exit(3);
}

static mpq_status reserve(struct actor *actor, struct mpq_error *error)
{
    struct shared *shared = actor->shared;
    uint32_t got = 0;
    struct mpq_item *room = actor->items + actor->taken;
    const struct mpq_call soon = {mpq_load(shared->clock_ns) + 300 * MPQ_MS, NULL, NULL};
    mpq_status status = mpq_reserve_many_try(actor->consumer, room, 4, 0, &got, error);
    while (status == MPQ_EMPTY || status == MPQ_AGAIN) {
        status = mpq_reserve_wait(actor->consumer, &soon, error);
        if (status == MPQ_TIMEOUT)
            return MPQ_OK;
        if (status == MPQ_OK)
            status = mpq_reserve_many_try(actor->consumer, room, 4, 0, &got, error);
    }
    for (uint32_t i = 0; status == MPQ_OK && i < got; i++) {
        const uint32_t id = item_id(&actor->items[actor->taken + i]);
        if (id == IDS)
            return mpq_fail(error, MPQ_INTERNAL, "an altered item, seq %llu",
                            (unsigned long long)actor->items[actor->taken + i].seq);
        if (shared->ack[id] == RETURNED)
            return mpq_fail(error, MPQ_INTERNAL, "handed out after its ack: id %u", id);
        if (++shared->out[id] > shared->roles)
            return mpq_fail(error, MPQ_INTERNAL, "handed out twice: id %u", id);
    }
    actor->taken += got;
    return status;
}

static mpq_status ack(struct actor *actor, struct mpq_error *error)
{
    mpq_status status = MPQ_OK;
    while (status == MPQ_OK && actor->taken > 0) {
        const uint32_t at = actor->taken > 1 ? actor->taken - 2 : 0; /* last but one: a hole */
        struct mpq_item item = actor->items[at];
        actor->items[at] = actor->items[--actor->taken];
        const uint32_t id = item_id(&item);
        actor->shared->ack[id] = ASKED;
        status = mpq_ack(actor->consumer, item.seq, item.token, error);
        mpq_segment_release(item.segment);
        if (status == MPQ_OK)
            actor->shared->ack[id] = RETURNED;
    }
    return status;
}

static mpq_status letter(struct actor *actor, char what, struct mpq_error *error)
{
    struct shared *shared = actor->shared;
    switch (what) {
    case 'o': return actor_attach(actor, &actor->queue, error);
    case 'p': return actor_put(shared, actor->queue, 1, 0, error);
    case 'b': return actor_put(shared, actor->queue, 5, 0, error);
    case 'l': return actor_put(shared, actor->queue, 1, 4000, error);
    case 'f': return mpq_flush(actor->queue, &forever, error);
    case 'c':
        shared->roles++;
        return mpq_consumer_open(actor->queue, &forever, &actor->consumer, error);
    case 'r': return actor->taken + 4 <= IN_HAND ? reserve(actor, error) : MPQ_OK;
    case 'a': return ack(actor, error);
    case 'y': return mpq_consumer_sync(actor->consumer, error);
    case 'k': return mpq_checkpoint(actor->consumer, &forever, error);
    case 'x': {
        mpq_status status = mpq_close(actor->queue, &forever, error);
        if (status == MPQ_OK)
            mpq_free(actor->queue); /* the kernel's locks go with the process */
        actor->queue = NULL;
        return status;
    }
    default: return mpq_fail(error, MPQ_INTERNAL, "no such letter");
    }
}

static void run(struct actor *actor, const char *from, const char *to)
{
    struct mpq_error error;
    for (; from < to; from++) {
        mpq_status status = letter(actor, *from, &error);
        if (status != MPQ_OK)
            complain(actor, *from, status, &error);
    }
}

void actor_setup(void *argument)
{
    struct actor *actor = argument;
    (void)actor_io(actor->shared, NULL); /* not led yet: sleeps do not stop it */
    run(actor, actor->program, strchr(actor->program, '|'));
    (void)actor_io(actor->shared, actor);
}

void actor_op(void *argument)
{
    struct actor *actor = argument;
    const char *led = strchr(actor->program, '|') + 1;
    run(actor, led, led + strlen(led));
    actor->shared->actor[actor->index].ended = 1;
}
