/* faulty.h - an I/O table over a memory world whose N-th call of one kind fails.
 *
 * The call that fails has no effect, but for a write, half of which is done. */
#ifndef FAULTY_H
#define FAULTY_H

#include "memory.h"

/* clang-format off */
#define KINDS \
    X(open) X(mkdir) X(rename) X(link) X(unlink) X(list) X(stat) X(fstat) X(statfs) X(chmod) \
    X(allocate) X(pread) X(pwrite) X(datasync) X(sync) X(map) X(msync) X(lock) X(locked) \
    X(sem_open) X(alloc) X(random) X(boot_id)
/* clang-format on */

enum kind {
#define X(name) KIND_##name,
    KINDS
#undef X
        KIND_COUNT
};

extern const char *const faulty_names[KIND_COUNT];
/* Plausible ones of each kind; 0 ends. */
extern const int faulty_errnos[KIND_COUNT][7];

struct faulty {
    struct mpq_io io; /* first: what the core calls */
    struct memory world;
    enum kind kind;
    int error;
    uint64_t at, calls; /* 0 = disarmed */
    bool always;
    uint64_t fired;
    bool aside; /* it hit a file that nobody uses yet */
};

void faulty_start(struct faulty *f);

#endif
