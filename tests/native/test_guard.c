/* Memory of files that is taken away inside the core's own calls: what they held is given back. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "fixture.h"
#include "io.h"

/* A table that truncates a segment as soon as it is mapped. */
struct cutting {
    struct mpq_io io;
    bool cut;
};

static void *cutting_map(mpq_io *io, int fd, size_t bytes, bool writable)
{
    const struct cutting *cutting = (const void *)io;
    void *address = mpq_io_system.map(&mpq_io_system, fd, bytes, writable);
    if (cutting->cut && writable && bytes == 64 << 10)
        CHECK(ftruncate(fd, 0) == 0);
    return address;
}

static bool is_held(const struct fixture *fixture, uint64_t byte)
{
    char name[128];
    struct flock lock = {.l_type = F_WRLCK, .l_start = (off_t)byte, .l_len = 1};
    snprintf(name, sizeof name, "%s/meta", fixture->path);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0);
    close(fd);
    return lock.l_type != F_UNLCK;
}

static void a_fault_in_recovery_gives_the_gate_back(void)
{
    struct fixture fixture;
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    struct cutting cutting = {.io = mpq_io_system, .cut = true};
    uint64_t seq;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_GROUP);
    struct mpq_queue *queue = open_queue(&args);
    CHECK_STATUS(put(queue, "body", 4, &seq, &error), MPQ_OK, error);
    close_queue(queue);
    cutting.io.map = cutting_map;
    args.io = &cutting.io;
    setenv("MPQ_BOOT_ID", "another boot", 1); /* so that segments are walked */
    CHECK_STATUS(mpq_open(&args, &call, &queue, &error), MPQ_SYSTEM, error);
    CHECK_EQ(error.os_errno, EFAULT);
    CHECK(!is_held(&fixture, MPQ_BYTE_GATE));
    CHECK(!is_held(&fixture, MPQ_BYTE_MEMBERS + 1));
    cutting.cut = false;
    queue = open_queue(&args);
    close_queue(queue);
    unsetenv("MPQ_BOOT_ID");
    fixture_remove(&fixture);
}

static void a_fault_in_taking_the_role_gives_it_back(void)
{
    struct fixture fixture;
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    struct mpq_consumer *consumer = NULL;
    char name[128];
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *queue = open_queue(&args);
    snprintf(name, sizeof name, "%s/control", fixture.path);
    CHECK(truncate(name, 0) == 0);
    CHECK_STATUS(mpq_consumer_open(queue, &call, &consumer, &error), MPQ_REMOVED, error);
    CHECK(!is_held(&fixture, MPQ_BYTE_CONSUMER));
    CHECK_STATUS(mpq_consumer_open(queue, &call, &consumer, &error), MPQ_REMOVED, error);
    close_queue(queue);
    queue = open_queue(&args);
    close_queue(queue);
    fixture_remove(&fixture);
}

/* More handles than the handler's list began with, and places in it that are used again. */
static void every_handle_is_watched(void)
{
    enum { HANDLES = 70 };
    struct fixture fixture;
    struct mpq_error error;
    struct mpq_queue *queues[HANDLES];
    char name[128];
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    args.options.max_members = 4;
    for (int i = 0; i < HANDLES; i++)
        queues[i] = open_queue(&args);
    close_queue(queues[3]);
    queues[3] = open_queue(&args);
    snprintf(name, sizeof name, "%s/control", fixture.path);
    CHECK(truncate(name, 0) == 0);
    for (int i = 0; i < HANDLES; i++) {
        CHECK_EQ(mpq_depth(queues[i]), 0);
        CHECK_STATUS(mpq_usable(queues[i], &error), MPQ_REMOVED, error);
        close_queue(queues[i]);
    }
    fixture_remove(&fixture);
}

int main(void)
{
    RUN(a_fault_in_recovery_gives_the_gate_back);
    RUN(a_fault_in_taking_the_role_gives_it_back);
    RUN(every_handle_is_watched);
    return 0;
}
