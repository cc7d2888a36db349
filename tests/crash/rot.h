/* rot.h - the small store that rot damages, and what is expected of it. */
#ifndef ROT_H
#define ROT_H

#include "internal.h"
#include "memory.h"

#define ITEMS 64

enum side { QUEUE, LETTERS, SIDES }; /* the queue, and the one in dead/ */

struct expected {
    uint64_t seq; /* 0 = never put here */
    uint64_t generation; /* of its segment */
    uint64_t ext; /* hash of its extension */
    bool acked;
};

struct store {
    struct memory world;
    bool keyed; /* all items have keys, and all are remembered */
    uint32_t lengths[ITEMS];
    uint32_t count;
    struct contents {
        struct expected items[ITEMS];
        uint64_t last_seq, gaps;
        struct mpq_stats before; /* as the last closer left it */
    } sides[SIDES];
};

#define OTHER_BOOT 1u
#define REPAIRED 2u /* before it is opened */
#define HOWS 4u /* of harm */
#define MOVES 4u /* max_attempts: what was handed out twice becomes a dead letter */
#define KEYED 8u /* the store that has keys */
#define KEY_WINDOW ITEMS

struct where { /* what was done to the store */
    const char *file;
    uint64_t offset;
    unsigned bit;
    int harm; /* -1 = a flipped bit */
    unsigned how; /* OTHER_BOOT, REPAIRED, MOVES, KEYED */
    bool hit[SIDES];
    bool refused; /* one of them was not opened */
    bool redelivers[SIDES]; /* acked items may come back */
    bool unknown[SIDES]; /* what was acked is gone as well: losses cannot be counted exactly */
};

static const struct mpq_call hasty = {0, NULL, NULL};
extern uint64_t run_seed;
extern struct where now;

/* Says what, and how it is done again; the run ends, or goes on with the next damage. */
void failed(const char *what, uint64_t a, uint64_t b);

/* rot_store.c */
bool is_right(uint32_t item, const uint8_t *body, uint32_t length);
uint64_t hash_of_ext(const struct mpq_item *item);
struct mpq_queue *attach(struct store *store, enum side side, mpq_status *status,
                         struct mpq_error *error);
mpq_status put_all(struct mpq_queue *queue, const struct mpq_item_in *in, uint32_t count,
                   uint64_t *seq, struct mpq_error *error);
/* The items get these keys. *seq: of the first, or what it was accepted as before. */
mpq_status put_keyed(struct mpq_queue *queue, struct mpq_item_in *in, uint32_t count,
                     uint32_t first_key, uint64_t *seq, struct mpq_error *error);
/* Anew, from store->keyed and the seed. */
void make(struct store *store);

/* rot_keys.c: puts everything again. What was forgotten is accepted, once; nothing else is. */
void put_again(struct store *store, struct mpq_queue *queue, struct mpq_consumer *consumer);

/* rot_look.c: opens the store that was damaged as `now` says, and judges what comes out. */
void look(struct store *store);

#endif
