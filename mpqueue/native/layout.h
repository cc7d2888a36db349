/* layout.h - every byte that mpqueue shares or stores. On-disk format version 1.
 *
 * Pure: structures, constants, offsets and their static assertions; no code. Changing anything here
 * changes the format. All integers are little endian. "A/B" means: writers prepare the inactive
 * half and one release store of a selector makes it the active one.
 *
 *   spool/
 *     meta                     struct mpq_meta_slot twice, at 0 and 4096. What must last.
 *     control                  struct mpq_control, members, ring, window, attempts. Volatile,
 * mmap'd. cursor                   two cursor slots of mpq_cursor_slot_bytes(ack_window). What was
 * acked. segment-<generation>     12 decimal digits. Static headers, roll records, frames. corrupt/
 * damaged bytes, saved before their extent is reused.
 *     keys                     only with key_window: remembered keys whose frames may be gone.
 *
 * Hashes are XXH64. A frame's seed mixes hash seed, generation and file offset (MPQ_SEED_*), so
 * that a stale, foreign, misplaced or imitated frame does not validate.
 */
#ifndef MPQ_LAYOUT_H
#define MPQ_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define MPQ_FORMAT_VERSION 1u
#define MPQ_PAGE 4096u /* unit of the format, whatever the host's page is */

#define MPQ_META_MAGIC 0x3154454D2D51504DULL /* "MPQ-MET1" */
#define MPQ_CONTROL_MAGIC 0x314C54432D51504DULL /* "MPQ-CTL1" */
#define MPQ_CURSOR_MAGIC 0x315255432D51504DULL /* "MPQ-CUR1" */
#define MPQ_SEGMENT_MAGIC 0x314745532D51504DULL /* "MPQ-SEG1" */
#define MPQ_ROLL_MAGIC 0x314C4F522D51504DULL /* "MPQ-ROL1" */

/* ---- kernel lock bytes, all on meta, far beyond its end ------------------------------------- */

#define MPQ_BYTE_GATE (1ULL << 61) /* held while opening and joining */
#define MPQ_BYTE_CONSUMER ((1ULL << 61) + 1) /* the consumer role */
#define MPQ_BYTE_META ((1ULL << 61) + 2) /* held while meta is written by a member */
#define MPQ_BYTE_MEMBERS (1ULL << 62) /* + incarnation */
#define MPQ_BYTE_VIEWS (1ULL << 61) /* on a segment: shared while views of it live */

/* ---- frames ---------------------------------------------------------------------------------- */

/* State codes: any two differ in at least 4 bits, so one flipped bit is read as what it was. */
#define MPQ_FREE 0x00u
#define MPQ_CLAIMED 0x0Fu
#define MPQ_READY 0x33u
#define MPQ_GAP 0x55u
#define MPQ_PAD 0x66u

#define MPQ_STATE(inc, code) (((uint64_t)(inc) << 8) | (uint64_t)(code))
#define MPQ_STATE_CODE(state) ((unsigned)((state) & 0xFFu))
#define MPQ_STATE_INC(state) ((uint64_t)(state) >> 8)
#define MPQ_INCARNATION_MAX ((1ULL << 56) - 1)

#define MPQ_FRAME_ALIGN 32u
#define MPQ_FRAME_HEADER 48u

/* frame flags, covered by header_hash */
#define MPQ_FLAG_PAD 0x0001u /* no item and no seq of its own: skip the extent */
#define MPQ_FLAG_BATCH 0x0002u /* member of an all-or-nothing batch of consecutive seqs */
#define MPQ_FLAG_BATCH_FIRST 0x0004u /* ... its first */
#define MPQ_FLAG_BATCH_LAST                                                                        \
    0x0008u /* ... its last; a batch is complete when first..last is dense */

struct mpq_frame {
    uint64_t state; /* MPQ_STATE; the only word that changes after the claim */
    uint64_t seq; /* a PAD carries the seq that follows it */
    uint32_t length; /* payload bytes; of a PAD: extent - 48 */
    uint16_t ext_length; /* extension bytes ahead of the payload, a multiple of 8 */
    uint16_t flags;
    uint64_t enqueued_at; /* wall clock, ns since 1970 */
    uint64_t header_hash; /* of bytes 8..31 */
    uint64_t body_hash; /* of extension and payload as they lie in the file; seeded with seq too */
};
_Static_assert(sizeof(struct mpq_frame) == MPQ_FRAME_HEADER, "frame header is 48 bytes");
_Static_assert(offsetof(struct mpq_frame, header_hash) == 32, "hashed bytes are 8..31");

/* extent of a frame in a segment */
#define MPQ_FRAME_EXTENT(ext, length)                                                              \
    (((uint64_t)MPQ_FRAME_HEADER + (uint64_t)(ext) + (uint64_t)(length) + MPQ_FRAME_ALIGN - 1) &   \
     ~(uint64_t)(MPQ_FRAME_ALIGN - 1))

/* header seed = hash_seed + generation * GENERATION + offset * OFFSET         (all modulo 2^64)
 * body seed   = header seed + seq * SEQ
 * The multipliers are the first three primes of the XXH64 specification. */
#define MPQ_SEED_GENERATION 0x9E3779B185EBCA87ULL
#define MPQ_SEED_OFFSET 0xC2B2AE3D27D4EB4FULL
#define MPQ_SEED_SEQ 0x165667B19E3779F9ULL

/* Extension: entries {u16 type, u16 length, value}, each padded with zeros to a multiple of 8.
 * Unknown types are kept and ignored. Type 0 ends the list early. */
#define MPQ_EXT_NOT_BEFORE 1u /* u64 wall clock ns */
#define MPQ_EXT_ATTEMPTS 2u /* u32 */
#define MPQ_EXT_ORIGIN 3u /* u8 uuid[16], u64 epoch, u64 seq */
#define MPQ_EXT_KEY 4u /* producer key, 1 .. MPQ_KEY_MAX bytes */
#define MPQ_KEY_MAX 1024u
#define MPQ_EXT_HEADERS 5u /* repeated {u16 key_length, u16 value_length, key, value}, UTF-8 */
#define MPQ_EXT_CONTENT_TYPE 6u /* UTF-8 */
#define MPQ_EXT_CODEC 7u /* u32 codec id, u32 key id */
#define MPQ_EXT_REASON 8u /* dead letter: UTF-8 */
#define MPQ_EXT_HISTORY                                                                            \
    9u /* dead letter: u64 first failure ns, u64 last ns, UTF-8 first \0 last                      \
        */

/* ---- segments -------------------------------------------------------------------------------- */

#define MPQ_SEGMENT_HEADER_A 0u
#define MPQ_SEGMENT_HEADER_B 4096u
#define MPQ_SEGMENT_ROLL_A 8192u
#define MPQ_SEGMENT_ROLL_B 12288u
#define MPQ_SEGMENT_FIRST 16384u /* offset of the first frame */

/* A position orders all frames of a queue: generation << 27 | offset / 32. */
#define MPQ_POSITION_BITS 27
#define MPQ_POSITION(gen, off) (((uint64_t)(gen) << MPQ_POSITION_BITS) | ((uint64_t)(off) >> 5))
#define MPQ_POSITION_GEN(pos) ((uint64_t)(pos) >> MPQ_POSITION_BITS)
#define MPQ_POSITION_OFF(pos) (((uint64_t)(pos) & ((1ULL << MPQ_POSITION_BITS) - 1)) << 5)

struct mpq_segment_header { /* written and synced before the file gets its name; never changes */
    uint64_t magic;
    uint32_t version;
    uint32_t first_offset; /* MPQ_SEGMENT_FIRST */
    uint8_t uuid[16];
    uint64_t generation;
    uint64_t bytes; /* of the file */
    uint64_t reserved[9];
    uint64_t hash; /* of the bytes before it, seeded with the queue's hash seed */
};
_Static_assert(sizeof(struct mpq_segment_header) == 128, "segment header is 128 bytes");

struct mpq_roll { /* written under the header lock by the claim that enters the segment */
    uint64_t magic;
    uint64_t generation;
    uint64_t base_seq; /* next seq when the segment was entered */
    uint64_t epoch; /* of every seq first pushed into this segment */
    uint64_t previous_end; /* position: end of the last frame before this segment */
    uint64_t previous_seq; /* next seq at previous_end; = base_seq unless a new epoch skipped */
    uint64_t durable_position; /* durable watermark at that moment */
    uint64_t entered_at; /* wall clock ns */
    uint64_t reserved[7];
    uint64_t
        hash; /* of the bytes before it, seeded with hash seed + generation * SEED_GENERATION */
};
_Static_assert(sizeof(struct mpq_roll) == 128, "roll record is 128 bytes");

/* ---- meta ------------------------------------------------------------------------------------ */

#define MPQ_GENERATION_BLOCK 1024u /* generation_mark - this: a segment of it was made, durably */

#define MPQ_DURABILITY_NONE 0u
#define MPQ_DURABILITY_INTERVAL 1u
#define MPQ_DURABILITY_GROUP 2u
#define MPQ_DURABILITY_SYNC 3u

#define MPQ_BACKOFF_MAX 16u

struct mpq_options { /* 0 means "none" where an option can be absent */
    uint64_t segment_size; /* bytes, >= 64 KiB, multiple of 4096, <= 1 GiB */
    uint64_t capacity; /* items */
    uint64_t max_bytes; /* frame extents */
    uint64_t max_item; /* payload bytes, <= 2 GiB */
    uint64_t interval_ns;
    uint64_t ack_linger_ns;
    uint64_t retain_ns;
    uint64_t lease_timeout_ns;
    uint64_t dead_retain_ns;
    uint32_t max_segments; /* >= 4, <= MPQ_RING / 2 */
    uint32_t keep_segments;
    uint32_t interval_items;
    uint32_t ack_window; /* items, multiple of 64, 64 .. 2^22 */
    uint32_t max_members; /* 1 .. 65536 */
    uint32_t durability; /* MPQ_DURABILITY_* */
    uint32_t max_attempts;
    uint32_t backoff_count;
    uint64_t backoff_ns[MPQ_BACKOFF_MAX];
    uint32_t file_mode; /* of files; the directory gets the matching x bits */
    uint32_t key_window; /* keyed items that are remembered, 0 .. 2^22; fixed at creation */
    char codec[32]; /* content codec of the queue, NUL padded; "" = bytes */
    uint64_t reserved[16];
};
_Static_assert(sizeof(struct mpq_options) == 400, "options are 400 bytes");

#define MPQ_KEYS 16u

struct mpq_key { /* a key that items are encrypted with; the key itself is nowhere */
    uint32_t id; /* the user's number of it, as it stands in the items */
    uint32_t reserved;
    uint64_t since; /* wall clock ns: when it was recorded */
    uint8_t check[16]; /* made from the key and the queue's uuid: tells another key */
};
_Static_assert(sizeof(struct mpq_key) == 32, "a key's entry is 32 bytes");

struct mpq_meta_slot { /* both slots are written, one after the other, each synced */
    uint64_t magic;
    uint32_t version;
    uint32_t slot_bytes; /* 4096 */
    uint64_t number; /* grows with every write; the newest valid slot counts */
    uint8_t uuid[16];
    uint64_t hash_seed;
    uint64_t created_at; /* wall clock ns */
    uint64_t epoch;
    uint64_t seq_mark; /* no seq at or above it was ever issued */
    uint64_t generation_mark; /* no generation at or above it was used; ahead, in blocks */
    uint64_t inode; /* of meta itself: another one means that this is a copy */
    uint64_t device;
    uint32_t poison_errno; /* 0 or the errno of the failed flush */
    uint32_t poison_stage; /* MPQ_STAGE_* */
    uint32_t sealed;
    uint32_t reserved0;
    struct mpq_options options;
    uint8_t reserved[1536];
    uint32_t keys_count; /* of the newest MPQ_KEYS; 0 = not encrypted, or no key was used yet */
    uint32_t reserved1;
    struct mpq_key keys[MPQ_KEYS]; /* oldest first */
    uint8_t reserved2[1520];
    uint64_t hash; /* of the bytes before it, seed 0 */
};
_Static_assert(sizeof(struct mpq_meta_slot) == MPQ_PAGE, "a meta slot is a page");
_Static_assert(offsetof(struct mpq_meta_slot, keys_count) == 2048, "keys lie at 2048");

#define MPQ_STAGE_SEGMENT 1u
#define MPQ_STAGE_CURSOR 2u
#define MPQ_STAGE_META 3u
#define MPQ_STAGE_DIRECTORY 4u
#define MPQ_STAGE_KEYS 5u

/* ---- cursor ---------------------------------------------------------------------------------- */

#define MPQ_CURSOR_HEADER 512u
#define MPQ_CURSOR_ATTEMPTS 224u /* entries, highest counts first */

/* header, window bitmap (ack_window / 8 bytes), attempts; rounded up to pages */
#define MPQ_CURSOR_SLOT_BYTES(window)                                                              \
    (((uint64_t)MPQ_CURSOR_HEADER + (uint64_t)(window) / 8 +                                       \
      MPQ_CURSOR_ATTEMPTS * sizeof(struct mpq_cursor_attempt) + MPQ_PAGE - 1) &                    \
     ~(uint64_t)(MPQ_PAGE - 1))

struct mpq_cursor_attempt {
    uint64_t seq;
    uint32_t attempts;
    uint32_t reserved;
};

struct mpq_totals { /* lifetime; carried over operating-system crashes by the cursor */
    uint64_t settled_items; /* acked + gaps + lost + skipped */
    uint64_t settled_bytes; /* frame extents of them, as far as they are known */
    uint64_t acked_items;
    uint64_t gap_items; /* claims whose producer died or failed */
    uint64_t lost_items; /* damaged */
    uint64_t lost_bytes;
    uint64_t skipped_items; /* by skip() */
    uint64_t torn_items; /* found by recovery above the durable watermark: never promised */
};
_Static_assert(sizeof(struct mpq_totals) == 64, "totals are 8 words");

struct mpq_cursor_slot {
    uint64_t magic;
    uint32_t version;
    uint32_t slot_bytes;
    uint64_t number; /* grows with every write */
    uint8_t uuid[16];
    uint64_t floor; /* lowest seq not settled */
    uint64_t floor_position; /* of its frame, or of the end of data */
    uint64_t next_seq; /* high-water mark */
    uint64_t durable_position; /* durable watermark */
    uint64_t epoch;
    uint64_t written_at; /* wall clock ns */
    struct mpq_totals totals;
    uint64_t delivered_items;
    uint64_t redelivered_items;
    uint64_t nacked_items;
    uint64_t loss_events;
    uint32_t attempts_count;
    uint32_t window; /* items covered by the bitmap; bit i is seq (floor & ~31) + i */
    uint64_t claimed_items; /* lifetime; less totals.settled_items it is what was owed */
    uint64_t claimed_bytes;
    uint64_t durable_items; /* of them: covered by a finished flush */
    uint64_t recoveries; /* rebuilds of control, lifetime */
    uint64_t lost_segments;
    uint64_t full_items; /* puts that found no room, lifetime */
    uint64_t dropped_items;
    uint64_t expired_leases;
    uint64_t dead_items; /* of the acked ones: moved to dead/ */
    uint64_t reserved[30];
    uint64_t hash; /* of the whole slot with this field zero, seeded with the hash seed */
};
_Static_assert(sizeof(struct mpq_cursor_slot) == MPQ_CURSOR_HEADER, "cursor header is 512 bytes");

/* ---- keys ------------------------------------------------------------------------------------ */

#define MPQ_BATCH_MAX 4096u /* items of one claim */

/* Slots of the ring of keys, in control and in the file; slot = key number modulo this. More than
 * key_window: what a claim stores never overwrites what is remembered. */
#define MPQ_KEY_SLOTS(window) ((uint64_t)(window) + MPQ_BATCH_MAX)

struct mpq_key_saved { /* the file: MPQ_KEY_SLOTS of them. All zero: none. Each stands for itself */
    uint64_t hash[2]; /* SipHash-2-4-128 of the key, keyed with hash seed and uuid */
    uint64_t seq; /* of the item that was accepted with it */
    uint64_t check; /* of the bytes before it, seeded with hash seed + slot * SEED_OFFSET */
};
_Static_assert(sizeof(struct mpq_key_saved) == 32, "never torn by a sector");

struct mpq_key_slot { /* in control; numbers of keys grow from 1 in the order of their seqs */
    _Atomic uint64_t hash[2];
    _Atomic uint64_t seq;
    _Atomic uint64_t position; /* of its claim's first frame, or MPQ_KEY_* */
    _Atomic uint64_t previous; /* number of the key met before it in its bucket, 0 = none */
};
#define MPQ_KEY_PROVED 0u /* position: accepted for sure, and durable */
#define MPQ_KEY_VOID UINT64_MAX /* position: its claim became a gap */

struct mpq_key_ring { /* the end of control, only with key_window; buckets and slots follow */
    _Atomic uint64_t count; /* number of the newest key */
    _Atomic uint64_t saved; /* keys up to this number are in the file, as far as they hold */
    _Atomic uint64_t damaged; /* entries of the file that did not hold at the last rebuild */
    _Atomic uint64_t reserved[13];
};
_Static_assert(sizeof(struct mpq_key_ring) == 128, "one line");

/* ---- control --------------------------------------------------------------------------------- */

#define MPQ_LINE 128
#define MPQ_RING 16384u /* ring entries; entry = generation modulo MPQ_RING */

/* ring entry codes, in a state word with the incarnation of who works on it */
#define MPQ_RING_EMPTY 0x00u /* no such file, or not ours to use yet */
#define MPQ_RING_PREPARING 0x0Fu
#define MPQ_RING_PREPARED 0x33u /* named, durable, may be entered; also while live */
#define MPQ_RING_KEPT 0x55u /* below the durable floor, kept for reuse */

struct mpq_ring_entry {
    _Atomic uint64_t state; /* MPQ_STATE(incarnation, MPQ_RING_*) */
    _Atomic uint64_t generation;
    _Atomic uint64_t bytes; /* size of the file */
    _Atomic uint64_t freed_at; /* wall clock ns, for retain */
};

struct mpq_tail { /* written under the header lock; read by selector, copy, selector */
    _Atomic uint64_t position; /* where the next frame goes */
    _Atomic uint64_t next_seq;
    _Atomic uint64_t items; /* claimed, lifetime */
    _Atomic uint64_t bytes;
    _Atomic uint64_t scheduled; /* unsettled items due later or parked */
    _Atomic uint64_t check; /* over the words before it: tells whether control can be trusted */
};

struct mpq_consumer_record { /* written by the consumer process under its mutex */
    _Atomic uint64_t floor;
    _Atomic uint64_t floor_position;
    _Atomic uint64_t word_index; /* seq / 32 modulo the window's words: the last word stored ... */
    _Atomic uint64_t word_value; /* ... and its value: a new consumer stores it again */
    _Atomic uint64_t scheduled;
    _Atomic uint64_t reserved[2];
    _Atomic uint64_t totals[8]; /* struct mpq_totals */
    _Atomic uint64_t check; /* over the words before it */
};
_Static_assert(sizeof(struct mpq_consumer_record) == MPQ_LINE, "one line");

struct mpq_window_word { /* value = (seq / 32) << 32 | ack bits; another tag or pair = not acked */
    _Atomic uint64_t value;
    _Atomic uint64_t complement;
};

/* attempts, one word for each seq of the window, at seq modulo ack_window:
 * (seq & (2^48 - 1)) << 16 | hand-outs, at most 65535; another seq = none yet */

#define MPQ_HISTOGRAM 20u /* flush time buckets: upper bounds 16 us * 2^i, the last unbounded */

#define MPQ_ROLE_PRODUCER 1u
#define MPQ_ROLE_CONSUMER 2u

struct mpq_member { /* for people; nothing depends on it. Counters have one writing process. */
    _Atomic uint64_t incarnation; /* 0 = free; stored last */
    _Atomic uint64_t pid;
    _Atomic uint64_t start_time; /* field 22 of /proc/pid/stat */
    _Atomic uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
    char command[16];
    _Atomic uint32_t role;
    _Atomic uint32_t weak; /* its lock byte could not be pinned by a mapping */
    _Atomic uint64_t joined_at; /* wall clock ns */
    _Atomic uint64_t enqueued_items;
    _Atomic uint64_t enqueued_bytes;
    _Atomic uint64_t full; /* puts that found no room */
    _Atomic uint64_t waits; /* slices slept, for anything */
    _Atomic uint64_t lock_waits; /* slices slept for the header lock */
    _Atomic uint64_t lock_wait_max_ns;
    _Atomic uint64_t flushes;
    _Atomic uint64_t flush_ns;
    _Atomic uint64_t flush_histogram[MPQ_HISTOGRAM];
    _Atomic uint64_t dropped_items;
    _Atomic uint64_t flushed_bytes; /* of enqueued_bytes: covered by a finished flush */
    _Atomic uint64_t duplicate_items; /* keyed puts of what had been accepted before */
    _Atomic uint64_t reserved[9];
};
_Static_assert(sizeof(struct mpq_member) == 384, "member entry is three lines");

struct mpq_control {
    /* line 0, 1: identity; written before the file gets its name, then read only */
    uint64_t magic;
    uint32_t version;
    uint32_t ring_entries;
    uint8_t uuid[16];
    uint64_t meta_inode;
    uint64_t meta_device;
    char boot_id[40];
    uint64_t hash_seed;
    uint64_t segment_size;
    uint32_t ack_window;
    uint32_t max_members;
    uint64_t members_offset;
    uint64_t ring_offset;
    uint64_t window_offset;
    uint64_t attempts_offset;
    uint64_t total_bytes;
    uint64_t epoch;
    uint64_t built_at; /* wall clock ns */
    uint64_t identity_hash; /* of the bytes before it, seed 0 */
    uint8_t pad0[80];

    /* the header lock (incarnation << 1 | waiters) and what it guards, in one line pair: a claim
     * on another core fetches nothing else that changes */
    _Alignas(MPQ_LINE) _Atomic uint64_t owner;
    _Atomic uint64_t tail_select;
    struct mpq_tail tail[2];
    /* what a claim must look at besides the tail; changes rarely */
    _Alignas(MPQ_LINE) _Atomic uint32_t poison_errno;
    _Atomic uint32_t poison_stage;
    _Atomic uint32_t sealed;
    _Atomic uint32_t fault; /* a broken kernel promise or a bug; nobody claims any more */
    _Atomic uint64_t seq_mark; /* = meta's; claims stay below it */
    _Atomic uint64_t config_number; /* grows with every `set` */
    _Atomic uint64_t oldest_generation; /* lowest live generation; moved by reclaim only */
    _Atomic uint64_t epoch_first_seq; /* next seq when this epoch began ... */
    _Atomic uint64_t epoch_previous_seq; /* ... and where the walk before it had ended */
    _Atomic uint32_t gateless; /* some member sleeps on the owner word: it has no semaphore */
    _Atomic uint64_t generation_mark; /* meta's is at least this */
    _Atomic uint64_t gate_device; /* st_dev of the first opener's semaphore, 0 = unknown ... */
    _Atomic uint64_t gate_inode; /* ... and its st_ino */
    /* options that `set` may change; readers load them one by one */
    _Alignas(MPQ_LINE) _Atomic uint64_t capacity;
    _Atomic uint64_t max_bytes;
    _Atomic uint64_t max_item;
    _Atomic uint64_t interval_ns;
    _Atomic uint64_t ack_linger_ns;
    _Atomic uint64_t retain_ns;
    _Atomic uint64_t lease_timeout_ns;
    _Atomic uint64_t dead_retain_ns;
    _Atomic uint32_t max_segments;
    _Atomic uint32_t keep_segments;
    _Atomic uint32_t interval_items;
    _Atomic uint32_t durability;
    _Atomic uint32_t max_attempts;
    _Atomic uint32_t backoff_count;
    _Atomic uint64_t backoff_ns[MPQ_BACKOFF_MAX];
    /* consumer */
    _Alignas(MPQ_LINE) _Atomic uint64_t consumer_select;
    _Atomic uint64_t consumer; /* incarnation that last took the role; 0 after an orderly close */
    _Atomic uint64_t expired_leases; /* single writer: the consumer */
    _Atomic uint64_t dead_items; /* moved to dead/; single writer */
    _Alignas(MPQ_LINE) struct mpq_consumer_record consumer_record[2];
    _Alignas(MPQ_LINE) _Atomic uint64_t delivered_items; /* single writer: the consumer */
    _Atomic uint64_t redelivered_items;
    _Atomic uint64_t nacked_items;
    _Atomic uint64_t loss_events;
    _Atomic uint64_t reserved_items; /* gauge: handed out and not settled */
    _Atomic uint64_t read_position; /* gauge */
    _Atomic uint64_t read_seq; /* gauge: next seq that the walk will meet */
    _Atomic uint64_t oldest_enqueued_at; /* gauge: of the floor item, 0 when empty */
    _Atomic uint64_t blocked_on_claim; /* gauge: incarnation of a live claimant at the head, or 0 */
    _Atomic uint64_t blocked_on_window; /* gauge: 1 while the window waits for the floor */
    _Atomic uint64_t cursor_floor; /* floor of the older durable cursor slot */
    _Atomic uint64_t cursor_writes;
    _Atomic uint64_t unreclaimed; /* gauge: files whose removal failed and will be retried */
    _Atomic uint64_t corrupt_saved;
    _Atomic uint64_t corrupt_skipped;
    _Atomic uint64_t reserved_bytes; /* gauge: frames of reserved_items */
    _Atomic uint64_t lost_segments; /* files with unsettled items that were missing or unreadable */
    /* flush */
    _Alignas(MPQ_LINE) _Atomic uint64_t flush_owner; /* the leader's incarnation */
    _Atomic uint64_t flush_pair[2]; /* the last two incarnations that waited for a flush */
    _Atomic uint64_t flush_crowd; /* above 0: a third one did, not many puts ago */
    _Atomic uint64_t flush_started;
    _Atomic uint64_t flush_done;
    _Atomic uint64_t durable_position; /* the watermark; everything below is settled and durable */
    _Atomic uint64_t durable_items; /* claimed items that a finished flush covered, settled */
    _Atomic uint64_t durable_bytes;
    _Atomic uint64_t flush_recent_ns; /* moving average */
    _Atomic uint64_t flushed_at_ns; /* monotonic, end of the newest flush */
    _Atomic uint64_t torn_items; /* from recovery */
    _Atomic uint64_t
        recovered_at_most; /* items that the last recovery may have lost, "at most n" */
    _Atomic uint64_t recoveries;
    /* futex words and their waiters flags */
    _Alignas(MPQ_LINE) _Atomic uint32_t items_event;
    _Atomic uint32_t items_waiting;
    _Alignas(MPQ_LINE) _Atomic uint32_t space_event;
    _Atomic uint32_t space_waiting;
    _Alignas(MPQ_LINE) _Atomic uint32_t flush_event;
    _Atomic uint32_t flush_waiting;
    _Alignas(MPQ_LINE) _Atomic uint32_t segment_event;
    _Atomic uint32_t segment_waiting;
    /* rare events */
    _Alignas(MPQ_LINE) _Atomic uint64_t next_incarnation; /* the last one given out */
    _Atomic uint64_t takeovers;
    _Atomic uint64_t segments_made;
    _Atomic uint64_t segments_reused;
    _Atomic uint64_t segments_removed;
    _Atomic uint64_t members_dead; /* entries reused after a death */
    struct mpq_member retired; /* counters of members that are gone, folded in */
    struct mpq_member shared; /* members beyond the table share it (counters only) */
};
_Static_assert(offsetof(struct mpq_control, owner) == 256, "identity is two lines");
_Static_assert(offsetof(struct mpq_control, poison_errno) == 256 + MPQ_LINE, "one line pair");

#define MPQ_CONTROL_MEMBERS                                                                        \
    ((sizeof(struct mpq_control) + MPQ_PAGE - 1) & ~(uint64_t)(MPQ_PAGE - 1))

#endif
