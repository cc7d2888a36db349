/* dead.c - 7 dead letters: what was handed out too often moves to the queue in dead/.
 *
 * I1 it is durable there before it is acked here: whoever dies in between leaves both, under one
 * identity. I2 attempts are counted before the hand-out, so what kills its consumer comes here too.
 * I3 while dead/ takes nothing the item stays: it keeps the floor, others pass it, and it is tried
 * again. I4 the move is made where a call may sleep, in mpq_reserve_wait or the explicit call;
 * nothing is held but dead->mutex, which is taken before any other. */
#include <fcntl.h>
#include <stdio.h>

#include "dead.h"

#define AGAIN_NS (1000 * MPQ_MS)
#define WINDOW_MAX (1u << 22)
#define SEGMENTS_MAX (MPQ_RING / 2)

struct mpq_dead {
    pthread_mutex_t mutex; /* one move at a time */
    struct mpq_queue *queue; /* NULL: not open. With mutex */
    /* with consumer->mutex: seqs in state MPQ_ENTRY_DOOMED that nobody moves yet */
    uint64_t *doomed;
    uint32_t count, room;
    uint64_t after_ns; /* the last try failed: not again before this */
    bool told;
};

/* ---- consumer->mutex held */

static struct mpq_dead *dead_of(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    if (consumer->dead == NULL && (consumer->dead = io->alloc(io, sizeof *consumer->dead)) != NULL)
        pthread_mutex_init(&consumer->dead->mutex, NULL);
    return consumer->dead;
}

static bool keep_seq(struct mpq_consumer *consumer, uint64_t seq)
{
    mpq_io *io = consumer->queue->io;
    struct mpq_dead *dead = dead_of(consumer);
    if (dead == NULL)
        return false;
    if (dead->count == dead->room) {
        const uint32_t room = dead->room == 0 ? 16 : dead->room * 2;
        uint64_t *grown = io->alloc(io, room * sizeof *grown);
        if (grown == NULL)
            return false;
        if (dead->count != 0)
            memcpy(grown, dead->doomed, dead->count * sizeof *grown);
        io->free(io, dead->doomed);
        dead->doomed = grown;
        dead->room = room;
    }
    dead->doomed[dead->count++] = seq;
    return true;
}

bool mpq_doom(struct mpq_consumer *consumer, uint64_t seq)
{
    if (!keep_seq(consumer, seq))
        return false;
    mpq_entry_of(consumer, seq)->state = MPQ_ENTRY_DOOMED;
    return true;
}

bool mpq_dead_waits(const struct mpq_consumer *consumer)
{
    return consumer->dead != NULL && consumer->dead->count != 0;
}

bool mpq_dead_late(const struct mpq_consumer *consumer)
{
    return mpq_dead_waits(consumer) &&
           consumer->queue->io->monotonic_ns(consumer->queue->io) >= consumer->dead->after_ns;
}

/* ---- opening dead/; dead->mutex held */

/* A queue that was renamed while it was open must not leave its letters where another one is. */
static mpq_status at_home(struct mpq_queue *queue, struct mpq_error *error)
{
    char name[4096];
    struct stat now;
    const int length = snprintf(name, sizeof name, "%s/meta", queue->path);
    if (length < 0 || (size_t)length >= sizeof name ||
        queue->io->stat(queue->io, AT_FDCWD, name, &now) != 0 || now.st_ino != queue->meta_inode ||
        now.st_dev != queue->meta_device)
        return mpq_fail(error, MPQ_REMOVED,
                        "%s: the queue is not at this path any more, so its dead letters cannot be "
                        "kept beside it; open it anew where it is now",
                        queue->path);
    return MPQ_OK;
}

static mpq_status open_dead(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_io *io = queue->io;
    const struct mpq_call call = {io->monotonic_ns(io) + AGAIN_NS, NULL, NULL};
    char name[4096];
    mpq_status status = at_home(queue, error);
    if (status != MPQ_OK || consumer->dead->queue != NULL)
        return status;
    (void)snprintf(name, sizeof name, "%s/" MPQ_DEAD, queue->path); /* shorter than meta's */
    struct mpq_open_args args = {
        .path = name, .create = true, .inner = true, .io = io, .allow_filesystem = "*"};
    mpq_options_default(&args.options);
    struct mpq_options now;
    mpq_options_get(queue, &now);
    args.options.segment_size = now.segment_size;
    args.options.max_segments = SEGMENTS_MAX; /* unbounded as far as can be */
    args.options.keep_segments = 0;
    args.options.max_item = now.max_item;
    args.options.durability = now.durability;
    args.options.interval_ns = now.interval_ns;
    args.options.interval_items = now.interval_items;
    args.options.max_members = now.max_members;
    args.options.file_mode = now.file_mode;
    /* A look that selects some keeps the others in hand. */
    args.options.ack_window = now.ack_window > WINDOW_MAX / 8 ? WINDOW_MAX : now.ack_window * 8;
    memcpy(args.options.codec, now.codec, sizeof now.codec);
    struct mpq_queue *opened;
    status = mpq_open(&args, &call, &opened, error);
    if (status != MPQ_OK)
        return status;
    mpq_open_gate(opened, NULL); /* contention is rare here, and a semaphore would outlive it */
    consumer->dead->queue = opened;
    return MPQ_OK;
}

static void close_dead(struct mpq_dead *dead)
{
    static const struct mpq_call unbounded = {UINT64_MAX, NULL, NULL};
    if (dead->queue == NULL)
        return;
    (void)mpq_close(dead->queue, &unbounded, NULL);
    mpq_free(dead->queue);
    dead->queue = NULL;
}

void mpq_dead_close(struct mpq_consumer *consumer)
{
    if (consumer->dead == NULL)
        return;
    pthread_mutex_lock(&consumer->dead->mutex);
    close_dead(consumer->dead);
    pthread_mutex_unlock(&consumer->dead->mutex);
}

void mpq_dead_free(struct mpq_consumer *consumer)
{
    mpq_io *io = consumer->queue->io;
    if (consumer->dead == NULL)
        return;
    close_dead(consumer->dead); /* in a forked child its mutex may be a thread's of the parent */
    io->free(io, consumer->dead->doomed);
    io->free(io, consumer->dead);
    consumer->dead = NULL;
}

/* ---- the move; dead->mutex held */

/* Nobody but its mover touches a doomed entry. MPQ_CORRUPT: booked. */
static mpq_status look_at(struct mpq_consumer *consumer, uint64_t seq, struct mpq_item *item,
                          struct mpq_failure *failure, bool *failed, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    status = mpq_entry_show(consumer, entry, item, error);
    if (status == MPQ_CORRUPT)
        status = mpq_entry_lost(consumer, entry, error);
    *failed = mpq_failure_find(consumer, seq, failure);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

static mpq_status settle_moved(struct mpq_consumer *consumer, uint64_t seq, struct mpq_error *error)
{
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    mpq_settle(consumer, seq, mpq_entry_of(consumer, seq)->extent, MPQ_SETTLE_ACK);
    mpq_bump(consumer->queue->control->dead_items, 1);
    mpq_settle_commit(consumer);
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status;
}

static mpq_status move(struct mpq_consumer *consumer, uint64_t seq, const char *reason,
                       size_t reason_length, struct mpq_error *error)
{
    static const struct mpq_call hasty = {0, NULL, NULL};
    mpq_io *io = consumer->queue->io;
    struct mpq_failure failure;
    struct mpq_why why = {reason, reason_length, NULL};
    struct mpq_item item;
    struct mpq_letter *letter;
    struct mpq_item_in in;
    bool failed = false;
    uint64_t put;
    mpq_status status = look_at(consumer, seq, &item, &failure, &failed, error);
    if (status != MPQ_OK)
        return status;
    why.failure = failed ? &failure : NULL;
    status = mpq_letter_make(consumer->queue, &item, &why, &letter, &in, error);
    mpq_segment_release(item.segment);
    if (status != MPQ_OK)
        return status;
    status = open_dead(consumer, error);
    if (status == MPQ_OK)
        status = mpq_letter_send(consumer->dead->queue, &in, &hasty, &put, error);
    io->free(io, letter);
    if (status == MPQ_OK)
        return settle_moved(consumer, seq, error);
    if (status != MPQ_FULL)
        close_dead(consumer->dead); /* opened anew it may have been repaired */
    return status;
}

/* ---- what is past max_attempts */

static bool next_doomed(struct mpq_consumer *consumer, uint64_t *seq)
{
    mpq_mutex_lock(&consumer->mutex);
    const bool due = mpq_dead_due(consumer);
    if (due)
        *seq = consumer->dead->doomed[--consumer->dead->count];
    mpq_mutex_unlock(&consumer->mutex);
    return due;
}

static void try_later(struct mpq_consumer *consumer, uint64_t seq, const struct mpq_error *error)
{
    struct mpq_dead *dead = consumer->dead;
    struct mpq_queue *queue = consumer->queue;
    mpq_mutex_lock(&consumer->mutex);
    dead->doomed[dead->count++] = seq; /* its place is still there */
    dead->after_ns = queue->io->monotonic_ns(queue->io) + AGAIN_NS;
    const bool tell = !dead->told;
    dead->told = true;
    if (tell)
        queue->event_info.dead_status = error->status;
    mpq_mutex_unlock(&consumer->mutex);
    if (tell)
        mpq_event(queue, MPQ_EVENT_DEAD);
}

bool mpq_dead_run(struct mpq_consumer *consumer)
{
    static const char reason[] = "attempts";
    struct mpq_error error;
    uint64_t seq;
    bool moved = false;
    mpq_mutex_lock(&consumer->mutex);
    const bool due = mpq_dead_due(consumer);
    mpq_mutex_unlock(&consumer->mutex);
    if (!due)
        return false;
    pthread_mutex_lock(&consumer->dead->mutex);
    while (next_doomed(consumer, &seq)) {
        const mpq_status status = move(consumer, seq, reason, sizeof reason - 1, &error);
        if (status == MPQ_CORRUPT)
            mpq_keep_loss(consumer, &error);
        if (status == MPQ_OK || status == MPQ_CORRUPT) {
            consumer->dead->told = false;
            moved = true;
        } else {
            try_later(consumer, seq, &error);
        }
    }
    pthread_mutex_unlock(&consumer->dead->mutex);
    return moved;
}

/* ---- one that is in hand */

static void set_held(struct mpq_consumer *consumer, struct mpq_entry *entry,
                     enum mpq_entry_state state)
{
    entry->state = state;
    mpq_count_out(consumer, state == MPQ_ENTRY_OUT ? 1 : -1, entry->extent);
}

static mpq_status take_away(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                            struct mpq_error *error)
{
    volatile bool acked = false;
    MPQ_CONSUMER_INSIDE(consumer, guard, error);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (dead_of(consumer) == NULL) {
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", consumer->queue->path);
    } else if (mpq_entry_held(consumer, entry, seq, token)) {
        if (entry->lease != 0)
            mpq_lease_end(consumer, entry);
        set_held(consumer, entry, MPQ_ENTRY_DOOMED);
    } else {
        status = MPQ_STALE;
        acked = mpq_entry_acked(entry, seq, token);
    }
    MPQ_CONSUMER_OUTSIDE(consumer, guard);
    return status == MPQ_STALE ? mpq_stale(consumer, seq, acked, error) : status;
}

static void hand_back(struct mpq_consumer *consumer, uint64_t seq)
{
    struct mpq_error error;
    mpq_status status = mpq_consumer_check(consumer, &error);
    if (status != MPQ_OK)
        return;
    mpq_mutex_lock(&consumer->mutex);
    struct mpq_entry *entry = mpq_entry_of(consumer, seq);
    if (!consumer->closed && entry->seq == seq && entry->state == MPQ_ENTRY_DOOMED) {
        set_held(consumer, entry, MPQ_ENTRY_OUT);
        if (consumer->leases != NULL)
            mpq_lease_begin(consumer, entry);
    }
    mpq_mutex_unlock(&consumer->mutex);
}

mpq_status mpq_dead_letter(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                           const char *reason, size_t length, struct mpq_error *error)
{
    mpq_status status = mpq_consumer_enter(consumer, error);
    if (status != MPQ_OK)
        return status;
    status = take_away(consumer, seq, token, error);
    if (status == MPQ_OK) {
        pthread_mutex_lock(&consumer->dead->mutex);
        status = move(consumer, seq, reason, length, error);
        pthread_mutex_unlock(&consumer->dead->mutex);
        if (status != MPQ_OK && status != MPQ_CORRUPT)
            hand_back(consumer, seq);
    }
    mpq_exit(consumer->queue);
    return status;
}
