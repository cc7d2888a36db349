/* internal.h - the handle and what the files of the core offer each other.
 *
 * Locking inside a process: queue->mutex guards the table of mappings and everything a claim
 * touches in the handle; consumer->mutex guards the consumer; queue->flush_mutex makes flushes
 * through this handle's mappings go one at a time. Order: consumer->mutex, queue->mutex, header
 * lock; flush_mutex is taken with none of them held. Nothing sleeps under queue->mutex or the
 * header lock; mapping a segment happens under queue->mutex but never under the header lock.
 */
#ifndef MPQ_INTERNAL_H
#define MPQ_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "io.h"
#include "mpq.h"
#include "mutex.h"

#define MPQ_LIKELY(x) __builtin_expect(!!(x), 1)
#define MPQ_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define MPQ_MS 1000000ULL
#define MPQ_SLICE_NS (100 * MPQ_MS) /* no sleep is longer */
#define MPQ_LOCK_WARN_NS 10000000000ULL /* a longer wait for the header lock is worth a warning */
#define MPQ_MAPS 256u /* mappings a handle keeps, by generation modulo this */
#define MPQ_TICKET_OWN UINT64_MAX /* put_flush: a flush of its own, whatever others do */

static inline uint64_t mpq_min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t mpq_max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline void mpq_relax(void) /* between two looks of a short spin */
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void mpq_raise_to(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    while (seen < value &&
           !atomic_compare_exchange_weak_explicit(word, &seen, value, memory_order_acq_rel,
                                                  memory_order_relaxed))
        ;
}

#define mpq_load(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define mpq_store(word, value) atomic_store_explicit(&(word), (value), memory_order_relaxed)
/* a counter with one writing thread at a time */
#define mpq_bump(word, by) mpq_store(word, mpq_load(word) + (by))

/* ---- error.c */
mpq_status mpq_fail(struct mpq_error *error, mpq_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* From errno: ENOSPC and EDQUOT = MPQ_NO_SPACE, ENOMEM = MPQ_MEMORY, else MPQ_SYSTEM. */
mpq_status mpq_fail_errno(struct mpq_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- guard.c: a truncated file under a mapping is an error, not the death of the process */
#include <setjmp.h>
struct mpq_guard {
    sigjmp_buf jump;
    struct mpq_guard *outer;
    struct mpq_queue *locked; /* holds the header lock of this queue */
    struct mpq_mutex *volatile mutex; /* taken by mpq_guarded_lock */
    _Atomic uint64_t *claimed; /* state word of a claim not yet published */
    uint64_t claimed_state;
    uint32_t claimed_count; /* of a batch: its frames follow each other */
};
extern __thread struct mpq_guard *mpq_guard_top __attribute__((tls_model("initial-exec")));
void mpq_guard_install(void);
/* After a fault: undoes what the thread held. Returns the status for the caller. */
mpq_status mpq_guard_recover(struct mpq_guard *guard, struct mpq_queue *queue,
                             struct mpq_error *error);
static inline void mpq_guard_push(struct mpq_guard *guard)
{
    guard->outer = mpq_guard_top;
    guard->locked = NULL;
    guard->mutex = NULL;
    guard->claimed = NULL;
}
#define MPQ_GUARD_ARM(guard) (mpq_guard_top = (guard))
#define MPQ_GUARD_DROP(guard) (mpq_guard_top = (guard)->outer)

/* ---- the handle */
struct mpq_segment {
    const struct mpq_io *io;
    uint8_t *base;
    uint64_t generation;
    uint64_t bytes;
    uint64_t inode, device; /* of the file: what the mapping of a reused one is found by */
    _Atomic uint32_t references;
    bool flushed_before; /* false: the first flush re-dirties and covers the head pages */
    uint64_t read_ahead; /* offset up to which pages were faulted in for reading */
    uint64_t touched; /* offset up to which pages were touched ahead */
    uint64_t epoch; /* of its roll record, once it was looked up */
};

struct mpq_pin { /* a kernel lock kept by a mapping of its description */
    void *map;
    int fd; /* -1, or kept open where a mapping does not pin */
};

struct mpq_fork_page { /* wiped in a forked child */
    _Atomic uint64_t incarnation; /* 0 = not joined in this process */
    _Atomic uint64_t joining;
};

struct mpq_file_id { /* 0, 0 = unknown */
    uint64_t inode, device;
};

struct mpq_queue {
    const struct mpq_io *io;
    char *path;
    int dirfd;
    int checker; /* meta: probes of lock bytes, reads, writes; owns no lock */
    struct mpq_file_id directory_id;
    uint64_t meta_inode, meta_device;
    uint8_t uuid[16];
    uint64_t hash_seed;
    char gate_name[48];
    void *gate; /* semaphore or NULL */
    uint64_t gate_device, gate_inode; /* of the semaphore's file; 0 = unknown */

    struct mpq_control *control;
    uint64_t control_bytes;
    uint64_t control_inode; /* of the file that is mapped */
    uint64_t identity; /* control's identity hash as it was mapped */
    struct mpq_member *members;
    struct mpq_ring_entry *ring;
    struct mpq_window_word *window;
    _Atomic uint64_t *attempts;
    struct mpq_key_ring *keys; /* NULL without key_window */
    uint32_t window_words;
    uint64_t window_mask; /* ack_window - 1 where that is a power of two, else 0 */
    uint64_t segment_size;
    struct mpq_options created; /* from meta: what cannot change */

    struct mpq_fork_page *fork;
    uint64_t incarnation;
    struct mpq_member *me;
    bool me_shared;
    struct mpq_pin pin;
    bool weak;

    struct mpq_mutex mutex;
    pthread_mutex_t flush_mutex;
    struct mpq_flush_mark *flush_marks; /* of members, under flush_mutex; NULL = no memory yet */
    struct mpq_segment *maps[MPQ_MAPS];
    struct mpq_consumer *consumer;
    _Atomic uint32_t leaving; /* a close has begun: no consumer registers any more (mutex) */
    _Atomic uint32_t left; /* ... and has ended */
    _Atomic uint32_t closing;
    _Atomic uint32_t parted; /* 1 + errno of the last flush of a close; 0 = not yet */
    _Atomic uint32_t removed; /* files that puts go to were deleted: none is claimed any more */
    _Atomic uint32_t vanished; /* control was truncated: some of what is mapped is a stand-in */
    _Atomic uint32_t inflight; /* blocking calls inside */
    _Atomic uint32_t meetings; /* how often the header lock was met taken since it last yielded */
    bool published; /* something was published by this handle, and not flushed for its close */
    uint64_t owed_flush; /* the ticket of what it put last (mutex) */
    uint64_t stamp_ns, stamp_ticks; /* the wall clock at the last look, and the counter then */
    _Atomic uint64_t prepare_after_ns; /* preparing ahead failed: not again before this */
    struct mpq_stats last_stats;

    _Atomic uint32_t events;
    struct mpq_event_info event_info;
};

/* queue->mutex around looks at mappings inside a guard: given back when one of them faults. */
static inline void mpq_guarded_lock(struct mpq_queue *queue)
{
    mpq_mutex_lock(&queue->mutex);
    if (mpq_guard_top != NULL)
        mpq_guard_top->mutex = &queue->mutex;
}
static inline void mpq_guarded_unlock(struct mpq_queue *queue)
{
    if (mpq_guard_top != NULL)
        mpq_guard_top->mutex = NULL;
    mpq_mutex_unlock(&queue->mutex);
}
/* While it is watched, control is replaced by a stand-in where it faults; see guard.c. */
void mpq_guard_watch(struct mpq_queue *queue);
void mpq_guard_unwatch(struct mpq_queue *queue);
mpq_status mpq_vanished(struct mpq_queue *queue, struct mpq_error *error);

/* The place of a seq in window and attempts. A division costs as much as a locked instruction, and
 * an item needs three. */
static inline uint64_t mpq_place_of(const struct mpq_queue *queue, uint64_t seq)
{
    return MPQ_LIKELY(queue->window_mask != 0) ? seq & queue->window_mask
                                               : seq % ((uint64_t)queue->window_words * 32);
}
static inline struct mpq_window_word *mpq_word_of(const struct mpq_queue *queue, uint64_t seq)
{
    return &queue->window[mpq_place_of(queue, seq) >> 5];
}

#include "member.h"

/* ---- wait.c */
struct mpq_waiter {
    _Atomic uint32_t *event;
    _Atomic uint32_t *flag;
    uint32_t value;
};
/* Arms the flag; then the caller re-checks its condition and calls mpq_wait_sleep or just leaves.
 */
struct mpq_waiter mpq_wait_arm(_Atomic uint32_t *event, _Atomic uint32_t *flag);
/* One slice at most, not beyond the deadline. MPQ_OK, MPQ_TIMEOUT, MPQ_INTERRUPTED, or why a child
 * that a signal handler forked could not join; only that fills *error. */
mpq_status mpq_wait_sleep(struct mpq_queue *queue, const struct mpq_waiter *waiter,
                          const struct mpq_call *call, uint64_t slice_ns, struct mpq_error *error);
/* After the state change: wakes whoever armed the flag. */
void mpq_wake(struct mpq_queue *queue, _Atomic uint32_t *event, _Atomic uint32_t *flag);
/* A plain pause of one slice with the same returns. */
mpq_status mpq_pause(struct mpq_queue *queue, const struct mpq_call *call, uint64_t slice_ns,
                     struct mpq_error *error);
/* The header lock is held for about a microsecond, the gate for about a millisecond, or as long as
 * their owner is off the processor. A call that must not wait for room still gives a living owner
 * this long: being full is an answer, a neighbour's time slice is not. */
#define MPQ_GRACE_NS (250 * MPQ_MS)

/* ---- lock.c: the header lock */
struct mpq_lock_wait {
    bool contended; /* has slept: takes the lock with the waiters bit set */
    uint64_t seen;
    uint64_t slice_ns;
    uint64_t since_ns;
    bool warned;
};
bool mpq_lock_try(struct mpq_queue *queue, const struct mpq_lock_wait *wait);
void mpq_lock_release(struct mpq_queue *queue);
/* Sleeps one slice for the lock. */
mpq_status mpq_lock_sleep(struct mpq_queue *queue, struct mpq_lock_wait *wait,
                          const struct mpq_call *call, struct mpq_error *error);
/* Both, until it is taken; MPQ_CLOSED when the handle is closed meanwhile. */
mpq_status mpq_lock_take(struct mpq_queue *queue, const struct mpq_call *call,
                         struct mpq_error *error);

/* ---- control.c */
struct mpq_tail_now {
    uint64_t position, next_seq, items, bytes, scheduled;
};
struct mpq_consumer_now {
    uint64_t floor, floor_position, word_index, word_value, scheduled;
    struct mpq_totals totals;
};
uint64_t mpq_control_bytes(const struct mpq_options *options);
mpq_status mpq_control_make(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                            const char *boot_id, int *fd, struct mpq_error *error);
mpq_status mpq_control_map(struct mpq_queue *queue, int fd, uint64_t bytes,
                           struct mpq_error *error);
void mpq_control_unmap(struct mpq_queue *queue);
void mpq_config_store(struct mpq_control *control, const struct mpq_options *options);
struct mpq_tail_now mpq_tail_read(const struct mpq_control *control);
uint64_t mpq_tail_position(const struct mpq_control *control);
/* False: its check does not hold, so somebody else stored over control. */
bool mpq_tail_read_proved(const struct mpq_control *control, struct mpq_tail_now *now);
/* Not truncated, and still the control that was mapped. */
mpq_status mpq_control_ours(struct mpq_queue *queue, struct mpq_error *error);
mpq_status mpq_overwritten(struct mpq_queue *queue, struct mpq_error *error);
/* Under the header lock (or alone): prepares the inactive half and flips. */
void mpq_tail_write(struct mpq_control *control, const struct mpq_tail_now *now);
/* Seqs from here to next_seq were never issued when next_seq began an epoch. */
static inline uint64_t mpq_walked_end(const struct mpq_control *control, uint64_t next_seq)
{
    return next_seq == mpq_load(control->epoch_first_seq) ? mpq_load(control->epoch_previous_seq)
                                                          : next_seq;
}
bool mpq_tail_proved(const struct mpq_control *control);
struct mpq_consumer_now mpq_consumer_read(const struct mpq_control *control);
void mpq_consumer_write(struct mpq_control *control, const struct mpq_consumer_now *now);
bool mpq_consumer_proved(const struct mpq_control *control);
/* The words of one half of a record, its check last. */
bool mpq_record_holds(const uint64_t *words, unsigned count);

/* ---- meta.c */
mpq_status mpq_meta_read(struct mpq_queue *queue, struct mpq_meta_slot *meta,
                         struct mpq_error *error);
/* Both slots, each synced. The caller holds MPQ_BYTE_META or the range. */
mpq_status mpq_meta_write(struct mpq_queue *queue, struct mpq_meta_slot *meta,
                          struct mpq_error *error);
/* Read, change, write under MPQ_BYTE_META. */
mpq_status mpq_meta_update(struct mpq_queue *queue,
                           void (*change)(struct mpq_meta_slot *meta, void *arg), void *arg,
                           const struct mpq_call *call, struct mpq_error *error);
/* errno is left alone. */
bool mpq_meta_exists(const struct mpq_queue *queue);
mpq_status mpq_meta_create(struct mpq_queue *queue, const struct mpq_options *options,
                           struct mpq_error *error);
/* Latches a failed flush for every process, present and future. */
void mpq_poison(struct mpq_queue *queue, int failed_errno, uint32_t stage);
mpq_status mpq_poisoned(struct mpq_queue *queue, struct mpq_error *error);
/* Raises meta's seq mark so that claims up to `seq` may be made; ahead, in blocks. */
mpq_status mpq_mark_raise(struct mpq_queue *queue, uint64_t seq, uint64_t generation,
                          const struct mpq_call *call, struct mpq_error *error);
#define MPQ_SEQ_BLOCK (1ULL << 20)
#define MPQ_SEQ_MAX (UINT64_MAX / 4) /* nothing above it was written here, whatever its hash */

/* ---- options.c */
/* MPQ_MISMATCH when a given one is not what the queue has. */
mpq_status mpq_options_agree(struct mpq_queue *queue, uint32_t given,
                             const struct mpq_options *wanted, struct mpq_error *error);

/* ---- frame.c */
static inline uint64_t mpq_header_seed(uint64_t hash_seed, uint64_t generation, uint64_t offset)
{
    return hash_seed + generation * MPQ_SEED_GENERATION + offset * MPQ_SEED_OFFSET;
}
static inline uint64_t mpq_body_seed(uint64_t header_seed, uint64_t seq)
{
    return header_seed + seq * MPQ_SEED_SEQ;
}
static inline _Atomic uint64_t *mpq_state_of(struct mpq_frame *frame)
{
    return (_Atomic uint64_t *)(void *)&frame->state;
}
/* The nearest code within one flipped bit, else 0xFF. */
unsigned mpq_state_decode(uint64_t state);

enum mpq_sight {
    MPQ_SEE_FRAME, /* header whole (as read or with one flipped bit undone) */
    MPQ_SEE_END, /* too little room left in the segment for a header */
    MPQ_SEE_DAMAGE, /* no header here */
};
struct mpq_seen {
    struct mpq_frame header; /* state as loaded (acquire) */
    uint64_t extent;
    unsigned code; /* decoded state; PAD by flag */
    bool healed; /* one bit of the header was wrong */
};
/* Looks at an offset. last_seq: frames must have a seq >= min_seq (pads too). */
enum mpq_sight mpq_frame_see(const struct mpq_queue *queue, const struct mpq_segment *segment,
                             uint64_t offset, uint64_t min_seq, struct mpq_seen *seen);
bool mpq_body_holds(const struct mpq_queue *queue, const struct mpq_segment *segment,
                    uint64_t offset, const struct mpq_frame *header);
/* From offset on, in steps of 32: the next frame with seq >= min_seq that is an item, a gap with a
 * whole header, or (live) a claim; limit bounds the scan. Returns its offset or 0. */
uint64_t mpq_frame_scan(const struct mpq_queue *queue, const struct mpq_segment *segment,
                        uint64_t offset, uint64_t limit, uint64_t min_seq, bool live,
                        struct mpq_seen *seen);
/* Padding that ends exactly at `end`, where such a frame begins: its offset, or 0, and its seq, the
 * first of those that whoever wrote it settled. Damage ahead of it took none of them. */
uint64_t mpq_frame_pads_before(const struct mpq_queue *queue, const struct mpq_segment *segment,
                               uint64_t from, uint64_t end, uint64_t min_seq, uint64_t *seq);
void mpq_frame_header_write(const struct mpq_queue *queue, const struct mpq_segment *segment,
                            uint64_t offset, struct mpq_frame *header);

/* ---- segment.c */
#define MPQ_NAME_MAX 48
void mpq_segment_name(uint64_t generation, char name[MPQ_NAME_MAX]);
bool mpq_segment_parse(const char *name, uint64_t *generation);
/* Mapped and verified, from the table or made now. queue->mutex held; no header lock. The table
 * owns the reference. */
struct mpq_segment *mpq_segment_map(struct mpq_queue *queue, uint64_t generation,
                                    struct mpq_error *error);
/* Only what is mapped already. */
static inline struct mpq_segment *mpq_segment_mapped(struct mpq_queue *queue, uint64_t generation)
{
    struct mpq_segment *segment = queue->maps[generation % MPQ_MAPS];
    return segment != NULL && segment->generation == generation ? segment : NULL;
}
void mpq_segments_forget(struct mpq_queue *queue);
/* Those of segments that were freed and not kept for reuse. */
void mpq_segments_forget_freed(struct mpq_queue *queue);
mpq_status mpq_segment_header_check(struct mpq_queue *queue, const uint8_t *base, uint64_t bytes,
                                    uint64_t generation);
void mpq_roll_write(struct mpq_queue *queue, struct mpq_segment *segment,
                    const struct mpq_roll *roll);
bool mpq_roll_read(const struct mpq_queue *queue, const struct mpq_segment *segment,
                   struct mpq_roll *roll);
/* Makes generation's file ready to be entered. Blocking; nothing held. MPQ_FULL(ring) when the
 * ring has no room for it. relocation: the spare may be used. */
mpq_status mpq_segment_prepare(struct mpq_queue *queue, uint64_t generation, uint64_t bytes,
                               const struct mpq_call *call, struct mpq_error *error);
bool mpq_ring_room(const struct mpq_queue *queue, uint64_t generation);
static inline struct mpq_ring_entry *mpq_ring_at(const struct mpq_queue *queue, uint64_t generation)
{
    return &queue->ring[generation % MPQ_RING];
}
/* Prepared and of this generation: may be entered. */
static inline bool mpq_ring_ready(const struct mpq_queue *queue, uint64_t generation)
{
    const struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    /* SYNC prepared: acquire here, release in mpq_segment_prepare */
    uint64_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
    return MPQ_STATE_CODE(state) == MPQ_RING_PREPARED && mpq_load(entry->generation) == generation;
}
#define MPQ_RING_DAMAGED 1ULL /* bit of ring entry bytes: never reuse the file */

/* ---- claim.c */
enum mpq_need {
    MPQ_NEED_NOTHING,
    MPQ_NEED_LOCK,
    MPQ_NEED_SEGMENT,
    MPQ_NEED_MARK,
    MPQ_NEED_ROOM,
    MPQ_NEED_KEY, /* see mpq_keys_wait */
    MPQ_NEED_FEWER /* keyed->fresh is less than what was given */
};
struct mpq_claim {
    struct mpq_keyed *keyed; /* NULL: keys play no part */
    struct mpq_segment *segment;
    uint64_t offset, bytes; /* of the frames */
    uint64_t first_seq;
    uint64_t items_after; /* claimed items, lifetime, after this claim */
    uint64_t enqueued_at;
    enum mpq_need need; /* on MPQ_AGAIN */
    uint64_t need_generation, need_bytes;
    bool past_half; /* the next segment should be prepared */
};
/* queue->mutex held. MPQ_OK: claimed, the guard knows. MPQ_AGAIN: see need. MPQ_FULL: room (need =
 * MPQ_NEED_ROOM). */
mpq_status mpq_claim(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                     const struct mpq_lock_wait *wait, struct mpq_guard *guard,
                     struct mpq_claim *claim, struct mpq_error *error);
/* The same with claim->keyed as the caller set it: the items are its fresh ones. */
mpq_status mpq_claim_keyed(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                           const struct mpq_lock_wait *wait, struct mpq_guard *guard,
                           struct mpq_claim *claim, struct mpq_error *error);
/* Makes pages behind a claim ready for the next ones; outside the lock. */
void mpq_touch_ahead(struct mpq_queue *queue, const struct mpq_claim *claim);
void mpq_claim_write(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count,
                     const struct mpq_claim *claim);
mpq_status mpq_claim_publish(struct mpq_queue *queue, const struct mpq_item_in *items,
                             uint32_t count, const struct mpq_claim *claim,
                             struct mpq_error *error);

/* ---- once.c */
/* Under the header lock. MPQ_OK: none of keyed->fresh has been accepted. MPQ_AGAIN: see need. */
mpq_status mpq_keys_meet(struct mpq_queue *queue, struct mpq_claim *claim);
/* Under the header lock, after the claim's flip and before its publication. */
void mpq_keys_add(struct mpq_queue *queue, const struct mpq_claim *claim);
/* Remembers one more; under the header lock or alone. */
void mpq_keys_append(struct mpq_queue *queue, const uint64_t hash[2], uint64_t seq,
                     uint64_t position);
/* Nothing held: does what mpq_keys_meet could not, and sleeps at most one slice. */
mpq_status mpq_keys_wait(struct mpq_queue *queue, struct mpq_keyed *keyed,
                         const struct mpq_call *call, struct mpq_error *error);
/* The claim of seq is a gap, about to be settled. */
void mpq_keys_void(struct mpq_queue *queue, uint64_t seq);
void mpq_count_duplicates(struct mpq_queue *queue, const struct mpq_keyed *keyed);
uint64_t mpq_keys_bytes(const struct mpq_options *options);
static inline _Atomic uint64_t *mpq_key_buckets(const struct mpq_queue *queue)
{
    return (_Atomic uint64_t *)(void *)(queue->keys + 1);
}
/* A power of two above the window. */
static inline uint64_t mpq_key_bucket_count(uint32_t window)
{
    return window == 0 ? 0 : 1ULL << (64 - __builtin_clzll(window));
}
static inline struct mpq_key_slot *mpq_key_at(const struct mpq_queue *queue, uint64_t number)
{
    const uint32_t window = queue->created.key_window;
    uint8_t *slots = (uint8_t *)(queue->keys + 1) + mpq_key_bucket_count(window) * 8;
    return (struct mpq_key_slot *)(void *)slots + number % MPQ_KEY_SLOTS(window);
}
void mpq_siphash128(const uint64_t secret[2], const uint8_t *data, size_t length, uint64_t hash[2]);
void mpq_key_hash(const struct mpq_queue *queue, const uint8_t *key, size_t length,
                  uint64_t hash[2]);
/* ---- once_file.c */
/* The file has every remembered key below the floor. The consumer, or the range is held. */
mpq_status mpq_keys_save(struct mpq_queue *queue, struct mpq_error *error);
struct rebuild;
struct mpq_generations;
/* From the file and the frames; then a new file. */
mpq_status mpq_keys_rebuild(struct rebuild *r, const struct mpq_generations *found,
                            struct mpq_error *error);

/* ---- flush.c */
/* The one act of flushing: number, snapshot, msync, done, watermark, wake. Nothing held. */
mpq_status mpq_flush_once(struct mpq_queue *queue, struct mpq_error *error);
/* Marks pages as changed, without changing them: the next msync writes them again. */
void mpq_redirty(struct mpq_segment *segment, uint64_t from, uint64_t to);
/* What a put must wait for after publishing: 0 = nothing, else a ticket. */
uint64_t mpq_flush_ticket(struct mpq_queue *queue, uint64_t items_after);
/* Under interval: the consumer looks at the time for producers that went silent. */
void mpq_flush_if_due(struct mpq_queue *queue);
/* Closing, nobody inside: what was published since, or waits for its flush, is flushed. */
mpq_status mpq_flush_leave(struct mpq_queue *queue, struct mpq_error *error);
bool mpq_visible_is_durable(const struct mpq_queue *queue);

/* ---- consumer.c, reserve.c, damage.c, ack.c, cursor.c, bell.c, reclaim.c */
enum mpq_entry_state {
    MPQ_ENTRY_NONE,
    MPQ_ENTRY_OUT,
    MPQ_ENTRY_AGAIN,
    MPQ_ENTRY_LOST, /* while a loss that begins here is booked */
    MPQ_ENTRY_SETTLED,
    MPQ_ENTRY_DOOMED /* to be moved to dead/: nobody's */
};
struct mpq_entry { /* one per seq in the window, by seq modulo the table */
    uint64_t seq;
    uint64_t position;
    uint64_t next; /* seq of the frame met after it; 0 = none yet */
    uint32_t extent;
    uint32_t token;
    uint32_t state;
    uint32_t lease; /* lease.c; 0 = none */
};

struct mpq_consumer {
    struct mpq_queue *queue;
    uint64_t incarnation; /* of the process that took the role */
    struct mpq_mutex mutex;
    struct mpq_pin pin;
    _Atomic bool closed;
    _Atomic uint32_t closing; /* somebody is closing it, or has */
    _Atomic uint32_t gone; /* ... has: the role is given back */
    _Atomic uint32_t references; /* its opener, and calls on the queue that look at it */

    struct mpq_entry *entries;
    uint64_t entry_mask;
    struct mpq_leases *leases; /* NULL until the queue has a lease_timeout */
    struct mpq_dead *dead; /* NULL until the first dead letter */
    struct mpq_failures *failures; /* NULL until the first one is noted */
    uint64_t *again; /* binary heap of seqs that are ready again */
    uint32_t again_count, again_room;
    uint64_t *retried; /* seqs with attempts above 1 */
    uint32_t retried_count, retried_room;
    uint32_t next_token;
    uint64_t out; /* handed out and not settled */
    uint64_t out_bytes; /* their frames */

    uint64_t read_position, read_seq; /* of the walk */
    uint64_t limit; /* walk no further, as last looked up */
    uint64_t last_walked; /* seq of the newest entry; valid while walked */
    bool walked;
    struct mpq_segment *segment; /* of read_position, referenced */
    struct mpq_segment *view; /* newest mapping for views, referenced */
    struct mpq_consumer_now record;
    bool record_open; /* settles gathered, not flipped yet */
    bool record_changed; /* the floor moved, not flipped yet */
    bool blocked_on_claim, blocked_on_window; /* why the walk stands still */
    uint64_t claimed_at; /* read position above which the watch saw a live claim */
    uint32_t idle_slices; /* of reserve_wait without progress */
    bool peeking; /* look, book nothing */
    bool tell; /* `untold` happened, and is booked if it is a loss; it is still to be told */
    struct mpq_error untold;

    /* cursor */
    int cursor_fd;
    struct mpq_file_id cursor_id;
    uint64_t cursor_bytes;
    uint8_t *cursor_buffer;
    uint64_t cursor_number;
    int cursor_next; /* slot written next */
    uint64_t slot_floor_position[2];
    uint64_t slot_floor[2];
    bool cursor_dirty; /* acks since the last write began */
    uint64_t cursor_moves; /* hand-outs and returns that it covered */
    pthread_mutex_t cursor_mutex; /* one writer at a time; taken before mutex */

    /* helper thread */
    pthread_t helper;
    bool helper_started, helper_stop, helper_wanted, helper_reclaim;
    bool helper_asleep;
    _Atomic uint32_t helper_event; /* moves when there is work; what the helper sleeps on */
    uint64_t reclaimed; /* generations below it were freed by this consumer */

    /* bell.c */
    pthread_t bell;
    int bell_fd; /* -1 until it is asked for; then open as long as the consumer is allocated */
    bool bell_made, bell_armed;
    _Atomic uint32_t bell_event; /* moves when it is armed or stopped; the idle thread's word */
};

/* consumer->mutex held in all of these */
bool mpq_acked(const struct mpq_queue *queue, uint64_t seq);
/* Hand-outs so far, as control counts them. */
uint32_t mpq_attempts_of(const struct mpq_queue *queue, uint64_t seq);
/* ... and as what it is a copy of. */
uint32_t mpq_attempts_before(const struct mpq_consumer *consumer, const struct mpq_segment *segment,
                             uint64_t offset, const struct mpq_frame *header);
/* One more; the new count. */
uint32_t mpq_attempt_count(struct mpq_consumer *consumer, uint64_t seq);
/* It was counted for the second time. False: out of memory. */
bool mpq_attempt_remember(struct mpq_consumer *consumer, uint64_t seq);
/* The newest hand-out of seq does not count: nobody has seen it. */
void mpq_attempt_undo(struct mpq_consumer *consumer, uint64_t seq);
/* A new consumer's list of what was handed out more than once before it. False: out of memory. */
bool mpq_attempts_recall(struct mpq_consumer *consumer);
enum mpq_settle { MPQ_SETTLE_ACK, MPQ_SETTLE_GAP, MPQ_SETTLE_LOST, MPQ_SETTLE_SKIP };
void mpq_settle(struct mpq_consumer *consumer, uint64_t seq, uint64_t bytes, enum mpq_settle how);
/* Makes gathered settles visible: one flip, then the window word. */
void mpq_settle_commit(struct mpq_consumer *consumer);
static inline bool mpq_in_window(const struct mpq_consumer *consumer, uint64_t seq)
{
    return (seq >> 5) < (consumer->record.floor >> 5) + consumer->queue->window_words;
}
static inline struct mpq_entry *mpq_entry_of(struct mpq_consumer *consumer, uint64_t seq)
{
    return &consumer->entries[seq & consumer->entry_mask];
}
/* `by` more or fewer are in hands: one frame of `extent` bytes. */
void mpq_count_out(struct mpq_consumer *consumer, int by, uint32_t extent);
/* The walk met a frame: chains its entry and moves the read position behind it. */
void mpq_entry_walked(struct mpq_consumer *consumer, uint64_t seq, uint64_t position,
                      uint64_t extent, enum mpq_entry_state state);
/* What is out is ready again in its place; its hand-out is over. MPQ_OK or MPQ_MEMORY. */
mpq_status mpq_entry_return(struct mpq_consumer *consumer, struct mpq_entry *entry,
                            struct mpq_error *error);
/* The hand-out with this token still has it. */
bool mpq_entry_held(const struct mpq_consumer *consumer, const struct mpq_entry *entry,
                    uint64_t seq, uint64_t token);
static inline bool mpq_entry_acked(const struct mpq_entry *entry, uint64_t seq, uint64_t token)
{
    return entry->seq == seq && entry->state == MPQ_ENTRY_SETTLED &&
           entry->token == (uint32_t)token;
}
mpq_status mpq_stale(struct mpq_consumer *consumer, uint64_t seq, bool acked,
                     struct mpq_error *error);
bool mpq_again_push(struct mpq_consumer *consumer, uint64_t seq);
uint64_t mpq_again_pop(struct mpq_consumer *consumer);
/* A dead claimant's frame, and the rest of its batch, become gaps: last to first. False: it had
 * published them, and nothing was changed. */
bool mpq_gap_frames(struct mpq_queue *queue, struct mpq_segment *segment, uint64_t offset,
                    const struct mpq_seen *seen);
/* True: seq lies beyond the window and something below is outstanding. */
bool mpq_window_blocks(struct mpq_consumer *consumer, uint64_t seq);
/* Where the consumer may read up to, by policy. */
uint64_t mpq_visible_limit(const struct mpq_queue *queue);
/* watch.c: nobody alive will settle or flush the frame above the watermark where the walk stands.
 * Without `map`, also true when that cannot be told from what is mapped. */
bool mpq_head_orphaned(struct mpq_consumer *consumer, bool map);
/* Sealed, and nothing is left or out. */
bool mpq_drained(const struct mpq_consumer *consumer);
/* Entry of the consumer's calls: refuses a closed one and one of the parent's. */
mpq_status mpq_consumer_check(struct mpq_consumer *consumer, struct mpq_error *error);
/* ... and counts the call in, so that closing the handle waits for it; mpq_exit counts it out. */
mpq_status mpq_consumer_enter(struct mpq_consumer *consumer, struct mpq_error *error);
/* view.c: around a look at what the consumer has in hand. A forked child looks, too: it alone uses
 * what it has inherited, and a thread that does not exist there may hold the mutex. */
bool mpq_look_begin(struct mpq_consumer *consumer); /* for its mpq_look_end: a close may come */
void mpq_look_end(struct mpq_consumer *consumer, bool ours);
/* Recomputes settled totals from the frames between floor and tail. */
void mpq_recount(struct mpq_consumer *consumer);
struct mpq_segment *mpq_consumer_segment(struct mpq_consumer *consumer, uint64_t generation,
                                         struct mpq_error *error);

/* Locks the consumer and arms a guard: the calls touch control. */
#define MPQ_CONSUMER_INSIDE(consumer, guard, error)                                                \
    mpq_status status = mpq_consumer_check(consumer, error);                                       \
    if (status == MPQ_OK && MPQ_UNLIKELY(mpq_load((consumer)->queue->vanished) != 0))              \
        status = mpq_vanished((consumer)->queue, error);                                           \
    if (status != MPQ_OK)                                                                          \
        return status;                                                                             \
    mpq_mutex_lock(&(consumer)->mutex);                                                            \
    if ((consumer)->closed) {                                                                      \
        mpq_mutex_unlock(&(consumer)->mutex);                                                      \
        return mpq_consumer_check(consumer, error);                                                \
    }                                                                                              \
    struct mpq_guard guard;                                                                        \
    mpq_guard_push(&guard);                                                                        \
    if (sigsetjmp(guard.jump, 0) != 0) {                                                           \
        status = mpq_guard_recover(&guard, (consumer)->queue, error);                              \
        mpq_mutex_unlock(&(consumer)->mutex);                                                      \
        return status;                                                                             \
    }                                                                                              \
    MPQ_GUARD_ARM(&guard)
#define MPQ_CONSUMER_OUTSIDE(consumer, guard)                                                      \
    MPQ_GUARD_DROP(&guard);                                                                        \
    mpq_mutex_unlock(&(consumer)->mutex)

/* cursor.c: nothing held */
mpq_status mpq_cursor_write(struct mpq_consumer *consumer, struct mpq_error *error);
/* Reads and checks one slot into `slot` (MPQ_CURSOR_SLOT_BYTES); 0 valid, 1 not, -1 errno. */
int mpq_cursor_read(struct mpq_queue *queue, int fd, int index, uint8_t *slot);
void mpq_cursor_seal(struct mpq_queue *queue, uint8_t *slot);
/* Opens, makes if missing, and syncs the cursor file. */
mpq_status mpq_cursor_open(struct mpq_queue *queue, int *fd, struct mpq_error *error);
mpq_status mpq_cursor_attach(struct mpq_consumer *consumer, struct mpq_error *error);
/* Under consumer->mutex: tells the helper that acks wait for the disk. */
void mpq_helper_poke(struct mpq_consumer *consumer);
void mpq_helper_stop(struct mpq_consumer *consumer);
/* A new consumer frees what those before it left; a last one writes what blocks its segments. */
void mpq_helper_start(struct mpq_consumer *consumer);
mpq_status mpq_cursor_leave(struct mpq_consumer *consumer, struct mpq_error *error);
/* The consumer of this handle, or NULL: it is not freed before mpq_consumer_free. */
struct mpq_consumer *mpq_consumer_hold(struct mpq_queue *queue);
/* damage.c: consumer->mutex held. Books nothing while the consumer peeks. MPQ_CORRUPT, MPQ_EMPTY
 * when the window blocks it, MPQ_OK when nothing was lost after all. headed: it is one frame, whose
 * header holds. */
mpq_status mpq_lose(struct mpq_consumer *consumer, uint64_t first, uint64_t from, uint64_t to,
                    uint64_t next_seq, bool headed, struct mpq_error *error);
/* No header holds at the read position: finds where frames go on, and books what is between. */
mpq_status mpq_cross_damage(struct mpq_consumer *consumer, struct mpq_segment *segment,
                            struct mpq_error *error);
/* The file lost its end, and with it seqs that its successor, or the tail, says it held. */
bool mpq_cut_short(struct mpq_consumer *consumer, const struct mpq_segment *segment);
/* Counts the event and says it. */
mpq_status mpq_corrupt(struct mpq_consumer *consumer, uint64_t generation, uint64_t offset,
                       uint64_t items, uint64_t bytes, struct mpq_error *error);
/* What a peek says of damage, which it leaves to be booked. */
mpq_status mpq_damage_ahead(struct mpq_queue *queue, struct mpq_error *error);
/* Its segment is never reused. */
void mpq_mark_damaged(struct mpq_queue *queue, uint64_t generation);
/* bell.c: a look found nothing; consumer->mutex held. */
void mpq_bell_arm(struct mpq_consumer *consumer);
/* nothing held */
void mpq_bell_stop(struct mpq_consumer *consumer);
/* reclaim.c: nothing held; frees what both cursor slots have passed. */
void mpq_reclaim(struct mpq_consumer *consumer, bool pressed);
/* quarantine.c: saves bytes of a damaged extent; best effort, bounded, counted. */
void mpq_quarantine(struct mpq_queue *queue, const struct mpq_segment *segment, uint64_t from,
                    uint64_t to);

/* ---- recover.c: the range is held. Afterwards control is mapped and true. */
/* Trusts control when it is proved fresh, rebuilds it otherwise. */
mpq_status mpq_recover(struct mpq_queue *queue, struct mpq_error *error);
/* open.c: the directory's own name is durable. */
mpq_status mpq_sync_parent(struct mpq_queue *queue, struct mpq_error *error);
void mpq_gate_of(const uint8_t uuid[16], char name[48]);
/* Gives up a semaphore that is not the others', and tells them when this handle has none. */
void mpq_gate_join(struct mpq_queue *queue);
/* admin.c: waits for a living destroyer, ends what a dead one began; MPQ_EMPTY: there was none. */
mpq_status mpq_destroy_rest(struct mpq_queue *queue, const struct mpq_call *call,
                            char gate_name[48], struct mpq_error *error);
/* evidence.c: lifetime totals that control proves, though it is not of this boot or not whole. */
struct mpq_evidence {
    uint64_t accepted; /* items; 0 = nothing is known */
    uint64_t position; /* all before it was accepted since the machine started */
    uint64_t floor, floor_position; /* 0 = as the cursor says */
    uint64_t settled;
    bool settled_known;
};
mpq_status mpq_evidence_read(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                             const char *boot_id, struct mpq_evidence *known,
                             struct mpq_error *error);
/* A dry run cannot have them written first: the acks of this boot, as control has them, go into the
 * queue's window. */
mpq_status mpq_evidence_acks(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                             const char *boot_id, struct mpq_evidence *known,
                             struct mpq_error *error);
/* rebuild.c: from meta, cursor and segments; repair: every body is looked at, damage is settled. */
struct mpq_rebuild_how {
    bool repair;
    bool dry;
    bool poisoned; /* what the page cache shows is not believed: written again */
};
mpq_status mpq_rebuild(struct mpq_queue *queue, struct mpq_meta_slot *meta, const char *boot_id,
                       const struct mpq_rebuild_how *how, struct mpq_repair *report,
                       struct mpq_error *error);
struct mpq_generations { /* of the segment files in the directory, ascending */
    uint64_t *list;
    uint32_t count, room;
    bool failed;
    const struct mpq_io *io;
};
mpq_status mpq_generations_find(struct mpq_queue *queue, struct mpq_generations *found,
                                struct mpq_error *error);
/* Segment files below `oldest`: kept for reuse up to keep_segments, else removed. */
void mpq_sweep_segments(struct mpq_queue *queue, const struct mpq_generations *found,
                        uint64_t oldest);

/* ---- open.c */
/* A handle with directory and meta open, not joined; half: without meta. */
mpq_status mpq_handle_open(const struct mpq_open_args *args, bool half, struct mpq_queue **queue,
                           struct mpq_error *error);
mpq_status mpq_attach(struct mpq_queue *queue, const struct mpq_call *call,
                      struct mpq_error *error);
void mpq_event(struct mpq_queue *queue, uint32_t event);

#endif
