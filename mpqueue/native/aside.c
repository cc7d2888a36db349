/* aside.c - what lies under a segment's name and is no segment.
 *
 * A file that was prepared and never entered owes nobody anything, but may be cut short,
 * overwritten or replaced like any other. Who opens alone takes it away and it is made anew; while
 * others live, claims pass its generation (claim.c): a name that may be mapped is not given to a
 * second file.
 *
 * I1 nothing that may hold something is destroyed: only an empty file is. */
#include <fcntl.h>
#include <stdio.h>

#include "aside.h"

enum mpq_intact mpq_segment_intact(struct mpq_queue *queue, uint64_t generation)
{
    mpq_io *io = queue->io;
    char name[MPQ_NAME_MAX];
    mpq_segment_name(generation, name);
    struct stat now;
    if (io->stat(io, queue->dirfd, name, &now) != 0)
        return MPQ_INTACT_UNKNOWN;
    if (!S_ISREG(now.st_mode) || (uint64_t)now.st_size < MPQ_SEGMENT_FIRST)
        return MPQ_INTACT_NO;
    int fd = io->open(io, queue->dirfd, name, O_RDWR, 0);
    if (fd < 0)
        return MPQ_INTACT_UNKNOWN;
    uint8_t head[MPQ_SEGMENT_HEADER_B + sizeof(struct mpq_segment_header)];
    enum mpq_intact intact = MPQ_INTACT_UNKNOWN;
    if (mpq_io_read(io, fd, head, sizeof head, 0) == 0)
        intact = mpq_segment_as_made(queue, head, (uint64_t)now.st_size, generation)
                     ? MPQ_INTACT_YES
                     : MPQ_INTACT_NO;
    io->close(io, fd);
    return intact;
}

bool mpq_set_aside(struct mpq_queue *queue, uint64_t generation)
{
    mpq_io *io = queue->io;
    char name[MPQ_NAME_MAX], kept[96];
    struct stat now;
    mpq_segment_name(generation, name);
    if (io->stat(io, queue->dirfd, name, &now) != 0)
        return errno == ENOENT;
    if (S_ISREG(now.st_mode) && now.st_size == 0)
        return io->unlink(io, queue->dirfd, name) == 0;
    snprintf(kept, sizeof kept, MPQ_SAVED "/%020llu-%s", (unsigned long long)io->wall_ns(io), name);
    if (!mpq_saved_make(queue) || io->rename(io, queue->dirfd, name, kept) != 0)
        return false;
    mpq_bump(queue->control->corrupt_saved, 1);
    return true;
}
