/* lock.c - the header lock: an owner word with an owner.
 *
 * The word (incarnation << 1 | waiters) is the truth and changes by CAS only: 0 -> me, me -> 0,
 * dead -> me. The named semaphore only puts waiters to sleep: lost, surplus or foreign tokens cost
 * a slice, never exclusion. What is done under the lock takes effect by one selector store, so
 * that a takeover has nothing to repair.
 *
 * I1 at most one live incarnation is inside. I2 whoever takes the lock after having slept keeps
 * the waiters bit, or the wake-up of another sleeper would be lost. I3 dead means that the kernel
 * says so. */
#include <sched.h>

#include "internal.h"

#define SPINS 100

/* Producers that run side by side pass the lines of lock and tail to and fro, at the price of all
 * their work. One that met the lock taken this often lets another process have its processor: the
 * consumer, as a rule, which needs neither line. Where no process waits for one, it returns at
 * once. */
#define MEETINGS 4

static bool take(struct mpq_queue *queue, uint64_t expected, uint64_t mine)
{
    /* SYNC owner: acquire here, release in mpq_lock_release */
    return atomic_compare_exchange_strong_explicit(&queue->control->owner, &expected, mine,
                                                   memory_order_acquire, memory_order_relaxed);
}

bool mpq_lock_try(struct mpq_queue *queue, const struct mpq_lock_wait *wait)
{
    struct mpq_control *control = queue->control;
    const bool contended = wait != NULL && wait->contended;
    const uint64_t mine = queue->incarnation << 1 | (contended ? 1u : 0u);
    bool got = take(queue, 0, mine);
    if (MPQ_UNLIKELY(!got)) {
        mpq_bump(queue->meetings, 1);
        if (mpq_load(queue->meetings) >= MEETINGS) {
            mpq_store(queue->meetings, 0);
            sched_yield();
        }
    }
    for (int i = 0; !got && i < SPINS; i++) {
        mpq_relax();
        if (mpq_load(control->owner) == 0)
            got = take(queue, 0, mine);
    }
    if (!got && contended) {
        uint64_t owner = mpq_load(control->owner);
        if (owner == 0) {
            got = take(queue, 0, mine);
        } else if (owner >> 1 == wait->seen >> 1 && mpq_dead(queue, owner >> 1) &&
                   take(queue, owner, mine | 1)) {
            atomic_fetch_add_explicit(&control->takeovers, 1, memory_order_relaxed);
            mpq_event(queue, MPQ_EVENT_TAKEOVER);
            got = true;
        }
    }
    if (got && mpq_guard_top != NULL)
        mpq_guard_top->locked = queue;
    return got;
}

/* Where waiters without a semaphore sleep: the low half of the owner word. */
static _Atomic uint32_t *owner_half(struct mpq_queue *queue)
{
    return (_Atomic uint32_t *)(uintptr_t)&queue->control->owner;
}

static void gate_post(struct mpq_queue *queue)
{
    if (queue->gate != NULL)
        (void)queue->io->sem_post(queue->io, queue->gate);
    if (mpq_load(queue->control->gateless) != 0)
        (void)queue->io->futex_wake(queue->io, owner_half(queue), 1);
}

void mpq_lock_release(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    uint64_t mine = queue->incarnation << 1;
    if (mpq_guard_top != NULL)
        mpq_guard_top->locked = NULL;
    /* SYNC owner: release here, acquire in take(). CAS, not a store: never clobbers a successor. */
    if (atomic_compare_exchange_strong(&control->owner, &mine, 0))
        return;
    mine = queue->incarnation << 1 | 1;
    if (atomic_compare_exchange_strong(&control->owner, &mine, 0)) {
        gate_post(queue);
        return;
    }
    mpq_store(control->fault, 1); /* we were declared dead while alive */
}

static mpq_status gate_sleep(struct mpq_queue *queue, uint64_t owner, uint64_t slice_ns)
{
    mpq_io *io = queue->io;
    if (queue->gate != NULL) {
        if (io->sem_wait(io, queue->gate, slice_ns) != 0 && errno == EINVAL)
            io->pause(io, mpq_min64(slice_ns, MPQ_MS));
    } else {
        (void)io->futex_wait(io, owner_half(queue), (uint32_t)owner, slice_ns);
    }
    return MPQ_OK;
}

static mpq_status timed_out(struct mpq_queue *queue, uint64_t owner, struct mpq_error *error)
{
    int64_t pid = mpq_pid_of(queue, owner >> 1);
    mpq_fail(
        error, MPQ_LOCK_TIMEOUT,
        "%s: the header lock is held by process %lld, which is alive but does not go on "
        "(stopped, in a debugger, or frozen?); let it continue or kill it: nothing was changed",
        queue->path, (long long)pid);
    if (error != NULL)
        error->pid = pid;
    return MPQ_LOCK_TIMEOUT;
}

mpq_status mpq_lock_sleep(struct mpq_queue *queue, struct mpq_lock_wait *wait,
                          const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    mpq_io *io = queue->io;
    uint64_t now = io->monotonic_ns(io);
    if (wait->since_ns == 0)
        wait->since_ns = now;
    uint64_t owner = mpq_load(control->owner);
    wait->contended = true;
    if (owner == 0)
        return MPQ_OK;
    if (now >= mpq_max64(call->deadline_ns, wait->since_ns + MPQ_GRACE_NS))
        return timed_out(queue, owner, error);
    if ((owner & 1) == 0) {
        uint64_t expected = owner;
        if (!atomic_compare_exchange_strong(&control->owner, &expected, owner | 1))
            return MPQ_OK;
        owner |= 1;
    }
    if (wait->slice_ns == 0 || owner >> 1 != wait->seen >> 1)
        wait->slice_ns = MPQ_MS;
    else
        wait->slice_ns = mpq_min64(wait->slice_ns * 2, 64 * MPQ_MS);
    wait->seen = owner;
    (void)gate_sleep(queue, owner, wait->slice_ns);
    atomic_fetch_add_explicit(&queue->me->lock_waits, 1, memory_order_relaxed);
    uint64_t waited = io->monotonic_ns(io) - wait->since_ns;
    mpq_raise_to(&queue->me->lock_wait_max_ns, waited);
    if (waited > MPQ_LOCK_WARN_NS && !wait->warned) {
        wait->warned = true;
        int64_t pid = mpq_pid_of(queue, owner >> 1);
        queue->event_info.lock_holder_pid = pid < 0 ? 0 : (uint64_t)pid;
        mpq_event(queue, MPQ_EVENT_LOCK_WAIT);
    }
    return mpq_call_check(queue, call, error);
}

mpq_status mpq_lock_take(struct mpq_queue *queue, const struct mpq_call *call,
                         struct mpq_error *error)
{
    struct mpq_lock_wait wait = {0};
    mpq_status status = MPQ_OK;
    while (status == MPQ_OK && !mpq_lock_try(queue, &wait)) {
        status = mpq_lock_sleep(queue, &wait, call, error);
        if (status == MPQ_OK && atomic_load(&queue->closing) != 0)
            status = mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
    return status;
}
