/* wait.c - sleeping on a futex word in control, in slices.
 *
 * A waiter arms its flag, re-checks its condition and sleeps; a waker changes the state, then looks
 * at the flag. Flag and state are accessed sequentially consistent on both sides, so one of the
 * two sees the other. A waker that is killed in between costs one slice: correctness never depends
 * on a wake-up. */
#include <limits.h>

#include "internal.h"

struct mpq_waiter mpq_wait_arm(_Atomic uint32_t *event, _Atomic uint32_t *flag)
{
    struct mpq_waiter waiter = {event, flag, atomic_load(event)};
    /* SYNC wait: partner is the exchange in mpq_wake */
    atomic_store(flag, 1);
    return waiter;
}

static uint64_t slice_left(struct mpq_queue *queue, const struct mpq_call *call, uint64_t slice_ns)
{
    if (call->deadline_ns == UINT64_MAX)
        return slice_ns;
    if (call->deadline_ns == 0)
        return 0;
    uint64_t now = queue->io->monotonic_ns(queue->io);
    return now >= call->deadline_ns ? 0 : mpq_min64(slice_ns, call->deadline_ns - now);
}

static mpq_status after_slice(struct mpq_queue *queue, const struct mpq_call *call,
                              struct mpq_error *error)
{
    mpq_guard_install(); /* the caller reads control next, unguarded */
    if (queue->me != NULL)
        atomic_fetch_add_explicit(&queue->me->waits, 1, memory_order_relaxed);
    return mpq_call_check(queue, call, error);
}

mpq_status mpq_wait_sleep(struct mpq_queue *queue, const struct mpq_waiter *waiter,
                          const struct mpq_call *call, uint64_t slice_ns, struct mpq_error *error)
{
    uint64_t left = slice_left(queue, call, slice_ns);
    if (left == 0)
        return MPQ_TIMEOUT;
    (void)queue->io->futex_wait(queue->io, waiter->event, waiter->value, left);
    return after_slice(queue, call, error);
}

void mpq_wake(struct mpq_queue *queue, _Atomic uint32_t *event, _Atomic uint32_t *flag)
{
    if (MPQ_LIKELY(atomic_load(flag) == 0))
        return;
    /* SYNC wait: partner is the store in mpq_wait_arm. The flag is cleared before the event
     * moves, so that a waiter that arms it now reads the old event and does not sleep. */
    (void)atomic_exchange(flag, 0);
    atomic_fetch_add(event, 1);
    (void)queue->io->futex_wake(queue->io, event, INT_MAX);
}

mpq_status mpq_pause(struct mpq_queue *queue, const struct mpq_call *call, uint64_t slice_ns,
                     struct mpq_error *error)
{
    uint64_t left = slice_left(queue, call, slice_ns);
    if (left == 0)
        return MPQ_TIMEOUT;
    queue->io->pause(queue->io, left);
    return after_slice(queue, call, error);
}
