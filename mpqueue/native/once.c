/* once.c - idempotent puts: the last key_window keyed items are remembered, in control.
 *
 * A ring of keys in the order of their seqs, chained by buckets, newest first. A chain ends at the
 * first number that left the window, so nothing is ever taken out. Looked up and stored under the
 * header lock, in the hold that claims: two puts of one key agree.
 *
 * I1 a key is stored after the flip of its claim and before its publication: a claim that dies in
 * between is a gap, with or without its key. I2 its words, then `count`, then its bucket: a bucket
 * never names a number above `count`, and what is not in its bucket belongs to a dead claim. I3 a
 * key counts only while its claim is no gap. The frame tells; where the frame may be gone, below
 * the floor, the consumer has voided the keys of gaps before it settled them. I4 the frame looked
 * at is the first of the claim, which is published last: READY there means all of it. */
#include <stdlib.h>

#include "checksum.h"
#include "internal.h"

/* ---- the hash: SipHash-2-4 with 128 bits. A hash that whoever chooses keys can make collide would
 * drop items, so it takes a secret of the queue. */

struct sip {
    uint64_t v[4];
};

static void sip_rounds(struct sip *sip, int rounds)
{
    uint64_t *v = sip->v;
    while (rounds-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = xxh64_rotate(v[1], 13) ^ v[0];
        v[3] = xxh64_rotate(v[3], 16) ^ v[2];
        v[0] = xxh64_rotate(v[0], 32) + v[3];
        v[2] += v[1];
        v[3] = xxh64_rotate(v[3], 21) ^ v[0];
        v[1] = xxh64_rotate(v[1], 17) ^ v[2];
        v[2] = xxh64_rotate(v[2], 32);
    }
}

static void sip_word(struct sip *sip, uint64_t word)
{
    sip->v[3] ^= word;
    sip_rounds(sip, 2);
    sip->v[0] ^= word;
}

void mpq_siphash128(const uint64_t secret[2], const uint8_t *data, size_t length, uint64_t hash[2])
{
    struct sip sip = {{secret[0] ^ 0x736F6D6570736575ULL, secret[1] ^ 0x646F72616E646F6DULL ^ 0xEE,
                       secret[0] ^ 0x6C7967656E657261ULL, secret[1] ^ 0x7465646279746573ULL}};
    size_t at = 0;
    for (; at + 8 <= length; at += 8)
        sip_word(&sip, xxh64_load64(data + at));
    uint64_t last = (uint64_t)length << 56;
    for (unsigned shift = 0; at < length; at++, shift += 8)
        last |= (uint64_t)data[at] << shift;
    sip_word(&sip, last);
    sip.v[2] ^= 0xEE;
    sip_rounds(&sip, 4);
    hash[0] = sip.v[0] ^ sip.v[1] ^ sip.v[2] ^ sip.v[3];
    sip.v[1] ^= 0xDD;
    sip_rounds(&sip, 4);
    hash[1] = sip.v[0] ^ sip.v[1] ^ sip.v[2] ^ sip.v[3];
}

void mpq_key_hash(const struct mpq_queue *queue, const uint8_t *key, size_t length,
                  uint64_t hash[2])
{
    const uint64_t secret[2] = {queue->hash_seed,
                                xxh64_load64(queue->uuid) ^ xxh64_load64(queue->uuid + 8)};
    mpq_siphash128(secret, key, length, hash);
}

const uint8_t *mpq_extension_find(const uint8_t *ext, size_t ext_length, unsigned type,
                                  size_t *length)
{
    size_t at = 0;
    while (at + 4 <= ext_length) {
        uint16_t head[2]; /* type, length */
        memcpy(head, ext + at, sizeof head);
        if (head[0] == 0 || at + 4 + head[1] > ext_length)
            return NULL;
        if (head[0] == type) {
            *length = head[1];
            return ext + at + 4;
        }
        at += (4 + (size_t)head[1] + 7) & ~(size_t)7;
    }
    return NULL;
}

/* ---- one put's keys */

struct order {
    const struct mpq_key_in *key;
    uint32_t index;
};

static int by_hash(const void *left, const void *right)
{
    const struct order *a = left, *b = right;
    const int hashes = memcmp(a->key->hash, b->key->hash, sizeof a->key->hash);
    return hashes != 0 ? hashes : (a->index > b->index) - (a->index < b->index);
}

/* The same key twice in one put: the first one is accepted. */
static bool find_twins(struct mpq_queue *queue, struct mpq_keyed *keyed)
{
    struct order *order = queue->io->alloc(queue->io, keyed->count * sizeof *order);
    uint32_t count = 0;
    if (order == NULL)
        return false;
    for (uint32_t i = 0; i < keyed->count; i++)
        if (keyed->keys[i].keyed)
            order[count++] = (struct order){&keyed->keys[i], i};
    qsort(order, count, sizeof *order, by_hash);
    for (uint32_t i = 1; i < count; i++)
        if (memcmp(order[i].key->hash, order[i - 1].key->hash, sizeof order[i].key->hash) == 0)
            keyed->keys[order[i].index].twin = order[i - 1].key->twin;
    queue->io->free(queue->io, order);
    return true;
}

static void choose_fresh(struct mpq_keyed *keyed)
{
    keyed->fresh_count = 0;
    for (uint32_t i = 0; i < keyed->count; i++)
        if (keyed->keys[i].twin == i && !keyed->keys[i].duplicate)
            keyed->fresh[keyed->fresh_count++] = keyed->items[i];
}

mpq_status mpq_keyed_begin(struct mpq_queue *queue, struct mpq_keyed *keyed,
                           const struct mpq_item_in *items, uint32_t count, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    memset(keyed, 0, sizeof *keyed);
    keyed->items = items;
    keyed->count = count;
    keyed->keys = &keyed->one_key;
    keyed->fresh = &keyed->one_item;
    if (queue->created.key_window == 0)
        return mpq_fail(error, MPQ_MISMATCH,
                        "%s: this queue remembers no keys: key_window is none; put without a key, "
                        "or init another queue with key_window",
                        queue->path);
    if (count > 1) {
        keyed->keys = io->alloc(io, count * sizeof *keyed->keys);
        keyed->fresh = io->alloc(io, count * sizeof *keyed->fresh);
    }
    bool made = keyed->keys != NULL && keyed->fresh != NULL;
    for (uint32_t i = 0; i < count && made; i++) {
        struct mpq_key_in *key = &keyed->keys[i];
        size_t length;
        const uint8_t *bytes =
            mpq_extension_find(items[i].ext, items[i].ext_length, MPQ_EXT_KEY, &length);
        key->twin = i;
        key->keyed = bytes != NULL;
        if (key->keyed)
            mpq_key_hash(queue, bytes, length, key->hash);
    }
    if (made && (count <= 1 || find_twins(queue, keyed))) {
        choose_fresh(keyed);
        return MPQ_OK;
    }
    mpq_keyed_end(queue, keyed);
    return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
}

void mpq_keyed_end(struct mpq_queue *queue, struct mpq_keyed *keyed)
{
    if (keyed->keys != &keyed->one_key)
        queue->io->free(queue->io, keyed->keys);
    if (keyed->fresh != &keyed->one_item)
        queue->io->free(queue->io, keyed->fresh);
    keyed->keys = NULL;
    keyed->fresh = NULL;
}

/* ---- looking up */

uint64_t mpq_keys_bytes(const struct mpq_options *options)
{
    const uint32_t window = options->key_window;
    if (window == 0)
        return 0;
    return sizeof(struct mpq_key_ring) + mpq_key_bucket_count(window) * 8 +
           MPQ_KEY_SLOTS(window) * sizeof(struct mpq_key_slot);
}

static _Atomic uint64_t *bucket_of(const struct mpq_queue *queue, const uint64_t hash[2])
{
    return &mpq_key_buckets(queue)[hash[0] & (mpq_key_bucket_count(queue->created.key_window) - 1)];
}

struct bounds { /* read before the keys: what was settled below the floor is voided by then */
    uint64_t floor, oldest, durable;
};

enum found { FOUND_NONE, FOUND_ITEM, FOUND_PENDING, FOUND_UNMAPPED };

static enum found judge(struct mpq_queue *queue, const struct bounds *bounds, uint64_t seq,
                        uint64_t position, uint64_t lost_generation)
{
    const uint64_t generation = MPQ_POSITION_GEN(position), offset = MPQ_POSITION_OFF(position);
    if (position == MPQ_KEY_VOID)
        return FOUND_NONE;
    if (position == MPQ_KEY_PROVED || seq < bounds->floor || generation < bounds->oldest ||
        generation == lost_generation)
        return FOUND_ITEM;
    const struct mpq_segment *segment = mpq_segment_mapped(queue, generation);
    if (segment == NULL)
        return FOUND_UNMAPPED;
    if (offset < MPQ_SEGMENT_FIRST || offset + MPQ_FRAME_HEADER > segment->bytes)
        return FOUND_ITEM; /* never stored here */
    /* SYNC publish: acquire here, release in mpq_claim_publish */
    switch (mpq_state_decode(atomic_load(mpq_state_of((void *)(segment->base + offset))))) {
    case MPQ_GAP: return FOUND_NONE;
    case MPQ_CLAIMED: return FOUND_PENDING;
    default: return FOUND_ITEM; /* damaged ones too: counted as a loss, not accepted twice */
    }
}

static enum found look_up(struct mpq_queue *queue, const struct bounds *bounds,
                          const struct mpq_keyed *keyed, struct mpq_key_in *key, uint64_t *position)
{
    const uint64_t count = mpq_load(queue->keys->count), window = queue->created.key_window;
    uint64_t number = mpq_load(*bucket_of(queue, key->hash));
    while (number != 0 && number <= count && count - number < window) {
        const struct mpq_key_slot *at = mpq_key_at(queue, number);
        if (mpq_load(at->hash[0]) == key->hash[0] && mpq_load(at->hash[1]) == key->hash[1]) {
            *position = atomic_load(&at->position);
            key->seq = mpq_load(at->seq);
            const enum found found =
                judge(queue, bounds, key->seq, *position, keyed->lost_generation);
            if (found != FOUND_NONE)
                return found;
        }
        const uint64_t previous = mpq_load(at->previous);
        if (previous >= number)
            break;
        number = previous;
    }
    return FOUND_NONE;
}

/* What was found accepted stays so, and is not looked at again. */
mpq_status mpq_keys_meet(struct mpq_queue *queue, struct mpq_claim *claim)
{
    struct mpq_keyed *keyed = claim->keyed;
    struct mpq_control *control = queue->control;
    /* SYNC keys: acquire here; the consumer voids a gap's key, then settles it (release) */
    const struct bounds bounds = {
        .floor = mpq_consumer_read(control).floor,
        .oldest = atomic_load(&control->oldest_generation),
        .durable = mpq_visible_is_durable(queue) ? atomic_load(&control->durable_position) : 0};
    claim->need = MPQ_NEED_NOTHING;
    for (uint32_t i = 0; i < keyed->count; i++) {
        struct mpq_key_in *key = &keyed->keys[i];
        uint64_t position = MPQ_KEY_PROVED;
        if (!key->keyed || key->twin != i || key->duplicate)
            continue;
        const enum found found = look_up(queue, &bounds, keyed, key, &position);
        if (found == FOUND_NONE)
            continue;
        if (found != FOUND_ITEM) {
            keyed->wait_position = position;
            claim->need = MPQ_NEED_KEY;
            return MPQ_AGAIN;
        }
        key->duplicate = true;
        claim->need = MPQ_NEED_FEWER;
        if (position >= bounds.durable && key->seq >= bounds.floor)
            keyed->newest = mpq_max64(keyed->newest, position);
    }
    if (claim->need == MPQ_NEED_NOTHING)
        return MPQ_OK;
    choose_fresh(keyed);
    return MPQ_AGAIN;
}

/* ---- storing */

void mpq_keys_append(struct mpq_queue *queue, const uint64_t hash[2], uint64_t seq,
                     uint64_t position)
{
    struct mpq_key_ring *keys = queue->keys;
    const uint64_t number = mpq_load(keys->count) + 1;
    struct mpq_key_slot *at = mpq_key_at(queue, number);
    _Atomic uint64_t *bucket = bucket_of(queue, hash);
    /* SYNC slots: whoever reads a word stored below sees `count` as it was before */
    atomic_thread_fence(memory_order_release);
    mpq_store(at->hash[0], hash[0]);
    mpq_store(at->hash[1], hash[1]);
    mpq_store(at->seq, seq);
    mpq_store(at->previous, mpq_load(*bucket));
    atomic_store(&at->position, position);
    atomic_store_explicit(&keys->count, number, memory_order_release);
    atomic_store_explicit(bucket, number, memory_order_release);
}

void mpq_count_duplicates(struct mpq_queue *queue, const struct mpq_keyed *keyed)
{
    if (keyed->fresh_count != keyed->count)
        atomic_fetch_add_explicit(&queue->me->duplicate_items, keyed->count - keyed->fresh_count,
                                  memory_order_relaxed);
}

void mpq_keys_add(struct mpq_queue *queue, const struct mpq_claim *claim)
{
    struct mpq_keyed *keyed = claim->keyed;
    const uint64_t position = MPQ_POSITION(claim->segment->generation, claim->offset);
    uint64_t seq = claim->first_seq;
    for (uint32_t i = 0; i < keyed->count; i++) {
        struct mpq_key_in *key = &keyed->keys[i];
        if (key->duplicate || key->twin != i)
            continue;
        key->seq = seq++;
        if (key->keyed)
            mpq_keys_append(queue, key->hash, key->seq, position);
    }
    mpq_count_duplicates(queue, keyed);
}

/* Number of the first key in the window whose seq is not below; slots are in the order of seqs. */
static uint64_t number_of(struct mpq_queue *queue, uint64_t seq)
{
    const uint64_t window = queue->created.key_window;
    uint64_t count = atomic_load(&queue->keys->count), before, low;
    do {
        uint64_t high = count + 1;
        before = count;
        low = count > window ? count - window + 1 : 1;
        while (low < high) {
            const uint64_t middle = low + (high - low) / 2;
            /* SYNC slots: acquire each, so that `count` is read after them */
            if (atomic_load_explicit(&mpq_key_at(queue, middle)->seq, memory_order_acquire) < seq)
                low = middle + 1;
            else
                high = middle;
        }
        count = atomic_load(&queue->keys->count);
    } while (count - before >= MPQ_BATCH_MAX); /* some were stored anew: out of order */
    return low;
}

/* Whoever stores the slot anew meanwhile has brought it beyond the window, and gives it another
 * position. */
void mpq_keys_void(struct mpq_queue *queue, uint64_t seq)
{
    struct mpq_key_slot *at = mpq_key_at(queue, number_of(queue, seq));
    uint64_t position = atomic_load(&at->position);
    if (mpq_load(at->seq) == seq)
        (void)atomic_compare_exchange_strong(&at->position, &position, MPQ_KEY_VOID);
}

/* ---- a claim in the way */

/* Of the frame at wait_position; 0: it is settled now, or the dead one's claim is a gap now. */
static uint64_t claimant_of(struct mpq_queue *queue, struct mpq_keyed *keyed, bool *dead,
                            mpq_status *status, struct mpq_error *error)
{
    const uint64_t generation = MPQ_POSITION_GEN(keyed->wait_position);
    const uint64_t offset = MPQ_POSITION_OFF(keyed->wait_position);
    mpq_guarded_lock(queue);
    struct mpq_segment *segment = mpq_segment_map(queue, generation, error);
    if (segment != NULL)
        mpq_segment_retain(segment);
    mpq_guarded_unlock(queue);
    if (segment == NULL) {
        keyed->lost_generation = generation; /* what was in it is the consumer's to book */
        *status = error->status == MPQ_CORRUPT ? MPQ_OK : error->status;
        return 0;
    }
    struct mpq_seen seen;
    uint64_t claimant = 0;
    if (mpq_frame_see(queue, segment, offset, 0, &seen) != MPQ_SEE_FRAME) {
        keyed->lost_generation = generation;
    } else if (seen.code == MPQ_CLAIMED) {
        claimant = MPQ_STATE_INC(seen.header.state);
        *dead = mpq_dead(queue, claimant);
        if (*dead) /* now: a power cut might show what it wrote as an item, beside the new one */
            (void)mpq_gap_frames(queue, segment, offset, &seen);
    }
    mpq_segment_release(segment);
    return claimant;
}

static mpq_status look_at_claim(struct mpq_queue *queue, struct mpq_keyed *keyed,
                                uint64_t *claimant, bool *dead, struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_status status = MPQ_OK;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, queue, error);
    MPQ_GUARD_ARM(&guard);
    *claimant = claimant_of(queue, keyed, dead, &status, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

mpq_status mpq_keys_wait(struct mpq_queue *queue, struct mpq_keyed *keyed,
                         const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_error local;
    uint64_t claimant = 0;
    bool dead = false;
    mpq_status status =
        look_at_claim(queue, keyed, &claimant, &dead, error != NULL ? error : &local);
    if (status != MPQ_OK || claimant == 0 || dead)
        return status;
    const uint64_t now = queue->io->monotonic_ns(queue->io);
    if (keyed->wait_since_ns == 0)
        keyed->wait_since_ns = now;
    const uint64_t until = mpq_max64(call->deadline_ns, keyed->wait_since_ns + MPQ_GRACE_NS);
    const struct mpq_call patient = {until, call->check, call->arg};
    status = mpq_pause(queue, &patient, MPQ_MS, error);
    if (status != MPQ_TIMEOUT)
        return status;
    const int64_t pid = mpq_pid_of(queue, claimant);
    mpq_fail(error, MPQ_LOCK_TIMEOUT,
             "%s: a put with the same key by process %lld has begun and does not go on (stopped, "
             "in a debugger, or frozen?); let it continue or kill it: nothing was changed",
             queue->path, (long long)pid);
    if (error != NULL)
        error->pid = pid;
    return MPQ_LOCK_TIMEOUT;
}
