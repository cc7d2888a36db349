/* shared_io.h - the system's table with one writable mapping a file for the whole process.
 *
 * ThreadSanitizer knows memory by address: two mappings of one file are two memories to it, and a
 * race between them goes unseen. Here every handle of the process that maps the same file for
 * writing gets the same addresses. Read-only mappings stay apart: they pin lock bytes. */
#ifndef MPQ_TEST_SHARED_IO_H
#define MPQ_TEST_SHARED_IO_H

#include <errno.h>
#include <pthread.h>

#include "check.h"
#include "io.h"

#define MAPPINGS 1024

static pthread_mutex_t mappings_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct mapping {
    dev_t device;
    ino_t inode;
    size_t bytes;
    void *address;
    unsigned references;
} mappings[MAPPINGS];

static void *shared_map(mpq_io *io, int fd, size_t bytes, bool writable)
{
    (void)io;
    if (!writable)
        return mpq_io_system.map(&mpq_io_system, fd, bytes, false);
    struct stat status;
    if (fstat(fd, &status) != 0)
        return NULL;
    void *address = NULL;
    struct mapping *unused = NULL;
    pthread_mutex_lock(&mappings_mutex);
    for (struct mapping *mapping = mappings; mapping < mappings + MAPPINGS; mapping++) {
        if (mapping->references == 0) {
            unused = mapping;
        } else if (mapping->device == status.st_dev && mapping->inode == status.st_ino &&
                   mapping->bytes == bytes) {
            mapping->references++;
            address = mapping->address;
            break;
        }
    }
    if (address == NULL) {
        CHECK(unused != NULL);
        address = mpq_io_system.map(&mpq_io_system, fd, bytes, true);
        if (address != NULL)
            *unused = (struct mapping){status.st_dev, status.st_ino, bytes, address, 1};
    }
    pthread_mutex_unlock(&mappings_mutex);
    return address;
}

static int shared_unmap(mpq_io *io, void *address, size_t bytes)
{
    (void)io;
    int result = 0;
    bool ours = false;
    pthread_mutex_lock(&mappings_mutex);
    for (struct mapping *mapping = mappings; mapping < mappings + MAPPINGS && !ours; mapping++) {
        ours = mapping->references > 0 && mapping->address == address;
        if (ours && --mapping->references == 0)
            result = mpq_io_system.unmap(&mpq_io_system, address, bytes);
    }
    pthread_mutex_unlock(&mappings_mutex);
    return ours ? result : mpq_io_system.unmap(&mpq_io_system, address, bytes);
}

/* A table for mpq_open_args.io; it must outlive the handles. */
static struct mpq_io shared_io(void)
{
    struct mpq_io table = mpq_io_system;
    table.map = shared_map;
    table.unmap = shared_unmap;
    return table;
}

#endif
