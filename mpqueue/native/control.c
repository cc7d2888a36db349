/* control.c - the shared header: making it, mapping it, and its two A/B records.
 *
 * I1 a record is prepared in the inactive half and becomes true by one store of its selector.
 * I2 a half carries a check word over its other words, so that an opener that finds the queue
 * alone can tell whether control is as its last writer left it. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "internal.h"

static uint64_t align_page(uint64_t bytes)
{
    return (bytes + MPQ_PAGE - 1) & ~(uint64_t)(MPQ_PAGE - 1);
}

struct offsets {
    uint64_t members, ring, window, attempts, keys, total;
};

static struct offsets offsets_of(const struct mpq_options *options)
{
    const uint64_t ack_window = options->ack_window;
    struct offsets at;
    at.members = MPQ_CONTROL_MEMBERS;
    at.ring = align_page(at.members + options->max_members * sizeof(struct mpq_member));
    at.window = align_page(at.ring + (uint64_t)MPQ_RING * sizeof(struct mpq_ring_entry));
    at.attempts = align_page(at.window + ack_window / 32 * sizeof(struct mpq_window_word));
    at.keys = align_page(at.attempts + ack_window * 8);
    at.total = align_page(at.keys + mpq_keys_bytes(options));
    return at;
}

uint64_t mpq_control_bytes(const struct mpq_options *options)
{
    return offsets_of(options).total;
}

void mpq_config_store(struct mpq_control *control, const struct mpq_options *options)
{
    mpq_store(control->capacity, options->capacity);
    mpq_store(control->max_bytes, options->max_bytes);
    mpq_store(control->max_item, options->max_item);
    mpq_store(control->interval_ns, options->interval_ns);
    mpq_store(control->ack_linger_ns, options->ack_linger_ns);
    mpq_store(control->retain_ns, options->retain_ns);
    mpq_store(control->lease_timeout_ns, options->lease_timeout_ns);
    mpq_store(control->dead_retain_ns, options->dead_retain_ns);
    mpq_store(control->max_segments, options->max_segments);
    mpq_store(control->keep_segments, options->keep_segments);
    mpq_store(control->interval_items, options->interval_items);
    mpq_store(control->durability, options->durability);
    mpq_store(control->max_attempts, options->max_attempts);
    mpq_store(control->backoff_count, options->backoff_count);
    for (unsigned i = 0; i < MPQ_BACKOFF_MAX; i++)
        mpq_store(control->backoff_ns[i], options->backoff_ns[i]);
    mpq_bump(control->config_number, 1);
}

mpq_status mpq_control_make(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                            const char *boot_id, int *out_fd, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    const struct mpq_options *options = &meta->options;
    const struct offsets at = offsets_of(options);
    (void)io->unlink(io, queue->dirfd, "control-new");
    int fd = io->open(io, queue->dirfd, "control-new", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot make the control file", queue->path);
    mpq_status status = MPQ_OK;
    if (io->chmod(io, fd, options->file_mode) != 0 || io->allocate(io, fd, at.total) != 0)
        status = mpq_fail_errno(error, "%s: cannot allocate the control file (%llu bytes)",
                                queue->path, (unsigned long long)at.total);
    if (status == MPQ_OK) {
        struct mpq_control head;
        memset(&head, 0, sizeof head);
        head.magic = MPQ_CONTROL_MAGIC;
        head.version = MPQ_FORMAT_VERSION;
        head.ring_entries = MPQ_RING;
        memcpy(head.uuid, meta->uuid, 16);
        head.meta_inode = queue->meta_inode;
        head.meta_device = queue->meta_device;
        memcpy(head.boot_id, boot_id, sizeof head.boot_id);
        head.hash_seed = meta->hash_seed;
        head.segment_size = options->segment_size;
        head.ack_window = options->ack_window;
        head.max_members = options->max_members;
        head.members_offset = at.members;
        head.ring_offset = at.ring;
        head.window_offset = at.window;
        head.attempts_offset = at.attempts;
        head.total_bytes = at.total;
        head.epoch = meta->epoch;
        head.built_at = io->wall_ns(io);
        head.identity_hash = mpq_xxh64(&head, offsetof(struct mpq_control, identity_hash), 0);
        mpq_config_store(&head, options);
        if (mpq_io_write(io, fd, &head, sizeof head, 0) != 0)
            status = mpq_fail_errno(error, "%s: cannot write the control file", queue->path);
    }
    if (status == MPQ_OK)
        status = mpq_control_map(queue, fd, at.total, error);
    if (status != MPQ_OK) {
        io->close(io, fd);
        (void)io->unlink(io, queue->dirfd, "control-new");
        return status;
    }
    *out_fd = fd;
    return MPQ_OK;
}

mpq_status mpq_control_map(struct mpq_queue *queue, int fd, uint64_t bytes, struct mpq_error *error)
{
    struct stat now;
    struct mpq_control *control = NULL;
    if (queue->io->fstat(queue->io, fd, &now) == 0)
        control = queue->io->map(queue->io, fd, bytes, true);
    if (control == NULL)
        return mpq_fail_errno(error, "%s: cannot map the control file", queue->path);
    queue->control_inode = now.st_ino;
    uint8_t *base = (uint8_t *)control;
    queue->control = control;
    queue->control_bytes = bytes;
    /* Where things lie follows from meta: whatever is stored over control, no index, length or
     * bound of a loop comes from it. */
    const struct offsets at = offsets_of(&queue->created);
    queue->members = (void *)(base + at.members);
    queue->ring = (void *)(base + at.ring);
    queue->window = (void *)(base + at.window);
    queue->attempts = (void *)(base + at.attempts);
    queue->keys = queue->created.key_window != 0 ? (void *)(base + at.keys) : NULL;
    queue->window_words = queue->created.ack_window / 32;
    const uint64_t window = queue->created.ack_window;
    queue->window_mask = (window & (window - 1)) == 0 ? window - 1 : 0;
    mpq_guard_watch(queue);
    queue->identity = control->identity_hash;
    return MPQ_OK;
}

void mpq_control_unmap(struct mpq_queue *queue)
{
    mpq_guard_unwatch(queue);
    if (queue->control != NULL)
        queue->io->unmap(queue->io, queue->control, queue->control_bytes);
    queue->control = NULL;
    queue->me = NULL;
}

/* ---- the two A/B records; both are arrays of words that end with their check */

#define TAIL_WORDS (sizeof(struct mpq_tail) / 8)
#define CONSUMER_WORDS 16 /* floor .. check */
_Static_assert(offsetof(struct mpq_consumer_record, check) == 8 * (CONSUMER_WORDS - 1),
               "check follows the record's words");

/* On the path of every claim and ack: the rounds of a loop cost as much as the work in them. */
#define UNROLLED _Pragma("GCC unroll 16")

/* One flipped bit changes the sum: its weight is an odd multiple of a power of two. */
static inline uint64_t check_of(const uint64_t *words, unsigned count)
{
    uint64_t sum = MPQ_SEED_OFFSET;
    UNROLLED
    for (unsigned i = 0; i < count; i++)
        sum += words[i] * (MPQ_SEED_GENERATION + 2 * i);
    return sum;
}

static inline void store_half(_Atomic uint64_t *half, uint64_t *words, unsigned count)
{
    words[count - 1] = check_of(words, count - 1);
    UNROLLED
    for (unsigned i = 0; i < count; i++)
        mpq_store(half[i], words[i]);
}

static inline void load_half(const _Atomic uint64_t *half, uint64_t *words, unsigned count)
{
    UNROLLED
    for (unsigned i = 0; i < count; i++)
        words[i] = atomic_load_explicit(&half[i], memory_order_acquire);
}

bool mpq_record_holds(const uint64_t *words, unsigned count)
{
    return words[count - 1] == check_of(words, count - 1);
}

static bool proved(const _Atomic uint64_t *half, unsigned count)
{
    uint64_t words[CONSUMER_WORDS];
    load_half(half, words, count);
    return words[count - 1] == check_of(words, count - 1);
}

static inline struct mpq_tail_now tail_half(const struct mpq_tail *half)
{
    const struct mpq_tail_now now = {
        .position = atomic_load_explicit(&half->position, memory_order_acquire),
        .next_seq = atomic_load_explicit(&half->next_seq, memory_order_acquire),
        .items = atomic_load_explicit(&half->items, memory_order_acquire),
        .bytes = atomic_load_explicit(&half->bytes, memory_order_acquire),
        .scheduled = atomic_load_explicit(&half->scheduled, memory_order_acquire),
    };
    return now;
}

struct mpq_tail_now mpq_tail_read(const struct mpq_control *control)
{
    struct mpq_tail_now now;
    uint64_t select;
    do {
        /* SYNC tail: acquire here, release in mpq_tail_write */
        select = atomic_load_explicit(&control->tail_select, memory_order_acquire);
        now = tail_half(&control->tail[select & 1]);
    } while (mpq_load(control->tail_select) != select);
    return now;
}

bool mpq_tail_read_proved(const struct mpq_control *control, struct mpq_tail_now *now)
{
    uint64_t words[TAIL_WORDS];
    uint64_t select;
    do {
        /* SYNC tail: acquire here, release in mpq_tail_write */
        select = atomic_load_explicit(&control->tail_select, memory_order_acquire);
        load_half(&control->tail[select & 1].position, words, TAIL_WORDS);
    } while (mpq_load(control->tail_select) != select);
    *now = (struct mpq_tail_now){words[0], words[1], words[2], words[3], words[4]};
    return words[TAIL_WORDS - 1] == check_of(words, TAIL_WORDS - 1);
}

mpq_status mpq_control_ours(struct mpq_queue *queue, struct mpq_error *error)
{
    if (MPQ_UNLIKELY(mpq_load(queue->vanished) != 0))
        return mpq_vanished(queue, error);
    if (MPQ_LIKELY(queue->control == NULL || (queue->control->identity_hash == queue->identity &&
                                              queue->control->magic == MPQ_CONTROL_MAGIC)))
        return MPQ_OK;
    if (mpq_load(queue->vanished) != 0) /* it was this look that met it */
        return mpq_vanished(queue, error);
    return mpq_overwritten(queue, error);
}

mpq_status mpq_usable(struct mpq_queue *queue, struct mpq_error *error)
{
    struct mpq_tail_now tail;
    mpq_status status = mpq_control_ours(queue, error);
    if (status == MPQ_OK && MPQ_UNLIKELY(!mpq_tail_read_proved(queue->control, &tail)))
        status = mpq_overwritten(queue, error);
    return status;
}

mpq_status mpq_overwritten(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_store(queue->control->fault, 1); /* nobody claims, and the next to be alone rebuilds it */
    return mpq_fail(error, MPQ_INTERNAL,
                    "%s: its control file was overwritten while it was open; close every process "
                    "that has it open, then open it again: control will be rebuilt",
                    queue->path);
}

uint64_t mpq_tail_position(const struct mpq_control *control)
{
    uint64_t select, position;
    do {
        /* SYNC tail: acquire here, release in mpq_tail_write */
        select = atomic_load_explicit(&control->tail_select, memory_order_acquire);
        position = atomic_load_explicit(&control->tail[select & 1].position, memory_order_acquire);
    } while (mpq_load(control->tail_select) != select);
    return position;
}

void mpq_tail_write(struct mpq_control *control, const struct mpq_tail_now *now)
{
    uint64_t select = mpq_load(control->tail_select);
    uint64_t words[TAIL_WORDS] = {now->position, now->next_seq,  now->items,
                                  now->bytes,    now->scheduled, 0};
    atomic_thread_fence(memory_order_release); /* the selector of the last flip before these */
    store_half(&control->tail[(select + 1) & 1].position, words, TAIL_WORDS);
    /* SYNC tail: the one commit of a claim */
    atomic_store_explicit(&control->tail_select, select + 1, memory_order_release);
}

bool mpq_tail_proved(const struct mpq_control *control)
{
    return proved(&control->tail[mpq_load(control->tail_select) & 1].position, TAIL_WORDS);
}

struct mpq_consumer_now mpq_consumer_read(const struct mpq_control *control)
{
    uint64_t words[CONSUMER_WORDS];
    uint64_t select;
    do {
        /* SYNC consumer record: acquire here, release in mpq_consumer_write */
        select = atomic_load_explicit(&control->consumer_select, memory_order_acquire);
        load_half(&control->consumer_record[select & 1].floor, words, CONSUMER_WORDS);
    } while (mpq_load(control->consumer_select) != select);
    struct mpq_consumer_now now = {
        .floor = words[0],
        .floor_position = words[1],
        .word_index = words[2],
        .word_value = words[3],
        .scheduled = words[4],
        .totals = {words[7], words[8], words[9], words[10], words[11], words[12], words[13],
                   words[14]},
    };
    return now;
}

void mpq_consumer_write(struct mpq_control *control, const struct mpq_consumer_now *now)
{
    uint64_t select = mpq_load(control->consumer_select);
    const struct mpq_totals *totals = &now->totals;
    uint64_t words[CONSUMER_WORDS] = {now->floor,
                                      now->floor_position,
                                      now->word_index,
                                      now->word_value,
                                      now->scheduled,
                                      0,
                                      0,
                                      totals->settled_items,
                                      totals->settled_bytes,
                                      totals->acked_items,
                                      totals->gap_items,
                                      totals->lost_items,
                                      totals->lost_bytes,
                                      totals->skipped_items,
                                      totals->torn_items,
                                      0};
    atomic_thread_fence(memory_order_release);
    store_half(&control->consumer_record[(select + 1) & 1].floor, words, CONSUMER_WORDS);
    /* SYNC consumer record: the one commit of an ack */
    atomic_store_explicit(&control->consumer_select, select + 1, memory_order_release);
}

bool mpq_consumer_proved(const struct mpq_control *control)
{
    return proved(&control->consumer_record[mpq_load(control->consumer_select) & 1].floor,
                  CONSUMER_WORDS);
}
