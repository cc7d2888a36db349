/* check.h - what must hold of a queue after the power came back. */
#ifndef CHECK_H
#define CHECK_H

#include "ledger.h"

/* Told by the session's process, read when it has ended. */
struct verdict {
    bool failed, absent; /* absent: no queue, and none was promised yet */
    char text[600];
    uint64_t recoveries; /* after the first open */
    uint32_t delivered, unpromised; /* items; those whose put had not returned durably */
    uint32_t withdrawn; /* puts that returned under interval or none and did not survive */
};

struct check {
    struct store *store;
    struct ledger *ledger;
    struct session *session;
    struct state *state;
    struct verdict *verdict;
    const char *path;
    uint32_t level; /* 0: after the recording, 1: after a cut inside recovery, ... */
    uint64_t random;
};

/* Both run in a process of their own, under the boot id of the environment, and do not return.
 * Opens, which recovers, and closes. */
_Noreturn void check_open(struct check *check);
/* Opens (silently, when check_open ran before), drains, puts, opens again. */
_Noreturn void check_drain(struct check *check, bool was_open);

#endif
