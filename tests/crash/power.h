/* power.h - a run of power: what was asked for, and what was promised. */
#ifndef POWER_H
#define POWER_H

#include "internal.h"
#include "shadow.h"

#define ITEMS_MAX 4096

enum promise {
    NOTHING,
    ASKED,
    DURABLE,
    SETTLED /* of a dead letter: it is durable, and so is the ack of its item */
};

struct oracle {
    uint32_t items;
    uint8_t put[ITEMS_MAX];
    uint8_t ack[ITEMS_MAX];
    uint8_t dead[ITEMS_MAX]; /* moved by name */
    bool dropped[ITEMS_MAX]; /* its letter, perhaps */
    uint32_t outs[ITEMS_MAX]; /* hand-outs */
    uint32_t batch_first[ITEMS_MAX], batch_count[ITEMS_MAX];
    uint64_t seq[ITEMS_MAX]; /* 0 = not returned */
    uint64_t max_seq;
};

struct run {
    struct shadow *world;
    struct oracle oracle;
    struct mpq_queue *producers[2];
    struct mpq_queue *home; /* of the consumer */
    struct mpq_consumer *consumer;
    uint32_t durability;
    struct mpq_options options;
    uint64_t seed;
    bool has_letters;
    uint64_t letters_random; /* of their own: the other choices of a seed stay what they are */
};

static const struct mpq_call patient = {UINT64_MAX, NULL, NULL};

__attribute__((noreturn)) void fail(const struct run *run, int state, const char *what, uint64_t a,
                                    uint64_t b);
uint32_t id_of(const struct mpq_item *item);
int is_right(uint64_t seed, uint32_t item, const uint8_t *body, uint32_t length);
/* Makes room when there is none. False: there is none. */
bool put_one(const struct run *run, int state, struct mpq_queue *queue,
             struct mpq_consumer *consumer, const char body[4], uint64_t *seq);

/* power_letters.c */
/* Seeds whose runs have dead letters; some of them max_attempts as well. */
void letters_begin(struct run *run);
/* May move an item in hand by name. True: it did. */
bool letters_move(struct run *run, const struct mpq_item *item, uint32_t id);
/* May drop a letter. */
void letters_drop(struct run *run);
/* After the crash: moves one more item, reads all letters, opens them again. */
void letters_drain(const struct run *run, struct shadow *after, int state, struct mpq_queue *queue,
                   struct mpq_consumer *consumer, uint8_t *letters);

#endif
