/* ledger.h - what a recording promised to whom, by journal position, and what a cut must keep.
 *
 * Every position follows the rule of store.h: the one before a call bounds from when on a cut may
 * show the call's effect, the one after it from when on a cut must. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdatomic.h>

#include "mpq.h"
#include "store.h"

#define PRODUCERS 4
#define ITEMS_EACH 512
#define ITEMS (PRODUCERS * ITEMS_EACH)
#define BATCH_MAX 8

struct item {
    _Atomic uint32_t asked; /* position before the put; NEVER: none, or it was refused */
    _Atomic uint32_t returned; /* after the put */
    _Atomic uint32_t durable; /* since when it is known to be on the disk */
    _Atomic uint32_t ack_asked, ack_durable;
    _Atomic uint64_t seq; /* 0: not returned */
    uint32_t first, count; /* of its batch */
};

struct ledger {
    uint64_t seed;
    uint32_t durability;
    struct mpq_options options;
    uint32_t mounted; /* position: from here on cuts are checked */
    uint32_t ended; /* position: up to here */
    _Atomic uint32_t created; /* position: the queue's first open returned */
    _Atomic uint32_t finished; /* producers that are done */
    _Atomic uint32_t refused, reopened, checkpoints;
    struct item items[ITEMS];
};

enum promise { NONE, ASKED, DURABLE };

/* The obligations at one cut. */
struct state {
    uint8_t put[ITEMS], ack[ITEMS];
    bool exists; /* the queue must be there */
    bool untouched; /* by recovery: the bound of `interval` can be checked */
    bool returned[ITEMS];
    uint64_t seq_max; /* of all that were returned */
};

/* What a session after a cut did, by position: the obligations of a second cut. */
enum deed { OPENED, DELIVERED, ACK_ASKED, ACK_DURABLE, PUT_ASKED, PUT_DURABLE };

struct event {
    uint32_t position, deed, id;
    uint64_t seq;
};

#define EVENTS_MAX (ITEMS * 4 + 64)

struct session {
    _Atomic uint32_t count;
    struct event events[EVENTS_MAX];
};

void ledger_start(struct ledger *ledger, uint64_t seed, uint32_t durability);
void ledger_state(const struct ledger *ledger, uint32_t at, struct state *state);
/* `state` of the cut that the session began with becomes that of a cut inside it. */
void session_state(const struct session *session, const struct ledger *ledger, uint32_t at,
                   struct state *state);
void session_note(struct session *session, uint32_t position, enum deed deed, uint32_t id,
                  uint64_t seq);

/* Payloads tell whose they are, and nothing else gives the same bytes. */
uint32_t payload_length(uint64_t seed, uint32_t id);
void payload_fill(uint64_t seed, uint32_t id, uint8_t *body);
bool payload_is_right(uint64_t seed, const uint8_t *body, uint32_t length, uint32_t *id);

#endif
