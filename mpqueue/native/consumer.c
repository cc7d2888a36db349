/* consumer.c - the consumer role: taking it, giving it back.
 *
 * One process has it, by a pinned lock byte that the kernel frees at its death. What is handed out
 * lives in memory only; what was acked lives in control (survives the death of processes) and in
 * the cursor file (survives the machine's). */
#include <stdio.h>
#include <stdlib.h>

#include "dead.h"

mpq_status mpq_consumer_check(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    if (mpq_forked(queue) || queue->incarnation != consumer->incarnation)
        return mpq_fail(error, MPQ_FORKED,
                        "%s: the consumer belongs to the parent process; open one in this process",
                        queue->path);
    if (consumer->closed || atomic_load_explicit(&queue->closing, memory_order_relaxed) != 0)
        return mpq_fail(error, MPQ_CLOSED, "%s: this consumer was closed", queue->path);
    return MPQ_OK;
}

mpq_status mpq_consumer_enter(struct mpq_consumer *consumer, struct mpq_error *error)
{
    static const struct mpq_call unbounded = {UINT64_MAX, NULL, NULL};
    mpq_status status = mpq_consumer_check(consumer, error);
    return status != MPQ_OK ? status : mpq_enter(consumer->queue, &unbounded, error);
}

bool mpq_consumer_is_closed(const struct mpq_consumer *consumer)
{
    return consumer->closed || mpq_load(consumer->queue->closing) != 0;
}

bool mpq_again_push(struct mpq_consumer *consumer, uint64_t seq)
{
    mpq_io *io = consumer->queue->io;
    if (consumer->again_count == consumer->again_room) {
        uint32_t room = consumer->again_room == 0 ? 64 : consumer->again_room * 2;
        uint64_t *grown = io->alloc(io, (size_t)room * 8);
        if (grown == NULL)
            return false;
        if (consumer->again_count != 0)
            memcpy(grown, consumer->again, (size_t)consumer->again_count * 8);
        io->free(io, consumer->again);
        consumer->again = grown;
        consumer->again_room = room;
    }
    uint32_t at = consumer->again_count++;
    uint64_t *heap = consumer->again;
    while (at > 0 && heap[(at - 1) / 2] > seq) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = seq;
    return true;
}

uint64_t mpq_again_pop(struct mpq_consumer *consumer)
{
    uint64_t *heap = consumer->again;
    uint64_t lowest = heap[0];
    uint64_t last = heap[--consumer->again_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= consumer->again_count)
            break;
        if (child + 1 < consumer->again_count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return lowest;
}

static bool window_disagrees(const struct mpq_queue *queue)
{
    for (uint32_t i = 0; i < queue->window_words; i++) {
        uint64_t value = mpq_load(queue->window[i].value);
        uint64_t complement = mpq_load(queue->window[i].complement);
        if (value != ~complement && (value != 0 || complement != 0))
            return true;
    }
    return false;
}

static mpq_status take_over(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    struct mpq_control *control = queue->control;
    mpq_status status = mpq_usable(queue, error);
    if (status == MPQ_OK && !mpq_consumer_proved(control))
        status = mpq_overwritten(queue, error);
    if (status != MPQ_OK)
        return status;
    consumer->record = mpq_consumer_read(control);
    struct mpq_consumer_now *record = &consumer->record;
    /* The last flip may have been made without its window word. */
    bool recount = false;
    if (record->word_index < queue->window_words) {
        struct mpq_window_word *word = &queue->window[record->word_index];
        if (record->word_value != 0) {
            mpq_store(word->value, record->word_value);
            mpq_store(word->complement, ~record->word_value);
        }
        recount = window_disagrees(queue);
    }
    consumer->read_position = record->floor_position;
    consumer->read_seq = record->floor;
    consumer->reclaimed = mpq_load(control->oldest_generation);
    mpq_store(control->reserved_items, 0);
    mpq_store(control->reserved_bytes, 0);
    mpq_store(control->blocked_on_claim, 0);
    mpq_store(control->blocked_on_window, 0);
    status = mpq_cursor_attach(consumer, error);
    if (status == MPQ_OK && recount)
        mpq_recount(consumer);
    if (status == MPQ_OK && !mpq_attempts_recall(consumer))
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    mpq_store(control->read_seq, consumer->read_seq);
    mpq_store(control->read_position, consumer->read_position);
    return status;
}

/* The guard holds nothing but what the caller gives back: the role's byte is not lost in a jump. */
static mpq_status take_over_guarded(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, consumer->queue, error);
    MPQ_GUARD_ARM(&guard);
    mpq_status status = take_over(consumer, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

/* mutex held, or nobody else there */
static void let_go(struct mpq_consumer *consumer)
{
    mpq_segment_release(consumer->segment);
    mpq_segment_release(consumer->view);
    consumer->segment = consumer->view = NULL;
}

static void discard(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    mpq_fd_close(io, consumer->cursor_fd, &consumer->cursor_id);
    if (consumer->bell_fd >= 0)
        io->close(io, consumer->bell_fd);
    consumer->cursor_fd = consumer->bell_fd = -1;
    let_go(consumer);
    io->free(io, consumer->entries);
    io->free(io, consumer->leases);
    mpq_failures_free(consumer);
    mpq_dead_free(consumer);
    io->free(io, consumer->again);
    io->free(io, consumer->retried);
    io->free(io, consumer->cursor_buffer);
    consumer->entries = NULL;
    consumer->leases = NULL;
    consumer->again = consumer->retried = NULL;
    consumer->cursor_buffer = NULL;
}

static mpq_status busy(struct mpq_queue *queue, struct mpq_error *error)
{
    uint64_t holder = mpq_load(queue->control->consumer);
    int64_t pid = holder == 0 ? -1 : mpq_pid_of(queue, holder);
    char who[64] = "another process"; /* that begins or ends just now, or has no entry here */
    if (pid > 0)
        snprintf(who, sizeof who, "process %lld", (long long)pid);
    if (holder == queue->incarnation)
        mpq_fail(error, MPQ_CONSUMER_BUSY,
                 "%s: this handle has its consumer already, by consumer() or get(); there is one "
                 "consumer: use that one, or close it first",
                 queue->path);
    else
        mpq_fail(error, MPQ_CONSUMER_BUSY,
                 "%s: %s consumes it already; there is one consumer: stop that one, or wait for it "
                 "(consumer(wait=seconds), `mpqueue get --wait`)",
                 queue->path, who);
    if (error != NULL)
        error->pid = pid;
    return MPQ_CONSUMER_BUSY;
}

static mpq_status open_inside(struct mpq_queue *queue, const struct mpq_call *call,
                              struct mpq_consumer **out, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct mpq_pin pin = {NULL, -1};
    mpq_status status =
        mpq_pin_wait(queue, MPQ_BYTE_CONSUMER, call, &pin, "the consumer role", error);
    if (status == MPQ_TIMEOUT)
        return busy(queue, error);
    if (status != MPQ_OK)
        return status;
    struct mpq_consumer *consumer = io->alloc(io, sizeof *consumer);
    uint64_t table = 64;
    while (table < queue->created.ack_window)
        table *= 2;
    if (consumer != NULL) {
        consumer->queue = queue;
        atomic_store(&consumer->references, 1);
        consumer->cursor_fd = consumer->bell_fd = -1;
        consumer->entry_mask = table - 1;
        consumer->entries = io->alloc(io, table * sizeof *consumer->entries);
        consumer->cursor_bytes = MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
        consumer->cursor_buffer = io->alloc(io, consumer->cursor_bytes);
    }
    if (consumer == NULL || consumer->entries == NULL || consumer->cursor_buffer == NULL) {
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    } else {
        mpq_mutex_init(&consumer->mutex);
        pthread_mutex_init(&consumer->cursor_mutex, NULL);
        consumer->pin = pin;
        consumer->incarnation = queue->incarnation;
        status = take_over_guarded(consumer, error);
    }
    if (status == MPQ_OK) {
        mpq_mutex_lock(&queue->mutex);
        if (atomic_load(&queue->leaving) == 0) {
            mpq_store(queue->control->consumer, queue->incarnation);
            if (!queue->me_shared)
                mpq_store(queue->me->role, MPQ_ROLE_PRODUCER | MPQ_ROLE_CONSUMER);
            queue->consumer = consumer; /* from here on closing the handle closes it too */
        } else {
            status = mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
        }
        mpq_mutex_unlock(&queue->mutex);
        if (status == MPQ_OK)
            mpq_helper_start(consumer);
        else
            mpq_helper_stop(consumer); /* a recount may have woken it */
    }
    if (status != MPQ_OK) {
        mpq_pin_drop(queue, &pin);
        if (consumer != NULL) {
            discard(consumer);
            io->free(io, consumer);
        }
        return status;
    }
    *out = consumer;
    return MPQ_OK;
}

/* The consumer of this handle has ended, in another thread. */
static mpq_status wait_for_own(struct mpq_queue *queue, const struct mpq_call *call,
                               struct mpq_error *error)
{
    for (;;) {
        mpq_mutex_lock(&queue->mutex);
        const bool there = queue->consumer != NULL;
        mpq_mutex_unlock(&queue->mutex);
        if (!there)
            return MPQ_OK;
        mpq_status status = mpq_pause(queue, call, MPQ_MS, error);
        if (status == MPQ_TIMEOUT)
            return busy(queue, error);
        if (status != MPQ_OK)
            return status;
        if (atomic_load(&queue->leaving) != 0)
            return mpq_fail(error, MPQ_CLOSED, "%s: this handle was closed", queue->path);
    }
}

mpq_status mpq_consumer_open(struct mpq_queue *queue, const struct mpq_call *call,
                             struct mpq_consumer **consumer, struct mpq_error *error)
{
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    status = wait_for_own(queue, call, error);
    if (status == MPQ_OK)
        status = open_inside(queue, call, consumer, error);
    mpq_exit(queue);
    return status;
}

static mpq_status give_up_role(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_bell_stop(consumer);
    mpq_helper_stop(consumer);
    mpq_dead_close(consumer);
    mpq_status status = MPQ_OK;
    if (mpq_load(queue->control->poison_errno) == 0)
        status = mpq_cursor_leave(consumer, error);
    if (status == MPQ_REMOVED) /* nothing is left that acks could be kept in */
        status = MPQ_OK;
    else if (status == MPQ_OK)
        mpq_reclaim(consumer, false);
    mpq_mutex_lock(&consumer->mutex);
    consumer->closed = true; /* whoever takes the mutex after this touches nothing */
    consumer->out = consumer->out_bytes = 0;
    mpq_store(queue->control->reserved_items, 0);
    mpq_store(queue->control->reserved_bytes, 0);
    let_go(consumer);
    mpq_mutex_unlock(&consumer->mutex);
    pthread_mutex_lock(&consumer->cursor_mutex);
    mpq_fd_close(queue->io, consumer->cursor_fd, &consumer->cursor_id);
    consumer->cursor_fd = -1;
    pthread_mutex_unlock(&consumer->cursor_mutex);
    mpq_store(queue->control->consumer, 0);
    if (!queue->me_shared)
        mpq_store(queue->me->role, MPQ_ROLE_PRODUCER);
    mpq_mutex_lock(&queue->mutex);
    if (queue->consumer == consumer)
        queue->consumer = NULL;
    mpq_mutex_unlock(&queue->mutex);
    mpq_pin_drop(queue, &consumer->pin);
    return status;
}

mpq_status mpq_consumer_close(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    static const struct mpq_call unbounded = {UINT64_MAX, NULL, NULL};
    if (mpq_forked(queue) || queue->incarnation != consumer->incarnation) {
        consumer->closed = true; /* of the parent: nothing is ours to touch */
        return MPQ_OK;
    }
    if (atomic_exchange(&consumer->closing, 1) != 0) {
        /* Another thread does it: acks are durable when this returns, too. */
        while (atomic_load(&consumer->gone) == 0)
            queue->io->pause(queue->io, MPQ_MS);
        return MPQ_OK;
    }
    mpq_status status = mpq_enter_leaving(queue, &unbounded, NULL);
    if (status == MPQ_OK) {
        status = give_up_role(consumer, error);
        mpq_exit(queue);
    } else { /* the handle was closed, and gave it back */
        consumer->closed = true;
        status = MPQ_OK;
    }
    atomic_store(&consumer->gone, 1);
    return status;
}

struct mpq_consumer *mpq_consumer_hold(struct mpq_queue *queue)
{
    mpq_mutex_lock(&queue->mutex);
    struct mpq_consumer *consumer = queue->consumer; /* until it is closed, so not freed yet */
    if (consumer != NULL)
        atomic_fetch_add(&consumer->references, 1);
    mpq_mutex_unlock(&queue->mutex);
    return consumer;
}

void mpq_consumer_free(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    if (atomic_fetch_sub(&consumer->references, 1) != 1)
        return;
    discard(consumer);
    io->free(io, consumer);
}
