/* guard.c - a mapped file that is truncated under a live process raises SIGBUS; here it becomes an
 * error of the call that touched it.
 *
 * Calls that touch segments arm a guard on their stack; the handler jumps to the innermost armed
 * one of its thread. Control is also read where no guard can be: between waits, under mutexes, by
 * the helper thread, while leaving. So what was taken away of control is first replaced by private
 * memory, the stand-in, and the handle is marked: `vanished` refuses every later call by name,
 * `fault` every claim. Signals of anybody else go to the handler that was there before.
 *
 * I1 the handler only loads, stores and calls mmap, and follows the pointer to a handle only when
 * the faulting address lies in that handle's control, which the faulting thread therefore uses. I2
 * only pages from the fault on are replaced: they lie beyond the end of the file, so nobody shares
 * them any more, while a header page that is left stays shared and its lock can be released. I3 a
 * stand-in belongs to this process: others meet the fault themselves. */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

__thread struct mpq_guard *mpq_guard_top;

struct watch { /* never freed, so that the handler may walk the list at any time */
    _Atomic uintptr_t base; /* of control; 0 = free, 1 = being filled in */
    _Atomic uint64_t bytes;
    struct mpq_queue *_Atomic queue;
    struct watch *next;
};

static struct watch *_Atomic watches;
static uintptr_t host_page;
static struct sigaction outer_action;
static pthread_mutex_t install_mutex = PTHREAD_MUTEX_INITIALIZER;

static struct watch *watch_new(void)
{
    for (struct watch *watch = atomic_load(&watches); watch != NULL; watch = watch->next) {
        uintptr_t none = 0;
        if (atomic_compare_exchange_strong(&watch->base, &none, 1))
            return watch;
    }
    struct watch *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL; /* a truncated control kills this process, as it would any other */
    atomic_store(&made->base, 1);
    made->next = atomic_load(&watches);
    while (!atomic_compare_exchange_weak(&watches, &made->next, made))
        ;
    return made;
}

void mpq_guard_watch(struct mpq_queue *queue)
{
    struct watch *watch = watch_new();
    if (watch == NULL)
        return;
    atomic_store(&watch->bytes, queue->control_bytes);
    atomic_store(&watch->queue, queue);
    atomic_store(&watch->base, (uintptr_t)queue->control);
}

void mpq_guard_unwatch(struct mpq_queue *queue)
{
    for (struct watch *watch = atomic_load(&watches); watch != NULL; watch = watch->next)
        if (atomic_load(&watch->queue) == queue &&
            atomic_load(&watch->base) == (uintptr_t)queue->control)
            atomic_store(&watch->base, 0);
}

/* Zeros are a queue without items; what must not be zero is set. */
static void pretend(struct mpq_queue *queue)
{
    struct mpq_control *control = queue->control;
    mpq_config_store(control, &queue->created);
    mpq_store(control->next_incarnation, MPQ_INCARNATION_MAX); /* who lives is the kernel's word */
    mpq_store(control->oldest_generation, 1);
}

static bool stand_in(uintptr_t address)
{
    for (struct watch *watch = atomic_load(&watches); watch != NULL; watch = watch->next) {
        const uintptr_t base = atomic_load(&watch->base);
        const uintptr_t end = base + atomic_load(&watch->bytes);
        if (base <= 1 || address < base || address >= end)
            continue;
        const uintptr_t from = address & ~(host_page - 1);
        if (mmap((void *)from, end - from, PROT_READ | PROT_WRITE,
                 MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return false;
        struct mpq_queue *queue = atomic_load(&watch->queue);
        mpq_store(queue->vanished, 1);
        if (from == base)
            pretend(queue);
        mpq_store(queue->control->fault, 1);
        return true;
    }
    return false;
}

static void on_bus(int signal_number, siginfo_t *info, void *context)
{
    struct mpq_guard *guard = mpq_guard_top;
    if (info->si_code > 0) { /* of the kernel, about an access of this thread */
        const bool replaced = stand_in((uintptr_t)info->si_addr);
        if (guard != NULL)
            siglongjmp(guard->jump, 1);
        if (replaced)
            return;
    }
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
    host_page = (uintptr_t)sysconf(_SC_PAGESIZE);
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

mpq_status mpq_vanished(struct mpq_queue *queue, struct mpq_error *error)
{
    return mpq_fail(
        error, MPQ_REMOVED,
        "%s: its control file was truncated, or its disk failed, while it was open; close "
        "every process that has it open, then open it again: control will be rebuilt",
        queue->path);
}

bool mpq_copy_out(void *to, const void *from, size_t bytes)
{
    struct mpq_guard guard;
    mpq_guard_push(&guard);
    if (sigsetjmp(guard.jump, 0) != 0) {
        MPQ_GUARD_DROP(&guard);
        return false;
    }
    MPQ_GUARD_ARM(&guard);
    memcpy(to, from, bytes);
    MPQ_GUARD_DROP(&guard);
    return true;
}

mpq_status mpq_guard_recover(struct mpq_guard *guard, struct mpq_queue *queue,
                             struct mpq_error *error)
{
    MPQ_GUARD_DROP(guard);
    if (guard->mutex != NULL)
        mpq_mutex_unlock(guard->mutex);
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
