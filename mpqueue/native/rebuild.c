/* rebuild.c - making control anew from what lasts: meta, cursor and segments.
 *
 * Segments are walked in generation order from the durable floor. What validates is kept, whatever
 * its state word says; what was torn above the durable watermark was never promised and becomes an
 * explicit gap or padding; damage below it stays where it is for the consumer to book (repair
 * settles it here). A new epoch begins, and its first claim takes a fresh segment.
 *
 * I1 nothing that could not be read is destroyed. I2 conclusions are durable before the new control
 * gets its name: a kill anywhere, or a second crash, finds either the old state or the same
 * conclusions. I3 next seq is above everything that was walked and above every mark. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

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
    uint64_t torn, lost, lost_bytes;
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

static bool believed(const struct rebuild *r, uint64_t generation, uint64_t offset)
{
    return !r->how->repair && MPQ_POSITION(generation, offset) < r->durable;
}

/* ---- cursor */

static mpq_status load_cursor(struct rebuild *r, struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_status status = MPQ_OK;
    if (r->how->dry) { /* as it is: missing or short is not made good */
        r->cursor_fd = queue->io->open(queue->io, queue->dirfd, "cursor", O_RDWR, 0);
        if (r->cursor_fd < 0 && errno != ENOENT)
            status = mpq_fail_errno(error, "%s: cannot open the cursor file", queue->path);
    } else {
        status = mpq_cursor_open(queue, &r->cursor_fd, error);
    }
    if (status != MPQ_OK)
        return status;
    const uint64_t bytes = MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
    bool holds[2];
    for (int i = 0; i < 2; i++) {
        r->slots[i] = queue->io->alloc(queue->io, bytes);
        if (r->slots[i] == NULL)
            return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
        int rc = r->cursor_fd < 0 ? 1 : mpq_cursor_read(queue, r->cursor_fd, i, r->slots[i]);
        if (rc < 0)
            return mpq_fail_errno(error, "%s: cannot read the cursor file", queue->path);
        holds[i] = rc == 0;
        r->valid += holds[i];
    }
    const struct mpq_cursor_slot *a = (void *)r->slots[0], *b = (void *)r->slots[1];
    r->newest_index = holds[1] && (!holds[0] || b->number > a->number) ? 1 : 0;
    if (r->newest_index == 1) {
        uint8_t *swap = r->slots[0];
        r->slots[0] = r->slots[1];
        r->slots[1] = swap;
    }
    if (r->valid == 0)
        memset(r->slots[0], 0, bytes);
    return MPQ_OK;
}

static void restore_window(struct rebuild *r)
{
    struct mpq_queue *queue = r->queue;
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    const uint32_t *bitmap = (const void *)(r->slots[0] + MPQ_CURSOR_HEADER);
    const uint64_t first = head->floor >> 5;
    for (uint32_t i = 0; r->valid != 0 && i < queue->window_words; i++) {
        struct mpq_window_word *word = &queue->window[(first + i) % queue->window_words];
        uint64_t value = (first + i) << 32 | bitmap[i];
        mpq_store(word->value, value);
        mpq_store(word->complement, ~value);
    }
    const struct mpq_cursor_attempt *attempts =
        (const void *)(r->slots[0] + MPQ_CURSOR_HEADER + queue->created.ack_window / 8);
    for (uint32_t i = 0; i < head->attempts_count; i++)
        mpq_store(queue->attempts[attempts[i].seq % queue->created.ack_window],
                  (attempts[i].seq & ((1ULL << 48) - 1)) << 16 |
                      mpq_min64(attempts[i].attempts, 0xFFFF));
}

/* ---- changes to segments; a dry run makes none */

static void set_state(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                      unsigned code)
{
    if (r->how->dry)
        return;
    struct mpq_frame *frame = (void *)(segment->base + offset);
    uint64_t now = mpq_load(*mpq_state_of(frame));
    if (MPQ_STATE_CODE(now) != code)
        mpq_store(*mpq_state_of(frame), MPQ_STATE(MPQ_STATE_INC(now), code));
}

static void pad(struct rebuild *r, struct mpq_segment *segment, uint64_t from, uint64_t to)
{
    if (r->how->dry || to < from + MPQ_FRAME_HEADER)
        return;
    struct mpq_frame header = {
        .state = MPQ_STATE(0, MPQ_PAD),
        .seq = r->next,
        .length = (uint32_t)(to - from - MPQ_FRAME_HEADER),
        .flags = MPQ_FLAG_PAD,
    };
    mpq_frame_header_write(r->queue, segment, from, &header);
}

static void save(struct rebuild *r, struct mpq_segment *segment, uint64_t from, uint64_t to)
{
    r->report->quarantined++;
    if (!r->how->dry)
        mpq_quarantine(r->queue, segment, from, to);
}

/* ---- the walk */

static void drop_batch(struct rebuild *r, struct mpq_segment *segment)
{
    while (r->batch_count > 0) {
        set_state(r, segment, r->batch[--r->batch_count], MPQ_GAP);
        r->report->gaps++;
        r->report->items--;
    }
    r->batch_seq = 0;
}

static bool settled_before(const struct rebuild *r, uint64_t seq)
{
    return seq < r->floor || mpq_acked(r->queue, seq);
}

static void count_frame(struct rebuild *r, const struct mpq_seen *seen, bool item)
{
    if (settled_before(r, seen->header.seq))
        return;
    r->unsettled++;
    r->accounted++;
    r->unsettled_bytes += seen->extent;
    if (item)
        r->report->items++;
    else
        r->report->gaps++;
}

/* Batches above the watermark are all or nothing. A member that was settled proves that a consumer
 * once saw the batch whole. */
static void follow_batch(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                         const struct mpq_seen *seen, bool item)
{
    const uint16_t flags = seen->header.flags;
    const uint64_t seq = seen->header.seq;
    const bool member = item && (flags & MPQ_FLAG_BATCH) != 0;
    const bool first = (flags & MPQ_FLAG_BATCH_FIRST) != 0;
    const bool goes_on = member && !first && seq == r->batch_seq;
    if (!goes_on) {
        drop_batch(r, segment);
        r->batch_whole = member && !first && settled_before(r, seq - 1);
    }
    r->batch_seq = 0;
    if (!member)
        return;
    if (settled_before(r, seq)) {
        r->batch_whole = true;
        r->batch_count = 0;
    }
    if (!goes_on && !first && !r->batch_whole) { /* its beginning is missing */
        r->batch[r->batch_count++] = offset;
        drop_batch(r, segment);
        return;
    }
    if (!r->batch_whole)
        r->batch[r->batch_count++] = offset;
    r->batch_seq = seq + 1;
    if ((flags & MPQ_FLAG_BATCH_LAST) != 0 || r->batch_count == MPQ_BATCH_MAX) {
        r->batch_count = 0;
        r->batch_seq = 0;
    }
}

/* Seqs next..upto-1 are not there. Promised ones are the consumer's to book when it gets there,
 * a repair's at once. Returns how many they are. */
static uint64_t hole(struct rebuild *r, bool promised, uint64_t upto)
{
    uint64_t count = 0;
    const uint64_t window = r->queue->created.ack_window;
    for (uint64_t seq = r->next; seq < upto && seq - r->next < MPQ_SEQ_BLOCK; seq++)
        if (!settled_before(r, seq) || seq - r->floor >= window)
            count++;
    r->accounted += count;
    if (!promised)
        r->torn += count;
    else if (r->how->repair)
        r->lost += count;
    else
        r->unsettled += count;
    return count;
}

/* ... and lay in from..to. */
static void miss(struct rebuild *r, struct mpq_segment *segment, uint64_t from, uint64_t to,
                 uint64_t upto)
{
    drop_batch(r, segment);
    const bool promised = MPQ_POSITION(segment->generation, from) < r->durable;
    const uint64_t count = hole(r, promised, upto);
    if (promised && !r->how->repair)
        return;
    if (promised) {
        save(r, segment, from, to);
        r->lost_bytes += count != 0 ? to - from : 0;
    }
    pad(r, segment, from, to);
}

static void take_frame(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                       const struct mpq_seen *seen)
{
    const uint64_t seq = seen->header.seq;
    const bool trust = believed(r, segment->generation, offset);
    bool item = seen->code != MPQ_GAP;
    if (item && (!trust || seen->code != MPQ_READY)) {
        bool whole = mpq_body_holds(r->queue, segment, offset, &seen->header);
        if (whole) {
            set_state(r, segment, offset, MPQ_READY);
        } else if (trust && seen->code != MPQ_CLAIMED) {
            /* damage below the watermark: the consumer books it */
        } else if (seen->code == MPQ_READY && settled_before(r, seq)) {
            /* whoever settled it saw it whole: as a gap it would take the rest of its batch along
             */
        } else if (!settled_before(r, seq) && seen->code != MPQ_CLAIMED &&
                   MPQ_POSITION(segment->generation, offset) < r->durable) {
            save(r, segment, offset, offset + seen->extent); /* repair */
            r->lost++;
            r->accounted++;
            r->lost_bytes += seen->extent;
            pad(r, segment, offset, offset + seen->extent);
            r->next = seq + 1;
            return;
        } else {
            if (seen->code == MPQ_READY && !settled_before(r, seq))
                r->torn++;
            set_state(r, segment, offset, MPQ_GAP);
            item = false;
        }
    }
    count_frame(r, seen, item);
    if (MPQ_POSITION(segment->generation, offset) >= r->durable)
        follow_batch(r, segment, offset, seen, item);
    r->next = seq + 1;
}

/* A frame that is no item may be the leftover of a killed claim, its length pointing anywhere:
 * an item that validates inside its extent wins. */
static uint64_t inside(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                       const struct mpq_seen *outer)
{
    if (believed(r, segment->generation, offset) ||
        mpq_body_holds(r->queue, segment, offset, &outer->header))
        return 0;
    struct mpq_seen seen;
    return mpq_frame_scan(r->queue, segment, offset + MPQ_FRAME_ALIGN, offset + outer->extent,
                          r->next, false, &seen);
}

static void walk_segment(struct rebuild *r, struct mpq_segment *segment, uint64_t offset)
{
    struct mpq_queue *queue = r->queue;
    for (;;) {
        struct mpq_seen seen;
        enum mpq_sight sight = mpq_frame_see(queue, segment, offset, r->next, &seen);
        if (sight == MPQ_SEE_END)
            break;
        uint64_t found = 0;
        if (sight == MPQ_SEE_DAMAGE)
            found = mpq_frame_scan(queue, segment, offset + MPQ_FRAME_ALIGN, UINT64_MAX, r->next,
                                   false, &seen);
        else if (seen.code == MPQ_PAD || seen.code != MPQ_GAP)
            found = inside(r, segment, offset, &seen);
        if (found != 0) {
            (void)mpq_frame_see(queue, segment, found, r->next, &seen);
            miss(r, segment, offset, found, seen.header.seq);
            r->next = seen.header.seq;
            offset = found;
            continue;
        }
        if (sight == MPQ_SEE_DAMAGE)
            break;
        if (seen.code != MPQ_PAD) {
            take_frame(r, segment, offset, &seen);
            r->last = segment->generation;
            r->end = offset + seen.extent;
        }
        offset += seen.extent;
        r->walked = MPQ_POSITION(segment->generation, offset);
    }
    drop_batch(r, segment);
}

/* What the successor says about the end of this segment. */
static void close_segment(struct rebuild *r, struct mpq_segment *segment, uint64_t upto)
{
    uint64_t end = MPQ_SEGMENT_FIRST;
    if (r->last == segment->generation)
        end = r->end;
    else if (segment->generation == MPQ_POSITION_GEN(r->floor_position))
        end = mpq_max64(end, MPQ_POSITION_OFF(r->floor_position));
    if (end + MPQ_FRAME_HEADER > segment->bytes) {
        if (mpq_segment_header_check(r->queue, segment->base, segment->bytes,
                                     segment->generation) != MPQ_OK) /* it was cut */
            (void)hole(r, MPQ_POSITION(segment->generation, end) < r->durable, upto);
        return;
    }
    struct mpq_seen seen;
    bool padded = mpq_frame_see(r->queue, segment, end, r->next, &seen) == MPQ_SEE_FRAME &&
                  seen.code == MPQ_PAD;
    if (padded)
        return; /* whole; what its successor knows beyond that was settled by a recovery before */
    if (upto > r->next)
        miss(r, segment, end, segment->bytes, upto);
    else if (!(MPQ_POSITION(segment->generation, end) < r->durable) || r->how->repair)
        pad(r, segment, end, segment->bytes);
}

static struct mpq_segment *map_at(struct rebuild *r, uint64_t generation, mpq_status *status,
                                  struct mpq_error *error)
{
    struct mpq_error local;
    struct mpq_segment *segment = mpq_segment_map(r->queue, generation, &local);
    if (segment == NULL && local.status != MPQ_CORRUPT) {
        if (error != NULL)
            *error = local;
        *status = local.status;
    }
    if (segment != NULL)
        mpq_segment_retain(segment);
    return segment;
}

/* Both headers whole in their looks, but with another uuid. */
static bool is_foreign(const struct rebuild *r, const struct mpq_segment *segment)
{
    struct mpq_segment_header a, b;
    memcpy(&a, segment->base + MPQ_SEGMENT_HEADER_A, sizeof a);
    memcpy(&b, segment->base + MPQ_SEGMENT_HEADER_B, sizeof b);
    return a.magic == MPQ_SEGMENT_MAGIC && memcmp(&a, &b, sizeof a) == 0 &&
           memcmp(a.uuid, r->queue->uuid, 16) != 0;
}

/* Another queue's meta over these segments: what cannot be read is not thrown away. */
static mpq_status check_owner(struct rebuild *r, const struct mpq_generations *found,
                              struct mpq_error *error)
{
    uint32_t ours = 0, theirs = 0;
    for (uint32_t i = 0; i < found->count; i++) {
        struct mpq_segment *segment = mpq_segment_map(r->queue, found->list[i], NULL);
        if (segment == NULL)
            continue;
        if (is_foreign(r, segment))
            theirs++;
        else
            ours++;
    }
    if (theirs == 0 || ours != 0)
        return MPQ_OK;
    return mpq_fail(error, MPQ_FORMAT,
                    "%s: all its segments belong to another queue than `meta`; nothing was "
                    "touched. Put the right meta back, or move the segments away",
                    r->queue->path);
}

static void begin_at(struct rebuild *r, const struct mpq_generations *found)
{
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    if (r->valid != 0) {
        r->floor = head->floor;
        r->floor_position = head->floor_position;
        r->durable = head->durable_position;
    } else {
        r->floor = 1;
        r->floor_position = MPQ_POSITION(found->count != 0 ? found->list[0] : 0, 0);
    }
    /* Roll records carry the watermark of the moment they were stored. */
    for (uint32_t i = 0; i < found->count; i++) {
        struct mpq_roll roll;
        struct mpq_segment *segment = mpq_segment_map(r->queue, found->list[i], NULL);
        if (segment == NULL || !mpq_roll_read(r->queue, segment, &roll))
            continue;
        r->durable = mpq_max64(r->durable, roll.durable_position);
        if (r->valid == 0 && i == 0)
            r->floor = roll.base_seq;
    }
    r->next = r->floor;
    r->walked = r->floor_position;
}

/* Was a segment made, durably, that neither the cursor has seen nor anybody can see now? */
static bool all_taken(const struct rebuild *r, const struct mpq_meta_slot *meta)
{
    const uint64_t seen = MPQ_POSITION_GEN(mpq_max64(r->durable, r->floor_position));
    return r->last == 0 && !r->any_file && meta->generation_mark > MPQ_GENERATION_BLOCK &&
           seen < meta->generation_mark - MPQ_GENERATION_BLOCK;
}

/* The end of the data is gone when less was found than was owed; see evidence.c. Where nothing
 * says how much it was, one item stands for it. */
static void miss_end(struct rebuild *r, const struct mpq_meta_slot *meta)
{
    uint64_t accepted = r->known.accepted, settled = r->known.settled;
    for (int i = 0; i < r->valid; i++) {
        const struct mpq_cursor_slot *slot = (void *)r->slots[i];
        accepted = mpq_max64(accepted, slot->durable_items);
    }
    if (r->valid != 0)
        settled = ((const struct mpq_cursor_slot *)(void *)r->slots[0])->totals.settled_items;
    uint64_t count = 0;
    if ((r->valid != 0 || r->known.settled_known) && accepted > settled + r->accounted)
        count = accepted - settled - r->accounted;
    if (count == 0 && all_taken(r, meta))
        count = 1;
    r->accounted += count;
    if (r->how->repair) {
        r->lost += count; /* ... and the walk ended before them */
        return;
    }
    r->missing_end = count;
    r->unsettled += count;
    for (uint64_t left = count; left != 0; r->next++) /* settled ones among them are not missing */
        left -= !settled_before(r, r->next);
}

/* Where the walk before segment `to`, which holds an item, ended; 0 = its roll does not tell. */
static uint64_t walk_ended(struct rebuild *r, struct mpq_segment *to)
{
    struct mpq_roll roll;
    return to != NULL && mpq_roll_read(r->queue, to, &roll) ? roll.previous_seq : 0;
}

/* Segment `to` holds an item, so its roll record binds: closes those before it that are open. What
 * lay in missing files between them is left to the caller. */
static mpq_status close_up_to(struct rebuild *r, const struct mpq_generations *found, uint32_t from,
                              uint32_t to, uint64_t first_seq, struct mpq_error *error)
{
    mpq_status status = MPQ_OK;
    for (uint32_t i = from; i < to && status == MPQ_OK; i++) {
        struct mpq_segment *segment = map_at(r, found->list[i], &status, error);
        if (segment == NULL)
            continue;
        uint64_t upto = r->next;
        if (found->list[i + 1] == found->list[i] + 1) {
            struct mpq_segment *after = map_at(r, found->list[i + 1], &status, error);
            const uint64_t ended = walk_ended(r, after);
            if (ended != 0)
                upto = mpq_min64(ended, first_seq);
            else if (i + 1 == to)
                upto = first_seq;
            mpq_segment_release(after);
        }
        close_segment(r, segment, upto);
        r->next = mpq_max64(r->next, upto);
        mpq_segment_release(segment);
    }
    return status;
}

/* What is missing before segment `to` was settled here (by a repair, or as never promised): from
 * now on the walk before it ended at `next`, so that nobody books it again. */
static void settle_before(struct rebuild *r, struct mpq_segment *to, uint64_t next,
                          uint64_t first_seq)
{
    struct mpq_roll roll;
    if (!mpq_roll_read(r->queue, to, &roll)) {
        memset(&roll, 0, sizeof roll);
        roll.base_seq = first_seq;
        roll.previous_seq = first_seq;
        roll.previous_end = r->walked;
        roll.epoch = r->epoch;
    }
    if (roll.previous_seq <= next || r->how->dry)
        return;
    roll.previous_seq = next;
    mpq_roll_write(r->queue, to, &roll);
}

/* Segment i holds an item with first_seq; those from `open` on before it are not closed yet. */
static mpq_status enter(struct rebuild *r, const struct mpq_generations *found, uint32_t open,
                        uint32_t i, uint64_t first_seq, struct mpq_error *error)
{
    const uint64_t next = r->next, unsettled = r->unsettled;
    mpq_status status = close_up_to(r, found, open, i, first_seq, error);
    struct mpq_segment *segment = map_at(r, found->list[i], &status, error);
    if (segment == NULL || status != MPQ_OK)
        return status;
    uint64_t ended = walk_ended(r, segment);
    if (ended == 0 || ended > first_seq)
        ended = first_seq;
    if (found->list[i] != MPQ_POSITION_GEN(r->floor_position) && ended > r->next) {
        /* Their file is missing: a power cut takes no name away, so they count as promised. */
        r->missing_head |= hole(r, true, ended) != 0 && r->last == 0;
        r->next = ended;
    }
    const bool settled = r->next > next && r->unsettled == unsettled;
    for (uint32_t k = open + 1; settled && k < i && status == MPQ_OK; k++) {
        struct mpq_segment *between = map_at(r, found->list[k], &status, error);
        if (between != NULL)
            settle_before(r, between, next, first_seq);
        mpq_segment_release(between);
    }
    if (settled)
        settle_before(r, segment, next, first_seq);
    mpq_segment_release(segment);
    return status;
}

/* Does the segment hold an item? One whose header one flipped bit spoils counts. */
static bool binds(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                  struct mpq_seen *seen)
{
    if (mpq_frame_see(r->queue, segment, offset, r->next, seen) == MPQ_SEE_FRAME &&
        seen->code != MPQ_PAD && seen->code != MPQ_GAP &&
        mpq_body_holds(r->queue, segment, offset, &seen->header))
        return true;
    return mpq_frame_scan(r->queue, segment, offset, UINT64_MAX, r->next, false, seen) != 0;
}

static mpq_status walk_all(struct rebuild *r, const struct mpq_generations *found,
                           const struct mpq_meta_slot *meta, struct mpq_error *error)
{
    mpq_status status = check_owner(r, found, error);
    begin_at(r, found);
    uint32_t open = 0; /* index of the first segment that is not closed */
    while (open < found->count && found->list[open] < MPQ_POSITION_GEN(r->floor_position))
        open++;
    for (uint32_t i = open; i < found->count && status == MPQ_OK; i++) {
        const uint64_t generation = found->list[i];
        struct mpq_segment *segment = map_at(r, generation, &status, error);
        if (segment == NULL)
            continue;
        uint64_t offset = MPQ_SEGMENT_FIRST;
        if (generation == MPQ_POSITION_GEN(r->floor_position))
            offset = mpq_max64(offset, MPQ_POSITION_OFF(r->floor_position));
        r->any_file |=
            mpq_segment_header_check(r->queue, segment->base, segment->bytes, generation) == MPQ_OK;
        struct mpq_seen seen;
        if (binds(r, segment, offset, &seen)) {
            status = enter(r, found, open, i, seen.header.seq, error);
            open = i;
            struct mpq_roll roll;
            if (mpq_roll_read(r->queue, segment, &roll))
                r->epoch = roll.epoch;
            walk_segment(r, segment, offset);
        } else if (offset > MPQ_SEGMENT_FIRST) {
            walk_segment(r, segment, offset);
        }
        mpq_segment_release(segment);
    }
    if (status == MPQ_OK)
        miss_end(r, meta);
    return status;
}

/* ---- writing it back */

static mpq_status sync_segments(struct rebuild *r, const struct mpq_generations *found,
                                struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        if (generation < MPQ_POSITION_GEN(r->floor_position) || generation > r->last)
            continue;
        mpq_status status = MPQ_OK;
        struct mpq_segment *segment = map_at(r, generation, &status, error);
        if (segment == NULL) {
            if (status != MPQ_OK)
                return status;
            continue;
        }
        if (generation == r->last && r->end >= MPQ_SEGMENT_FIRST)
            pad(r, segment, r->end, segment->bytes);
        if (r->how->poisoned)
            mpq_redirty(segment, 0, segment->bytes);
        int rc = queue->io->msync(queue->io, segment->base, segment->bytes);
        int failed = errno;
        mpq_segment_release(segment);
        if (rc != 0) {
            /* The kernel may take these pages for clean now: the next opener is told. */
            mpq_poison(queue, failed, MPQ_STAGE_SEGMENT);
            mpq_fail(error, MPQ_FLUSH_FAILED, "%s: writing segment %llu back failed: %s",
                     queue->path, (unsigned long long)generation, strerror(failed));
            if (error != NULL)
                error->os_errno = failed;
            return MPQ_FLUSH_FAILED;
        }
    }
    return MPQ_OK;
}

static mpq_status write_cursor(struct rebuild *r, const struct mpq_tail_now *tail, uint64_t epoch,
                               struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_io *io = queue->io;
    const uint64_t bytes = MPQ_CURSOR_SLOT_BYTES(queue->created.ack_window);
    struct mpq_cursor_slot *head = (void *)r->slots[0];
    head->floor = r->floor;
    head->floor_position = r->floor_position;
    head->next_seq = tail->next_seq;
    head->durable_position = tail->position;
    head->epoch = epoch;
    head->written_at = io->wall_ns(io);
    head->totals.torn_items += r->torn;
    head->totals.lost_items += r->lost;
    head->totals.lost_bytes += r->lost_bytes;
    head->totals.settled_items += r->lost;
    head->totals.settled_bytes += r->lost_bytes;
    head->claimed_items = head->durable_items = tail->items;
    head->claimed_bytes = tail->bytes;
    if (r->last != 0 || r->valid != 0)
        head->recoveries++;
    for (int i = 0; i < 2; i++) { /* the older slot first: the newest stays whole meanwhile */
        int slot = i == 0 ? 1 - r->newest_index : r->newest_index;
        head->number++;
        mpq_cursor_seal(queue, r->slots[0]);
        if (mpq_io_write(io, r->cursor_fd, r->slots[0], bytes, (uint64_t)slot * bytes) != 0 ||
            io->datasync(io, r->cursor_fd) != 0)
            return mpq_fail_errno(error, "%s: cannot write the cursor file", queue->path);
    }
    return MPQ_OK;
}

static uint64_t new_epoch(struct mpq_queue *queue, const struct mpq_meta_slot *meta)
{
    uint32_t salt = 0;
    (void)queue->io->random(queue->io, &salt, sizeof salt);
    return mpq_max64(meta->epoch + 1 + (salt & 0xFFFFF), queue->io->wall_ns(queue->io) / 1000);
}

/* What is missing at the end is met by the consumer as a file that is not there: the tail lies
 * behind a generation that never was. */
static struct mpq_tail_now tail_from(const struct rebuild *r, const struct mpq_meta_slot *meta,
                                     const struct mpq_generations *found)
{
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    struct mpq_tail_now tail = {.next_seq = mpq_max64(r->next, 1)};
    if (r->last != 0 && r->missing_end != 0) {
        tail.position = MPQ_POSITION(r->last + 2, 0);
    } else if (r->last != 0) {
        struct mpq_segment *segment = mpq_segment_map(r->queue, r->last, NULL);
        /* Behind the closing padding; without room for one, where the walk itself ends. */
        uint64_t end = r->end;
        if (segment != NULL && r->end + MPQ_FRAME_HEADER <= segment->bytes)
            end = segment->bytes;
        tail.position = MPQ_POSITION(r->last, end);
    } else {
        uint64_t used = mpq_max64(MPQ_POSITION_GEN(r->floor_position), meta->generation_mark - 1);
        if (found->count != 0)
            used = mpq_max64(used, found->list[found->count - 1]);
        tail.position = MPQ_POSITION(used + (r->missing_end != 0 ? 2 : 0), 0);
    }
    if (r->valid != 0)
        tail.next_seq = mpq_max64(tail.next_seq, head->next_seq);
    if (meta->epoch != 0)
        tail.next_seq = mpq_max64(tail.next_seq, meta->seq_mark);
    tail.items = head->totals.settled_items + r->lost + r->unsettled;
    tail.bytes = head->totals.settled_bytes + r->lost_bytes + r->unsettled_bytes;
    return tail;
}

static void fill_control(struct rebuild *r, const struct mpq_meta_slot *meta,
                         const struct mpq_tail_now *tail, uint64_t oldest)
{
    struct mpq_control *control = r->queue->control;
    const struct mpq_cursor_slot *head = (void *)r->slots[0];
    struct mpq_consumer_now record = {
        .floor = r->floor, .floor_position = r->floor_position, .totals = head->totals};
    mpq_tail_write(control, tail);
    mpq_consumer_write(control, &record);
    mpq_store(control->sealed, meta->sealed);
    mpq_store(control->seq_mark, meta->seq_mark);
    mpq_store(control->generation_mark, meta->generation_mark);
    mpq_store(control->oldest_generation, oldest);
    mpq_store(control->epoch_first_seq, tail->next_seq);
    mpq_store(control->epoch_previous_seq, mpq_max64(r->next, 1));
    mpq_store(control->delivered_items, head->delivered_items);
    mpq_store(control->redelivered_items, head->redelivered_items);
    mpq_store(control->nacked_items, head->nacked_items);
    mpq_store(control->loss_events, head->loss_events);
    mpq_store(control->durable_position, tail->position);
    mpq_store(control->durable_items, tail->items);
    mpq_store(control->durable_bytes, tail->bytes);
    mpq_store(control->torn_items, head->totals.torn_items);
    mpq_store(control->flushed_at_ns, r->queue->io->monotonic_ns(r->queue->io));
    mpq_store(control->next_incarnation, meta->epoch);
    mpq_store(control->read_seq, r->floor);
    if (r->last != 0 || r->valid != 0) {
        mpq_store(control->recoveries, head->recoveries);
        mpq_store(control->recovered_at_most, meta->options.durability == MPQ_DURABILITY_INTERVAL
                                                  ? meta->options.interval_items
                                                  : r->torn);
    }
}

static void quarantine_file(struct mpq_queue *queue, uint64_t generation, struct mpq_repair *report)
{
    char name[MPQ_NAME_MAX], kept[96];
    mpq_segment_name(generation, name);
    snprintf(kept, sizeof kept, "corrupt/%020llu-%s",
             (unsigned long long)queue->io->wall_ns(queue->io), name);
    (void)queue->io->mkdir(queue->io, queue->dirfd, "corrupt", 0700);
    if (queue->io->rename(queue->io, queue->dirfd, name, kept) == 0)
        report->quarantined++;
}

/* Files behind the last item hold nothing that was accepted; but only what is well formed is
 * thrown away, and only when nothing is missing: the rest is kept aside. */
static void clear_behind(struct rebuild *r, const struct mpq_generations *found,
                         uint64_t floor_generation)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        if (generation < floor_generation)
            continue;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        struct mpq_segment *segment = mpq_segment_map(queue, generation, NULL);
        struct stat now;
        bool empty = segment == NULL && queue->io->stat(queue->io, queue->dirfd, name, &now) == 0 &&
                     now.st_size == 0;
        bool formed =
            segment != NULL && r->missing_end == 0 &&
            mpq_segment_header_check(queue, segment->base, segment->bytes, generation) == MPQ_OK;
        if (generation <= r->last) {
            if (segment == NULL && !empty)
                quarantine_file(queue, generation, r->report);
            continue;
        }
        if (formed || empty)
            (void)queue->io->unlink(queue->io, queue->dirfd, name);
        else
            quarantine_file(queue, generation, r->report);
    }
    mpq_segments_forget(queue);
}

static void ring_from(struct rebuild *r, const struct mpq_generations *found, uint64_t oldest,
                      uint64_t tail_generation)
{
    struct mpq_queue *queue = r->queue;
    for (uint32_t i = 0; i < found->count; i++) {
        const uint64_t generation = found->list[i];
        struct stat now;
        char name[MPQ_NAME_MAX];
        mpq_segment_name(generation, name);
        if (generation < oldest || generation > tail_generation ||
            queue->io->stat(queue->io, queue->dirfd, name, &now) != 0)
            continue;
        struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
        mpq_store(entry->generation, generation);
        mpq_store(entry->bytes, (uint64_t)now.st_size);
        mpq_store(entry->state, MPQ_STATE(0, MPQ_RING_PREPARED));
    }
}

static mpq_status finish(struct rebuild *r, struct mpq_meta_slot *meta,
                         const struct mpq_generations *found, struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_io *io = queue->io;
    struct mpq_tail_now tail = tail_from(r, meta, found);
    mpq_status status = sync_segments(r, found, error);
    if (status != MPQ_OK)
        return status;
    const uint64_t floor_generation = MPQ_POSITION_GEN(r->floor_position);
    const uint64_t behind = MPQ_POSITION_GEN(tail.position);
    if (r->last == 0) /* nothing is left: the floor is where the next segment will begin */
        r->floor_position = r->missing_end != 0 ? MPQ_POSITION(behind - 1, 0) : tail.position;
    meta->epoch = queue->control->epoch;
    meta->inode = queue->meta_inode;
    meta->device = queue->meta_device;
    meta->seq_mark = mpq_max64(meta->seq_mark, tail.next_seq + MPQ_SEQ_BLOCK);
    meta->generation_mark = mpq_max64(meta->generation_mark, MPQ_POSITION_GEN(tail.position) + 1);
    meta->poison_errno = meta->poison_stage = 0;
    /* The seq mark first: a second crash must not issue these seqs again. */
    status = mpq_meta_write(queue, meta, error);
    if (status == MPQ_OK)
        status = write_cursor(r, &tail, meta->epoch, error);
    if (status != MPQ_OK)
        return status;
    uint64_t oldest = r->last == 0 ? behind + 1 : behind;
    if (r->last == 0 && r->missing_end != 0)
        oldest = behind - 1;
    for (uint32_t i = found->count; i-- > 0;)
        if (found->list[i] >= floor_generation && found->list[i] <= r->last)
            oldest = found->list[i];
    /* A missing file at the floor is damage for the consumer to book, not the end of the ring. */
    if (r->last != 0 && floor_generation < oldest && (floor_generation != 0 || r->missing_head))
        oldest = mpq_max64(floor_generation, 1);
    fill_control(r, meta, &tail, oldest);
    clear_behind(r, found, floor_generation);
    ring_from(r, found, oldest, r->last);
    mpq_sweep_segments(queue, found, oldest);
    if (io->rename(io, queue->dirfd, "control-new", "control") != 0 ||
        io->sync(io, queue->dirfd) != 0)
        return mpq_fail_errno(error, "%s: cannot name the control file", queue->path);
    r->report->torn_items = r->torn;
    r->report->lost_items = r->lost;
    r->report->lost_bytes = r->lost_bytes;
    r->report->rebuilt = 1;
    if (r->torn + r->lost + r->missing_end != 0 || r->last != 0) {
        if (r->lost != 0) {
            queue->event_info.lost_items += r->lost;
            queue->event_info.lost_bytes += r->lost_bytes;
            mpq_event(queue, MPQ_EVENT_LOSS);
        }
        queue->event_info.torn_items = r->torn;
        queue->event_info.recovered_at_most = mpq_load(queue->control->recovered_at_most);
        mpq_event(queue, MPQ_EVENT_RECOVERED);
    }
    return MPQ_OK;
}

static mpq_status conclude(struct rebuild *r, struct mpq_meta_slot *meta,
                           const struct mpq_generations *found, struct mpq_error *error)
{
    mpq_status status = load_cursor(r, error);
    if (status == MPQ_OK) {
        restore_window(r);
        status = walk_all(r, found, meta, error);
    }
    if (status == MPQ_OK && r->how->dry) {
        r->report->torn_items = r->torn;
        r->report->lost_items = r->lost;
        r->report->lost_bytes = r->lost_bytes;
    } else if (status == MPQ_OK) {
        status = finish(r, meta, found, error);
    }
    r->report->cleared_poison = status == MPQ_OK && r->how->poisoned;
    return status;
}

/* The guard holds nothing but what mpq_rebuild gives back. */
static mpq_status conclude_guarded(struct rebuild *r, struct mpq_meta_slot *meta,
                                   const struct mpq_generations *found, struct mpq_error *error)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0)
        return mpq_guard_recover(&guard, r->queue, error);
    MPQ_GUARD_ARM(&guard);
    mpq_status status = conclude(r, meta, found, error);
    MPQ_GUARD_DROP(&guard);
    return status;
}

mpq_status mpq_rebuild(struct mpq_queue *queue, struct mpq_meta_slot *meta, const char *boot_id,
                       const struct mpq_rebuild_how *how, struct mpq_repair *report,
                       struct mpq_error *error)
{
    mpq_io *io = queue->io;
    memset(report, 0, sizeof *report);
    struct rebuild *r = io->alloc(io, sizeof *r);
    struct mpq_generations found;
    mpq_status status = mpq_generations_find(queue, &found, error);
    int control_fd = -1;
    if (r == NULL)
        status = mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    else
        r->cursor_fd = -1;
    if (status == MPQ_OK) {
        struct mpq_meta_slot next = *meta;
        next.epoch = new_epoch(queue, meta);
        r->queue = queue;
        r->how = how;
        r->report = report;
        status = mpq_evidence_read(queue, meta, boot_id, &r->known, error);
        if (status == MPQ_OK)
            status = mpq_control_make(queue, &next, boot_id, &control_fd, error);
    }
    if (status == MPQ_OK)
        status = conclude_guarded(r, meta, &found, error);
    if (status != MPQ_OK || how->dry) {
        mpq_segments_forget(queue);
        mpq_control_unmap(queue);
        (void)io->unlink(io, queue->dirfd, "control-new");
    }
    if (control_fd >= 0)
        io->close(io, control_fd);
    if (r != NULL) {
        if (r->cursor_fd >= 0)
            io->close(io, r->cursor_fd);
        io->free(io, r->slots[0]);
        io->free(io, r->slots[1]);
        io->free(io, r);
    }
    io->free(io, found.list);
    return status;
}
