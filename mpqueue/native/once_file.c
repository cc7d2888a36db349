/* once_file.c - remembered keys on the disk: the frames carry them, and the file `keys` takes over
 * before the frames go.
 *
 * I1 no frame with a remembered key is freed before the key is in the file, durably. I2 only keys
 * below the floor are written: their items are settled and no gaps. At a rebuild the file is
 * believed below the floor alone; from the floor on only what became of the frames counts, or a
 * key would outlive an item that a power cut took. I3 every slot stands for itself: damage costs
 * its key, whose next put is accepted once more. */
#include <fcntl.h>
#include <stdlib.h>

#include "rebuild.h"

#define CHUNK 512 /* slots written at once */

static uint64_t check_of(const struct mpq_queue *queue, const struct mpq_key_saved *saved,
                         uint64_t slot)
{
    return mpq_xxh64(saved, offsetof(struct mpq_key_saved, check),
                     queue->hash_seed + slot * MPQ_SEED_OFFSET);
}

static uint64_t file_bytes(const struct mpq_queue *queue)
{
    return MPQ_KEY_SLOTS(queue->created.key_window) * sizeof(struct mpq_key_saved);
}

/* All zero when that key is not remembered, or not any more. */
static void slot_of(struct mpq_queue *queue, uint64_t number, struct mpq_key_saved *saved)
{
    const struct mpq_key_slot *at = mpq_key_at(queue, number);
    /* SYNC slots: acquire each, so that `count` is read after them; partner in mpq_keys_append. A
     * slot that was stored anew has left the window. */
    const uint64_t position = atomic_load_explicit(&at->position, memory_order_acquire);
    saved->hash[0] = atomic_load_explicit(&at->hash[0], memory_order_acquire);
    saved->hash[1] = atomic_load_explicit(&at->hash[1], memory_order_acquire);
    saved->seq = atomic_load_explicit(&at->seq, memory_order_acquire);
    const uint64_t count = mpq_load(queue->keys->count);
    if (position == MPQ_KEY_VOID || count - number >= queue->created.key_window)
        memset(saved, 0, sizeof *saved);
    else
        saved->check = check_of(queue, saved, number % MPQ_KEY_SLOTS(queue->created.key_window));
}

/* Numbers first..end-1; they may go round the ring. */
static int write_slots(struct mpq_queue *queue, int fd, uint64_t first, uint64_t end)
{
    const uint64_t slots = MPQ_KEY_SLOTS(queue->created.key_window);
    struct mpq_key_saved chunk[CHUNK];
    while (first < end) {
        const uint64_t slot = first % slots;
        const uint64_t count = mpq_min64(mpq_min64(end - first, slots - slot), CHUNK);
        for (uint64_t i = 0; i < count; i++)
            slot_of(queue, first + i, &chunk[i]);
        if (mpq_io_write(queue->io, fd, chunk, count * sizeof *chunk, slot * sizeof *chunk) != 0)
            return -1;
        first += count;
    }
    return 0;
}

static uint64_t end_below(const struct mpq_queue *queue, uint64_t first, uint64_t floor)
{
    const uint64_t count = atomic_load(&queue->keys->count);
    /* SYNC slots: acquire each, so that `count` is read after them */
    while (first <= count &&
           atomic_load_explicit(&mpq_key_at(queue, first)->seq, memory_order_acquire) < floor)
        first++;
    return first;
}

/* 0, or -1 and errno. A failed flush may have dropped what it should have written: it is told to
 * all, as that of any other file. */
static int flush(struct mpq_queue *queue, int rc)
{
    const int failed = errno;
    if (rc != 0)
        mpq_poison(queue, failed, MPQ_STAGE_KEYS);
    errno = failed;
    return rc;
}

/* The whole file anew, beside the old one. */
static mpq_status write_file(struct mpq_queue *queue, uint64_t first, uint64_t end,
                             struct mpq_error *error)
{
    mpq_io *io = queue->io;
    (void)io->unlink(io, queue->dirfd, "keys-new");
    const int fd = io->open(io, queue->dirfd, "keys-new", O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot make the file of keys", queue->path);
    mpq_status status = MPQ_OK;
    if (io->chmod(io, fd, queue->created.file_mode) != 0 ||
        io->allocate(io, fd, file_bytes(queue)) != 0)
        status = mpq_fail_errno(error, "%s: cannot allocate the file of keys (%llu bytes)",
                                queue->path, (unsigned long long)file_bytes(queue));
    else if (write_slots(queue, fd, first, end) != 0 || io->sync(io, fd) != 0 ||
             io->rename(io, queue->dirfd, "keys-new", "keys") != 0)
        status = mpq_fail_errno(error, "%s: cannot write the file of keys", queue->path);
    io->close(io, fd);
    if (status != MPQ_OK)
        (void)io->unlink(io, queue->dirfd, "keys-new");
    return status;
}

mpq_status mpq_keys_save(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct mpq_key_ring *keys = queue->keys;
    if (keys == NULL)
        return MPQ_OK;
    const uint64_t saved = mpq_load(keys->saved), floor = mpq_consumer_read(queue->control).floor;
    /* Also some that left the window unsaved: what the file has in their slots is older still. */
    const uint64_t back = queue->created.key_window + MPQ_BATCH_MAX / 2;
    uint64_t count, first, end;
    do {
        count = atomic_load(&keys->count);
        first = mpq_max64(saved, count > back ? count - back : 0) + 1;
        end = end_below(queue, first, floor);
    } while (atomic_load(&keys->count) - count >= MPQ_BATCH_MAX / 2); /* some stored anew */
    if (end <= first)
        return MPQ_OK;
    const int fd = io->open(io, queue->dirfd, "keys", O_RDWR, 0);
    struct stat now;
    mpq_status status = MPQ_OK;
    if (fd < 0 && errno != ENOENT)
        return mpq_fail_errno(error, "%s: cannot open the file of keys", queue->path);
    if (fd < 0 || io->fstat(io, fd, &now) != 0 || (uint64_t)now.st_size != file_bytes(queue)) {
        const uint64_t window = queue->created.key_window;
        status = write_file(queue, end > window ? end - window : 1, end, error);
        if (status == MPQ_OK && flush(queue, io->sync(io, queue->dirfd)) != 0)
            status = mpq_fail_errno(error, "%s: cannot sync the directory", queue->path);
    } else if (write_slots(queue, fd, first, end) != 0 || flush(queue, io->datasync(io, fd)) != 0) {
        status = mpq_fail_errno(error, "%s: cannot write the file of keys", queue->path);
    }
    if (fd >= 0)
        io->close(io, fd);
    if (status == MPQ_OK)
        mpq_store(keys->saved, end - 1);
    return status;
}

/* ---- after a crash */

struct known {
    uint64_t hash[2], seq;
};

struct shelf {
    struct known *list;
    uint64_t count, room;
    uint64_t damaged;
};

static int by_seq(const void *left, const void *right)
{
    const struct known *a = left, *b = right;
    return (a->seq > b->seq) - (a->seq < b->seq);
}

/* Ascending; the newest `window`, each seq once. */
static void trim(struct shelf *shelf, uint64_t window)
{
    uint64_t kept = 0;
    if (shelf->count == 0)
        return;
    qsort(shelf->list, shelf->count, sizeof *shelf->list, by_seq);
    for (uint64_t i = 1; i < shelf->count; i++)
        if (shelf->list[i].seq != shelf->list[kept].seq)
            shelf->list[++kept] = shelf->list[i];
    shelf->count = kept + 1;
    if (shelf->count > window) {
        memmove(shelf->list, shelf->list + (shelf->count - window), window * sizeof *shelf->list);
        shelf->count = window;
    }
}

static void remember(struct rebuild *r, struct shelf *shelf, const struct known *known)
{
    if (shelf->count == shelf->room)
        trim(shelf, r->queue->created.key_window);
    shelf->list[shelf->count++] = *known;
}

static mpq_status read_file(struct rebuild *r, struct shelf *shelf,
                            const struct mpq_generations *found, struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    mpq_io *io = queue->io;
    const uint64_t slots = MPQ_KEY_SLOTS(queue->created.key_window);
    const int fd = io->open(io, queue->dirfd, "keys", O_RDWR, 0);
    if (fd < 0 && errno != ENOENT)
        return mpq_fail_errno(error, "%s: cannot open the file of keys", queue->path);
    if (fd < 0) {
        shelf->damaged += found->count != 0; /* else it is being made */
        return MPQ_OK;
    }
    struct stat now;
    mpq_status status = MPQ_OK;
    if (io->fstat(io, fd, &now) != 0)
        status = mpq_fail_errno(error, "%s: cannot look at the file of keys", queue->path);
    const uint64_t whole =
        status == MPQ_OK ? mpq_min64((uint64_t)now.st_size / sizeof(struct mpq_key_saved), slots)
                         : 0;
    shelf->damaged += status == MPQ_OK && whole != slots;
    struct mpq_key_saved chunk[CHUNK];
    for (uint64_t slot = 0; slot < whole && status == MPQ_OK; slot += CHUNK) {
        const uint64_t count = mpq_min64(CHUNK, whole - slot);
        if (mpq_io_read(io, fd, chunk, count * sizeof *chunk, slot * sizeof *chunk) != 0)
            status = mpq_fail_errno(error, "%s: cannot read the file of keys", queue->path);
        for (uint64_t i = 0; i < count && status == MPQ_OK; i++) {
            static const struct mpq_key_saved none;
            if (memcmp(&chunk[i], &none, sizeof none) == 0)
                continue;
            if (chunk[i].check != check_of(queue, &chunk[i], slot + i))
                shelf->damaged++;
            else if (chunk[i].seq < r->floor)
                remember(r, shelf,
                         &(struct known){{chunk[i].hash[0], chunk[i].hash[1]}, chunk[i].seq});
        }
    }
    io->close(io, fd);
    return status;
}

/* A copy of an item keeps the seq that its first put returned. */
static uint64_t first_seq(const struct mpq_queue *queue, const uint8_t *ext, size_t ext_length,
                          uint64_t seq)
{
    size_t length;
    const uint8_t *origin = mpq_extension_find(ext, ext_length, MPQ_EXT_ORIGIN, &length);
    if (origin != NULL && length == 32 && memcmp(origin, queue->uuid, 16) == 0)
        memcpy(&seq, origin + 24, sizeof seq);
    return seq;
}

/* The walk before has made every item READY, and what is none something else. */
static void read_frames(struct rebuild *r, struct mpq_segment *segment, struct shelf *shelf)
{
    struct mpq_queue *queue = r->queue;
    uint64_t offset = MPQ_SEGMENT_FIRST, min_seq = 0;
    for (;;) {
        struct mpq_seen seen;
        enum mpq_sight sight = mpq_frame_see(queue, segment, offset, min_seq, &seen);
        if (sight == MPQ_SEE_DAMAGE) {
            offset = mpq_frame_scan(queue, segment, offset + MPQ_FRAME_ALIGN, UINT64_MAX, min_seq,
                                    false, &seen);
            sight = offset == 0 ? MPQ_SEE_END : MPQ_SEE_FRAME;
        }
        if (sight == MPQ_SEE_END)
            return;
        const uint8_t *ext = segment->base + offset + MPQ_FRAME_HEADER;
        const size_t ext_length = seen.header.ext_length;
        size_t length;
        const uint8_t *key = seen.code == MPQ_READY
                                 ? mpq_extension_find(ext, ext_length, MPQ_EXT_KEY, &length)
                                 : NULL;
        if (key != NULL && mpq_body_holds(queue, segment, offset, &seen.header)) {
            struct known known = {.seq = first_seq(queue, ext, ext_length, seen.header.seq)};
            mpq_key_hash(queue, key, length, known.hash);
            remember(r, shelf, &known);
        }
        min_seq = seen.header.seq + (seen.code != MPQ_PAD);
        offset += seen.extent;
    }
}

static mpq_status gather(struct rebuild *r, struct shelf *shelf,
                         const struct mpq_generations *found, struct mpq_error *error)
{
    const uint64_t last = mpq_max64(r->last, MPQ_POSITION_GEN(r->floor_position));
    mpq_status status = read_file(r, shelf, found, error);
    for (uint32_t i = 0; i < found->count && found->list[i] <= last && status == MPQ_OK; i++) {
        struct mpq_segment *segment = mpq_rebuild_map(r, found->list[i], &status, error);
        if (segment == NULL)
            continue;
        read_frames(r, segment, shelf);
        mpq_segment_release(segment);
    }
    trim(shelf, r->queue->created.key_window);
    return status;
}

mpq_status mpq_keys_rebuild(struct rebuild *r, const struct mpq_generations *found,
                            struct mpq_error *error)
{
    struct mpq_queue *queue = r->queue;
    struct shelf shelf = {.room = 2 * MPQ_KEY_SLOTS(queue->created.key_window)};
    shelf.list = queue->io->alloc(queue->io, shelf.room * sizeof *shelf.list);
    if (shelf.list == NULL)
        return mpq_fail(error, MPQ_MEMORY, "%s: out of memory", queue->path);
    mpq_status status = gather(r, &shelf, found, error);
    for (uint64_t i = 0; i < shelf.count && status == MPQ_OK; i++)
        mpq_keys_append(queue, shelf.list[i].hash, shelf.list[i].seq, MPQ_KEY_PROVED);
    queue->io->free(queue->io, shelf.list);
    if (status != MPQ_OK)
        return status;
    mpq_store(queue->keys->damaged, shelf.damaged);
    const uint64_t end = end_below(queue, 1, r->floor);
    status = write_file(queue, 1, end, error);
    if (status == MPQ_OK && queue->io->sync(queue->io, queue->dirfd) != 0)
        status = mpq_fail_errno(error, "%s: cannot sync the directory", queue->path);
    mpq_store(queue->keys->saved, end - 1);
    return status;
}
