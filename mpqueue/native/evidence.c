/* evidence.c - how much was accepted, when the files that held it may be gone.
 *
 * Claims and settles are lifetime totals, so that what is owed is a difference that no epoch
 * disturbs: accepted - settled - found = missing. Accepted is the greatest number that something
 * durable proves: what a cursor slot recorded as flushed; what an older control recorded so. A
 * control of this boot lost nothing with the machine, so there every claim counts.
 *
 * I1 nothing is charged that a power cut may have taken: of another boot only what a finished flush
 * had covered counts. */
#include <fcntl.h>

#include "internal.h"

static bool half_holds(const struct mpq_tail *half)
{
    uint64_t words[sizeof *half / 8];
    memcpy(words, half, sizeof words);
    return mpq_record_holds(words, sizeof words / 8);
}

static bool consumer_holds(const struct mpq_consumer_record *half)
{
    uint64_t words[sizeof *half / 8];
    memcpy(words, half, sizeof words);
    return mpq_record_holds(words, sizeof words / 8);
}

static bool is_older_self(const struct mpq_control *head, const struct mpq_meta_slot *meta)
{
    return head->magic == MPQ_CONTROL_MAGIC && head->version == MPQ_FORMAT_VERSION &&
           head->identity_hash == mpq_xxh64(head, offsetof(struct mpq_control, identity_hash), 0) &&
           memcmp(head->uuid, meta->uuid, 16) == 0 && head->epoch == meta->epoch;
}

/* A half whose check holds was true once; totals only grow, so the greater one is newer. */
static void from_halves(const struct mpq_control *head, bool same_boot, struct mpq_evidence *known)
{
    for (int i = 0; i < 2; i++) {
        const struct mpq_tail *tail = &head->tail[i];
        const struct mpq_consumer_record *record = &head->consumer_record[i];
        if (half_holds(tail)) {
            uint64_t items = mpq_load(tail->items);
            if (same_boot)
                known->position = mpq_max64(known->position, mpq_load(tail->position));
            else
                items = mpq_min64(items, mpq_load(head->durable_items));
            known->accepted = mpq_max64(known->accepted, items);
        }
        if (consumer_holds(record)) {
            known->settled = mpq_max64(known->settled, mpq_load(record->totals[0]));
            known->settled_known = true;
        }
    }
}

/* Its head, when it is this queue's; -1 and MPQ_OK when there is none that counts. */
static mpq_status open_older(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                             struct mpq_control *head, int *out, struct mpq_error *error)
{
    mpq_io *io = queue->io;
    struct stat now;
    *out = -1;
    int fd = io->open(io, queue->dirfd, "control", O_RDWR, 0);
    if (fd < 0)
        return errno == ENOENT ? MPQ_OK
                               : mpq_fail_errno(error, "%s: cannot open control", queue->path);
    mpq_status status = MPQ_OK;
    if (io->fstat(io, fd, &now) != 0)
        status = mpq_fail_errno(error, "%s: cannot look at control", queue->path);
    else if ((uint64_t)now.st_size >= sizeof *head) {
        if (mpq_io_read(io, fd, head, sizeof *head, 0) != 0)
            status = mpq_fail_errno(error, "%s: cannot read control", queue->path);
        else if (is_older_self(head, meta))
            *out = fd;
    }
    if (*out < 0)
        io->close(io, fd);
    return status;
}

static bool is_of(const struct mpq_control *head, const char *boot_id)
{
    return strncmp(head->boot_id, boot_id, sizeof head->boot_id) == 0;
}

mpq_status mpq_evidence_read(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                             const char *boot_id, struct mpq_evidence *known,
                             struct mpq_error *error)
{
    struct mpq_control head;
    int fd;
    memset(known, 0, sizeof *known);
    mpq_status status = open_older(queue, meta, &head, &fd, error);
    if (fd < 0)
        return status;
    from_halves(&head, is_of(&head, boot_id), known);
    queue->io->close(queue->io, fd);
    return MPQ_OK;
}

mpq_status mpq_evidence_acks(struct mpq_queue *queue, const struct mpq_meta_slot *meta,
                             const char *boot_id, struct mpq_evidence *known,
                             struct mpq_error *error)
{
    struct mpq_control head;
    int fd;
    mpq_status status = open_older(queue, meta, &head, &fd, error);
    if (fd < 0)
        return status;
    const struct mpq_consumer_record *last = NULL;
    for (int i = 0; i < 2; i++) {
        const struct mpq_consumer_record *half = &head.consumer_record[i];
        if (consumer_holds(half) &&
            (last == NULL || mpq_load(half->totals[0]) > mpq_load(last->totals[0])))
            last = half;
    }
    const uint64_t bytes = (uint64_t)queue->window_words * sizeof *queue->window;
    if (last != NULL && is_of(&head, boot_id) && head.ack_window == queue->created.ack_window &&
        mpq_io_read(queue->io, fd, (uint8_t *)queue->window, bytes, head.window_offset) == 0) {
        struct mpq_window_word *word =
            &queue->window[mpq_load(last->word_index) % queue->window_words];
        mpq_store(word->value, mpq_load(last->word_value));
        mpq_store(word->complement, ~mpq_load(last->word_value));
        known->floor = mpq_load(last->floor);
        known->floor_position = mpq_load(last->floor_position);
    }
    queue->io->close(queue->io, fd);
    return MPQ_OK;
}
