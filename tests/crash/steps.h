/* steps.h - what steps.c lets its children do, and what both sides share. */
#ifndef STEPS_H
#define STEPS_H

#include "internal.h"

#define IDS 65536
#define SPANS 4096
#define WATCHDOG_NS 2000000000ULL

enum { NOT, ASKED, RETURNED, SPOILED };

struct shared { /* by parent and children */
    uint8_t put[IDS], ack[IDS], dead[IDS];
    uint32_t first[IDS], count[IDS]; /* batch */
    char failure[600];
};

struct run;
struct scenario {
    const char *name;
    uint32_t durability;
    bool alone; /* the survivor is not attached meanwhile */
    bool new_boot;
    bool stops; /* the child is not killed but stands still there, and goes on later */
    void (*before)(struct run *run); /* the survivor prepares the queue */
    void (*setup)(void *run); /* the child, before it is watched */
    void (*op)(void *run); /* the child */
};

struct run {
    const struct scenario *scenario;
    struct shared *shared;
    char path[200];
    uint32_t base, next; /* ids: all below base are settled */
    uint32_t mine; /* first of the ids that a child may use */
    uint64_t serial;
    uint64_t spoiled; /* items of this queue that were destroyed: each is counted lost, once */
    /* the survivor's */
    struct mpq_queue *home;
    uint64_t last_seq;
    /* the child's */
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
    struct mpq_item items[64];
    uint32_t taken;
    /* figures */
    uint64_t letters, kills, same, ended, takeovers, gaps, half, longest_ns;
    uint64_t instructions;
    uint32_t spans[SPANS]; /* instructions behind the n-th system call */
    uint32_t span_count;
    uint32_t at_syscall, at_step; /* where a child is killed now */
};

/* Every item has a key, and what was put is put again afterwards: scenarios named key, or -keys. */
bool is_keyed(const struct scenario *scenario);
/* Threadless I/O: children are stepped, and the survivor forks. */
void steps_begin(void);
static const struct mpq_call forever = {UINT64_MAX, NULL, NULL};
/* Until the watchdog's end. */
struct mpq_call soon(void);
uint32_t length_of(uint32_t id);
/* Its bytes, until the next call. */
const uint8_t *bodies_of(uint32_t id);
bool is_right(const struct mpq_item *item, uint32_t id);
mpq_status attach(const struct run *run, struct mpq_queue **queue, struct mpq_error *error);
/* Items first..first+count-1 of `length` bytes (0 = by id); run->shared knows what became of it. */
mpq_status put(const struct run *run, struct mpq_queue *queue, uint32_t first, uint32_t count,
               uint32_t length, struct mpq_error *error);

/* The survivor's end, with a line that replays it. */
__attribute__((format(printf, 1, 2), noreturn)) void failed(const char *format, ...);
void before_few(struct run *run);
/* steps_dead.c: takes the dead letters out. One may be there twice when its mover was killed, and
 * beside its item when the move had not returned. */
void drain_dead(struct run *run, uint8_t *seen);
void before_dead(struct run *run);
void before_no_dead(struct run *run);

/* The children's operations; each takes its struct run. */
void child_open(void *run);
void child_inherit(void *run);
void op_put(void *run);
void op_put_page(void *run);
void op_put_large(void *run);
void op_batch(void *run);
void child_consume(void *run);
void op_reserve(void *run);
void op_lose(void *run);
void take_all(void *run);
void op_ack(void *run);
void op_ack_many(void *run);
void ack_all(void *run);
void op_sync(void *run);
void op_checkpoint(void *run);
void op_role(void *run);
void op_close(void *run);
void take_whatever(void *run);
void op_dead_letter(void *run);
void op_attempts(void *run);
void op_lease(void *run);

#endif
