/* view.c - zero-copy views of items.
 *
 * A view keeps a second mapping of its segment, made through a description that holds a shared
 * lock on MPQ_BYTE_VIEWS. The mapping, and with it the lock, lives as long as a view does, in this
 * process or a forked child; reuse of the file needs the exclusive lock, so it is unlinked instead.
 */
#include <fcntl.h>

#include "internal.h"

struct mpq_segment *mpq_item_view(struct mpq_consumer *consumer, const struct mpq_item *item,
                                  const uint8_t **body)
{
    struct mpq_queue *queue = consumer->queue;
    mpq_io *io = queue->io;
    struct mpq_segment *view = NULL;
    mpq_mutex_lock(&consumer->mutex);
    if (consumer->view != NULL && consumer->view->generation == item->segment->generation) {
        view = consumer->view;
        mpq_segment_retain(view);
    }
    mpq_mutex_unlock(&consumer->mutex);
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
        mpq_store(view->references, 2); /* the caller's and the consumer's */
        mpq_mutex_lock(&consumer->mutex);
        struct mpq_segment *before = consumer->view;
        consumer->view = view;
        mpq_mutex_unlock(&consumer->mutex);
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
    mpq_mutex_lock(&consumer->mutex);
    const uint64_t floor = MPQ_POSITION_GEN(consumer->record.floor_position);
    mpq_mutex_unlock(&consumer->mutex);
    if (status == MPQ_OK && mpq_load(queue->control->oldest_generation) > floor)
        status = mpq_overwritten(queue, error);
    return status;
}
