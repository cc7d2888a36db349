/* steps_dead.c - the survivor and the dead letters. */
#include <stdio.h>
#include <string.h>

#include "copied.h"
#include "steps.h"

void drain_dead(struct run *run, uint8_t *seen)
{
    struct mpq_error error;
    struct mpq_queue *queue;
    struct mpq_consumer *consumer;
    struct mpq_item item;
    char name[256];
    snprintf(name, sizeof name, "%s/dead", run->path);
    struct mpq_open_args args = {.path = name, .io = run->home->io};
    mpq_status status = mpq_open(&args, &forever, &queue, &error);
    if (status == MPQ_NOT_A_QUEUE)
        return;
    if (status != MPQ_OK || mpq_consumer_open(queue, &forever, &consumer, &error) != MPQ_OK)
        failed("the dead letters: %s", error.message);
    mpq_open_gate(queue, NULL);
    for (;;) {
        status = mpq_reserve_try(consumer, &item, &error);
        if (status == MPQ_AGAIN)
            status = mpq_reserve_wait(consumer, &forever, &error);
        else if (status == MPQ_OK) {
            uint32_t id = IDS;
            if (item.length >= 4)
                memcpy(&id, item.body, 4);
            if (id < run->base || id >= run->next || run->shared->put[id] == NOT)
                failed("a dead letter of nobody: id %u", id);
            if (!is_right(&item, id) || item.ext_length == 0)
                failed("an altered dead letter: id %u", id);
            seen[id] = 1;
            run->letters++;
            mpq_segment_release(item.segment);
            status = mpq_ack(consumer, item.seq, item.token, &error);
        }
        if (status == MPQ_EMPTY)
            break;
        if (status != MPQ_OK)
            failed("the dead letters: %s", error.message);
    }
    if (mpq_consumer_close(consumer, &error) != MPQ_OK || mpq_close(queue, &forever, &error) != 0)
        failed("the dead letters: %s", error.message);
    mpq_consumer_free(consumer);
    mpq_free(queue);
}

/* The move makes dead/ too. */
void before_no_dead(struct run *run)
{
    char name[256];
    before_few(run);
    snprintf(name, sizeof name, "%s/dead", run->path);
    copied_remove(name);
}

/* dead/ is there. */
void before_dead(struct run *run)
{
    struct mpq_error error;
    struct mpq_consumer *consumer;
    struct mpq_item item;
    before_few(run);
    if (mpq_consumer_open(run->home, &forever, &consumer, &error) != MPQ_OK ||
        mpq_reserve_try(consumer, &item, &error) != MPQ_OK)
        failed("the survivor cannot consume: %s", error.message);
    mpq_segment_release(item.segment);
    uint32_t id;
    memcpy(&id, item.body, 4);
    if (mpq_dead_letter(consumer, item.seq, item.token, "before", 6, &error) != MPQ_OK ||
        mpq_consumer_close(consumer, &error) != MPQ_OK)
        failed("the survivor cannot make a dead letter: %s", error.message);
    mpq_consumer_free(consumer);
    run->shared->dead[id] = RETURNED;
}
