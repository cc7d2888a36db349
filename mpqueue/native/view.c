/* view.c - zero-copy views of items.
 *
 * A view keeps a second mapping of its segment, made through a description that holds a shared
 * lock on MPQ_BYTE_VIEWS. The mapping, and with it the lock, lives as long as a view does, in this
 * process or a forked child; reuse of the file needs the exclusive lock, so it is unlinked instead.
 */
#include <fcntl.h>

#include "internal.h"

static bool is_ours(const struct mpq_consumer *consumer)
{
    return !mpq_forked(consumer->queue) && consumer->queue->incarnation == consumer->incarnation;
}

bool mpq_look_begin(struct mpq_consumer *consumer)
{
    const bool ours = is_ours(consumer);
    if (MPQ_LIKELY(ours))
        mpq_mutex_lock(&consumer->mutex);
    return ours;
}

void mpq_look_end(struct mpq_consumer *consumer, bool ours)
{
    if (MPQ_LIKELY(ours))
        mpq_mutex_unlock(&consumer->mutex);
}

struct mpq_segment *mpq_item_view(struct mpq_consumer *consumer, const struct mpq_item *item,
                                  const uint8_t **body)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_io *io = queue->io;
    struct mpq_segment *view = NULL;
    bool ours = mpq_look_begin(consumer);
    if (ours && consumer->view != NULL && consumer->view->generation == item->segment->generation) {
        view = consumer->view;
        mpq_segment_retain(view);
    }
    mpq_look_end(consumer, ours);
    if (view == NULL) {
        char name[MPQ_NAME_MAX];
        mpq_segment_name(item->segment->generation, name);
        view = io->alloc(io, sizeof *view);
        int fd = io->open(io, queue->dirfd, name, O_RDONLY, 0);
        if (view == NULL || fd < 0 || io->lock(io, fd, F_RDLCK, MPQ_BYTE_VIEWS, 1) != 0 ||
            (view->base = io->map(io, fd, item->segment->bytes, false)) == NULL) {
            if (fd >= 0)
                io->close(io, fd);
            io->free(io, view);
            return NULL;
        }
        io->close(io, fd);
        view->io = io;
        view->generation = item->segment->generation;
        view->bytes = item->segment->bytes;
        struct mpq_segment *before = NULL;
        ours = mpq_look_begin(consumer);
        mpq_store(view->references, ours ? 2 : 1); /* the caller's, and the consumer's */
        if (ours) {
            before = consumer->view;
            consumer->view = view;
        }
        mpq_look_end(consumer, ours);
        mpq_segment_release(before);
    }
    *body = view->base + (item->body - item->segment->base);
    return view;
}

bool mpq_item_intact(const struct mpq_consumer *consumer, const struct mpq_item *item)
{
    /* SYNC reuse: acquire here, partner is the store of oldest_generation in reclaim_inside, which
     * whoever takes the file looks at before it writes. */
    atomic_thread_fence(memory_order_acquire);
    return mpq_load(consumer->queue->control->oldest_generation) <= item->segment->generation;
}

mpq_status mpq_item_settled(struct mpq_consumer *consumer, struct mpq_error *error)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_status status = mpq_usable(queue, error);
    /* Segments are freed below the floor alone, and its keeper is this process. */
    const bool ours = mpq_look_begin(consumer);
    const uint64_t floor = MPQ_POSITION_GEN(consumer->record.floor_position);
    mpq_look_end(consumer, ours);
    if (status == MPQ_OK && mpq_load(queue->control->oldest_generation) > floor)
        status = mpq_overwritten(queue, error);
    return status;
}
