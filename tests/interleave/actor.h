/* actor.h - what the processes that are led against each other do, and what they share with the
 * referee that leads them. */
#ifndef ACTOR_H
#define ACTOR_H

#include "internal.h"

#define ACTORS 3
#define IDS 4096
#define IN_HAND 64

enum { NOT, ASKED, RETURNED };

struct writing { /* a segment's write-back: the referee sees its beginning and its end */
    uint32_t phase; /* 0 none, 1 begins, 2 has ended */
    uint64_t generation, from, to;
};

struct shared {
    _Atomic uint64_t clock_ns; /* of all processes: it moves when somebody looks or sleeps */
    uint8_t put[IDS], ack[IDS], out[IDS]; /* out: handed out, times */
    uint32_t first[IDS], count[IDS]; /* batch */
    _Atomic uint32_t next; /* id */
    uint32_t roles; /* times that the consumer's role was taken */
    struct actor_now {
        uint32_t ended; /* its program */
        uint32_t incarnations;
        struct writing writing;
        char failure[600];
    } actor[ACTORS];
};

/* A program is a string; what stands before '|' is done before the actor is led:
 *   o open   p put   b batch of 5   l put of a page   f flush   x close
 *   c take the consumer's role   r reserve up to 4   a ack what is in hand, out of order
 *   y sync the cursor   k checkpoint: flush, cursor twice, reclaim */
struct actor {
    struct shared *shared;
    unsigned index;
    const char *program;
    const char *path;
    uint32_t durability;
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
    struct mpq_item items[IN_HAND];
    uint32_t taken;
};

void actor_setup(void *actor);
void actor_op(void *actor);

/* The I/O table of actors and of the referee: sleeping moves the clock; an actor stops there. */
const struct mpq_io *actor_io(struct shared *shared, struct actor *actor);
mpq_status actor_attach(const struct actor *actor, struct mpq_queue **queue,
                        struct mpq_error *error);
static const struct mpq_call forever = {UINT64_MAX, NULL, NULL};
uint32_t item_length(uint32_t id);
/* Its id, or IDS when its bytes are not as they were put. */
uint32_t item_id(const struct mpq_item *item);
mpq_status actor_put(struct shared *shared, struct mpq_queue *queue, uint32_t count,
                     uint32_t length, struct mpq_error *error);
/* Sleeps of the process so far. */
uint32_t actor_sleeps(void);

#endif
