/* referee.h - leads actors step by step, keeps what is on the disk, and judges at the end. */
#ifndef REFEREE_H
#define REFEREE_H

#include "actor.h"

struct led {
    struct actor actor;
    pid_t pid; /* 0: not running */
    bool captured;
    uint8_t *copy; /* of the segment that it writes back now ... */
    uint64_t copied; /* ... and when it was made, in order */
};

struct figures {
    uint64_t runs, turns, steps, kills, takeovers, gaps, flushes, unfinished;
};

struct referee {
    struct shared *shared;
    struct led led[ACTORS];
    struct mpq_queue *home;
    char base[160], path[200];
    uint32_t durability;
    uint32_t checked; /* ids below it were there before */
    uint64_t serial;
    struct figures figures;
};

/* The user's: prints how to replay, ends the program. */
__attribute__((format(printf, 1, 2), noreturn)) void failed(const char *format, ...);

void referee_begin(struct referee *referee, uint32_t durability);
void referee_open(struct referee *referee);
void referee_close(struct referee *referee);
void referee_put(struct referee *referee, uint32_t count, uint32_t length);
/* What is in the files now counts as on the disk; what is put from now on is checked. */
void referee_watch(struct referee *referee);
void referee_start(struct referee *referee, unsigned index, const char *program);
void referee_kill(struct referee *referee, unsigned index);
/* Leads one of them; false when its program has ended (it is gone then). */
bool referee_steps(struct referee *referee, unsigned index, uint64_t steps);
bool referee_call(struct referee *referee, unsigned index);
bool referee_run(struct referee *referee, unsigned index); /* until it sleeps or ends */
/* All of them to their ends, in turns. */
void referee_finish(struct referee *referee);
/* Nobody is led any more: everything out, and the books agree. Ends the queue. */
void referee_judge(struct referee *referee);

#endif
