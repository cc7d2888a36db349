/* dead.h - leases, failures and dead letters: what ends a hand-out other than who has it. */
#ifndef MPQ_DEAD_H
#define MPQ_DEAD_H

#include "internal.h"

/* lease.c: consumer->mutex held. Leases may exist, or must from now on: call mpq_leases_expire
 * before anything is handed out, which makes room for one more and returns what is overdue. */
static inline bool mpq_leased(const struct mpq_consumer *consumer)
{
    return MPQ_UNLIKELY(consumer->leases != NULL ||
                        mpq_load(consumer->queue->control->lease_timeout_ns) != 0);
}
mpq_status mpq_leases_expire(struct mpq_consumer *consumer, struct mpq_error *error);
/* Of a hand-out, while the queue has a lease_timeout. */
void mpq_lease_begin(struct mpq_consumer *consumer, struct mpq_entry *entry);
/* It has one. */
void mpq_lease_end(struct mpq_consumer *consumer, struct mpq_entry *entry);
/* It has one: has its time run out? */
bool mpq_lease_lapsed(const struct mpq_consumer *consumer, const struct mpq_entry *entry);
static inline bool mpq_lease_over(const struct mpq_consumer *consumer,
                                  const struct mpq_entry *entry)
{
    return MPQ_UNLIKELY(entry->lease != 0) && mpq_lease_lapsed(consumer, entry);
}
/* Time until the first one is due; UINT64_MAX when there is none. */
uint64_t mpq_leases_left(const struct mpq_consumer *consumer);

/* failure.c: consumer->mutex held */
#define MPQ_FAILURE_TEXT 1000u /* bytes; what is longer is cut */
struct mpq_failure {
    uint64_t first_ns, last_ns; /* wall clock */
    uint32_t first_length, last_length;
    char first[MPQ_FAILURE_TEXT], last[MPQ_FAILURE_TEXT]; /* UTF-8 */
};
struct mpq_failures;
/* At most `most` bytes of UTF-8, whole characters. */
uint32_t mpq_text_cut(const char *text, size_t length, uint32_t most);
/* Nothing without max_attempts, or without memory. */
void mpq_failure_note(struct mpq_consumer *consumer, uint64_t seq, const char *text, size_t length);
bool mpq_failure_find(const struct mpq_consumer *consumer, uint64_t seq,
                      struct mpq_failure *failure);
/* There are some. */
void mpq_failure_forget(struct mpq_consumer *consumer, uint64_t seq);
void mpq_failures_free(struct mpq_consumer *consumer);

/* letter.c: nothing held */
struct mpq_letter;
struct mpq_why { /* an item becomes a dead letter; NULL: it goes back */
    const char *reason; /* UTF-8 */
    size_t length;
    const struct mpq_failure *failure; /* NULL = nothing is known */
};
/* *in refers to *letter, which the caller frees with io->free. */
mpq_status mpq_letter_make(struct mpq_queue *from, const struct mpq_item *item,
                           const struct mpq_why *why, struct mpq_letter **letter,
                           struct mpq_item_in *in, struct mpq_error *error);
/* MPQ_OK: it is durable there. */
mpq_status mpq_letter_send(struct mpq_queue *to, const struct mpq_item_in *in,
                           const struct mpq_call *call, uint64_t *seq, struct mpq_error *error);

/* dead.c */
#define MPQ_DEAD "dead" /* the directory inside that of the queue */
/* consumer->mutex held. An entry that was walked and is not out. False: out of memory. */
bool mpq_doom(struct mpq_consumer *consumer, uint64_t seq);
bool mpq_dead_waits(const struct mpq_consumer *consumer);
bool mpq_dead_late(const struct mpq_consumer *consumer);
/* Something is to be moved, and now is the time. */
static inline bool mpq_dead_due(const struct mpq_consumer *consumer)
{
    return MPQ_UNLIKELY(consumer->dead != NULL) && mpq_dead_late(consumer);
}
/* Nothing held. True: something was moved. */
bool mpq_dead_run(struct mpq_consumer *consumer);
void mpq_dead_close(struct mpq_consumer *consumer);
void mpq_dead_free(struct mpq_consumer *consumer);

/* damage.c: nothing held. A loss that no call tells of: the next reserve does. */
void mpq_keep_loss(struct mpq_consumer *consumer, const struct mpq_error *error);

/* reserve.c: consumer->mutex held. The item of an entry, its frame looked at again; the caller gets
 * a reference to its segment, and attempts so far. MPQ_CORRUPT: damaged since, nothing booked. */
mpq_status mpq_entry_show(struct mpq_consumer *consumer, struct mpq_entry *entry,
                          struct mpq_item *item, struct mpq_error *error);
/* Books that. MPQ_CORRUPT. */
mpq_status mpq_entry_lost(struct mpq_consumer *consumer, struct mpq_entry *entry,
                          struct mpq_error *error);
/* Nothing held: the item of a hand-out. MPQ_STALE. */
mpq_status mpq_item_again(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                          struct mpq_item *item, struct mpq_error *error);

#endif
