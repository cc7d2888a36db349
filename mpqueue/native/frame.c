/* frame.c - reading and writing one frame.
 *
 * A frame is an item if and only if its header hash and its body hash hold for this queue,
 * generation and offset, and it is not a gap. The state word alone proves nothing on disk: the
 * kernel may have written any page at any time.
 *
 * One flipped bit in a header is undone: of the 2^8 single-bit neighbours at most one can
 * satisfy a 64-bit hash. So damage of that kind costs nothing, and the walk never loses its step.
 */
#include "checksum.h"
#include "internal.h"

unsigned mpq_state_decode(uint64_t state)
{
    static const uint8_t codes[] = {MPQ_FREE, MPQ_CLAIMED, MPQ_READY, MPQ_GAP, MPQ_PAD};
    const unsigned code = MPQ_STATE_CODE(state);
    if (MPQ_LIKELY(code == MPQ_READY || code == MPQ_CLAIMED))
        return code;
    for (unsigned i = 0; i < sizeof codes; i++)
        if (__builtin_popcount(code ^ codes[i]) <= 1)
            return codes[i];
    return 0xFF;
}

static inline uint64_t header_hash(const struct mpq_frame *header, uint64_t seed)
{
    return mpq_xxh64_24(&header->seq, seed);
}

static bool heal(struct mpq_frame *header, uint64_t seed)
{
    if (__builtin_popcountll(header_hash(header, seed) ^ header->header_hash) == 1) {
        header->header_hash = header_hash(header, seed);
        return true;
    }
    uint8_t *bytes = (uint8_t *)&header->seq;
    for (unsigned bit = 0; bit < 192; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        if (header_hash(header, seed) == header->header_hash)
            return true;
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    return false;
}

static void load_header(const struct mpq_segment *segment, uint64_t offset,
                        struct mpq_frame *header)
{
    struct mpq_frame *frame = (void *)(segment->base + offset);
    /* SYNC publish: acquire here, release in mpq_claim_publish */
    header->state = atomic_load_explicit(mpq_state_of(frame), memory_order_acquire);
    memcpy(&header->seq, &frame->seq, MPQ_FRAME_HEADER - 8);
}

static bool plausible(const struct mpq_segment *segment, uint64_t offset, uint64_t min_seq,
                      struct mpq_seen *seen)
{
    const struct mpq_frame *header = &seen->header;
    if (header->seq - min_seq > MPQ_SEQ_MAX - min_seq || header->ext_length % 8 != 0)
        return false;
    seen->extent = MPQ_FRAME_EXTENT(header->ext_length, header->length);
    if (seen->extent > segment->bytes - offset)
        return false;
    seen->code = (header->flags & MPQ_FLAG_PAD) != 0 ? MPQ_PAD : mpq_state_decode(header->state);
    return true;
}

enum mpq_sight mpq_frame_see(const struct mpq_queue *queue, const struct mpq_segment *segment,
                             uint64_t offset, uint64_t min_seq, struct mpq_seen *seen)
{
    if (segment->bytes < offset + MPQ_FRAME_HEADER)
        return MPQ_SEE_END;
    const uint64_t seed = mpq_header_seed(queue->hash_seed, segment->generation, offset);
    load_header(segment, offset, &seen->header);
    seen->healed = false;
    if (MPQ_UNLIKELY(header_hash(&seen->header, seed) != seen->header.header_hash)) {
        if (!heal(&seen->header, seed))
            return MPQ_SEE_DAMAGE;
        seen->healed = true;
    }
    return plausible(segment, offset, min_seq, seen) ? MPQ_SEE_FRAME : MPQ_SEE_DAMAGE;
}

bool mpq_body_holds(const struct mpq_queue *queue, const struct mpq_segment *segment,
                    uint64_t offset, const struct mpq_frame *header)
{
    const uint64_t seed = mpq_header_seed(queue->hash_seed, segment->generation, offset);
    return mpq_xxh64(segment->base + offset + MPQ_FRAME_HEADER,
                     (size_t)header->ext_length + header->length,
                     mpq_body_seed(seed, header->seq)) == header->body_hash;
}

uint64_t mpq_frame_scan(const struct mpq_queue *queue, const struct mpq_segment *segment,
                        uint64_t offset, uint64_t limit, uint64_t min_seq, bool live,
                        struct mpq_seen *seen)
{
    limit = mpq_min64(limit, segment->bytes);
    for (; offset + MPQ_FRAME_HEADER <= limit; offset += MPQ_FRAME_ALIGN) {
        load_header(segment, offset, &seen->header);
        /* The cheap filter first: nearly all places fail it. */
        if (seen->header.seq - min_seq > (1ULL << 40) ||
            !plausible(segment, offset, min_seq, seen) || seen->extent > limit - offset)
            continue;
        const uint64_t seed = mpq_header_seed(queue->hash_seed, segment->generation, offset);
        if (header_hash(&seen->header, seed) != seen->header.header_hash || seen->code == MPQ_PAD)
            continue;
        seen->healed = false;
        if (seen->code == MPQ_GAP || (live && seen->code == MPQ_CLAIMED) ||
            mpq_body_holds(queue, segment, offset, &seen->header))
            return offset;
    }
    return 0;
}

static bool pad_at(const struct mpq_queue *queue, const struct mpq_segment *segment,
                   uint64_t offset, uint64_t min_seq, struct mpq_seen *seen)
{
    load_header(segment, offset, &seen->header);
    return (seen->header.flags & MPQ_FLAG_PAD) != 0 && plausible(segment, offset, min_seq, seen) &&
           header_hash(&seen->header, mpq_header_seed(queue->hash_seed, segment->generation,
                                                      offset)) == seen->header.header_hash;
}

uint64_t mpq_frame_pads_before(const struct mpq_queue *queue, const struct mpq_segment *segment,
                               uint64_t from, uint64_t end, uint64_t min_seq, uint64_t *seq)
{
    for (; from + MPQ_FRAME_HEADER <= end; from += MPQ_FRAME_ALIGN) {
        struct mpq_seen seen;
        if (!pad_at(queue, segment, from, min_seq, &seen))
            continue;
        const uint64_t first = seen.header.seq;
        uint64_t at = from + seen.extent;
        while (at + MPQ_FRAME_HEADER <= end && pad_at(queue, segment, at, first, &seen))
            at += seen.extent;
        if (at == end) {
            *seq = first;
            return from;
        }
    }
    return 0;
}

void mpq_frame_header_write(const struct mpq_queue *queue, const struct mpq_segment *segment,
                            uint64_t offset, struct mpq_frame *header)
{
    struct mpq_frame *frame = (void *)(segment->base + offset);
    const uint64_t seed = mpq_header_seed(queue->hash_seed, segment->generation, offset);
    header->header_hash = header_hash(header, seed);
    memcpy(&frame->seq, &header->seq, 32); /* seq .. header_hash; body_hash comes with the body */
    mpq_store(*mpq_state_of(frame), header->state);
}
