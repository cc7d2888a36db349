/* meta.c - what must last: identity, options, epoch, high-water marks, seal and poison.
 *
 * I1 meta is never replaced while the queue lives: all kernel lock bytes are on it. I2 a change
 * is written to both slots, one after the other, each synced: at any moment one slot is whole.
 * I3 one writer at a time: a member under MPQ_BYTE_META, or the range holder. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "internal.h"

/* Values that were never written here, under a hash that somebody made fit, count as damage.
 * Another version is for its own program to judge. */
static bool is_plausible(const struct mpq_meta_slot *slot)
{
    struct mpq_error why;
    return slot->version != MPQ_FORMAT_VERSION ||
           (slot->epoch <= MPQ_INCARNATION_MAX / 2 && slot->seq_mark <= MPQ_SEQ_MAX &&
            slot->generation_mark <= MPQ_POSITION_GEN(UINT64_MAX) / 2 &&
            slot->keys_count <= MPQ_KEYS && mpq_options_check(&slot->options, &why) == MPQ_OK);
}

static bool slot_holds(const struct mpq_meta_slot *slot)
{
    return slot->magic == MPQ_META_MAGIC && slot->slot_bytes == MPQ_PAGE &&
           slot->hash == mpq_xxh64(slot, offsetof(struct mpq_meta_slot, hash), 0) &&
           is_plausible(slot);
}

mpq_status mpq_meta_read(struct mpq_queue *queue, struct mpq_meta_slot *meta,
                         struct mpq_error *error)
{
    struct mpq_meta_slot slots[2];
    struct stat now;
    if (queue->io->fstat(queue->io, queue->checker, &now) != 0)
        return mpq_fail_errno(error, "%s: cannot look at meta", queue->path);
    memset(slots, 0, sizeof slots);
    for (int i = 0; i < 2; i++)
        if ((uint64_t)now.st_size >= (uint64_t)(i + 1) * MPQ_PAGE &&
            mpq_io_read(queue->io, queue->checker, &slots[i], MPQ_PAGE, (uint64_t)i * MPQ_PAGE) !=
                0)
            return mpq_fail_errno(error, "%s: cannot read meta", queue->path);
    const bool holds[2] = {slot_holds(&slots[0]), slot_holds(&slots[1])};
    if (!holds[0] && !holds[1]) {
        if (slots[0].magic != MPQ_META_MAGIC && slots[1].magic != MPQ_META_MAGIC)
            return mpq_fail(error, MPQ_NOT_A_QUEUE,
                            "%s: its file `meta` is not mpqueue's; choose another directory",
                            queue->path);
        return mpq_fail(error, MPQ_FORMAT,
                        "%s: both copies in `meta` are damaged; nothing was touched. Restore meta "
                        "from a backup, or save the items with `mpqueue export`",
                        queue->path);
    }
    int newest = !holds[1] || (holds[0] && slots[0].number >= slots[1].number) ? 0 : 1;
    *meta = slots[newest];
    if (meta->version != MPQ_FORMAT_VERSION)
        return mpq_fail(error, MPQ_FORMAT,
                        "%s: on-disk format %u, this mpqueue reads format %u; nothing was touched. "
                        "Use the version of mpqueue that made it, or a newer one",
                        queue->path, meta->version, MPQ_FORMAT_VERSION);
    return MPQ_OK;
}

static int write_slots(struct mpq_queue *queue, int fd, struct mpq_meta_slot *meta)
{
    meta->number++;
    meta->hash = mpq_xxh64(meta, offsetof(struct mpq_meta_slot, hash), 0);
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t slot = (meta->number + i) & 1;
        if (mpq_io_write(queue->io, fd, meta, MPQ_PAGE, slot * MPQ_PAGE) != 0 ||
            queue->io->datasync(queue->io, fd) != 0)
            return -1;
    }
    return 0;
}

mpq_status mpq_meta_write(struct mpq_queue *queue, struct mpq_meta_slot *meta,
                          struct mpq_error *error)
{
    if (write_slots(queue, queue->checker, meta) == 0)
        return MPQ_OK;
    if (queue->control != NULL && mpq_load(queue->control->poison_errno) == 0) {
        uint32_t none = 0;
        (void)atomic_compare_exchange_strong(&queue->control->poison_errno, &none, (uint32_t)errno);
        mpq_store(queue->control->poison_stage, MPQ_STAGE_META);
    }
    return mpq_fail_errno(error, "%s: cannot write meta", queue->path);
}

mpq_status mpq_meta_update(struct mpq_queue *queue,
                           void (*change)(struct mpq_meta_slot *meta, void *arg), void *arg,
                           const struct mpq_call *call, struct mpq_error *error)
{
    struct mpq_pin pin = {NULL, -1};
    mpq_status status = mpq_pin_wait(queue, MPQ_BYTE_META, call, &pin, "meta", error);
    if (status != MPQ_OK)
        return status;
    struct mpq_meta_slot meta;
    status = mpq_meta_read(queue, &meta, error);
    if (status == MPQ_OK) {
        change(&meta, arg);
        status = mpq_meta_write(queue, &meta, error);
    }
    mpq_pin_drop(queue, &pin);
    return status;
}

bool mpq_meta_exists(const struct mpq_queue *queue)
{
    const int saved = errno;
    struct stat now;
    const bool exists = queue->io->stat(queue->io, queue->dirfd, "meta", &now) == 0;
    errno = saved;
    return exists;
}

mpq_status mpq_meta_create(struct mpq_queue *queue, const struct mpq_options *options,
                           struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct mpq_meta_slot meta;
    char name[MPQ_NAME_MAX];
    uint64_t nonce;
    memset(&meta, 0, sizeof meta);
    if (io->random(io, meta.uuid, 16) != 0 || io->random(io, &meta.hash_seed, 8) != 0 ||
        io->random(io, &nonce, 8) != 0)
        return mpq_fail_errno(error, "%s: no random numbers", queue->path);
    meta.uuid[6] = (uint8_t)((meta.uuid[6] & 0x0F) | 0x40); /* a version 4 UUID */
    meta.uuid[8] = (uint8_t)((meta.uuid[8] & 0x3F) | 0x80);
    meta.magic = MPQ_META_MAGIC;
    meta.version = MPQ_FORMAT_VERSION;
    meta.slot_bytes = MPQ_PAGE;
    meta.created_at = io->wall_ns(io);
    meta.generation_mark = 1;
    meta.options = *options;
    snprintf(name, sizeof name, "making-%016llx", (unsigned long long)nonce);
    int fd = io->open(io, queue->dirfd, name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return mpq_fail_errno(error, "%s: cannot make a queue in this directory", queue->path);
    struct stat now;
    mpq_status status = MPQ_OK;
    /* Others may do the same: the first link wins, and the winner's open sweeps what is aside. */
    if (io->chmod(io, fd, options->file_mode) != 0 || io->fstat(io, fd, &now) != 0 ||
        io->allocate(io, fd, 2 * MPQ_PAGE) != 0) {
        status = mpq_fail_errno(error, "%s: cannot allocate meta", queue->path);
    } else {
        meta.inode = now.st_ino;
        meta.device = now.st_dev;
        if (write_slots(queue, fd, &meta) != 0 || io->sync(io, fd) != 0)
            status = mpq_fail_errno(error, "%s: cannot write meta", queue->path);
        else if (io->link(io, queue->dirfd, name, "meta") != 0 && !mpq_meta_exists(queue))
            status = mpq_fail_errno(error, "%s: cannot name meta", queue->path);
        else if (io->sync(io, queue->dirfd) != 0)
            status = mpq_fail_errno(error, "%s: cannot sync the directory", queue->path);
    }
    io->close(io, fd);
    (void)io->unlink(io, queue->dirfd, name);
    return status;
}

/* ---- poison */

struct poison {
    uint32_t failed_errno, stage;
};

static void set_poison(struct mpq_meta_slot *meta, void *arg)
{
    const struct poison *poison = arg;
    if (meta->poison_errno != 0)
        return;
    meta->poison_errno = poison->failed_errno;
    meta->poison_stage = poison->stage;
}

void mpq_poison(struct mpq_queue *queue, int failed_errno, uint32_t stage)
{
    struct mpq_control *control = queue->control;
    uint32_t none = 0;
    uint32_t latch = failed_errno == 0 ? EIO : (uint32_t)failed_errno;
    mpq_store(control->poison_stage, stage);
    if (!atomic_compare_exchange_strong(&control->poison_errno, &none, latch))
        return; /* told already */
    mpq_wake(queue, &control->flush_event, &control->flush_waiting);
    mpq_wake(queue, &control->space_event, &control->space_waiting);
    mpq_wake(queue, &control->items_event, &control->items_waiting);
    /* The medium is failing, so this may fail too: then control and, after a power cut, the
     * boot id carry the news. Bounded, because the caller has an error to report. */
    struct poison poison = {latch, stage};
    struct mpq_call call = {queue->io->monotonic_ns(queue->io) + 1000 * MPQ_MS, NULL, NULL};
    (void)mpq_meta_update(queue, set_poison, &poison, &call, NULL);
}

mpq_status mpq_poisoned(struct mpq_queue *queue, struct mpq_error *error)
{
    mpq_status status = mpq_control_ours(queue, error);
    if (status != MPQ_OK)
        return status;
    static const char *const stages[] = {"?", "segment", "cursor", "meta", "directory", "keys"};
    uint32_t stage = mpq_load(queue->control->poison_stage);
    int failed = (int)mpq_load(queue->control->poison_errno);
    mpq_fail(
        error, MPQ_POISONED,
        "%s: a flush of its %s failed earlier (%s), so nothing more is accepted; reading goes on. "
        "Close every process that has it open and open it again: that proves or repairs what is "
        "on the disk",
        queue->path, stages[stage <= MPQ_STAGE_KEYS ? stage : 0], strerror(failed));
    if (error != NULL)
        error->os_errno = failed;
    return MPQ_POISONED;
}

/* ---- marks */

struct marks {
    uint64_t seq, generation;
};

static void set_marks(struct mpq_meta_slot *meta, void *arg)
{
    struct marks *marks = arg;
    marks->seq = meta->seq_mark = mpq_max64(meta->seq_mark, marks->seq);
    marks->generation = meta->generation_mark = mpq_max64(meta->generation_mark, marks->generation);
}

mpq_status mpq_mark_raise(struct mpq_queue *queue, uint64_t seq, uint64_t generation,
                          const struct mpq_call *call, struct mpq_error *error)
{
    struct marks marks = {seq, generation};
    mpq_status status = mpq_meta_update(queue, set_marks, &marks, call, error);
    if (status == MPQ_OK) {
        mpq_raise_to(&queue->control->seq_mark, marks.seq);
        mpq_raise_to(&queue->control->generation_mark, marks.generation);
    }
    return status;
}
