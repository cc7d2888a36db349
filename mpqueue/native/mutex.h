/* mutex.h - between the threads of one process, for sections of about a microsecond.
 *
 * One atomic instruction to take it and a plain store to give it back, where a pthread mutex needs
 * two and two calls: an item passes three of these. The price is that whoever gives it back cannot
 * know who waits: they look again after a pause, which doubles up to a millisecond. */
#ifndef MPQ_MUTEX_H
#define MPQ_MUTEX_H

#include <stdatomic.h>
#include <stdint.h>

struct mpq_mutex {
    _Atomic uint32_t held;
};

void mpq_mutex_wait(struct mpq_mutex *mutex);

static inline void mpq_mutex_init(struct mpq_mutex *mutex)
{
    atomic_init(&mutex->held, 0);
}

static inline void mpq_mutex_lock(struct mpq_mutex *mutex)
{
    uint32_t free = 0;
    /* SYNC mutex: acquire here, release in mpq_mutex_unlock */
    if (__builtin_expect(!atomic_compare_exchange_strong_explicit(&mutex->held, &free, 1,
                                                                  memory_order_acquire,
                                                                  memory_order_relaxed),
                         0))
        mpq_mutex_wait(mutex);
}

static inline void mpq_mutex_unlock(struct mpq_mutex *mutex)
{
    atomic_store_explicit(&mutex->held, 0, memory_order_release);
}

#endif
