/* rot_keys.c - the keys of a damaged store. */
#include <stdio.h>

#include "rot.h"

static uint64_t put_key(struct mpq_queue *queue, uint32_t key)
{
    struct mpq_error error;
    struct mpq_item_in in = {.body = "again", .length = 5};
    uint64_t seq = 0;
    if (put_keyed(queue, &in, 1, key, &seq, &error) != MPQ_OK)
        failed(error.message, key, 0);
    return seq;
}

static void take(struct mpq_queue *queue, struct mpq_consumer *consumer, uint64_t count)
{
    const struct mpq_call forever = {UINT64_MAX, NULL, NULL};
    struct mpq_error error;
    struct mpq_item item;
    while (count > 0) {
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_OK) {
            mpq_segment_release(item.segment);
            status = mpq_ack(consumer, item.seq, item.token, &error);
            count--;
        } else if (status == MPQ_AGAIN) {
            status = mpq_reserve_wait(consumer, &forever, &error);
        }
        if (status != MPQ_OK)
            failed("what was put again does not come out", status, count);
    }
    if (mpq_depth(queue) != 0)
        failed("more came of keys than was accepted", mpq_depth(queue), 0);
}

/* Control's words of keys have no checks, and live as long as the boot: damage there may forget
 * some, or tell another seq, but nothing that is new is refused. */
void put_again(struct store *store, struct mpq_queue *queue, struct mpq_consumer *consumer)
{
    const struct contents *contents = &store->sides[QUEUE];
    struct mpq_stats stats;
    uint64_t forgotten = 0;
    const uint64_t before = mpq_tail_read(queue->control).next_seq;
    mpq_stats_get(queue, &stats);
    for (uint32_t id = 0; id < store->count; id++) {
        const uint64_t seq = put_key(queue, id);
        const bool told = seq <= contents->last_seq;
        if (told && seq != contents->items[id].seq && !now.redelivers[QUEUE])
            failed("another seq than the first is told", id, seq);
        if (told)
            continue;
        forgotten++;
        if (put_key(queue, id) != seq && !now.redelivers[QUEUE])
            failed("a key is accepted twice", id, seq);
    }
    if (now.harm < 0 && !now.redelivers[QUEUE] &&
        (stats.keys_damaged > 1 || forgotten > stats.keys_damaged))
        failed("more than one key is forgotten, or it is not counted", forgotten,
               stats.keys_damaged);
    if (put_key(queue, ITEMS) <= contents->last_seq)
        failed("a new key is refused", 0, 0);
    const uint64_t accepted = mpq_tail_read(queue->control).next_seq - before;
    if (accepted != forgotten + 1 && !now.redelivers[QUEUE])
        failed("a seq is told of what was not accepted", accepted, forgotten + 1);
    take(queue, consumer, accepted);
}
