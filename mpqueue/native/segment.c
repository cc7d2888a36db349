/* segment.c - one segment file: its name, its mapping, its headers, and preparing it ahead.
 *
 * Preparing, outside every lock: ring entry EMPTY -> PREPARING(me) -> PREPARED. The file is made
 * aside (new, or a kept one renamed to a name that only its preparer uses), gets its static
 * header, is synced, linked without replacing, and the directory is synced; only then PREPARED.
 *
 * I1 a name segment-<g> is complete and durable before anybody enters it. I2 the first link wins;
 * losers remove their own file; a linked name is removed only by reclaim. I3 a dead preparer is
 * taken over; out of patience with a living one, others prepare a file of their own. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "aside.h"

#define PATIENCE_NS (500 * MPQ_MS)

void mpq_segment_name(uint64_t generation, char name[MPQ_NAME_MAX])
{
    snprintf(name, MPQ_NAME_MAX, "segment-%012llu", (unsigned long long)generation);
}

bool mpq_segment_parse(const char *name, uint64_t *generation)
{
    if (strncmp(name, "segment-", 8) != 0 || strlen(name) != 20)
        return false;
    uint64_t value = 0;
    for (const char *at = name + 8; *at != '\0'; at++) {
        if (*at < '0' || *at > '9')
            return false;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *generation = value;
    return true;
}

/* ---- headers and roll records */

static uint64_t segment_hash(const struct mpq_segment_header *header, uint64_t hash_seed)
{
    return mpq_xxh64(header, offsetof(struct mpq_segment_header, hash), hash_seed);
}

/* The size that its static header states; 0 = neither copy holds. */
static uint64_t stated_bytes(const struct mpq_queue *queue, const uint8_t *base,
                             uint64_t generation)
{
    static const uint32_t places[2] = {MPQ_SEGMENT_HEADER_A, MPQ_SEGMENT_HEADER_B};
    for (int i = 0; i < 2; i++) {
        struct mpq_segment_header header;
        memcpy(&header, base + places[i], sizeof header);
        if (header.magic == MPQ_SEGMENT_MAGIC && header.generation == generation &&
            memcmp(header.uuid, queue->uuid, 16) == 0 &&
            header.hash == segment_hash(&header, queue->hash_seed))
            return header.bytes;
    }
    return 0;
}

mpq_status mpq_segment_header_check(struct mpq_queue *queue, const uint8_t *base, uint64_t bytes,
                                    uint64_t generation)
{
    const uint64_t stated = stated_bytes(queue, base, generation);
    return stated != 0 && stated <= bytes ? MPQ_OK : MPQ_CORRUPT;
}

bool mpq_segment_as_made(const struct mpq_queue *queue, const uint8_t *base, uint64_t bytes,
                         uint64_t generation)
{
    return stated_bytes(queue, base, generation) == bytes;
}

static uint64_t roll_hash(const struct mpq_roll *roll, uint64_t hash_seed, uint64_t generation)
{
    return mpq_xxh64(roll, offsetof(struct mpq_roll, hash),
                     hash_seed + generation * MPQ_SEED_GENERATION);
}

void mpq_roll_write(struct mpq_queue *queue, struct mpq_segment *segment,
                    const struct mpq_roll *roll)
{
    struct mpq_roll out = *roll;
    out.magic = MPQ_ROLL_MAGIC;
    out.generation = segment->generation;
    out.hash = roll_hash(&out, queue->hash_seed, segment->generation);
    memcpy(segment->base + MPQ_SEGMENT_ROLL_A, &out, sizeof out);
    memcpy(segment->base + MPQ_SEGMENT_ROLL_B, &out, sizeof out);
}

bool mpq_roll_read(const struct mpq_queue *queue, const struct mpq_segment *segment,
                   struct mpq_roll *roll)
{
    static const uint32_t places[2] = {MPQ_SEGMENT_ROLL_A, MPQ_SEGMENT_ROLL_B};
    for (int i = 0; i < 2; i++) {
        memcpy(roll, segment->base + places[i], sizeof *roll);
        if (roll->magic == MPQ_ROLL_MAGIC && roll->generation == segment->generation &&
            roll->base_seq <= MPQ_SEQ_MAX && roll->previous_seq <= MPQ_SEQ_MAX &&
            roll->hash == roll_hash(roll, queue->hash_seed, segment->generation))
            return true;
    }
    return false;
}

/* ---- mappings */

void mpq_segment_retain(struct mpq_segment *segment)
{
    atomic_fetch_add_explicit(&segment->references, 1, memory_order_relaxed);
}

void mpq_segment_release(struct mpq_segment *segment)
{
    if (segment == NULL ||
        atomic_fetch_sub_explicit(&segment->references, 1, memory_order_acq_rel) != 1)
        return;
    segment->io->unmap(segment->io, segment->base, segment->bytes);
    segment->io->free(segment->io, segment);
}

static void forget(struct mpq_queue *queue, unsigned slot)
{
    struct mpq_segment *segment = queue->maps[slot];
    queue->maps[slot] = NULL;
    mpq_segment_release(segment);
}

void mpq_segments_forget(struct mpq_queue *queue)
{
    for (unsigned i = 0; i < MPQ_MAPS; i++)
        if (queue->maps[i] != NULL)
            forget(queue, i);
}

void mpq_segment_forget(struct mpq_queue *queue, uint64_t generation)
{
    if (mpq_segment_mapped(queue, generation) != NULL)
        forget(queue, generation % MPQ_MAPS);
}

/* Mappings of deleted files would pin their disk blocks in every process. Those of files that are
 * kept, or were reused, stay: under its next name the file's pages are mapped already. */
void mpq_segments_forget_freed(struct mpq_queue *queue)
{
    const uint64_t oldest = mpq_load(queue->control->oldest_generation);
    const uint64_t most = mpq_load(queue->control->max_segments);
    for (unsigned i = 0; i < MPQ_MAPS; i++) {
        const struct mpq_segment *segment = queue->maps[i];
        if (segment == NULL || segment->generation >= oldest)
            continue;
        const struct mpq_ring_entry *entry = mpq_ring_at(queue, segment->generation);
        if (oldest - segment->generation > most ||
            mpq_load(entry->generation) != segment->generation || mpq_load(entry->bytes) == 0)
            forget(queue, i);
    }
}

/* Takes the mapping of a reused file out of the table, when nobody else refers to it. A mapped
 * inode is not given to another file, so that its number is proof. */
static struct mpq_segment *mapped_before(struct mpq_queue *queue, const struct stat *now)
{
    const uint64_t oldest = mpq_load(queue->control->oldest_generation);
    for (unsigned i = 0; i < MPQ_MAPS; i++) {
        struct mpq_segment *segment = queue->maps[i];
        if (segment != NULL && segment->generation < oldest && segment->inode == now->st_ino &&
            segment->device == now->st_dev && segment->bytes == (uint64_t)now->st_size &&
            mpq_load(segment->references) == 1) {
            queue->maps[i] = NULL;
            return segment;
        }
    }
    return NULL;
}

static mpq_status map_anew(struct mpq_queue *queue, uint64_t generation, int fd, uint64_t bytes,
                           struct mpq_segment **out, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct mpq_segment *segment = io->alloc(io, sizeof *segment);
    if (segment == NULL)
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    mpq_guard_install();
    segment->base = io->map(io, fd, bytes, true);
    if (segment->base == NULL) {
        mpq_status status = mpq_fail_errno(error, "%s: cannot map segment %llu", queue->path,
                                           (unsigned long long)generation);
        io->free(io, segment);
        return status;
    }
    /* Read-ahead would make the next sync of one dirty byte write hundreds of KiB. */
    (void)io->advise(io, segment->base, bytes, MADV_RANDOM);
    *out = segment;
    return MPQ_OK;
}

static mpq_status map_file(struct mpq_queue *queue, uint64_t generation, int fd,
                           struct mpq_segment **out, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct stat now;
    if (io->fstat(io, fd, &now) != 0)
        return mpq_fail_errno(error, "%s: cannot look at segment %llu", queue->path,
                              (unsigned long long)generation);
    uint64_t bytes = (uint64_t)now.st_size & ~(uint64_t)(MPQ_FRAME_ALIGN - 1);
    if (bytes < MPQ_SEGMENT_FIRST) {
        mpq_status status = mpq_fail(error, MPQ_CORRUPT, "%s: segment %llu was truncated",
                                     queue->path, (unsigned long long)generation);
        if (error != NULL)
            error->generation = generation;
        return status;
    }
    struct mpq_segment *segment = mapped_before(queue, &now);
    const bool again = segment != NULL;
    if (!again) {
        mpq_status status = map_anew(queue, generation, fd, bytes, &segment, error);
        if (status != MPQ_OK)
            return status;
    }
    const struct mpq_segment fresh = {
        .io = io,
        .base = segment->base,
        .generation = generation,
        .bytes = bytes,
        .inode = now.st_ino,
        .device = now.st_dev,
        .touched = again ? bytes : MPQ_SEGMENT_FIRST,
        .read_ahead = again ? bytes : 0,
        .references = 1,
    };
    *segment = fresh;
    *out = segment;
    return MPQ_OK;
}

/* A segment that was prepared and not entered, or passed because it could not be, owes nothing. */
static bool owes_items(struct mpq_queue *queue, uint64_t generation)
{
    return generation <= MPQ_POSITION_GEN(mpq_tail_position(queue->control)) &&
           (mpq_load(mpq_ring_at(queue, generation)->bytes) & MPQ_RING_DAMAGED) == 0;
}

struct mpq_segment *mpq_segment_map(struct mpq_queue *queue, uint64_t generation,
                                    struct mpq_error *error)
{
    struct mpq_segment *segment = mpq_segment_mapped(queue, generation);
    if (segment != NULL)
        return segment;
    mpq_io *io = queue->io;
    char name[MPQ_NAME_MAX];
    mpq_segment_name(generation, name);
    int fd = io->open(io, queue->dirfd, name, O_RDWR, 0);
    if (fd < 0) {
        const int saved = errno;
        const bool owes = queue->incarnation == 0 || owes_items(queue, generation);
        /* Put in its place. What is behind a link may be the segment itself, moved: that is not
         * given up, it is an error until somebody looks. */
        if (saved == EISDIR || saved == ENXIO || (saved == ELOOP && !owes)) {
            mpq_fail(error, MPQ_CORRUPT, "%s: %s is no file", queue->path, name);
            if (error != NULL)
                error->generation = generation;
        } else if (saved != ENOENT) {
            errno = saved;
            mpq_fail_errno(error, "%s: cannot open %s", queue->path, name);
        } else if (mpq_still_there(queue, error) == MPQ_OK) {
            mpq_fail(error, MPQ_CORRUPT, "%s: %s is missing", queue->path, name);
            if (error != NULL)
                error->generation = generation;
        }
        return NULL;
    }
    mpq_status status = map_file(queue, generation, fd, &segment, error);
    io->close(io, fd);
    if (status != MPQ_OK)
        return NULL;
    mpq_segments_forget_freed(queue);
    if (queue->maps[generation % MPQ_MAPS] != NULL)
        forget(queue, generation % MPQ_MAPS);
    queue->maps[generation % MPQ_MAPS] = segment;
    return segment;
}

/* ---- preparing */

/* A producer may have segments up to the ring's bound less the spare that relocation owns. */
bool mpq_ring_room(const struct mpq_queue *queue, uint64_t generation)
{
    const struct mpq_control *control = queue->control;
    uint64_t oldest = mpq_load(control->oldest_generation);
    uint64_t most = mpq_load(control->max_segments) - 1;
    return generation + 1 - oldest <= most;
}

static void preparing_name(struct mpq_queue *queue, char name[MPQ_NAME_MAX])
{
    static _Atomic uint32_t serial; /* only keeps names of one process apart */
    snprintf(name, MPQ_NAME_MAX, "preparing-%llu-%u", (unsigned long long)queue->incarnation,
             atomic_fetch_add(&serial, 1));
}

/* What a dead preparer left: only its process could go on with it. */
static int sweep_dead(void *argument, const char *name)
{
    struct mpq_queue *queue = argument;
    unsigned long long incarnation;
    if (sscanf(name, "preparing-%llu-", &incarnation) == 1 && mpq_dead(queue, incarnation))
        (void)queue->io->unlink(queue->io, queue->dirfd, name);
    return 0;
}

/* Takes a kept file for reuse: renamed to `name`, which only this process uses. */
static int take_kept(struct mpq_queue *queue, uint64_t bytes, const char *name)
{
    struct mpq_control *control = queue->control;
    mpq_io *io = queue->io;
    uint64_t oldest = mpq_load(control->oldest_generation);
    if (queue->weak || bytes != queue->segment_size)
        return -1;
    for (uint64_t back = 1; back <= 64 && back <= oldest; back++) {
        uint64_t generation = oldest - back;
        struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
        uint64_t state = atomic_load(&entry->state);
        if (MPQ_STATE_CODE(state) != MPQ_RING_KEPT || mpq_load(entry->generation) != generation)
            continue;
        if (!atomic_compare_exchange_strong(&entry->state, &state, MPQ_STATE(0, MPQ_RING_EMPTY)))
            continue;
        char kept[MPQ_NAME_MAX];
        mpq_segment_name(generation, kept);
        if (io->rename(io, queue->dirfd, kept, name) != 0)
            continue;
        int fd = io->open(io, queue->dirfd, name, O_RDWR, 0);
        struct stat now;
        /* Views of it may live in a forked child: the exclusive lock proves that none do. */
        if (fd >= 0 && io->lock(io, fd, F_WRLCK, MPQ_BYTE_VIEWS, 1) == 0 &&
            io->fstat(io, fd, &now) == 0 && (uint64_t)now.st_size == bytes &&
            io->lock(io, fd, F_UNLCK, MPQ_BYTE_VIEWS, 1) == 0)
            return fd;
        if (fd >= 0)
            io->close(io, fd);
        (void)io->unlink(io, queue->dirfd, name);
        mpq_store(entry->bytes, 0);
    }
    return -1;
}

static mpq_status make_file(struct mpq_queue *queue, uint64_t bytes, const char *name, int *out,
                            struct mpq_error *error)
{
    mpq_io *io = queue->io;
    int fd = io->open(io, queue->dirfd, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot make a segment file", queue->path);
    struct stat now;
    if (io->chmod(io, fd, queue->created.file_mode) != 0 || io->allocate(io, fd, bytes) != 0 ||
        io->fstat(io, fd, &now) != 0)
        goto failed;
    if ((uint64_t)now.st_blocks * 512 < bytes) { /* emulated or compressed: not real room */
        errno = ENOSPC;
        goto failed;
    }
    *out = fd;
    return MPQ_OK;
failed:;
    mpq_status status = mpq_fail_errno(error, "%s: cannot allocate a segment of %llu bytes",
                                       queue->path, (unsigned long long)bytes);
    io->close(io, fd);
    (void)io->unlink(io, queue->dirfd, name);
    return status;
}

/* Through a mapping, so that only these pages are synced: a reused file may have many dirty ones
 * that nobody needs any more. */
static int store_header(mpq_io *io, int fd, const struct mpq_segment_header *header)
{
    uint8_t *base = io->map(io, fd, MPQ_SEGMENT_FIRST, true);
    if (base == NULL)
        return -1;
    memcpy(base + MPQ_SEGMENT_HEADER_A, header, sizeof *header);
    memcpy(base + MPQ_SEGMENT_HEADER_B, header, sizeof *header);
    int rc = io->msync(io, base, MPQ_SEGMENT_FIRST);
    int saved = errno;
    io->unmap(io, base, MPQ_SEGMENT_FIRST);
    errno = saved;
    return rc;
}

/* *named_bytes: of the file that has the name then, or 0 when the generation was used and freed
 * while this preparer stood still; the second look at it, here and in reclaim, follows the link, or
 * the store that frees it, and one of the two sees the other's. */
static mpq_status name_file(struct mpq_queue *queue, int fd, uint64_t generation, uint64_t bytes,
                            const char *name, uint64_t *named_bytes, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct mpq_segment_header header;
    memset(&header, 0, sizeof header);
    header.magic = MPQ_SEGMENT_MAGIC;
    header.version = MPQ_FORMAT_VERSION;
    header.first_offset = MPQ_SEGMENT_FIRST;
    memcpy(header.uuid, queue->uuid, 16);
    header.generation = generation;
    header.bytes = bytes;
    header.hash = segment_hash(&header, queue->hash_seed);
    char final[MPQ_NAME_MAX];
    mpq_segment_name(generation, final);
    struct stat now;
    if (store_header(io, fd, &header) != 0)
        return mpq_fail_errno(error, "%s: cannot write the header of segment %llu", queue->path,
                              (unsigned long long)generation);
    const bool linked = io->link(io, queue->dirfd, name, final) == 0;
    if (!linked && errno != EEXIST)
        return mpq_fail_errno(error, "%s: cannot name segment %llu", queue->path,
                              (unsigned long long)generation);
    if (generation < atomic_load(&queue->control->oldest_generation)) {
        if (linked)
            (void)io->unlink(io, queue->dirfd, final);
        *named_bytes = 0;
        return MPQ_OK;
    }
    if (io->stat(io, queue->dirfd, final, &now) != 0) {
        *named_bytes = 0;
        if (errno == ENOENT) /* somebody else's, and freed just now */
            return MPQ_OK;
        return mpq_fail_errno(error, "%s: cannot look at %s", queue->path, final);
    }
    if (io->sync(io, queue->dirfd) != 0) {
        int saved = errno;
        mpq_poison(queue, saved, MPQ_STAGE_DIRECTORY);
        errno = saved;
        mpq_status status = mpq_fail_errno(error, "%s: cannot sync the directory", queue->path);
        return status == MPQ_OK ? MPQ_INTERNAL : MPQ_FLUSH_FAILED;
    }
    *named_bytes = (uint64_t)now.st_size;
    return MPQ_OK;
}

/* After PREPARED nobody may find seqs without room below the mark. The generation's mark follows
 * its file, so that one without the other says that the file was taken away. */
static mpq_status raise_marks(struct mpq_queue *queue, uint64_t generation,
                              const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    const uint64_t ahead = 4 * (queue->segment_size / MPQ_FRAME_ALIGN / 2) + MPQ_BATCH_MAX;
    uint64_t seq = 0, mark = 0;
    struct mpq_tail_now tail;
    if (!mpq_tail_read_proved(control, &tail))
        return mpq_overwritten(queue, error);
    if (tail.next_seq + ahead > mpq_load(control->seq_mark))
        seq = tail.next_seq + ahead + MPQ_SEQ_BLOCK;
    if (generation >= mpq_load(control->generation_mark))
        mark = generation + MPQ_GENERATION_BLOCK;
    return seq == 0 && mark == 0 ? MPQ_OK : mpq_mark_raise(queue, seq, mark, call, error);
}

static mpq_status build(struct mpq_queue *queue, uint64_t generation, uint64_t bytes,
                        const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    mpq_io *io = queue->io;
    char name[MPQ_NAME_MAX];
    preparing_name(queue, name);
    mpq_status status = mpq_still_there(queue, error);
    if (status != MPQ_OK)
        return status;
    (void)io->list(io, queue->dirfd, sweep_dead, queue); /* while others keep the queue open */
    int fd = take_kept(queue, bytes, name);
    bool reused = fd >= 0;
    if (!reused)
        status = make_file(queue, bytes, name, &fd, error);
    if (status != MPQ_OK)
        return status;
    uint64_t named_bytes = bytes;
    status = name_file(queue, fd, generation, bytes, name, &named_bytes, error);
    io->close(io, fd);
    (void)io->unlink(io, queue->dirfd, name);
    if (status == MPQ_OK && named_bytes != 0)
        status = raise_marks(queue, generation, call, error);
    if (status != MPQ_OK || named_bytes == 0)
        return status;
    atomic_fetch_add_explicit(reused ? &control->segments_reused : &control->segments_made, 1,
                              memory_order_relaxed);
    struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    uint64_t state = atomic_load(&entry->state);
    while (MPQ_STATE_CODE(state) != MPQ_RING_PREPARED ||
           mpq_load(entry->generation) != generation) {
        /* Others entered it and it was freed meanwhile; kept under this name, it is reclaim's. */
        if (generation < atomic_load(&control->oldest_generation) ||
            (MPQ_STATE_CODE(state) == MPQ_RING_KEPT && mpq_load(entry->generation) == generation))
            break;
        mpq_store(entry->bytes, named_bytes);
        mpq_store(entry->freed_at, 0);
        mpq_store(entry->generation, generation);
        /* SYNC prepared: release here, acquire in mpq_ring_ready */
        if (atomic_compare_exchange_strong(&entry->state, &state,
                                           MPQ_STATE(queue->incarnation, MPQ_RING_PREPARED)))
            break;
    }
    return MPQ_OK;
}

static bool take_entry(struct mpq_queue *queue, struct mpq_ring_entry *entry, uint64_t generation)
{
    uint64_t state = atomic_load(&entry->state);
    unsigned code = MPQ_STATE_CODE(state);
    if (code == MPQ_RING_PREPARED && mpq_load(entry->generation) == generation)
        return false; /* just now, by somebody else */
    if (code == MPQ_RING_PREPARING && !mpq_dead(queue, MPQ_STATE_INC(state)))
        return false;
    return atomic_compare_exchange_strong(&entry->state, &state,
                                          MPQ_STATE(queue->incarnation, MPQ_RING_PREPARING));
}

static void give_entry_back(struct mpq_queue *queue, struct mpq_ring_entry *entry)
{
    uint64_t state = MPQ_STATE(queue->incarnation, MPQ_RING_PREPARING);
    (void)atomic_compare_exchange_strong(&entry->state, &state, MPQ_STATE(0, MPQ_RING_EMPTY));
}

/* The ring is full. Segments ahead of the tail may be empty and too small for a large item. */
static mpq_status ring_full(struct mpq_queue *queue, uint64_t generation, uint64_t bytes,
                            struct mpq_error *error)
{
    const uint64_t tail = MPQ_POSITION_GEN(mpq_tail_position(queue->control));
    const uint64_t oldest = mpq_load(queue->control->oldest_generation);
    char own[128] = "";
    if (bytes > queue->segment_size)
        snprintf(own, sizeof own, "; this item needs one of its own, of %llu bytes",
                 (unsigned long long)bytes);
    mpq_fail(error, MPQ_FULL,
             "%s: full: no new segment, as max_segments is %u, one stays free, and %llu are in use "
             "up to the newest item, %llu ahead of it%s; consume and ack, or raise max_segments",
             queue->path, mpq_load(queue->control->max_segments),
             (unsigned long long)(tail >= oldest ? tail + 1 - oldest : 0),
             (unsigned long long)(generation > tail ? generation - tail - 1 : 0), own);
    if (error != NULL)
        error->reason = MPQ_FULL_RING;
    return MPQ_FULL;
}

mpq_status mpq_segment_prepare(struct mpq_queue *queue, uint64_t generation, uint64_t bytes,
                               const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_control *control = queue->control;
    struct mpq_ring_entry *entry = mpq_ring_at(queue, generation);
    uint64_t patience = 0;
    for (;;) {
        if (mpq_ring_ready(queue, generation))
            return MPQ_OK;
        if (!mpq_ring_room(queue, generation))
            return ring_full(queue, generation, bytes, error);
        uint64_t now = queue->io->monotonic_ns(queue->io);
        if (patience == 0)
            patience = now + PATIENCE_NS;
        bool owned = take_entry(queue, entry, generation);
        if (owned || now >= patience) {
            mpq_status status = build(queue, generation, bytes, call, error);
            if (owned && status != MPQ_OK)
                give_entry_back(queue, entry);
            mpq_wake(queue, &control->segment_event, &control->segment_waiting);
            return status;
        }
        struct mpq_waiter waiter = mpq_wait_arm(&control->segment_event, &control->segment_waiting);
        if (mpq_ring_ready(queue, generation))
            return MPQ_OK;
        const struct mpq_call slice = {UINT64_MAX, call->check, call->arg};
        mpq_status status = mpq_wait_sleep(queue, &waiter, &slice, 20 * MPQ_MS, error);
        if (status != MPQ_OK)
            return status;
    }
}
