/* ledger.c - obligations from positions (ledger.h), and payloads. */
#include <string.h>

#include "ledger.h"

void ledger_start(struct ledger *ledger, uint64_t seed, uint32_t durability)
{
    memset(ledger, 0, sizeof *ledger);
    ledger->seed = seed;
    ledger->durability = durability;
    ledger->created = NEVER;
    for (uint32_t id = 0; id < ITEMS; id++) {
        struct item *item = &ledger->items[id];
        item->asked = item->returned = item->durable = NEVER;
        item->ack_asked = item->ack_durable = NEVER;
    }
}

static uint8_t promise(uint32_t asked, uint32_t durable, uint32_t at)
{
    if (durable <= at)
        return DURABLE;
    return asked < at ? ASKED : NONE;
}

void ledger_state(const struct ledger *ledger, uint32_t at, struct state *state)
{
    memset(state, 0, sizeof *state);
    state->exists = ledger->created <= at;
    state->untouched = true;
    for (uint32_t id = 0; id < ITEMS; id++) {
        const struct item *item = &ledger->items[id];
        state->put[id] = promise(item->asked, item->durable, at);
        state->ack[id] = promise(item->ack_asked, item->ack_durable, at);
        state->returned[id] = item->returned <= at;
        if (state->returned[id] && item->seq > state->seq_max)
            state->seq_max = item->seq;
    }
}

void session_note(struct session *session, uint32_t position, enum deed deed, uint32_t id,
                  uint64_t seq)
{
    const uint32_t count = session->count;
    if (count == EVENTS_MAX)
        return;
    session->events[count] = (struct event){position, deed, id, seq};
    session->count = count + 1;
}

void session_state(const struct session *session, const struct ledger *ledger, uint32_t at,
                   struct state *state)
{
    const bool visible_is_durable = ledger->durability >= MPQ_DURABILITY_GROUP;
    state->untouched = false;
    for (uint32_t i = 0; i < session->count; i++) {
        const struct event *event = &session->events[i];
        uint8_t *put = &state->put[event->id], *ack = &state->ack[event->id];
        const bool before = event->position < at, known = event->position <= at;
        switch ((enum deed)event->deed) {
        case OPENED: break;
        case DELIVERED:
            if (known && visible_is_durable)
                *put = DURABLE;
            break;
        case ACK_ASKED:
            if (before && *ack == NONE)
                *ack = ASKED;
            break;
        case ACK_DURABLE:
            if (known)
                *ack = DURABLE;
            break;
        case PUT_ASKED:
            if (before && *put == NONE)
                *put = ASKED;
            break;
        case PUT_DURABLE:
            if (known) {
                *put = DURABLE;
                state->seq_max = event->seq > state->seq_max ? event->seq : state->seq_max;
            }
        }
    }
}

/* ---- payloads */

uint32_t payload_length(uint64_t seed, uint32_t id)
{
    uint64_t random = seed * 31 + id;
    const uint64_t kind = mix(&random) % 40, spread = mix(&random);
    if (kind < 3)
        return 4;
    if (kind < 6)
        return 4 + (uint32_t)(spread % 9000);
    if (kind == 6)
        return 4 + 60000 + (uint32_t)(spread % 30000); /* a segment of its own */
    return 4 + (uint32_t)(spread % 900);
}

void payload_fill(uint64_t seed, uint32_t id, uint8_t *body)
{
    const uint32_t length = payload_length(seed, id);
    uint64_t random = seed ^ ((uint64_t)id << 32);
    memcpy(body, &id, sizeof id);
    for (uint32_t i = sizeof id; i < length; i += 8) {
        const uint64_t word = mix(&random);
        memcpy(body + i, &word, length - i < 8 ? length - i : 8);
    }
}

bool payload_is_right(uint64_t seed, const uint8_t *body, uint32_t length, uint32_t *id)
{
    static _Thread_local uint8_t right[128 * 1024];
    if (length < sizeof *id)
        return false;
    memcpy(id, body, sizeof *id);
    if (*id >= ITEMS || length != payload_length(seed, *id))
        return false;
    payload_fill(seed, *id, right);
    return memcmp(right, body, length) == 0;
}
