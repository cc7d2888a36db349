/* disk.c - the bytes of the queue's own files, as the directory has them.
 *
 * Control does not know of all: a killed preparer leaves a file that no entry of the ring speaks of
 * until somebody takes over. corrupt/, dead/ and what is no file of the queue do not count. */
#include "aside.h"

struct sum {
    struct mpq_queue *queue;
    uint64_t bytes;
    bool failed;
};

static bool own(const char *name)
{
    static const char *const names[] = {"meta",   "control", "control-new",
                                        "cursor", "keys",    "keys-new"};
    uint64_t generation;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return mpq_segment_parse(name, &generation) || strncmp(name, "preparing-", 10) == 0 ||
           strncmp(name, "making-", 7) == 0;
}

static int add(void *argument, const char *name)
{
    struct sum *sum = argument;
    struct stat now;
    if (!own(name))
        return 0;
    if (sum->queue->io->stat(sum->queue->io, sum->queue->dirfd, name, &now) != 0) {
        sum->failed |= errno != ENOENT;
        return 0;
    }
    /* A second name of a segment: between its link and the end of its preparing. */
    const bool again = now.st_nlink > 1 && strncmp(name, "preparing-", 10) == 0;
    if (S_ISREG(now.st_mode) && !again)
        sum->bytes += (uint64_t)now.st_size;
    return 0;
}

uint64_t mpq_disk_bytes(struct mpq_queue *queue)
{
    struct sum sum = {.queue = queue};
    const int rc = queue->io->list(queue->io, queue->dirfd, add, &sum);
    return rc == 0 && !sum.failed ? sum.bytes : 0;
}
