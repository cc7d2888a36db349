/* mpq.h - the C API of mpqueue: the contract of every call.
 *
 * No Python here and in nothing below it. Calls are thread-safe per handle unless they say
 * otherwise. Two families: `try` calls never sleep and never wait for the kernel longer than a page
 * fault, so a binding may make them with its interpreter lock held; when they cannot finish they
 * return MPQ_AGAIN (or another "wait" status) with nothing held and nothing changed. All other
 * calls may sleep: they take a struct mpq_call, sleep in slices of at most 100 ms and call its
 * `check` after each slice with nothing held.
 *
 * Every call returns a status and, when it is not MPQ_OK and `error` is not NULL, fills *error.
 */
#ifndef MPQ_H
#define MPQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

struct mpq_queue; /* one attachment of one process: an incarnation */
struct mpq_consumer; /* the consumer role, held by a queue handle */
struct mpq_segment; /* a mapped segment; kept mapped while references to it live */
struct mpq_io; /* io.h: every system call of the core */

#define MPQ_CHECKED __attribute__((warn_unused_result))

typedef enum mpq_status {
    MPQ_OK = 0,
    MPQ_AGAIN = 1, /* try call: would have to wait; make the blocking call */
    MPQ_FLUSH = 2, /* put: published, now call mpq_put_flush with the ticket */
    MPQ_EMPTY = 3, /* reserve: nothing ready */
    MPQ_TIMEOUT = 4, /* the call's deadline passed; nothing changed */
    MPQ_INTERRUPTED = 5, /* check() asked to stop; nothing changed */
    MPQ_FULL = 10, /* error->reason: MPQ_FULL_* */
    MPQ_CLOSED = 11,
    MPQ_SEALED = 12,
    MPQ_TOO_LARGE = 13,
    MPQ_CONSUMER_BUSY = 14, /* error->pid */
    MPQ_STALE = 15,
    MPQ_OUT_OF_RANGE = 16,
    MPQ_CORRUPT = 17, /* error->generation, offset, lost_items, lost_bytes */
    MPQ_POISONED = 18, /* error->os_errno */
    MPQ_FLUSH_FAILED = 19, /* outcome unknown */
    MPQ_NO_SPACE = 20, /* disk full; the queue is unchanged */
    MPQ_NOT_A_QUEUE = 21,
    MPQ_REMOVED = 22,
    MPQ_FORMAT = 23, /* newer version, damaged beyond opening: nothing was touched */
    MPQ_MISMATCH = 24, /* an option disagrees; error->message names it */
    MPQ_FILESYSTEM = 25, /* error->message names the type */
    MPQ_LOCK_TIMEOUT = 26, /* error->pid holds the header lock */
    MPQ_ATTACHED = 27, /* destroy/repair/clear: others are attached; error->pid one of them */
    MPQ_FORKED = 28, /* a consumer or batch of the parent was used in a child */
    MPQ_INVALID = 29, /* bad argument */
    MPQ_SYSTEM = 30, /* error->os_errno: EACCES, EMFILE, EIO, ...; nothing was touched */
    MPQ_MEMORY = 31,
    MPQ_INTERNAL = 32 /* a bug or a broken kernel promise */
} mpq_status;

#define MPQ_FULL_CAPACITY 1u
#define MPQ_FULL_BYTES 2u
#define MPQ_FULL_RING 3u
#define MPQ_FULL_SCHEDULED 4u
#define MPQ_FULL_PINNED 5u

struct mpq_error {
    mpq_status status;
    int os_errno;
    uint32_t reason; /* MPQ_FULL_* */
    int64_t pid; /* -1 = unknown */
    uint64_t generation, offset, lost_items, lost_bytes;
    uint64_t accepted; /* items of a non-atomic put_many that went in before the error */
    const char *fstype; /* MPQ_FILESYSTEM: its name, static */
    char message[512]; /* what happened, to which path, what to do next */
};

struct mpq_call {
    uint64_t deadline_ns; /* CLOCK_MONOTONIC, absolute; 0 = do not wait; UINT64_MAX = for ever */
    int (*check)(
        void *arg); /* after every slice, nothing held; non-zero = MPQ_INTERRUPTED. May be NULL */
    void *arg;
};

const char *mpq_status_name(mpq_status status);
const char *mpq_full_reason_name(uint32_t reason); /* "capacity", "bytes", "ring", ... */
uint64_t mpq_monotonic_ns(void);
uint64_t mpq_wall_ns(void);
uint64_t mpq_xxh64(const void *data, size_t bytes, uint64_t seed);

/* ---- opening ------------------------------------------------------------------------------- */

/* bits of mpq_open_args.given: which options the caller named. Those that cannot change must agree
 * with an existing queue, the others too (MPQ_MISMATCH); at creation they replace the defaults. */
#define MPQ_GIVEN_SEGMENT_SIZE (1u << 0)
#define MPQ_GIVEN_CAPACITY (1u << 1)
#define MPQ_GIVEN_MAX_BYTES (1u << 2)
#define MPQ_GIVEN_MAX_ITEM (1u << 3)
#define MPQ_GIVEN_INTERVAL (1u << 4)
#define MPQ_GIVEN_ACK_LINGER (1u << 5)
#define MPQ_GIVEN_RETAIN (1u << 6)
#define MPQ_GIVEN_LEASE_TIMEOUT (1u << 7)
#define MPQ_GIVEN_DEAD_RETAIN (1u << 8)
#define MPQ_GIVEN_MAX_SEGMENTS (1u << 9)
#define MPQ_GIVEN_KEEP_SEGMENTS (1u << 10)
#define MPQ_GIVEN_INTERVAL_ITEMS (1u << 11)
#define MPQ_GIVEN_ACK_WINDOW (1u << 12)
#define MPQ_GIVEN_MAX_MEMBERS (1u << 13)
#define MPQ_GIVEN_DURABILITY (1u << 14)
#define MPQ_GIVEN_MAX_ATTEMPTS (1u << 15)
#define MPQ_GIVEN_BACKOFF (1u << 16)
#define MPQ_GIVEN_CODEC (1u << 17)
#define MPQ_GIVEN_MODE (1u << 18)
#define MPQ_GIVEN_KEY_WINDOW (1u << 19)

void mpq_options_default(struct mpq_options *options);
/* Range checks; the message names the option and its bounds. MPQ_OK or MPQ_INVALID. */
MPQ_CHECKED mpq_status mpq_options_check(const struct mpq_options *options,
                                         struct mpq_error *error);

struct mpq_open_args {
    const char *path; /* absolute, NUL-terminated bytes */
    bool create; /* make the directory and the queue when missing */
    bool inner; /* the path ends in a name that others may have made: no link is followed there */
    uint32_t given; /* MPQ_GIVEN_* */
    struct mpq_options options; /* start from mpq_options_default() */
    const char *allow_filesystem; /* comma-separated type names that may be used anyway, or NULL */
    const struct mpq_io *io; /* NULL = the real one */
};

/* Opens or creates the queue and joins it. Runs recovery when nobody else is attached and it is
 * needed. May take as long as reading the backlog's headers from disk. On any error nothing that
 * existed before was changed. Free the handle with mpq_close + mpq_free. */
MPQ_CHECKED mpq_status mpq_open(const struct mpq_open_args *args, const struct mpq_call *call,
                                struct mpq_queue **queue, struct mpq_error *error);

/* The named semaphore that puts waiters for the header lock to sleep; made by posix_ipc beforehand.
 * Missing: waits use a futex instead, and it costs latency only. NULL name: futex. */
void mpq_open_gate(struct mpq_queue *queue, const char *semaphore_name);
/* Which file stands for that semaphore: st_dev and st_ino, both 0 where it is hidden. Call it right
 * after mpq_open_gate. When the processes that were here before use another one (another /dev/shm
 * is mounted here, or theirs was unlinked), this handle's waits use a futex: MPQ_EVENT_GATE. */
void mpq_gate_identity(struct mpq_queue *queue, uint64_t device, uint64_t inode);
/* "/mpq-<32 hex digits of the uuid>"; valid until mpq_free. */
const char *mpq_gate_name(const struct mpq_queue *queue);

/* Leaves the queue: flushes what this handle published unless the queue is poisoned (a failed
 * flush is reported, the handle is closed all the same), closes the consumer, waits for calls of
 * other threads to end, unmaps. Views and segments with references stay mapped. Idempotent. */
mpq_status mpq_close(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error);
/* Frees a closed handle. In a forked child also one that was open in the parent. */
void mpq_free(struct mpq_queue *queue);
bool mpq_is_closed(const struct mpq_queue *queue);

/* Current options (those in control, as `set` left them). */
void mpq_options_get(struct mpq_queue *queue, struct mpq_options *options);
/* Changes the given options for all processes, durably. segment_size, ack_window, max_members,
 * key_window, mode and codec: MPQ_INVALID. */
MPQ_CHECKED mpq_status mpq_options_set(struct mpq_queue *queue, uint32_t given,
                                       const struct mpq_options *options,
                                       const struct mpq_call *call, struct mpq_error *error);
/* ---- keys: which ones a queue's items are encrypted with. The core knows none of them. */

struct mpq_look { /* what a queue says of itself before anybody joins it */
    uint8_t uuid[16];
    char codec[32]; /* NUL padded */
    uint32_t keys_count;
    struct mpq_key keys[MPQ_KEYS]; /* oldest first */
};
/* Reads meta; nothing is joined, recovered or written. io: NULL is the system. Refusals as of
 * mpq_open. */
MPQ_CHECKED mpq_status mpq_look(const char *path, const struct mpq_io *io, struct mpq_look *look,
                                struct mpq_error *error);
/* The same of an open queue, as meta is now. */
MPQ_CHECKED mpq_status mpq_keys_get(struct mpq_queue *queue, struct mpq_look *look,
                                    const struct mpq_call *call, struct mpq_error *error);
/* Records a key, durably, as the newest one; beyond MPQ_KEYS the oldest is forgotten. `newest` is
 * the one that the caller judged the list by, NULL for an empty list: MPQ_STALE, and nothing
 * changes, when another one is the newest by now. Of a key only id and check count. */
MPQ_CHECKED mpq_status mpq_key_add(struct mpq_queue *queue, const struct mpq_key *newest,
                                   const struct mpq_key *key, const struct mpq_call *call,
                                   struct mpq_error *error);

/* Shared and persisted: puts raise MPQ_SEALED in every process; undo lifts it. */
MPQ_CHECKED mpq_status mpq_seal(struct mpq_queue *queue, bool undo, const struct mpq_call *call,
                                struct mpq_error *error);
/* Removes the queue's files and the directory when it is then empty. MPQ_ATTACHED while any
 * process (this one's open handles included) has it open: nothing is removed then. gate_name gets
 * the semaphore's name, so that the caller can unlink it (32 + 6 bytes). Foreign files stay. */
MPQ_CHECKED mpq_status mpq_destroy(const char *path, const struct mpq_io *io, char gate_name[48],
                                   struct mpq_error *error);

struct mpq_repair {
    uint64_t items, gaps, lost_items, lost_bytes, torn_items;
    uint64_t quarantined; /* files or extents saved in corrupt/ */
    uint32_t cleared_poison, rebuilt;
};
/* Needs the queue alone (MPQ_ATTACHED). Runs the recovery that an open after an operating-system
 * crash runs, with every body verified, and settles every damaged extent: bytes are saved in
 * corrupt/, loss is booked once, later readers see no damage. dry_run: reports only, changes
 * nothing. io: NULL is the system. */
MPQ_CHECKED mpq_status mpq_repair_queue(const char *path, const struct mpq_io *io, bool dry_run,
                                        const struct mpq_call *call, struct mpq_repair *report,
                                        struct mpq_error *error);

/* ---- producing ----------------------------------------------------------------------------- */

struct mpq_item_in {
    const void *body;
    uint32_t length;
    const void *ext; /* encoded extension entries, or NULL */
    uint16_t ext_length; /* multiple of 8 */
};

/* One item: claim, write, publish.
 *  MPQ_OK      accepted, nothing to wait for (policies none, interval below its bound)
 *  MPQ_FLUSH   published; call mpq_put_flush(queue, *ticket, ...) before reporting success
 *  MPQ_AGAIN   the lock is busy or a segment must be prepared or (block) there is no room: mpq_put
 *  MPQ_FULL    no room
 *  others      refused, nothing changed */
MPQ_CHECKED mpq_status mpq_put_try(struct mpq_queue *queue, const struct mpq_item_in *item,
                                   uint64_t *seq, uint64_t *ticket, struct mpq_error *error);
/* The same, waiting for the lock, a segment and room until the call's deadline, then MPQ_FULL with
 * its reason (MPQ_LOCK_TIMEOUT when the wait ended at the lock). Does not flush: returns MPQ_OK or
 * MPQ_FLUSH like the try call. */
MPQ_CHECKED mpq_status mpq_put(struct mpq_queue *queue, const struct mpq_item_in *item,
                               const struct mpq_call *call, uint64_t *seq, uint64_t *ticket,
                               struct mpq_error *error);
/* count items with consecutive seqs, all or nothing: one lock hold, published last to first.
 * MPQ_TOO_LARGE before any claim when they do not fit into one batch (4,096 items, half a segment,
 * capacity, max_bytes). */
MPQ_CHECKED mpq_status mpq_put_batch_try(struct mpq_queue *queue, const struct mpq_item_in *items,
                                         uint32_t count, uint64_t *first_seq, uint64_t *ticket,
                                         struct mpq_error *error);
MPQ_CHECKED mpq_status mpq_put_batch(struct mpq_queue *queue, const struct mpq_item_in *items,
                                     uint32_t count, const struct mpq_call *call,
                                     uint64_t *first_seq, uint64_t *ticket,
                                     struct mpq_error *error);
/* The value of the first extension entry of a type, or NULL. */
const uint8_t *mpq_extension_find(const uint8_t *ext, size_t ext_length, unsigned type,
                                  size_t *length);

struct mpq_key_in { /* of one item of a keyed put */
    uint64_t hash[2];
    uint64_t seq; /* of the item itself, or of the first one with its key */
    uint32_t twin; /* index of the first item of the call with the same key */
    bool keyed; /* else the item has no key, and is always accepted */
    bool duplicate;
};
struct mpq_keyed { /* a put of items with keys: begin, put, end */
    const struct mpq_item_in *items;
    struct mpq_key_in *keys;
    struct mpq_item_in *fresh; /* the items that are accepted now ... */
    uint32_t count;
    uint32_t fresh_count; /* ... and how many they are */
    uint64_t newest; /* position of the newest item that was met, 0 = all are durable */
    uint64_t wait_position; /* of a claim in the way that is not settled */
    uint64_t wait_since_ns, lost_generation;
    struct mpq_key_in one_key; /* room for a put of one */
    struct mpq_item_in one_item;
};
/* Items carry their keys in their extensions (MPQ_EXT_KEY); those without one are put like any
 * other. MPQ_INVALID: the queue remembers no keys (option key_window). `items` stay the caller's
 * until mpq_keyed_end. */
MPQ_CHECKED mpq_status mpq_keyed_begin(struct mpq_queue *queue, struct mpq_keyed *keyed,
                                       const struct mpq_item_in *items, uint32_t count,
                                       struct mpq_error *error);
void mpq_keyed_end(struct mpq_queue *queue, struct mpq_keyed *keyed);
/* Items whose key was accepted before, by any process and within the last key_window keyed items,
 * are left out, and get the seq of the first; the others are put as by mpq_put_batch. Both in one
 * lock hold. MPQ_FLUSH also when an item that was put before is not durable yet. A claim with one
 * of the keys that is not settled is waited for: MPQ_LOCK_TIMEOUT when its process does not go on.
 * call NULL: a try call. */
MPQ_CHECKED mpq_status mpq_put_keyed(struct mpq_queue *queue, struct mpq_keyed *keyed,
                                     const struct mpq_call *call, uint64_t *ticket,
                                     struct mpq_error *error);
/* How many of these items one batch may take now (at least 1 when the first item fits at all). */
uint32_t mpq_batch_fit(struct mpq_queue *queue, const struct mpq_item_in *items, uint32_t count);

/* Waits until a flush with a number >= ticket is done, leading one when nobody does. The deadline
 * of the call is ignored (a flush is bounded by the device); check() is obeyed: MPQ_INTERRUPTED
 * then means published, durability unknown. MPQ_FLUSH_FAILED or MPQ_POISONED: outcome unknown.
 * Where another thread closes the handle meanwhile, the last flush of that close serves; this call
 * waits for it until the deadline: one made inside a call on the same handle, by a signal handler,
 * must not wait, or the close waits for it. */
MPQ_CHECKED mpq_status mpq_put_flush(struct mpq_queue *queue, uint64_t ticket,
                                     const struct mpq_call *call, struct mpq_error *error);
/* Everything published before the call is durable when it returns, whatever the policy; acks of
 * this handle's consumer too. */
MPQ_CHECKED mpq_status mpq_flush(struct mpq_queue *queue, const struct mpq_call *call,
                                 struct mpq_error *error);
/* Counts a put that the caller dropped after MPQ_FULL (on_full="drop"). */
void mpq_count_dropped(struct mpq_queue *queue, uint64_t items);

/* ---- consuming ----------------------------------------------------------------------------- */

struct mpq_item {
    uint64_t seq;
    uint64_t epoch; /* of the segment it lies in, or of its origin */
    uint64_t origin_seq; /* = seq, or that of its origin */
    uint64_t enqueued_at; /* wall clock ns */
    uint64_t token; /* of this hand-out: ack and nack need it */
    uint32_t attempts; /* hand-outs including this one */
    uint32_t length;
    const uint8_t *body; /* length bytes, valid until mpq_segment_release(segment), or in a room */
    const uint8_t *ext; /* ext_length bytes */
    uint16_t ext_length;
    struct mpq_segment *segment; /* one reference, owned by the caller; NULL: it lies in a room */
};

/* Memory of the caller. Items that fit are copied there, one behind the other, before they count as
 * handed out, and refer to no segment: for small ones cheaper than a reference. */
struct mpq_room {
    uint8_t *to;
    size_t bytes;
};

/* Takes the consumer role. Waits for a live holder until the deadline, then MPQ_CONSUMER_BUSY.
 * One consumer per handle. */
MPQ_CHECKED mpq_status mpq_consumer_open(struct mpq_queue *queue, const struct mpq_call *call,
                                         struct mpq_consumer **consumer, struct mpq_error *error);
/* Persists acks, gives the role back; outstanding items return to ready. Idempotent. */
mpq_status mpq_consumer_close(struct mpq_consumer *consumer, struct mpq_error *error);
void mpq_consumer_free(struct mpq_consumer *consumer);
/* For who closes it next: a loss that was booked and is kept for the next reserve, which would have
 * told it. False: there is none. */
bool mpq_untold_loss(struct mpq_consumer *consumer, struct mpq_error *error);
bool mpq_consumer_is_closed(const struct mpq_consumer *consumer);

/* Hands out the lowest ready item, both hashes verified. Under lease_timeout it is ready again when
 * that time has passed without an ack, nack or mpq_extend; the token is stale from then on.
 *  MPQ_OK       *item filled
 *  MPQ_EMPTY    nothing ready now
 *  MPQ_AGAIN    a segment must be mapped, a dead claim examined, an item past max_attempts moved to
 *               dead/, ...: mpq_reserve_wait, then again
 *  MPQ_SEALED   sealed and drained (nothing unsettled remains but this consumer's own reservations,
 * if any: then MPQ_EMPTY) MPQ_CORRUPT  damage was met, booked and passed: reported once; call again
 */
MPQ_CHECKED mpq_status mpq_reserve_try(struct mpq_consumer *consumer, struct mpq_item *item,
                                       struct mpq_error *error);
MPQ_CHECKED mpq_status mpq_reserve_into(struct mpq_consumer *consumer, struct mpq_room *room,
                                        struct mpq_item *item, struct mpq_error *error);
/* Up to `count` items of at most max_bytes payload together (the first always fits; 0 = no bound).
 * MPQ_OK when *taken > 0. */
MPQ_CHECKED mpq_status mpq_reserve_many_try(struct mpq_consumer *consumer, struct mpq_item *items,
                                            uint32_t count, uint64_t max_bytes, uint32_t *taken,
                                            struct mpq_error *error);
MPQ_CHECKED mpq_status mpq_reserve_many_into(struct mpq_consumer *consumer, struct mpq_room *room,
                                             struct mpq_item *items, uint32_t count,
                                             uint64_t max_bytes, uint32_t *taken,
                                             struct mpq_error *error);
/* Whether the queue is sealed and nothing is left but what is reserved: no wait can bring more. */
MPQ_CHECKED mpq_status mpq_consumer_at_end(struct mpq_consumer *consumer, bool *at_end,
                                           struct mpq_error *error);
/* Does what reserve_try could not, and sleeps at most one slice (<= 100 ms, and not beyond the
 * deadline) until an item may be ready. MPQ_OK: try again. MPQ_TIMEOUT: the deadline has passed. */
MPQ_CHECKED mpq_status mpq_reserve_wait(struct mpq_consumer *consumer, const struct mpq_call *call,
                                        struct mpq_error *error);
/* A descriptor that polls readable whenever a reserve might do other than wait: items are ready,
 * the queue is sealed and drained, the consumer closed, or there is an error to tell. A reserve (or
 * peek, or skip) that finds nothing clears it. The first call starts a thread, which lives until
 * the consumer is closed; from then on the descriptor is readable for good, until
 * mpq_consumer_free closes it. Nobody else may read or close it. */
MPQ_CHECKED mpq_status mpq_consumer_fd(struct mpq_consumer *consumer, int *fd,
                                       struct mpq_error *error);
/* The next item that reserve would hand out, without taking or counting it. Damage: skipped, not
 * booked. */
MPQ_CHECKED mpq_status mpq_consumer_peek(struct mpq_consumer *consumer, struct mpq_item *item,
                                         struct mpq_error *error);
void mpq_segment_release(struct mpq_segment *segment);
void mpq_segment_retain(struct mpq_segment *segment);
/* memcpy out of an item; false when its file was truncated since it was handed out. */
MPQ_CHECKED bool mpq_copy_out(void *to, const void *from, size_t bytes);
/* What was copied or mapped before this call is what was handed out. False: somebody settled the
 * item meanwhile, and its segment's file may hold other items by now. The consumer is open. */
bool mpq_item_intact(const struct mpq_consumer *consumer, const struct mpq_item *item);
/* MPQ_OK: it is not, because it was settled, so the next look finds another one. MPQ_INTERNAL:
 * control was overwritten, and it would be found for ever. */
MPQ_CHECKED mpq_status mpq_item_settled(struct mpq_consumer *consumer, struct mpq_error *error);
/* A second mapping of the item's segment for zero-copy views: as long as a reference to it lives,
 * in this process or a forked child, the file is not reused. *body points into it. NULL when it
 * cannot be made. */
struct mpq_segment *mpq_item_view(struct mpq_consumer *consumer, const struct mpq_item *item,
                                  const uint8_t **body);

/* durable: returns after the cursor is on disk (always so under policy sync). Never sleeps
 * otherwise. Repeats are harmless (MPQ_OK); another hand-out's token: MPQ_STALE. */
MPQ_CHECKED mpq_status mpq_ack(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                               struct mpq_error *error);
/* Good ones stand; *bad counts the stale ones and the first of them is reported (MPQ_STALE). */
MPQ_CHECKED mpq_status mpq_ack_many(struct mpq_consumer *consumer, const uint64_t *seqs,
                                    const uint64_t *tokens, uint32_t count, uint32_t *bad,
                                    struct mpq_error *error);
/* Acks everything handed out below seq (exclusive); MPQ_OUT_OF_RANGE beyond what was delivered. */
MPQ_CHECKED mpq_status mpq_ack_up_to(struct mpq_consumer *consumer, uint64_t seq, uint64_t *acked,
                                     struct mpq_error *error);
/* true: the policy wants mpq_consumer_sync before the ack call returns (policy sync). */
bool mpq_ack_needs_sync(struct mpq_consumer *consumer);
/* Writes the cursor and waits for the disk: all acks so far are durable. Releases nothing else. */
MPQ_CHECKED mpq_status mpq_consumer_sync(struct mpq_consumer *consumer, struct mpq_error *error);
/* Ready again in its own place, at once. */
MPQ_CHECKED mpq_status mpq_nack(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                struct mpq_error *error);
/* The same for an item that nobody has looked at: the hand-out is not counted as an attempt. */
MPQ_CHECKED mpq_status mpq_unreserve(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                     struct mpq_error *error);
/* The lease of this hand-out ends `ns` from now, sooner or later than it would have. Without one
 * (the queue had no lease_timeout when it was handed out) nothing changes. */
MPQ_CHECKED mpq_status mpq_extend(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                  uint64_t ns, struct mpq_error *error);
/* This hand-out is neither settled nor given back, nor did its lease run out. The consumer is open.
 */
bool mpq_handed_out(struct mpq_consumer *consumer, uint64_t seq, uint64_t token);
/* Is it worth to make such a text? */
bool mpq_keeps_failures(struct mpq_consumer *consumer);
/* What failed, in UTF-8, for the history of a dead letter; the last one and the first are kept
 * while the queue has max_attempts. Changes nothing else; a stale hand-out notes nothing. */
MPQ_CHECKED mpq_status mpq_failed(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                  const char *text, size_t length, struct mpq_error *error);
/* Moves an item in hand to the queue in dead/, made when it is missing: durable there, then acked
 * here. MPQ_STALE, or why dead/ takes nothing (MPQ_FULL, MPQ_NO_SPACE, ...): it is still in hand
 * then. MPQ_CORRUPT: damaged since the hand-out, booked. Sleeps. */
MPQ_CHECKED mpq_status mpq_dead_letter(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                       const char *reason, size_t length, struct mpq_error *error);
/* An item in hand goes to another queue, as what it was before it became a dead letter: durable
 * there (*put is its seq), then acked here. Waits for room until the call's deadline. */
MPQ_CHECKED mpq_status mpq_redrive(struct mpq_consumer *consumer, uint64_t seq, uint64_t token,
                                   struct mpq_queue *to, const struct mpq_call *call, uint64_t *put,
                                   struct mpq_error *error);
/* Nacks everything handed out; their tokens become stale. */
MPQ_CHECKED mpq_status mpq_rewind(struct mpq_consumer *consumer, uint64_t *items, uint64_t *bytes,
                                  struct mpq_error *error);
/* Drops the next ready item undecoded, counted as skipped. MPQ_EMPTY, MPQ_AGAIN like reserve. */
MPQ_CHECKED mpq_status mpq_skip(struct mpq_consumer *consumer, uint64_t *seq,
                                struct mpq_error *error);
/* flush + cursor in both slots + reclaim of everything that may go. */
MPQ_CHECKED mpq_status mpq_checkpoint(struct mpq_consumer *consumer, const struct mpq_call *call,
                                      struct mpq_error *error);

/* ---- looking ------------------------------------------------------------------------------- */

struct mpq_stats { /* one consistent-enough snapshot; every field also readable after a crash */
    uint64_t enqueued_items, enqueued_bytes; /* claimed, lifetime; bytes are frame extents */
    uint64_t delivered_items, redelivered_items, acked_items, nacked_items;
    uint64_t expired_leases, dead_items; /* the latter are acked ones */
    uint64_t gap_items, skipped_items, lost_items, lost_bytes, torn_items, dropped_items;
    uint64_t lost_segments;
    uint64_t duplicate_items; /* keyed puts of what had been accepted before */
    uint64_t keys_remembered, keys_damaged; /* gauges */
    uint64_t settled_items, settled_bytes;
    uint64_t depth; /* enqueued - settled */
    uint64_t backlog_bytes;
    uint64_t ready_items, reserved_items, reserved_bytes, scheduled_items;
    uint64_t unsynced_items, unsynced_bytes;
    uint64_t floor, next_seq, read_seq, epoch;
    uint64_t floor_lag_items; /* next_seq - floor */
    uint64_t oldest_age_ns; /* of the floor item; 0 when empty */
    uint64_t segments, kept_segments, disk_bytes, capacity_bytes;
    uint64_t oldest_generation, tail_generation;
    uint64_t segments_made, segments_reused, segments_removed, unreclaimed;
    uint64_t flushes, flush_ns, flush_histogram[MPQ_HISTOGRAM];
    uint64_t full, waits, lock_waits, lock_wait_max_ns, takeovers;
    uint64_t cursor_writes, loss_events, corrupt_saved, corrupt_skipped;
    uint64_t members, members_alive; /* of the table: handles beyond it are not counted */
    uint64_t consumer_pid; /* 0 = nobody, or not in the table */
    uint64_t blocked_on_claim_pid, blocked_on_window; /* 0 = not blocked */
    uint64_t recoveries, recovered_at_most;
    uint32_t sealed, poison_errno, poison_stage, weak, fault, durability;
    uint32_t consumer_attached; /* also one that has no pid here: it is not in the table */
};
/* A forked child joins with its first call, for which it may have to wait while somebody opens the
 * queue. Calls that have no struct mpq_call wait for that without end: here is how to do it before.
 */
bool mpq_is_ready(const struct mpq_queue *queue);
MPQ_CHECKED mpq_status mpq_make_ready(struct mpq_queue *queue, const struct mpq_call *call,
                                      struct mpq_error *error);
void mpq_stats_get(struct mpq_queue *queue, struct mpq_stats *stats);
uint64_t mpq_depth(struct mpq_queue *queue);
/* MPQ_OK, or MPQ_REMOVED: the directory or meta was deleted or replaced under this open handle. */
MPQ_CHECKED mpq_status mpq_still_there(struct mpq_queue *queue, struct mpq_error *error);
/* MPQ_OK, or why what the looks above returned is not to be believed: control was truncated
 * (MPQ_REMOVED) or overwritten (MPQ_INTERNAL) under this open handle. */
MPQ_CHECKED mpq_status mpq_usable(struct mpq_queue *queue, struct mpq_error *error);

struct mpq_member_info {
    uint64_t incarnation, pid, pid_namespace, start_time, joined_at;
    uint64_t enqueued_items, enqueued_bytes, full, dropped_items;
    uint64_t unsynced_bytes; /* at most so many of enqueued_bytes could a power cut take */
    uint64_t waits, lock_waits, lock_wait_max_ns, flushes, flush_ns;
    uint32_t role, alive, weak;
    char command[16];
};
/* Fills up to max entries, returns how many there are. */
uint32_t mpq_members(struct mpq_queue *queue, struct mpq_member_info *infos, uint32_t max);

/* Events worth a WARNING, each told once per handle: bits are cleared by reading. */
#define MPQ_EVENT_LOSS (1u << 0)
#define MPQ_EVENT_TAKEOVER (1u << 1)
#define MPQ_EVENT_WEAK (1u << 2)
#define MPQ_EVENT_LOCK_WAIT (1u << 3) /* the header lock was waited for longer than 10 s; pid */
#define MPQ_EVENT_RECOVERED (1u << 4)
#define MPQ_EVENT_DEAD (1u << 6) /* dead/ takes nothing: dead_status says why; it is retried */
#define MPQ_EVENT_GATE (1u << 5) /* the semaphore is missing or not ours: futex waits */
struct mpq_event_info {
    uint64_t lost_items, lost_bytes, lock_holder_pid, torn_items, recovered_at_most;
    mpq_status dead_status;
};
/* Cheap: one load when nothing happened. */
uint32_t mpq_events_take(struct mpq_queue *queue, struct mpq_event_info *info);

const uint8_t *mpq_uuid(const struct mpq_queue *queue); /* 16 bytes */
uint64_t mpq_incarnation(const struct mpq_queue *queue);
const char *mpq_path(const struct mpq_queue *queue);

#endif
