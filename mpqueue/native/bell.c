/* bell.c - a descriptor for event loops: readable whenever a reserve might have something to say.
 *
 * Producers know nothing of it. A thread of the consumer's process, started with the descriptor,
 * sleeps where a blocking reserve sleeps, and rings: it makes the descriptor readable. A look that
 * finds nothing clears it and arms the bell anew.
 *
 * I1 armed, and whether the descriptor is readable, change under consumer->mutex, together. I2 the
 * thread looks after the bell was armed, and that was after the descriptor was cleared: what comes
 * in between is met by its look. I3 while the bell is not armed the descriptor is readable and the
 * thread sleeps on a word of its own, at no cost to anybody. I4 it holds neither item nor lock
 * across a sleep. A forked child has the descriptor but not the thread; it must not touch it, since
 * both processes share one counter: mpq_consumer_check refuses it before anything is reached. */
#include "dead.h"

#define FOREVER_NS (3600000 * MPQ_MS)

/* consumer->mutex held. Also when a claim or the window blocked the walk: a slice has passed since,
 * so it is worth another look, as it is to a reserve that blocks. */
static bool due(const struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    return consumer->again_count != 0 || consumer->tell || mpq_leases_left(consumer) == 0 ||
           mpq_dead_due(consumer) || mpq_visible_limit(queue) > consumer->read_position ||
           mpq_drained(consumer) || mpq_usable(queue, NULL) != MPQ_OK;
}

static void ring(struct mpq_consumer *consumer)
{
    consumer->bell_armed = false;
    (void)consumer->queue->io->event_set(consumer->queue->io, consumer->bell_fd);
}

void mpq_bell_arm(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    if (consumer->bell_armed || atomic_load(&consumer->closing) != 0)
        return;
    (void)io->event_clear(io, consumer->bell_fd);
    consumer->bell_armed = true;
    mpq_bump(consumer->bell_event, 1);
    (void)io->futex_wake(io, &consumer->bell_event, 1);
}

/* One sleep of an armed bell; consumer->mutex held. */
static void listen(struct mpq_consumer *consumer)
{
    static const struct mpq_call unbounded = {UINT64_MAX, NULL, NULL};
    struct mpq_error error;
    mpq_mutex_unlock(&consumer->mutex);
    const mpq_status status = mpq_reserve_wait(consumer, &unbounded, &error);
    mpq_mutex_lock(&consumer->mutex);
    if (status != MPQ_OK && status != MPQ_CLOSED && !consumer->tell) {
        consumer->untold = error; /* as a reserve that blocks would have raised it */
        consumer->tell = true;
    }
    if (consumer->bell_armed && due(consumer))
        ring(consumer);
}

static void *bell_main(void *argument)
{
    struct mpq_consumer *consumer = argument;
    mpq_io *io = consumer->queue->io;
    mpq_mutex_lock(&consumer->mutex);
    while (atomic_load(&consumer->closing) == 0) {
        if (consumer->bell_armed) {
            listen(consumer);
            continue;
        }
        const uint32_t seen = mpq_load(consumer->bell_event);
        mpq_mutex_unlock(&consumer->mutex);
        (void)io->futex_wait(io, &consumer->bell_event, seen, FOREVER_NS);
        mpq_mutex_lock(&consumer->mutex);
    }
    mpq_mutex_unlock(&consumer->mutex);
    return NULL;
}

/* consumer->mutex held: nobody else makes one meanwhile. */
static mpq_status make(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_io *io = queue->io;
    const bool now = due(consumer);
    const int fd = io->event_make(io);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot make an eventfd for fileno()", queue->path);
    consumer->bell_fd = fd;
    consumer->bell_armed = true;
    if (now)
        ring(consumer);
    const int failed = io->spawn(io, &consumer->bell, bell_main, consumer);
    if (failed == 0) {
        consumer->bell_made = true;
        return MPQ_OK;
    }
    consumer->bell_fd = -1;
    io->close(io, fd);
    errno = failed;
    return mpq_fail_errno(error, "%s: cannot start the thread behind fileno()", queue->path);
}

mpq_status mpq_consumer_fd(struct mpq_consumer *consumer, int *fd, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    if (atomic_load(&consumer->closing) != 0)
        status = mpq_fail(error, MPQ_CLOSED, "%s: this consumer was closed", consumer->queue->path);
    else if (!consumer->bell_made)
        status = make(consumer, error);
    *fd = consumer->bell_fd;
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

/* The consumer is closing, so that nobody arms it any more. */
void mpq_bell_stop(struct mpq_consumer *consumer)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_mutex_lock(&consumer->mutex);
    const bool made = consumer->bell_made;
    if (made) {
        ring(consumer); /* for good: whoever polls it must learn of the end */
        mpq_bump(consumer->bell_event, 1);
        (void)queue->io->futex_wake(queue->io, &consumer->bell_event, 1);
    }
    mpq_mutex_unlock(&consumer->mutex);
    if (!made)
        return;
    /* SYNC wait: its look, after it armed the flag, loads `closing` */
    mpq_wake(queue, &queue->control->items_event, &queue->control->items_waiting);
    pthread_join(consumer->bell, NULL);
}
