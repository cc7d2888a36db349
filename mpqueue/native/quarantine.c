/* quarantine.c - what is saved in corrupt/: damaged bytes, before they are passed, and files.
 *
 * I1 bounded: the oldest goes where a new one has no room. I2 nothing is removed, counted or
 * written that is not named as we name it; a link of that name is followed nowhere. */
#include <fcntl.h>
#include <stdio.h>

#include "aside.h"

#define SAVED_FILES_MAX 64
#define SAVED_BYTES_MAX (64u << 20)
#define STAMP_DIGITS 20

bool mpq_saved_parse(const char *name)
{
    uint64_t generation;
    char segment[MPQ_NAME_MAX];
    if (strspn(name, "0123456789") != STAMP_DIGITS || name[STAMP_DIGITS] != '-')
        return false;
    snprintf(segment, sizeof segment, "%.20s", name + STAMP_DIGITS + 1);
    if (!mpq_segment_parse(segment, &generation))
        return false;
    const char *rest = name + STAMP_DIGITS + 1 + strlen(segment);
    return *rest == '\0' || strncmp(rest, "-offset-", 8) == 0;
}

bool mpq_saved_make(struct mpq_queue *queue)
{
    mpq_io *io = queue->io;
    struct stat now;
    (void)io->mkdir(io, queue->dirfd, MPQ_SAVED, 0700);
    return io->stat(io, queue->dirfd, MPQ_SAVED, &now) == 0 && S_ISDIR(now.st_mode);
}

struct shelf {
    mpq_io *io;
    int dirfd;
    uint32_t files;
    uint64_t bytes;
    char oldest[96];
};

static int look_at(void *argument, const char *name)
{
    struct shelf *shelf = argument;
    struct stat now;
    if (!mpq_saved_parse(name) || strlen(name) >= sizeof shelf->oldest ||
        shelf->io->stat(shelf->io, shelf->dirfd, name, &now) != 0)
        return 0;
    shelf->files++;
    shelf->bytes += (uint64_t)now.st_size;
    if (shelf->oldest[0] == '\0' || strcmp(name, shelf->oldest) < 0)
        snprintf(shelf->oldest, sizeof shelf->oldest, "%s", name);
    return 0;
}

static bool make_room(struct mpq_queue *queue, int dirfd, uint64_t bytes)
{
    for (int rounds = 0; rounds < SAVED_FILES_MAX; rounds++) {
        struct shelf shelf = {.io = queue->io, .dirfd = dirfd};
        if (queue->io->list(queue->io, dirfd, look_at, &shelf) != 0)
            return false;
        if (shelf.files < SAVED_FILES_MAX && shelf.bytes + bytes <= SAVED_BYTES_MAX)
            return true;
        if (shelf.oldest[0] == '\0' || queue->io->unlink(queue->io, dirfd, shelf.oldest) != 0)
            return false;
        mpq_bump(queue->control->corrupt_skipped, 1);
    }
    return false;
}

void mpq_quarantine(struct mpq_queue *queue, const struct mpq_segment *segment, uint64_t from,
                    uint64_t to)
{
    mpq_io *io = queue->io;
    if (to <= from)
        return;
    const uint64_t bytes = to - from;
    bool saved = false;
    int dirfd = -1;
    if (mpq_saved_make(queue))
        dirfd = io->open(io, queue->dirfd, MPQ_SAVED, O_RDONLY | O_DIRECTORY, 0);
    if (dirfd >= 0 && bytes <= SAVED_BYTES_MAX && make_room(queue, dirfd, bytes)) {
        char name[96];
        snprintf(name, sizeof name, "%020llu-segment-%012llu-offset-%010llu",
                 (unsigned long long)io->wall_ns(io), (unsigned long long)segment->generation,
                 (unsigned long long)from);
        int fd = io->open(io, dirfd, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) {
            saved = io->chmod(io, fd, queue->created.file_mode) == 0 &&
                    mpq_io_write(io, fd, segment->base + from, bytes, 0) == 0 &&
                    io->datasync(io, fd) == 0 && io->sync(io, dirfd) == 0;
            io->close(io, fd);
            if (!saved)
                (void)io->unlink(io, dirfd, name);
        }
    }
    if (dirfd >= 0)
        io->close(io, dirfd);
    if (saved)
        mpq_bump(queue->control->corrupt_saved, 1);
    else
        mpq_bump(queue->control->corrupt_skipped, 1);
}
