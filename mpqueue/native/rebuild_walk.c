/* rebuild_walk.c - the walk of a rebuild: every frame from the durable floor on.
 *
 * What validates is kept, whatever its state word says; what was torn above the durable watermark
 * was never promised and becomes an explicit gap or padding; damage below it stays where it is for
 * the consumer to book (repair settles it here). */
#include "rebuild.h"

static bool believed(const struct rebuild *r, uint64_t generation, uint64_t offset)
{
    return !r->how->repair && MPQ_POSITION(generation, offset) < r->durable;
}

/* What lay before is not there any more: by no power cut when a control of this boot, or the
 * watermark, covers it. */
static bool promised(const struct rebuild *r, uint64_t generation, uint64_t offset)
{
    return MPQ_POSITION(generation, offset) < mpq_max64(r->durable, r->known.position);
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

void mpq_rebuild_pad(struct rebuild *r, struct mpq_segment *segment, uint64_t from, uint64_t to)
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
    const bool part = (flags & MPQ_FLAG_BATCH) != 0;
    const bool first = (flags & MPQ_FLAG_BATCH_FIRST) != 0;
    const bool follows = part && !first && seq == r->batch_seq;
    const bool whole =
        part && !first && ((follows && r->batch_whole) || settled_before(r, seq - 1));
    const bool goes_on = follows && (item || whole);
    if (!goes_on) {
        drop_batch(r, segment);
        r->batch_whole = whole;
    }
    r->batch_seq = 0;
    if (!part || !(item || whole))
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
static uint64_t hole(struct rebuild *r, bool owed, uint64_t upto)
{
    uint64_t count = 0;
    const uint64_t window = r->queue->created.ack_window;
    for (uint64_t seq = r->next; seq < upto && seq - r->next < MPQ_SEQ_BLOCK; seq++)
        if (!settled_before(r, seq) || seq - r->floor >= window)
            count++;
    r->accounted += count;
    if (!owed)
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
    const bool owed = promised(r, segment->generation, from);
    const uint64_t count = hole(r, owed, upto);
    if (owed && !r->how->repair)
        return;
    if (owed) {
        save(r, segment, from, to);
        r->lost_bytes += count != 0 ? to - from : 0;
    }
    mpq_rebuild_pad(r, segment, from, to);
}

static void take_frame(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                       const struct mpq_seen *seen)
{
    const uint64_t seq = seen->header.seq;
    const bool trust = believed(r, segment->generation, offset);
    const bool owed = promised(r, segment->generation, offset) && seen->code != MPQ_CLAIMED;
    bool item = seen->code != MPQ_GAP;
    if (item && (!trust || seen->code != MPQ_READY)) {
        bool whole = mpq_body_holds(r->queue, segment, offset, &seen->header);
        if (whole) {
            set_state(r, segment, offset, MPQ_READY);
        } else if (owed && !r->how->repair) {
            /* the consumer books it */
        } else if (seen->code == MPQ_READY && settled_before(r, seq)) {
            /* whoever settled it saw it whole: as a gap it would take the rest of its batch along
             */
        } else if (!settled_before(r, seq) && owed) {
            save(r, segment, offset, offset + seen->extent);
            r->lost++;
            r->accounted++;
            r->lost_bytes += seen->extent;
            mpq_rebuild_pad(r, segment, offset, offset + seen->extent);
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
            uint64_t upto = seen.header.seq;
            const uint64_t pads = mpq_frame_pads_before(queue, segment, offset + MPQ_FRAME_ALIGN,
                                                        found, r->next, &upto);
            found = pads != 0 ? pads : found;
            miss(r, segment, offset, found, upto);
            r->next = upto;
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
            (void)hole(r, promised(r, segment->generation, end), upto);
        return;
    }
    struct mpq_seen seen;
    bool padded = mpq_frame_see(r->queue, segment, end, r->next, &seen) == MPQ_SEE_FRAME &&
                  seen.code == MPQ_PAD;
    if (padded)
        return; /* whole; what its successor knows beyond that was settled by a recovery before */
    if (upto > r->next)
        miss(r, segment, end, segment->bytes, upto);
    else if (!promised(r, segment->generation, end) || r->how->repair)
        mpq_rebuild_pad(r, segment, end, segment->bytes);
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
    if (r->known.floor > r->floor) {
        r->floor = r->known.floor;
        r->floor_position = r->known.floor_position;
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
    if (r->known.floor != 0)
        settled = mpq_max64(settled, r->known.settled);
    uint64_t count = 0;
    if ((r->valid != 0 || r->known.settled_known) && accepted > settled + r->accounted)
        count = accepted - settled - r->accounted;
    if (count == 0 && all_taken(r, meta))
        count = 1;
    count = mpq_min64(count, MPQ_SEQ_MAX - mpq_min64(r->next, MPQ_SEQ_MAX));
    r->accounted += count;
    if (r->how->repair) {
        r->lost += count; /* ... and the walk ended before them */
        r->lost_segments += count != 0;
        return;
    }
    r->missing_end = count;
    r->unsettled += count;
    /* Settled ones among them are not missing. Beyond the window there is none: a count that makes
     * no sense costs no time. */
    const uint64_t window_end = r->floor + (uint64_t)r->queue->window_words * 32;
    for (; count != 0 && r->next < window_end; r->next++)
        count -= !settled_before(r, r->next);
    r->next += count;
}

/* Where the walk before segment `to`, which holds an item, ended; 0 = its roll does not tell. */
static uint64_t walk_ended(struct rebuild *r, struct mpq_segment *to)
{
    struct mpq_roll roll;
    return to != NULL && mpq_roll_read(r->queue, to, &roll) ? roll.previous_seq : 0;
}

/* Seqs that a new epoch skipped were never issued. */
static void skip_to_base(struct rebuild *r, struct mpq_segment *segment, uint64_t first_seq)
{
    struct mpq_roll roll;
    if (mpq_roll_read(r->queue, segment, &roll) && r->next >= roll.previous_seq)
        r->next = mpq_max64(r->next, mpq_min64(roll.base_seq, first_seq));
}

/* Segment `to` holds an item, so its roll record binds: closes those before it that are open. What
 * lay in missing files between them is left to the caller. */
static mpq_status close_up_to(struct rebuild *r, const struct mpq_generations *found, uint32_t from,
                              uint32_t to, uint64_t first_seq, struct mpq_error *error)
{
    mpq_status status = MPQ_OK;
    for (uint32_t i = from; i < to && status == MPQ_OK; i++) {
        struct mpq_segment *segment = mpq_rebuild_map(r, found->list[i], &status, error);
        if (segment == NULL)
            continue;
        skip_to_base(r, segment, first_seq);
        uint64_t upto = r->next;
        if (found->list[i + 1] == found->list[i] + 1) {
            struct mpq_segment *after = mpq_rebuild_map(r, found->list[i + 1], &status, error);
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
    struct mpq_segment *segment = mpq_rebuild_map(r, found->list[i], &status, error);
    if (segment == NULL || status != MPQ_OK)
        return status;
    uint64_t ended = walk_ended(r, segment);
    if (ended == 0 || ended > first_seq)
        ended = first_seq;
    if (found->list[i] != MPQ_POSITION_GEN(r->floor_position) && ended > r->next) {
        /* Their file is missing: a power cut takes no name away, so they count as promised. But
         * where the floor waits for this very segment to be made, they lay in its beginning. */
        const bool here = r->last == 0 && r->floor_position == MPQ_POSITION(found->list[i] - 1, 0);
        const bool owed = !here || promised(r, found->list[i], MPQ_SEGMENT_FIRST);
        const bool missing = hole(r, owed, ended) != 0 && owed;
        r->missing_head |= missing && r->last == 0;
        if (missing && r->how->repair) /* else the consumer books them, file by file */
            r->lost_segments += found->list[i] - (r->last == 0 ? MPQ_POSITION_GEN(r->floor_position)
                                                               : found->list[i - 1] + 1);
        r->next = ended;
    }
    const bool settled = r->next > next && r->unsettled == unsettled;
    for (uint32_t k = open + 1; settled && k < i && status == MPQ_OK; k++) {
        struct mpq_segment *between = mpq_rebuild_map(r, found->list[k], &status, error);
        if (between != NULL)
            settle_before(r, between, next, first_seq);
        mpq_segment_release(between);
    }
    if (settled)
        settle_before(r, segment, next, first_seq);
    mpq_segment_release(segment);
    return status;
}

/* Does the segment hold an item? One whose header one flipped bit spoils counts, and so does the
 * first one if it was promised, whatever became of its body: its loss must be told. */
static bool binds(struct rebuild *r, struct mpq_segment *segment, uint64_t offset,
                  struct mpq_seen *seen)
{
    if (mpq_frame_see(r->queue, segment, offset, r->next, seen) == MPQ_SEE_FRAME &&
        seen->code != MPQ_PAD && seen->code != MPQ_GAP &&
        ((promised(r, segment->generation, offset) && seen->code != MPQ_CLAIMED) ||
         mpq_body_holds(r->queue, segment, offset, &seen->header)))
        return true;
    return mpq_frame_scan(r->queue, segment, offset, UINT64_MAX, r->next, false, seen) != 0;
}

mpq_status mpq_rebuild_walk(struct rebuild *r, const struct mpq_generations *found,
                            const struct mpq_meta_slot *meta, struct mpq_error *error)
{
    mpq_status status = check_owner(r, found, error);
    begin_at(r, found);
    uint32_t open = 0; /* index of the first segment that is not closed */
    while (open < found->count && found->list[open] < MPQ_POSITION_GEN(r->floor_position))
        open++;
    for (uint32_t i = open; i < found->count && status == MPQ_OK; i++) {
        const uint64_t generation = found->list[i];
        struct mpq_segment *segment = mpq_rebuild_map(r, generation, &status, error);
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
            skip_to_base(r, segment, seen.header.seq);
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
