/* steps_child.c - the operations that children are killed in, and their beginnings. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "copied.h"
#include "steps.h"

static struct mpq_io table;

static int no_threads(mpq_io *io, pthread_t *thread, void *(*run)(void *), void *arg)
{
    (void)io;
    (void)thread;
    (void)run;
    (void)arg;
    return EAGAIN;
}

void steps_begin(void)
{
    table = mpq_io_system;
    table.spawn = no_threads;
    copied_table(&table);
}

struct mpq_call soon(void)
{
    return (struct mpq_call){mpq_monotonic_ns() + WATCHDOG_NS, NULL, NULL};
}

bool is_keyed(const struct scenario *scenario)
{
    return strstr(scenario->name, "key") != NULL;
}

/* ---- items */

uint32_t length_of(uint32_t id)
{
    return 4 + (id * 2654435761u >> 8) % 300;
}

/* The pattern's period is 256, so that few of a path's instructions are this one's. */
static void fill(uint32_t id, uint8_t *body, uint32_t length)
{
    memcpy(body, &id, 4);
    for (uint32_t i = 4; i < length && i < 260; i++)
        body[i] = (uint8_t)(id * 31 + i * 7);
    for (uint32_t i = 260; i < length; i += 256)
        memcpy(&body[i], &body[i - 256], length - i < 256 ? length - i : 256);
}

const uint8_t *bodies_of(uint32_t id)
{
    static uint8_t body[400];
    fill(id, body, length_of(id));
    return body;
}

bool is_right(const struct mpq_item *item, uint32_t id)
{
    for (uint32_t i = 4; i < item->length; i++)
        if (item->body[i] != (uint8_t)(id * 31 + i * 7))
            return false;
    return true;
}

/* ---- calls that both sides make */

mpq_status attach(const struct run *run, struct mpq_queue **queue, struct mpq_error *error)
{
    struct mpq_open_args args = {.path = run->path, .create = true, .io = &table};
    mpq_options_default(&args.options);
    args.options.segment_size = 65536;
    args.options.max_segments = 12;
    args.options.keep_segments = 2;
    args.options.ack_window = 64;
    args.options.max_members = 8;
    args.options.interval_items = 3;
    args.options.lease_timeout_ns = 1000000 * MPQ_MS;
    args.options.max_attempts = run->scenario->op == op_attempts ? 1 : 0;
    args.options.durability = run->scenario->durability;
    args.options.key_window = is_keyed(run->scenario) ? 256 : 0;
    const struct mpq_call call = soon();
    mpq_status status = mpq_open(&args, &call, queue, error);
    if (status == MPQ_OK)
        mpq_open_gate(*queue, NULL);
    return status;
}

static uint8_t bodies[8][80000];

/* One entry of an extension: the id is the key. */
static void key_of(uint32_t id, struct mpq_item_in *in, uint8_t ext[8])
{
    const uint16_t head[2] = {MPQ_EXT_KEY, sizeof id};
    memcpy(ext, head, sizeof head);
    memcpy(ext + sizeof head, &id, sizeof id);
    in->ext = ext;
    in->ext_length = 8;
}

static mpq_status put_keyed(struct mpq_queue *queue, const struct mpq_item_in *in, uint32_t count,
                            uint64_t *ticket, struct mpq_error *error)
{
    struct mpq_keyed keyed;
    const struct mpq_call call = soon();
    mpq_status status = mpq_keyed_begin(queue, &keyed, in, count, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_put_keyed(queue, &keyed, NULL, ticket, error);
    if (status == MPQ_AGAIN)
        status = mpq_put_keyed(queue, &keyed, &call, ticket, error);
    mpq_keyed_end(queue, &keyed);
    return status;
}

/* Puts items first..first+count-1 of `length` bytes (0 = by id). */
mpq_status put(const struct run *run, struct mpq_queue *queue, uint32_t first, uint32_t count,
               uint32_t length, struct mpq_error *error)
{
    struct shared *shared = run->shared;
    struct mpq_item_in in[8];
    uint8_t exts[8][8];
    uint64_t seq, ticket = 0;
    for (uint32_t i = 0; i < count; i++) {
        in[i] = (struct mpq_item_in){.body = bodies[i],
                                     .length = length != 0 ? length : length_of(first + i)};
        fill(first + i, bodies[i], in[i].length);
        if (is_keyed(run->scenario))
            key_of(first + i, &in[i], exts[i]);
        shared->first[first + i] = first;
        shared->count[first + i] = count;
        shared->put[first + i] = ASKED;
    }
    const struct mpq_call call = soon();
    mpq_status status;
    if (is_keyed(run->scenario))
        status = put_keyed(queue, in, count, &ticket, error);
    else
        status = mpq_put_batch_try(queue, in, count, &seq, &ticket, error);
    if (status == MPQ_AGAIN)
        status = mpq_put_batch(queue, in, count, &call, &seq, &ticket, error);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &call, error);
    if (status == MPQ_OK)
        memset(&shared->put[first], RETURNED, count);
    return status;
}

/* ---- the child's side */

static void complain(struct run *run, mpq_status status, const struct mpq_error *error)
{
    snprintf(run->shared->failure, sizeof run->shared->failure, "%s: %s", mpq_status_name(status),
             error->message);
    _exit(3);
}

void child_open(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = attach(run, &run->queue, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void child_inherit(void *argument)
{
    struct run *run = argument;
    run->queue = run->home;
}

static void child_put_some(struct run *run, uint32_t count, uint32_t length)
{
    struct mpq_error error;
    mpq_status status = put(run, run->queue, run->mine, count, length, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void op_put(void *argument)
{
    struct run *run = argument;
    child_put_some(run, 1, 0);
}

void op_put_page(void *argument)
{
    struct run *run = argument;
    child_put_some(run, 1, 4000);
}

void op_put_large(void *argument)
{
    struct run *run = argument;
    child_put_some(run, 1, 70000);
}

void op_batch(void *argument)
{
    struct run *run = argument;
    child_put_some(run, 5, 0);
}

void child_consume(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    child_open(run);
    mpq_status status = mpq_consumer_open(run->queue, &forever, &run->consumer, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void op_reserve(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_reserve_many_try(run->consumer, run->items, 4, 0, &run->taken, &error);
    if (status != MPQ_OK && status != MPQ_EMPTY)
        complain(run, status, &error);
}

/* Meets the damage, where no child before it has booked it to the end. */
void op_lose(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_reserve_many_try(run->consumer, run->items, 4, 0, &run->taken, &error);
    if (status != MPQ_OK && status != MPQ_EMPTY && status != MPQ_CORRUPT)
        complain(run, status, &error);
}

void take_all(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    child_consume(run);
    mpq_status status = mpq_reserve_many_try(run->consumer, run->items, 64, 0, &run->taken, &error);
    const bool met = status == MPQ_CORRUPT && run->spoiled != 0;
    if (status != MPQ_OK && status != MPQ_EMPTY && !met)
        complain(run, status, &error);
}

static uint32_t id_of(const struct mpq_item *item)
{
    uint32_t id;
    memcpy(&id, item->body, 4);
    return id;
}

static void ack_one(struct run *run, const struct mpq_item *item)
{
    struct mpq_error error;
    const uint32_t id = id_of(item);
    run->shared->ack[id] = ASKED;
    mpq_status status = mpq_ack(run->consumer, item->seq, item->token, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
    run->shared->ack[id] = RETURNED;
}

/* Out of order: 2, 0, 1. Fewer are there after a first killed child. */
void op_ack(void *argument)
{
    struct run *run = argument;
    for (uint32_t i = 0; i < 3; i++)
        if ((i + 2) % 3 < run->taken)
            ack_one(run, &run->items[(i + 2) % 3]);
}

void op_ack_many(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    uint64_t seqs[64], tokens[64];
    uint32_t bad;
    for (uint32_t i = 0; i < run->taken; i++) {
        seqs[i] = run->items[i].seq;
        tokens[i] = run->items[i].token;
        run->shared->ack[id_of(&run->items[i])] = ASKED;
    }
    mpq_status status = mpq_ack_many(run->consumer, seqs, tokens, run->taken, &bad, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
    for (uint32_t i = 0; i < run->taken; i++)
        run->shared->ack[id_of(&run->items[i])] = RETURNED;
}

void ack_all(void *argument)
{
    struct run *run = argument;
    take_all(run);
    for (uint32_t i = 0; i < run->taken; i++)
        ack_one(run, &run->items[i]);
}

void op_sync(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_consumer_sync(run->consumer, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void op_checkpoint(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_checkpoint(run->consumer, &forever, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void op_role(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_consumer_open(run->queue, &forever, &run->consumer, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

void op_close(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    mpq_status status = mpq_close(run->queue, &forever, &error);
    if (status != MPQ_OK)
        complain(run, status, &error);
}

/* ---- leases and dead letters */

/* All, also where a child before this one was killed with some in its hands. */
void take_whatever(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    child_consume(run);
    for (;;) {
        mpq_status status =
            mpq_reserve_many_try(run->consumer, run->items, 64, 0, &run->taken, &error);
        if (status == MPQ_AGAIN)
            status = mpq_reserve_wait(run->consumer, &forever, &error);
        else if (status == MPQ_OK || status == MPQ_EMPTY)
            return;
        if (status != MPQ_OK)
            complain(run, status, &error);
    }
}

void op_dead_letter(void *argument)
{
    struct run *run = argument;
    struct mpq_error error;
    for (uint32_t i = 0; i < 3 && i < run->taken; i += 2) {
        const struct mpq_item *item = &run->items[i];
        const uint32_t id = id_of(item);
        run->shared->dead[id] = ASKED;
        mpq_status status =
            mpq_dead_letter(run->consumer, item->seq, item->token, "by hand", 7, &error);
        if (status != MPQ_OK)
            complain(run, status, &error);
        run->shared->dead[id] = RETURNED;
    }
}

/* What it gives back was handed out often enough. */
void op_attempts(void *argument)
{
    struct run *run = argument;
    struct mpq_error error = {.message = "not what was expected"};
    struct mpq_item item;
    for (uint32_t i = 0; i < 3 && i < run->taken; i += 2) {
        const struct mpq_item *one = &run->items[i];
        if (mpq_failed(run->consumer, one->seq, one->token, "broken", 6, &error) != MPQ_OK ||
            mpq_nack(run->consumer, one->seq, one->token, &error) != MPQ_OK)
            complain(run, MPQ_INTERNAL, &error);
    }
    mpq_status status;
    while ((status = mpq_reserve_try(run->consumer, &item, &error)) == MPQ_AGAIN)
        if (mpq_reserve_wait(run->consumer, &forever, &error) != MPQ_OK)
            complain(run, status, &error);
    if (status != MPQ_EMPTY)
        complain(run, status, &error);
    for (uint32_t i = 0; i < 3 && i < run->taken; i += 2)
        run->shared->dead[id_of(&run->items[i])] = RETURNED;
}

void op_lease(void *argument)
{
    struct run *run = argument;
    struct mpq_error error = {.message = "not what was expected"};
    struct mpq_item item;
    mpq_status status;
    if (run->taken == 0)
        return;
    status = mpq_extend(run->consumer, run->items[0].seq, run->items[0].token, 0, &error);
    if (status == MPQ_OK)
        while ((status = mpq_reserve_try(run->consumer, &item, &error)) == MPQ_EMPTY)
            ;
    if (status != MPQ_OK || item.seq != run->items[0].seq)
        complain(run, status, &error);
    if (mpq_ack(run->consumer, item.seq, run->items[0].token, &error) != MPQ_STALE)
        complain(run, MPQ_INTERNAL, &error);
    run->items[0] = item;
    ack_one(run, &item);
}
