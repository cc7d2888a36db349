/* guard.c - a mapped file that is truncated under a live process raises SIGBUS; here it becomes an
 * error of the call that touched it.
 *
 * Calls that touch segments arm a guard on their stack; the handler jumps to the innermost armed
 * one of its thread. Control is also read where no guard can be: between waits, under mutexes, by
 * the helper thread, while leaving. So what was taken away of control is first replaced by private
 * memory, the stand-in, and the handle is marked: `vanished` refuses every later call by name,
 * `fault` every claim.
 *
 * Signals of anybody else go to the handler that was there before. Others install theirs in front
 * of ours at any time, so opens and slow paths look and step in front again. Each time that another
 * handler is found there takes an entry function of its own, which passes on to that one only: a
 * handler that puts back what it displaced and raises again (faulthandler's) meets an older entry,
 * and through it whoever came before, exactly once and in the order of installation.
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
static _Atomic uintptr_t host_page;

enum entry_state { ENTRY_FREE, ENTRY_FILLING, ENTRY_FULL };
#define ENTRIES 8u
static struct entry { /* never given back: somebody may have kept it as what was there before */
    _Atomic int state;
    struct sigaction outer; /* written once, before the entry is installed */
} entries[ENTRIES];

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
        const uintptr_t from = address & ~(mpq_load(host_page) - 1);
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

/* The end that the signal would have made. A fault repeats when the handler returns. */
static void die_of(int signal_number, bool fault)
{
    signal(signal_number, SIG_DFL);
    if (!fault)
        raise(signal_number);
}

/* Handlers that lead back to each other end here, not on a full stack. One that jumps out leaves a
 * frame behind, but the next fault counts only while it lies below that. */
static __thread struct {
    uintptr_t frame; /* of the innermost handler that passes on; 0: none */
    unsigned depth;
} passing __attribute__((tls_model("initial-exec")));

static bool goes_round(void)
{
    const uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    passing.depth = passing.frame != 0 && frame < passing.frame ? passing.depth + 1 : 0;
    passing.frame = frame;
    return passing.depth > 2 * ENTRIES;
}

static void pass_on(const struct sigaction *outer, int signal_number, siginfo_t *info,
                    void *context, bool fault)
{
    const bool informed = (outer->sa_flags & SA_SIGINFO) != 0;
    if (!informed && outer->sa_handler == SIG_IGN && !fault)
        return;
    if ((!informed && (outer->sa_handler == SIG_DFL || outer->sa_handler == SIG_IGN)) ||
        goes_round()) {
        die_of(signal_number, fault); /* a fault cannot be ignored */
        return;
    }
    if ((outer->sa_flags & (int)SA_RESETHAND) != 0)
        signal(signal_number, SIG_DFL);
    sigset_t blocked = outer->sa_mask, before;
    if ((outer->sa_flags & SA_NODEFER) == 0)
        sigaddset(&blocked, signal_number);
    (void)pthread_sigmask(SIG_BLOCK, &blocked, &before);
    if (informed)
        outer->sa_sigaction(signal_number, info, context);
    else
        outer->sa_handler(signal_number);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    passing.frame = 0;
}

static void on_bus(const struct entry *entry, int signal_number, siginfo_t *info, void *context)
{
    struct mpq_guard *guard = mpq_guard_top;
    /* Of the kernel, about an access of this thread. */
    const bool fault = info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
    /* A handler in front of ours took the fault and raised it again. Without its address nothing
     * can stand in, but what comes after the jump faults anew, and is ours at once. */
    const bool again = guard != NULL && info->si_code == SI_TKILL && info->si_pid == getpid();
    const bool replaced = fault && stand_in((uintptr_t)info->si_addr);
    if (guard != NULL && (fault || again)) {
        sigset_t bus;
        sigemptyset(&bus);
        sigaddset(&bus, signal_number);
        (void)pthread_sigmask(SIG_UNBLOCK, &bus, NULL); /* the handler in front may block it */
        siglongjmp(guard->jump, 1);
    }
    if (!replaced)
        pass_on(&entry->outer, signal_number, info, context, fault);
}

typedef void bus_handler(int signal_number, siginfo_t *info, void *context);
#define ENTRY(index)                                                                               \
    static void on_bus_##index(int signal_number, siginfo_t *info, void *context)                  \
    {                                                                                              \
        on_bus(&entries[index], signal_number, info, context);                                     \
    }
ENTRY(0)
ENTRY(1)
ENTRY(2)
ENTRY(3)
ENTRY(4)
ENTRY(5)
ENTRY(6)
ENTRY(7)
static bus_handler *const handlers[ENTRIES] = {on_bus_0, on_bus_1, on_bus_2, on_bus_3,
                                               on_bus_4, on_bus_5, on_bus_6, on_bus_7};

static bool is_ours(const struct sigaction *action)
{
    for (unsigned i = 0; i < ENTRIES; i++)
        if ((action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == handlers[i])
            return true;
    return false;
}

static bool same_action(const struct sigaction *one, const struct sigaction *other)
{
    if (one->sa_flags != other->sa_flags)
        return false;
    return (one->sa_flags & SA_SIGINFO) != 0 ? one->sa_sigaction == other->sa_sigaction
                                             : one->sa_handler == other->sa_handler;
}

/* The index of the entry that passes on to it; ENTRIES when there are no more. Takes no mutex: a
 * forked child could not take it, where a thread of the parent held it. */
static unsigned entry_to(const struct sigaction *outer)
{
    for (unsigned i = 0; i < ENTRIES; i++)
        if (atomic_load(&entries[i].state) == ENTRY_FULL && same_action(&entries[i].outer, outer))
            return i;
    for (unsigned i = 0; i < ENTRIES; i++) {
        int state = ENTRY_FREE;
        if (!atomic_compare_exchange_strong(&entries[i].state, &state, ENTRY_FILLING))
            continue;
        entries[i].outer = *outer;
        atomic_store(&entries[i].state, ENTRY_FULL);
        return i;
    }
    return ENTRIES;
}

/* Puts the handler in front of others'. A system call: for where the caller sleeps or maps anyway.
 */
void mpq_guard_install(void)
{
    struct sigaction now;
    mpq_store(host_page, (uintptr_t)sysconf(_SC_PAGESIZE));
    if (sigaction(SIGBUS, NULL, &now) != 0)
        return;
    while (!is_ours(&now)) {
        struct sigaction ours, found;
        const unsigned index = entry_to(&now);
        if (index == ENTRIES)
            return; /* whoever is in front stays there */
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = handlers[index];
        /* NODEFER: the jump out of the handler must not leave the signal blocked. */
        ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGBUS, &ours, &found) != 0 || same_action(&found, &now))
            return;
        now = found; /* installed meanwhile, by another thread */
    }
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
