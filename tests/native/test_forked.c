/* test_forked.c - what a child may do with a consumer of its parent, whatever thread held at the
 * fork.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "internal.h"

int main(void)
{
    struct fixture fixture;
    struct mpq_error error;
    fixture_make(&fixture);
    struct mpq_open_args args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    struct mpq_queue *queue = open_queue(&args);
    (void)put_ok(queue, "item", 4);
    struct mpq_consumer *consumer = open_consumer(queue);
    struct mpq_item item = reserve_ok(consumer);
    CHECK(mpq_handed_out(consumer, item.seq, item.token));

    mpq_mutex_lock(&consumer->mutex); /* as the helper's thread may have it */
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        const uint8_t *body;
        CHECK(mpq_handed_out(consumer, item.seq, item.token)); /* as far as a child can know */
        CHECK_STATUS(mpq_item_settled(consumer, &error), MPQ_OK, error);
        struct mpq_segment *view = mpq_item_view(consumer, &item, &body);
        CHECK(view != NULL && memcmp(body, "item", 4) == 0);
        mpq_segment_release(view);
        _exit(0);
    }
    mpq_mutex_unlock(&consumer->mutex);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ack_ok(consumer, &item);
    close_consumer(consumer);
    close_queue(queue);
    fixture_remove(&fixture);
    return 0;
}
