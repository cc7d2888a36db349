/* tracer.c - see tracer.h. */
#include "tracer.h"

#include <elf.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t tracer_start(void (*setup)(void *arg), void (*op)(void *arg), void *arg)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (setup != NULL)
            setup(arg);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(4);
        raise(SIGSTOP);
        op(arg);
        raise(SIGSTOP);
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        tracer_failed("a child does not start: wait status", status);
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0)
        tracer_failed("ptrace is not permitted here: errno", errno);
    return child;
}

void tracer_kill(pid_t child)
{
    int status;
    kill(child, SIGKILL);
    do {
        if (waitpid(child, &status, 0) != child)
            tracer_failed("a child vanished: errno", errno);
    } while (WIFSTOPPED(status));
}

static bool resume(pid_t child, int how)
{
    int status;
    if (ptrace(how, child, NULL, NULL) != 0 || waitpid(child, &status, 0) != child)
        tracer_failed("a child cannot be resumed: errno", errno);
    if (!WIFSTOPPED(status))
        tracer_failed("a child ended: wait status", status);
    const int number = WSTOPSIG(status);
    if (number != SIGTRAP && number != (SIGTRAP | 0x80) && number != SIGSTOP)
        tracer_failed("a child got a signal", number);
    return number != SIGSTOP;
}

bool tracer_step(pid_t child)
{
    return resume(child, PTRACE_SINGLESTEP);
}

bool tracer_skip(pid_t child)
{
    return resume(child, PTRACE_SYSCALL) && resume(child, PTRACE_SYSCALL);
}

void tracer_finish(pid_t child)
{
    while (resume(child, PTRACE_CONT))
        ;
}

bool tracer_at_call(pid_t child)
{
    struct user_regs_struct registers;
    struct iovec all = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, child, NT_PRSTATUS, &all) != 0)
        tracer_failed("no registers: errno", errno);
#if defined(__x86_64__)
    const long word = ptrace(PTRACE_PEEKTEXT, child, registers.rip, NULL);
    return (word & 0xFFFF) == 0x050F;
#elif defined(__aarch64__)
    const long word = ptrace(PTRACE_PEEKTEXT, child, registers.pc, NULL);
    return (word & 0xFFFFFFFF) == 0xD4000001;
#else
    tracer_failed("not written for this processor", 0);
#endif
}

void tracer_pin(unsigned worker)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) <= (int)worker)
        return;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && worker-- == 0) {
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
            return;
        }
}
