/* check.c - one session after a cut: open, drain, put, open again (check.h).
 *
 * What a put (sync, group) or a flush had returned for is delivered unless its ack was asked for; a
 * durable ack is never undone; nothing is altered, delivered twice, out of order, or from a put
 * that was refused or not yet begun; batches are all or nothing; nothing counts as lost; new seqs
 * are above all that were returned; under `interval` at most interval_items returned puts are
 * withdrawn; the second open finds nothing to do. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define SECOND 1000000000ull
#define HUNG_AFTER 60u /* seconds */

static const struct mpq_call patient = {UINT64_MAX, NULL, NULL};

static _Noreturn void fail(struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->verdict->text, sizeof check->verdict->text, format, arguments);
    va_end(arguments);
    check->verdict->failed = true;
    _exit(1);
}

static uint32_t position(const struct check *check)
{
    return atomic_load(&check->store->position);
}

static void note(struct check *check, uint32_t at, enum deed deed, uint32_t id, uint64_t seq)
{
    session_note(check->session, at, deed, id, seq);
}

static struct mpq_queue *attach(struct check *check)
{
    struct mpq_open_args args = {.path = check->path, .create = false};
    struct mpq_error error;
    struct mpq_queue *queue = NULL;
    mpq_options_default(&args.options);
    const mpq_status status = mpq_open(&args, &patient, &queue, &error);
    if (status == MPQ_NOT_A_QUEUE && !check->state->exists) {
        check->verdict->absent = true;
        _exit(0);
    }
    if (status != MPQ_OK)
        fail(check, "open: %s (%s)", error.message, mpq_status_name(status));
    mpq_open_gate(queue, NULL);
    return queue;
}

static void leave(struct check *check, struct mpq_queue *queue)
{
    struct mpq_error error;
    if (mpq_close(queue, &patient, &error) != MPQ_OK)
        fail(check, "close: %s", error.message);
    mpq_free(queue);
}

static void reopened_silently(struct check *check, struct mpq_queue *queue)
{
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    if (stats.recoveries != check->verdict->recoveries)
        fail(check, "the second open recovered again (%llu, then %llu)",
             (unsigned long long)check->verdict->recoveries, (unsigned long long)stats.recoveries);
}

/* ---- delivery */

static bool next(struct check *check, struct mpq_queue *queue, struct mpq_consumer *consumer,
                 struct mpq_item *item)
{
    const struct mpq_call soon = {mpq_monotonic_ns() + 5 * SECOND, NULL, NULL};
    struct mpq_error error;
    for (;;) {
        mpq_status status = mpq_reserve_try(consumer, item, &error);
        if (status == MPQ_OK)
            return true;
        if (status == MPQ_EMPTY && mpq_depth(queue) == 0)
            return false;
        if (status == MPQ_EMPTY || status == MPQ_AGAIN)
            status = mpq_reserve_wait(consumer, &soon, &error);
        if (status == MPQ_TIMEOUT)
            fail(check, "%llu items are owed and never become ready",
                 (unsigned long long)mpq_depth(queue));
        if (status != MPQ_OK)
            fail(check, "reserve: %s (%s)", error.message, mpq_status_name(status));
    }
}

static uint32_t receive(struct check *check, const struct mpq_item *item, const bool *seen,
                        uint64_t last)
{
    const struct state *state = check->state;
    const unsigned long long seq = item->seq;
    uint32_t id = NEVER;
    if (!payload_is_right(check->ledger->seed, item->body, item->length, &id))
        fail(check, "an altered item: seq %llu, says that it is item %u", seq, id);
    if (state->put[id] == NONE)
        fail(check, "item %u, seq %llu: refused, or put only after the cut", id, seq);
    if (seen[id])
        fail(check, "item %u delivered twice, now as seq %llu", id, seq);
    if (item->seq <= last)
        fail(check, "seq %llu delivered after %llu", seq, (unsigned long long)last);
    if (state->ack[id] == DURABLE)
        fail(check, "the durable ack of item %u, seq %llu, was undone", id, seq);
    note(check, position(check), DELIVERED, id, item->seq);
    check->verdict->unpromised += state->put[id] != DURABLE;
    return id;
}

static void sync_acks(struct check *check, struct mpq_consumer *consumer, const bool *acked)
{
    struct mpq_error error;
    if (mpq_consumer_sync(consumer, &error) != MPQ_OK)
        fail(check, "consumer_sync: %s", error.message);
    const uint32_t after = position(check);
    for (uint32_t id = 0; id < ITEMS; id++)
        if (acked[id])
            note(check, after, ACK_DURABLE, id, 0);
}

static void compare(struct check *check, const bool *seen)
{
    const struct ledger *ledger = check->ledger;
    const struct state *state = check->state;
    struct verdict *verdict = check->verdict;
    for (uint32_t id = 0; id < ITEMS; id++) {
        if (state->put[id] == DURABLE && state->ack[id] == NONE && !seen[id])
            fail(check, "item %u, seq %llu, is lost", id,
                 (unsigned long long)ledger->items[id].seq);
        verdict->withdrawn += state->returned[id] && state->ack[id] == NONE && !seen[id];
        const uint32_t first = ledger->items[id].first, count = ledger->items[id].count;
        uint32_t there = 0, acked = 0;
        if (id != first || count < 2)
            continue;
        for (uint32_t i = first; i < first + count; i++) {
            there += seen[i];
            acked += state->ack[i] != NONE;
        }
        if (acked == 0 && there != 0 && there != count)
            fail(check, "%u of the %u items of the batch at item %u", there, count, first);
    }
    if (ledger->durability == MPQ_DURABILITY_INTERVAL && state->untouched &&
        verdict->withdrawn > ledger->options.interval_items)
        fail(check, "%u puts that had returned are gone, interval_items is %u", verdict->withdrawn,
             (uint32_t)ledger->options.interval_items);
}

static void drain(struct check *check, struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    static bool seen[ITEMS], acked[ITEMS];
    struct mpq_error error;
    struct mpq_item item;
    uint64_t last = 0;
    while (next(check, queue, consumer, &item)) {
        const uint32_t id = receive(check, &item, seen, last);
        seen[id] = true;
        last = item.seq;
        check->verdict->delivered++;
        mpq_segment_release(item.segment);
        note(check, position(check), ACK_ASKED, id, item.seq);
        if (mpq_ack(consumer, item.seq, item.token, &error) != MPQ_OK)
            fail(check, "ack: %s", error.message);
        acked[id] = true;
        if (mix(&check->random) % 64 == 0) {
            sync_acks(check, consumer, acked);
            memset(acked, 0, sizeof acked);
        }
    }
    sync_acks(check, consumer, acked);
    compare(check, seen);
}

/* One more item: its seq is new, and it is the only one that a later open finds. */
static uint32_t put(struct check *check, struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    static uint8_t body[128 * 1024];
    const uint32_t id = check->level * ITEMS_EACH + ITEMS_EACH - 1; /* none of the recording's */
    const struct mpq_item_in in = {body, payload_length(check->ledger->seed, id), NULL, 0};
    const struct mpq_call soon = {mpq_monotonic_ns() + 5 * SECOND, NULL, NULL};
    const struct mpq_call now = {0, NULL, NULL};
    struct mpq_error error;
    uint64_t seq, ticket;
    payload_fill(check->ledger->seed, id, body);
    note(check, position(check), PUT_ASKED, id, 0);
    mpq_status status = mpq_put(queue, &in, &now, &seq, &ticket, &error);
    if (status == MPQ_FULL && mpq_checkpoint(consumer, &patient, &error) == MPQ_OK)
        status = mpq_put(queue, &in, &soon, &seq, &ticket, &error);
    if (status == MPQ_FLUSH)
        status = mpq_put_flush(queue, ticket, &patient, &error);
    if (status != MPQ_OK)
        fail(check, "a put after the cut: %s (%s)", error.message, mpq_status_name(status));
    if (check->ledger->durability >= MPQ_DURABILITY_GROUP)
        note(check, position(check), PUT_DURABLE, id, seq);
    if (seq <= check->state->seq_max)
        fail(check, "seq %llu is issued again, %llu had been returned", (unsigned long long)seq,
             (unsigned long long)check->state->seq_max);
    return id;
}

/* ---- sessions */

static struct mpq_queue *first_open(struct check *check)
{
    alarm(HUNG_AFTER);
    struct mpq_queue *queue = attach(check);
    struct mpq_stats stats;
    note(check, position(check), OPENED, 0, 0);
    mpq_stats_get(queue, &stats);
    check->verdict->recoveries = stats.recoveries;
    return queue;
}

void check_open(struct check *check)
{
    leave(check, first_open(check));
    _exit(0);
}

void check_drain(struct check *check, bool was_open)
{
    struct mpq_consumer *consumer;
    struct mpq_error error;
    struct mpq_stats stats;
    struct mpq_item item;
    struct mpq_queue *queue;
    if (was_open) {
        alarm(HUNG_AFTER);
        queue = attach(check);
        reopened_silently(check, queue);
    } else {
        queue = first_open(check);
    }
    if (mpq_consumer_open(queue, &patient, &consumer, &error) != MPQ_OK)
        fail(check, "consumer: %s", error.message);
    drain(check, queue, consumer);
    mpq_stats_get(queue, &stats);
    if (stats.lost_items != 0 || stats.loss_events != 0)
        fail(check, "%llu items count as lost, in %llu events",
             (unsigned long long)stats.lost_items, (unsigned long long)stats.loss_events);
    const uint32_t id = put(check, queue, consumer);
    if (mpq_consumer_close(consumer, &error) != MPQ_OK)
        fail(check, "consumer close: %s", error.message);
    mpq_consumer_free(consumer);
    leave(check, queue);

    queue = attach(check);
    reopened_silently(check, queue);
    if (mpq_depth(queue) != 1)
        fail(check, "one item was put after the drain, depth is %llu",
             (unsigned long long)mpq_depth(queue));
    if (mpq_consumer_open(queue, &patient, &consumer, &error) != MPQ_OK)
        fail(check, "consumer: %s", error.message);
    uint32_t found = NEVER;
    if (!next(check, queue, consumer, &item) ||
        !payload_is_right(check->ledger->seed, item.body, item.length, &found) || found != id)
        fail(check, "another item than the one put after the drain: %u, not %u", found, id);
    _exit(0); /* a kill with the item in hand: it stays owed */
}
