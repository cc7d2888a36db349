/* guard.c - a mapped file that is truncated under a live process raises SIGBUS; here it becomes an
 * error of the call that touched it.
 *
 * Every call that touches mappings arms a guard on its stack. The handler jumps to the innermost
 * armed guard of its thread and leaves signals of anybody else to the handler that was there
 * before. */
#include <signal.h>
#include <stdlib.h>

#include "internal.h"

__thread struct mpq_guard *mpq_guard_top;

static struct sigaction outer_action;
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

static void on_bus(int signal_number, siginfo_t *info, void *context)
{
    struct mpq_guard *guard = mpq_guard_top;
    if (guard != NULL && info->si_code > 0)
        siglongjmp(guard->jump, 1);
    if ((outer_action.sa_flags & SA_SIGINFO) != 0 && outer_action.sa_sigaction != NULL) {
        outer_action.sa_sigaction(signal_number, info, context);
        return;
    }
    if (outer_action.sa_handler == SIG_IGN)
        return;
    if (outer_action.sa_handler != SIG_DFL) {
        outer_action.sa_handler(signal_number);
        return;
    }
    signal(signal_number, SIG_DFL); /* the access faults again and kills, as it would have */
}

void mpq_guard_install(void)
{
    pthread_mutex_lock(&install_mutex);
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) == 0 &&
        ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_bus)) {
        struct sigaction ours;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = on_bus;
        /* NODEFER: the jump out of the handler must not leave the signal blocked. */
        ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        outer_action = now;
        (void)sigaction(SIGBUS, &ours, NULL);
    }
    pthread_mutex_unlock(&install_mutex);
}

/* The claim that this thread made and cannot publish becomes a gap; when that store faults as
 * well, nobody can tell what lies there any more: `fault` stops all further claims. */
static void give_up_claim(struct mpq_guard *guard, struct mpq_queue *queue)
{
    _Atomic uint64_t *claimed = guard->claimed;
    uint64_t state = guard->claimed_state;
    volatile uint32_t left = guard->claimed_count;
    guard->claimed = NULL;
    struct mpq_guard second;
    mpq_guard_push(&second);
    if (sigsetjmp(second.jump, 0) != 0) {
        MPQ_GUARD_DROP(&second);
        mpq_store(queue->control->fault, 1);
        return;
    }
    MPQ_GUARD_ARM(&second);
    uint8_t *at = (uint8_t *)(uintptr_t)claimed;
    /* Last to first, like a publication: a batch is dropped whole. */
    for (; left > 0; left = left - 1) {
        uint64_t offset = 0;
        for (uint32_t i = 1; i < left; i++) {
            const struct mpq_frame *before = (const void *)(at + offset);
            offset += MPQ_FRAME_EXTENT(before->ext_length, before->length);
        }
        struct mpq_frame *frame = (void *)(at + offset);
        uint64_t expected = state;
        (void)atomic_compare_exchange_strong(mpq_state_of(frame), &expected,
                                             MPQ_STATE(MPQ_STATE_INC(state), MPQ_GAP));
    }
    MPQ_GUARD_DROP(&second);
}

mpq_status mpq_guard_recover(struct mpq_guard *guard, struct mpq_queue *queue,
                             struct mpq_error *error)
{
    MPQ_GUARD_DROP(guard);
    if (guard->claimed != NULL)
        give_up_claim(guard, queue);
    if (guard->locked != NULL)
        mpq_lock_release(guard->locked);
    mpq_status gone = mpq_still_there(queue, error);
    if (gone != MPQ_OK)
        return gone;
    errno = EFAULT;
    mpq_fail(error, MPQ_SYSTEM,
             "%s: memory of a file was taken away during the call (a queue file or the source of a "
             "put was truncated, or its disk failed); run `mpqueue verify`, then `mpqueue repair`",
             queue->path);
    if (error != NULL)
        error->os_errno = EFAULT;
    return MPQ_SYSTEM;
}
