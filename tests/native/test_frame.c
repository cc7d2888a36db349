/* test_frame.c - what lies in a segment file after puts, read by offset and checked by layout.h
 * alone: a second opinion on the writer, byte by byte. */
#include <fcntl.h>

#include "fixture.h"

static void read_file(const struct fixture *fixture, const char *name, void *data, size_t bytes,
                      off_t offset)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", fixture->path, name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, data, bytes, offset), bytes);
    close(fd);
}

static void frames_follow_the_layout(void)
{
    static uint8_t segment[64 << 10], body[1000];
    static const uint32_t lengths[] = {0, 1, 31, 32, 100, 1000};
    const size_t count = sizeof lengths / sizeof lengths[0];
    struct fixture fixture;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_SYNC);
    struct mpq_queue *queue = open_queue(&args);
    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (uint8_t)(i * 7 + 3);
    uint64_t first = put_ok(queue, body, lengths[0]);
    for (size_t i = 1; i < count; i++)
        CHECK_EQ(put_ok(queue, body, lengths[i]), first + i);

    struct mpq_meta_slot meta;
    read_file(&fixture, "meta", &meta, sizeof meta, 0);
    CHECK_EQ(meta.magic, MPQ_META_MAGIC);
    CHECK_EQ(meta.hash, mpq_xxh64(&meta, offsetof(struct mpq_meta_slot, hash), 0));
    CHECK(memcmp(meta.uuid, mpq_uuid(queue), 16) == 0);

    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    char name[64];
    snprintf(name, sizeof name, "segment-%012" PRIu64, stats.tail_generation);
    read_file(&fixture, name, segment, sizeof segment, 0);

    for (size_t copy = 0; copy < 2; copy++) {
        struct mpq_segment_header header;
        memcpy(&header, segment + (copy ? MPQ_SEGMENT_HEADER_B : MPQ_SEGMENT_HEADER_A),
               sizeof header);
        CHECK_EQ(header.magic, MPQ_SEGMENT_MAGIC);
        CHECK_EQ(header.version, MPQ_FORMAT_VERSION);
        CHECK_EQ(header.first_offset, MPQ_SEGMENT_FIRST);
        CHECK_EQ(header.generation, stats.tail_generation);
        CHECK_EQ(header.bytes, sizeof segment);
        CHECK_EQ(header.hash,
                 mpq_xxh64(&header, offsetof(struct mpq_segment_header, hash), meta.hash_seed));
        struct mpq_roll roll;
        memcpy(&roll, segment + (copy ? MPQ_SEGMENT_ROLL_B : MPQ_SEGMENT_ROLL_A), sizeof roll);
        CHECK_EQ(roll.magic, MPQ_ROLL_MAGIC);
        CHECK_EQ(roll.base_seq, first);
        CHECK_EQ(roll.hash,
                 mpq_xxh64(&roll, offsetof(struct mpq_roll, hash),
                           meta.hash_seed + stats.tail_generation * MPQ_SEED_GENERATION));
    }

    uint64_t offset = MPQ_SEGMENT_FIRST;
    for (size_t i = 0; i < count; i++) {
        struct mpq_frame frame;
        memcpy(&frame, segment + offset, sizeof frame);
        uint64_t seed =
            meta.hash_seed + stats.tail_generation * MPQ_SEED_GENERATION + offset * MPQ_SEED_OFFSET;
        CHECK_EQ(MPQ_STATE_CODE(frame.state), MPQ_READY);
        CHECK_EQ(frame.seq, first + i);
        CHECK_EQ(frame.length, lengths[i]);
        CHECK_EQ(frame.ext_length, 0);
        CHECK_EQ(frame.flags, 0);
        CHECK_EQ(frame.header_hash, mpq_xxh64(segment + offset + 8, 24, seed));
        CHECK_EQ(frame.body_hash, mpq_xxh64(segment + offset + MPQ_FRAME_HEADER, lengths[i],
                                            seed + frame.seq * MPQ_SEED_SEQ));
        CHECK(memcmp(segment + offset + MPQ_FRAME_HEADER, body, lengths[i]) == 0);
        offset += MPQ_FRAME_EXTENT(0, lengths[i]);
    }
    close_queue(queue);
    fixture_remove(&fixture);
}

static void state_codes_are_four_bits_apart(void)
{
    static const unsigned codes[] = {MPQ_FREE, MPQ_CLAIMED, MPQ_READY, MPQ_GAP, MPQ_PAD};
    for (size_t i = 0; i < 5; i++)
        for (size_t j = 0; j < i; j++)
            CHECK(__builtin_popcount(codes[i] ^ codes[j]) >= 4);
}

int main(void)
{
    RUN(state_codes_are_four_bits_apart);
    RUN(frames_follow_the_layout);
    return 0;
}
