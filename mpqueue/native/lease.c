/* lease.c - 5 leases: a hand-out that nobody settles in time is ready again.
 *
 * They live in the memory of the consumer, a binary heap by due time. Nobody watches them: whoever
 * reserves, peeks or skips looks at the one that is due first, and a wait for items ends when it
 * is. A queue without lease_timeout has none of this.
 *
 * I1 entry->lease is the place of its lease in the heap, from 1, or 0; only what is out has one.
 * I2 a lease is one word, so that comparing words orders leases: when it is due above, which entry
 * of the table below. I3 a lease ends by the monotonic clock, and never early. I4 from that moment
 * on its item is nobody's, whether it is back among the ready ones yet or not. */
#include "dead.h"

#define ENTRY_BITS 22 /* of a place in the table: ack_window is at most 2^22 */
#define UNIT_BITS 18 /* due times count 0.26 ms: 36 years fit */
#define ENTRY_MASK ((1ULL << ENTRY_BITS) - 1)
#define DUE_MAX ((1ULL << (64 - ENTRY_BITS)) - 1)

struct mpq_leases {
    uint64_t count;
    uint64_t heap[]; /* heap[1..count], and room for the whole table */
};

static uint64_t now_ns(const struct mpq_consumer *consumer)
{
    return consumer->queue->io->monotonic_ns(consumer->queue->io);
}

static uint64_t due_ns(uint64_t lease)
{
    const uint64_t due = lease >> ENTRY_BITS;
    return due == DUE_MAX ? UINT64_MAX : due << UNIT_BITS;
}

static uint64_t due_after(uint64_t now, uint64_t ns)
{
    const uint64_t unit = 1ULL << UNIT_BITS;
    if (ns > UINT64_MAX - now - unit)
        return DUE_MAX;
    return mpq_min64((now + ns + unit - 1) >> UNIT_BITS, DUE_MAX);
}

static struct mpq_entry *entry_of(struct mpq_consumer *consumer, uint64_t lease)
{
    return &consumer->entries[lease & ENTRY_MASK];
}

static void put_at(struct mpq_consumer *consumer, uint64_t place, uint64_t lease)
{
    consumer->leases->heap[place] = lease;
    entry_of(consumer, lease)->lease = (uint32_t)place;
}

/* Finds the place of a lease, beginning at a free one. */
static void settle_in(struct mpq_consumer *consumer, uint64_t place, uint64_t lease)
{
    const struct mpq_leases *leases = consumer->leases;
    while (place > 1 && leases->heap[place / 2] > lease) {
        put_at(consumer, place, leases->heap[place / 2]);
        place /= 2;
    }
    for (uint64_t child; (child = 2 * place) <= leases->count; place = child) {
        if (child < leases->count && leases->heap[child + 1] < leases->heap[child])
            child++;
        if (leases->heap[child] >= lease)
            break;
        put_at(consumer, place, leases->heap[child]);
    }
    put_at(consumer, place, lease);
}

void mpq_lease_begin(struct mpq_consumer *consumer, struct mpq_entry *entry)
{
    const uint64_t ns = mpq_load(consumer->queue->control->lease_timeout_ns);
    if (ns == 0)
        return;
    const uint64_t place = (uint64_t)(entry - consumer->entries);
    settle_in(consumer, ++consumer->leases->count,
              due_after(now_ns(consumer), ns) << ENTRY_BITS | place);
}

void mpq_lease_end(struct mpq_consumer *consumer, struct mpq_entry *entry)
{
    struct mpq_leases *leases = consumer->leases;
    const uint64_t place = entry->lease;
    const uint64_t last = leases->heap[leases->count--];
    entry->lease = 0;
    if (place <= leases->count)
        settle_in(consumer, place, last);
}

bool mpq_lease_lapsed(const struct mpq_consumer *consumer, const struct mpq_entry *entry)
{
    return due_ns(consumer->leases->heap[entry->lease]) <= now_ns(consumer);
}

uint64_t mpq_leases_left(const struct mpq_consumer *consumer)
{
    const struct mpq_leases *leases = consumer->leases;
    if (leases == NULL || leases->count == 0)
        return UINT64_MAX;
    const uint64_t due = due_ns(leases->heap[1]), now = now_ns(consumer);
    return due > now ? due - now : 0;
}

mpq_status mpq_leases_expire(struct mpq_consumer *consumer, struct mpq_error *error)
{
    static const char ran_out[] = "its lease ran out";
    struct mpq_queue *queue = consumer->queue;
    if (consumer->leases == NULL) {
        /* What is out lies within the window, and the table is no smaller: there is room for all.
         * Pages of it that were never used take no memory. */
        consumer->leases =
            queue->io->alloc(queue->io, sizeof *consumer->leases +
                                            (consumer->entry_mask + 2) * sizeof(uint64_t));
        return consumer->leases != NULL
                   ? MPQ_OK
                   : mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    }
    const struct mpq_leases *leases = consumer->leases;
    if (leases->count == 0)
        return MPQ_OK;
    const uint64_t now = now_ns(consumer);
    while (leases->count != 0 && due_ns(leases->heap[1]) <= now) {
        mpq_failure_note(consumer, entry_of(consumer, leases->heap[1])->seq, ran_out,
                         sizeof ran_out - 1);
        mpq_status status = mpq_entry_return(consumer, entry_of(consumer, leases->heap[1]), error);
        if (status != MPQ_OK)
            return status;
        mpq_bump(queue->control->expired_leases, 1);
    }
    return MPQ_OK;
}

mpq_status mpq_extend(struct mpq_consumer *consumer, uint64_t seq, uint64_t token, uint64_t ns,
                      struct mpq_error *error)
{
    volatile bool acked = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (!mpq_entry_held(consumer, entry, seq, token)) {
        status = MPQ_STALE;
        acked = mpq_entry_acked(entry, seq, token);
    } else if (entry->lease != 0) {
        const uint64_t place = (uint64_t)(entry - consumer->entries);
        settle_in(consumer, entry->lease, due_after(now_ns(consumer), ns) << ENTRY_BITS | place);
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status == MPQ_STALE ? mpq_stale(consumer, seq, acked, error) : status;
}
