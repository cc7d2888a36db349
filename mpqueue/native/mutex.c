/* mutex.c - waiting for a mutex that another thread of this process holds. */
#include "mutex.h"

#include <sched.h>
#include <time.h>

#include "internal.h"

#define SPINS 100
#define YIELDS 10
#define PAUSE_NS 50000
#define PAUSE_MAX_NS 800000

static bool take(struct mpq_mutex *mutex)
{
    uint32_t free = 0;
    return mpq_load(mutex->held) == 0 &&
           atomic_compare_exchange_strong_explicit(&mutex->held, &free, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

void mpq_mutex_wait(struct mpq_mutex *mutex)
{
    for (int i = 0; i < SPINS; i++) {
        if (take(mutex))
            return;
        mpq_relax();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (take(mutex))
            return;
        sched_yield();
    }
    for (long pause_ns = PAUSE_NS; !take(mutex);
         pause_ns = pause_ns < PAUSE_MAX_NS ? 2 * pause_ns : pause_ns) {
        const struct timespec pause = {0, pause_ns};
        (void)nanosleep(&pause, NULL);
    }
}
