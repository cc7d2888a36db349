/* rebuild.h - what the three steps of a rebuild share: reading (rebuild.c), walking
 * (rebuild_walk.c), writing back (rebuild_finish.c). */
#ifndef MPQ_REBUILD_H
#define MPQ_REBUILD_H

#include "internal.h"

struct rebuild {
    struct mpq_queue *queue;
    const struct mpq_rebuild_how *how;
    struct mpq_repair *report;
    uint8_t *slots[2]; /* newest valid first */
    int valid; /* how many are */
    int newest_index;
    int cursor_fd;
    uint64_t floor, floor_position, durable;
    uint64_t next; /* seq expected next */
    uint64_t epoch; /* of the last segment that was walked */
    uint64_t last; /* generation with the last frame; 0 = none */
    uint64_t end; /* offset behind its last frame */
    uint64_t walked; /* position behind the last frame or padding that was walked */
    uint64_t unsettled, unsettled_bytes;
    uint64_t torn, lost, lost_bytes, lost_segments;
    uint64_t accounted; /* unsettled items and gaps that were found or are known to be missing */
    uint64_t missing_end; /* ... behind the last frame: left to the consumer */
    bool missing_head; /* files are missing before the first frame */
    bool any_file; /* a segment at or above the floor has its header */
    struct mpq_evidence known; /* from the control before this one */
    uint64_t batch[MPQ_BATCH_MAX]; /* offsets of an unfinished batch */
    uint32_t batch_count;
    uint64_t batch_seq; /* its next seq, 0 = none is open */
    bool batch_whole; /* it was seen whole before */
};

struct mpq_segment *mpq_rebuild_map(struct rebuild *r, uint64_t generation, mpq_status *status,
                                    struct mpq_error *error);
/* A stretch that holds nothing any more becomes padding; nothing in a dry run. */
void mpq_rebuild_pad(struct rebuild *r, struct mpq_segment *segment, uint64_t from, uint64_t to);
/* Everything from the floor on: what holds, what was torn, what is missing. */
mpq_status mpq_rebuild_walk(struct rebuild *r, const struct mpq_generations *found,
                            const struct mpq_meta_slot *meta, struct mpq_error *error);
/* Segments, meta and cursor on the disk, then the new control under its name. */
mpq_status mpq_rebuild_finish(struct rebuild *r, struct mpq_meta_slot *meta,
                              const struct mpq_generations *found, struct mpq_error *error);

#endif
