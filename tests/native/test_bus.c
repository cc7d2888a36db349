/* SIGBUS in a process with other handlers: each gets what is its own, in its turn, and the end is
 * the one that there would be without a queue. Every case is a child process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

enum { PASSED = 42 };

static struct fixture fixture;
static struct mpq_open_args args;

/* How a child ends that runs the case: its exit status, or 256 and its signal. */
static int end_of(void (*act)(void))
{
    fflush(NULL);
    fixture_make(&fixture);
    args = fixture_args(&fixture, MPQ_DURABILITY_NONE);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        act();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    fixture_remove(&fixture);
    return WIFSIGNALED(status) ? 256 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void handle(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_flags = flags};
    action.sa_handler = handler;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}

/* An access beyond the end of a file that is no queue's. */
static void foreign_fault(void)
{
    int fd = memfd_create("foreign", 0);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    volatile char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && ftruncate(fd, 0) == 0);
    *at = 1;
}

/* A call that meets a truncated segment says so, and the process goes on. */
static void queue_fault(struct mpq_queue *queue)
{
    struct mpq_error error;
    char name[128];
    uint64_t seq;
    CHECK_STATUS(put(queue, "body", 4, &seq, &error), MPQ_OK, error);
    snprintf(name, sizeof name, "%s/segment-000000000001", fixture.path);
    CHECK(truncate(name, 0) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(put(queue, "body", 4, &seq, &error), MPQ_SYSTEM, error);
        CHECK_EQ(error.os_errno, EFAULT);
    }
}

static void pass(int signal_number)
{
    (void)signal_number;
    _exit(PASSED);
}

/* Like faulthandler's: puts back what it displaced, and raises again. */
static struct sigaction displaced[2];
static volatile sig_atomic_t called[2];

static void raise_again(int which)
{
    called[which]++;
    sigaction(SIGBUS, &displaced[which], NULL);
    raise(SIGBUS);
}

static void raise_again_0(int signal_number)
{
    (void)signal_number;
    raise_again(0);
}

static void raise_again_1(int signal_number)
{
    (void)signal_number;
    raise_again(1);
}

static void displace(int which)
{
    struct sigaction action = {.sa_flags = SA_NODEFER};
    action.sa_handler = which == 0 ? raise_again_0 : raise_again_1;
    CHECK(sigaction(SIGBUS, &action, &displaced[which]) == 0);
}

static void exit_with_calls(int signal_number)
{
    (void)signal_number;
    _exit(called[0] * 10 + called[1]);
}

/* ---- what is not ours */

static void faults_before(void)
{
    handle(pass, 0);
    (void)open_queue(&args);
    foreign_fault();
}

static void faults_between(void)
{
    (void)open_queue(&args);
    handle(pass, 0);
    (void)open_queue(&args);
    foreign_fault();
}

static void faults_after(void)
{
    (void)open_queue(&args);
    handle(pass, 0);
    foreign_fault();
}

static void a_foreign_fault_reaches_its_handler(void)
{
    CHECK_EQ(end_of(faults_before), PASSED);
    CHECK_EQ(end_of(faults_between), PASSED);
    CHECK_EQ(end_of(faults_after), PASSED);
}

static void sent_by_itself(void)
{
    (void)open_queue(&args);
    kill(getpid(), SIGBUS);
}

static void raised(void)
{
    (void)open_queue(&args);
    raise(SIGBUS);
}

static void faults_with_no_handler(void)
{
    (void)open_queue(&args);
    foreign_fault();
}

static void faults_ignored(void)
{
    signal(SIGBUS, SIG_IGN);
    (void)open_queue(&args);
    foreign_fault();
}

static void sent_ignored(void)
{
    signal(SIGBUS, SIG_IGN);
    (void)open_queue(&args);
    kill(getpid(), SIGBUS);
    raise(SIGBUS);
    _exit(PASSED);
}

static void the_end_is_the_one_without_a_queue(void)
{
    CHECK_EQ(end_of(sent_by_itself), 256 + SIGBUS);
    CHECK_EQ(end_of(raised), 256 + SIGBUS);
    CHECK_EQ(end_of(faults_with_no_handler), 256 + SIGBUS);
    CHECK_EQ(end_of(faults_ignored), 256 + SIGBUS); /* the kernel does not let it be ignored */
    CHECK_EQ(end_of(sent_ignored), PASSED);
}

static sigjmp_buf home;

static void jump_home(int signal_number)
{
    (void)signal_number;
    siglongjmp(home, 1);
}

static void recovers_from_its_own(void)
{
    (void)open_queue(&args);
    handle(jump_home, 0);
    (void)open_queue(&args);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 1000; i++)
        if (sigsetjmp(home, 1) == 0)
            foreign_fault();
        else
            jumps++;
    queue_fault(open_queue(&args));
    _exit(jumps == 1000 ? PASSED : 1);
}

static void a_handler_may_jump_out_each_time(void)
{
    CHECK_EQ(end_of(recovers_from_its_own), PASSED);
}

static void resets(void)
{
    handle(jump_home, (int)SA_RESETHAND);
    (void)open_queue(&args);
    if (sigsetjmp(home, 1) == 0)
        foreign_fault();
    foreign_fault();
}

static void a_handler_for_one_signal_gets_one(void)
{
    CHECK_EQ(end_of(resets), 256 + SIGBUS);
}

/* ---- handlers that raise again */

static void chain(void (*last)(void))
{
    handle(exit_with_calls, 0);
    (void)open_queue(&args);
    displace(0);
    (void)open_queue(&args);
    displace(1);
    (void)open_queue(&args);
    last();
}

static void raise_bus(void)
{
    raise(SIGBUS);
}

static void chain_raised(void)
{
    chain(raise_bus);
}

static void chain_faults(void)
{
    chain(foreign_fault);
}

static void chain_to_the_end(void)
{
    (void)open_queue(&args);
    displace(0);
    (void)open_queue(&args);
    raise(SIGBUS);
}

static void each_handler_is_called_once(void)
{
    CHECK_EQ(end_of(chain_raised), 11);
    CHECK_EQ(end_of(chain_faults), 11);
    CHECK_EQ(end_of(chain_to_the_end), 256 + SIGBUS);
}

/* valgrind does not grow the stack for signal after signal. */
static void grow_stack(void)
{
    volatile char room[256 << 10];
    for (size_t i = 0; i < sizeof room; i += 4096)
        room[i] = 0;
}

static void round_and_round(void)
{
    grow_stack();
    (void)open_queue(&args);
    displace(0);
    (void)open_queue(&args);
    displace(0); /* now it takes our entry, which leads to it, for what came before it */
    (void)open_queue(&args);
    raise(SIGBUS);
}

static void again_and_again(void)
{
    for (int i = 0; i < 100; i++) {
        displace(0);
        (void)open_queue(&args);
        sigaction(SIGBUS, &displaced[0], NULL);
    }
    displace(1);
    queue_fault(open_queue(&args));
    raise(SIGBUS);
}

static void a_ring_of_handlers_ends(void)
{
    CHECK_EQ(end_of(round_and_round), 256 + SIGBUS);
    CHECK_EQ(end_of(again_and_again), 256 + SIGBUS);
}

/* ---- what is ours, with others in front */

static void queue_faults_behind(void)
{
    struct mpq_queue *queue = open_queue(&args);
    displace(0);
    queue_fault(queue);
    _exit(called[0] <= 1 ? PASSED : 1);
}

static void queue_faults_behind_a_blocking_one(void)
{
    struct mpq_queue *queue = open_queue(&args);
    displace(0);
    handle(raise_again_0, 0);
    queue_fault(queue);
    _exit(PASSED);
}

static void queue_faults_after_a_role(void)
{
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    struct mpq_consumer *consumer;
    struct mpq_queue *queue = open_queue(&args);
    displace(0);
    CHECK_STATUS(mpq_consumer_open(queue, &call, &consumer, &error), MPQ_OK, error);
    queue_fault(queue);
    _exit(called[0] == 0 ? PASSED : 1); /* ours stepped in front */
}

static void control_faults_after_a_role(void)
{
    struct mpq_error error;
    struct mpq_call call = FOREVER;
    struct mpq_consumer *consumer;
    char name[128];
    struct mpq_queue *queue = open_queue(&args);
    signal(SIGBUS, SIG_DFL); /* by somebody who does not know of us */
    CHECK_STATUS(mpq_consumer_open(queue, &call, &consumer, &error), MPQ_OK, error);
    snprintf(name, sizeof name, "%s/control", fixture.path);
    CHECK(truncate(name, 0) == 0);
    CHECK_EQ(mpq_depth(queue), 0); /* no guard is armed here */
    CHECK_STATUS(mpq_usable(queue, &error), MPQ_REMOVED, error);
    _exit(PASSED);
}

static void the_process_lives(void)
{
    CHECK_EQ(end_of(queue_faults_behind), PASSED);
    CHECK_EQ(end_of(queue_faults_behind_a_blocking_one), PASSED);
    CHECK_EQ(end_of(queue_faults_after_a_role), PASSED);
    CHECK_EQ(end_of(control_faults_after_a_role), PASSED);
}

int main(void)
{
    RUN(a_foreign_fault_reaches_its_handler);
    RUN(the_end_is_the_one_without_a_queue);
    RUN(a_handler_may_jump_out_each_time);
    RUN(a_handler_for_one_signal_gets_one);
    RUN(each_handler_is_called_once);
    RUN(a_ring_of_handlers_ends);
    RUN(the_process_lives);
    return 0;
}
