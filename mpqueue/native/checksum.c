/* checksum.c - XXH64, written from the public specification (xxHash, "XXH64 algorithm
 * description"). The PyPI package xxhash is the oracle of its tests. */
#include <string.h>

#include "mpq.h"

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL

static inline uint64_t rotate(uint64_t value, unsigned bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static inline uint64_t load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t lane(uint64_t accumulator, uint64_t input)
{
    return rotate(accumulator + input * P2, 31) * P1;
}

static inline uint64_t merge(uint64_t hash, uint64_t accumulator)
{
    return (hash ^ lane(0, accumulator)) * P1 + P4;
}

uint64_t mpq_xxh64(const void *data, size_t bytes, uint64_t seed)
{
    const uint8_t *at = data;
    const size_t total = bytes;
    uint64_t hash;
    if (bytes >= 32) {
        uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
        do {
            a = lane(a, load64(at));
            b = lane(b, load64(at + 8));
            c = lane(c, load64(at + 16));
            d = lane(d, load64(at + 24));
            at += 32;
            bytes -= 32;
        } while (bytes >= 32);
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    } else {
        hash = seed + P5;
    }
    hash += total;
    for (; bytes >= 8; at += 8, bytes -= 8)
        hash = rotate(hash ^ lane(0, load64(at)), 27) * P1 + P4;
    if (bytes >= 4) {
        hash = rotate(hash ^ (load32(at) * P1), 23) * P2 + P3;
        at += 4;
        bytes -= 4;
    }
    for (; bytes > 0; at++, bytes--)
        hash = rotate(hash ^ (*at * P5), 11) * P1;
    hash = (hash ^ (hash >> 33)) * P2;
    hash = (hash ^ (hash >> 29)) * P3;
    return hash ^ (hash >> 32);
}
