/* checksum.h - the pieces of XXH64, and the hash of exactly 24 bytes that every frame header needs.
 */
#ifndef MPQ_CHECKSUM_H
#define MPQ_CHECKSUM_H

#include <stdint.h>
#include <string.h>

#define XXH64_P1 0x9E3779B185EBCA87ULL
#define XXH64_P2 0xC2B2AE3D27D4EB4FULL
#define XXH64_P3 0x165667B19E3779F9ULL
#define XXH64_P4 0x85EBCA77C2B2AE63ULL
#define XXH64_P5 0x27D4EB2F165667C5ULL

static inline uint64_t xxh64_rotate(uint64_t value, unsigned bits)
{
    return (value << bits) | (value >> (64 - bits));
}

static inline uint64_t xxh64_load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint32_t xxh64_load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t xxh64_lane(uint64_t accumulator, uint64_t input)
{
    return xxh64_rotate(accumulator + input * XXH64_P2, 31) * XXH64_P1;
}

static inline uint64_t xxh64_merge(uint64_t hash, uint64_t accumulator)
{
    return (hash ^ xxh64_lane(0, accumulator)) * XXH64_P1 + XXH64_P4;
}

static inline uint64_t xxh64_avalanche(uint64_t hash)
{
    hash = (hash ^ (hash >> 33)) * XXH64_P2;
    hash = (hash ^ (hash >> 29)) * XXH64_P3;
    return hash ^ (hash >> 32);
}

/* = mpq_xxh64(data, 24, seed) */
static inline uint64_t mpq_xxh64_24(const void *data, uint64_t seed)
{
    const uint8_t *at = data;
    uint64_t hash = seed + XXH64_P5 + 24;
    for (int i = 0; i < 3; i++)
        hash =
            xxh64_rotate(hash ^ xxh64_lane(0, xxh64_load64(at + 8 * i)), 27) * XXH64_P1 + XXH64_P4;
    return xxh64_avalanche(hash);
}

#endif
