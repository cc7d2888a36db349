/* checksum.c - XXH64, written from the public specification (xxHash, "XXH64 algorithm
 * description"). The PyPI package xxhash is the oracle of its tests. */
#include <string.h>

#include "checksum.h"
#include "mpq.h"

uint64_t mpq_xxh64(const void *data, size_t bytes, uint64_t seed)
{
    const uint8_t *at = data;
    const size_t total = bytes;
    uint64_t hash;
    if (bytes >= 32) {
        uint64_t a = seed + XXH64_P1 + XXH64_P2, b = seed + XXH64_P2, c = seed, d = seed - XXH64_P1;
        do {
            a = xxh64_lane(a, xxh64_load64(at));
            b = xxh64_lane(b, xxh64_load64(at + 8));
            c = xxh64_lane(c, xxh64_load64(at + 16));
            d = xxh64_lane(d, xxh64_load64(at + 24));
            at += 32;
            bytes -= 32;
        } while (bytes >= 32);
        hash = xxh64_rotate(a, 1) + xxh64_rotate(b, 7) + xxh64_rotate(c, 12) + xxh64_rotate(d, 18);
        hash = xxh64_merge(xxh64_merge(xxh64_merge(xxh64_merge(hash, a), b), c), d);
    } else {
        hash = seed + XXH64_P5;
    }
    hash += total;
    for (; bytes >= 8; at += 8, bytes -= 8)
        hash = xxh64_rotate(hash ^ xxh64_lane(0, xxh64_load64(at)), 27) * XXH64_P1 + XXH64_P4;
    if (bytes >= 4) {
        hash = xxh64_rotate(hash ^ (xxh64_load32(at) * XXH64_P1), 23) * XXH64_P2 + XXH64_P3;
        at += 4;
        bytes -= 4;
    }
    for (; bytes > 0; at++, bytes--)
        hash = xxh64_rotate(hash ^ (*at * XXH64_P5), 11) * XXH64_P1;
    return xxh64_avalanche(hash);
}
