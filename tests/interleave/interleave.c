/* interleave.c - real processes led against each other, instruction by instruction.
 *
 * usage: interleave SEED ROUNDS STRIDE [random ROUND | PAIR SYSCALLS STEPS]
 *
 * Pairs: A is stopped at an instruction of its operation, B does a whole one, A goes on; at every
 * STRIDE-th instruction of A, from a phase that SEED gives. Where B cannot go on without A (it
 * holds the lock or the gate), A goes on after B has slept a while. One time in four A is killed
 * there instead. In three pairs B first goes as far as its claim.
 *
 * Random rounds: two or three actors; at each turn SEED chooses one and lets it make a few
 * instructions, or go on to its next system call or sleep. Now and then one is killed, and may
 * begin again.
 *
 * Nothing sleeps: a wait moves a clock that all share and is the end of a turn, so whoever hangs
 * is found by counting turns. What a put had returned for is neither lost nor altered nor doubled,
 * and on the disk (see referee.c); the books agree; a queue that is opened after it is empty. */
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "referee.h"
#include "tracer.h"

#define WORKERS 2
#define PATIENCE 12 /* sleeps of B beside an A that stands still ... */
#define LONG_PATIENCE 400 /* ... where B loses patience with A before it is through */
#define SPANS 256

static uint64_t seed_given, random_state;
static struct referee referee;
static char replay[120];

static uint64_t dice(void)
{
    random_state += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

void failed(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAILED ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    for (unsigned i = 0; i < ACTORS; i++)
        if (referee.shared->actor[i].failure[0] != '\0')
            fprintf(stderr, "\n  %s says %s", referee.led[i].actor.program,
                    referee.shared->actor[i].failure);
    fprintf(stderr, "\nreplay: interleave %llu 1 1 %s\n", (unsigned long long)seed_given, replay);
    exit(1);
}

void tracer_failed(const char *what, int detail)
{
    failed("%s %d", what, detail);
}

/* ---- what is there before */

static void few(void)
{
    referee_put(&referee, 3, 0);
    referee_put(&referee, 1, 0);
}

/* The next page-sized put rolls. */
static void nearly_full(void)
{
    referee_put(&referee, 1, 0);
    for (;;) {
        const struct mpq_tail_now tail = mpq_tail_read(referee.home->control);
        const uint64_t offset = MPQ_POSITION_OFF(tail.position);
        if (65536 - offset < 4096)
            return;
        referee_put(&referee, 1, 65536 - offset > 9000 ? 4000 : 300);
    }
}

/* The next page-sized put is the one that prepares the next segment. */
static void half_full(void)
{
    for (int i = 0; i < 4; i++)
        referee_put(&referee, 1, 3900);
}

static void three_segments(void)
{
    for (int i = 0; i < 36; i++)
        referee_put(&referee, 1, 4000);
}

static void dead_owner(void)
{
    few();
    referee_start(&referee, 0, "o|p");
    while (mpq_load(referee.home->control->owner) == 0)
        if (!referee_steps(&referee, 0, 1))
            failed("a put that never takes the lock");
    referee_kill(&referee, 0);
}

static void nothing(void)
{
}

enum { ALONE = 1, NEW_BOOT = 2, FIRST_CLAIMED = 4, PATIENT = 8 };

static void prepare(void (*before)(void), uint32_t durability, unsigned flags)
{
    referee_begin(&referee, durability);
    if (before != nothing) {
        referee_open(&referee);
        before();
    }
    if ((flags & (ALONE | NEW_BOOT)) != 0)
        referee_close(&referee);
    if ((flags & NEW_BOOT) != 0)
        setenv("MPQ_BOOT_ID", "another", 1);
    referee_watch(&referee);
}

/* ---- pairs */

static const struct pair {
    const char *name;
    uint32_t durability;
    unsigned flags;
    void (*before)(void);
    const char *a, *b;
} pairs[] = {
    {"put-put", 2, 0, few, "o|p", "o|p"},
    {"put-batch", 0, 0, few, "o|p", "o|b"},
    {"batch-put", 3, 0, few, "o|b", "o|p"},
    {"put-flush", 1, 0, few, "o|p", "op|f"},
    {"put-reclaim", 2, 0, three_segments, "o|p", "ocrrrrrr|ak"},
    {"reclaim-put", 2, 0, three_segments, "ocrrrrrr|ak", "o|pl"},
    {"roll-put", 2, 0, nearly_full, "o|l", "o|p"},
    {"put-roll", 2, 0, nearly_full, "o|p", "o|l"},
    {"roll-roll", 0, 0, nearly_full, "o|l", "o|l"},
    {"late-preparer", 0, PATIENT, half_full, "o|l", "oc|llllllllllllllllllllllllrrrrrrrrrrak"},
    {"open-put", 2, 0, few, "|op", "o|p"},
    {"create-create", 2, 0, nothing, "|op", "|op"},
    {"open-open", 2, ALONE, few, "|op", "|op"},
    {"rebuild-open", 2, NEW_BOOT, few, "|op", "|op"},
    {"takeover-put", 0, 0, dead_owner, "o|p", "o|p"},
    {"flush-flush", 1, 0, few, "op|f", "op|f"},
    {"checkpoint-put", 2, 0, few, "ocra|k", "o|p"},
    {"reserve-close", 0, FIRST_CLAIMED, few, "ocrra|r", "o|px"},
    {"reserve-batch-close", 0, FIRST_CLAIMED, few, "ocrra|r", "o|bx"},
    {"watch-close", 2, FIRST_CLAIMED, few, "ocrra|r", "o|px"},
    {"role-ack", 2, 0, few, "o|cr", "ocr|a"},
};
#define PAIRS (sizeof pairs / sizeof *pairs)

static void start_pair(const struct pair *pair)
{
    prepare(pair->before, pair->durability, pair->flags);
    referee_start(&referee, 1, pair->b);
    if ((pair->flags & FIRST_CLAIMED) != 0) {
        const uint64_t next = mpq_tail_read(referee.home->control).next_seq;
        while (mpq_tail_read(referee.home->control).next_seq == next)
            (void)referee_steps(&referee, 1, 1);
        (void)referee_steps(&referee, 1, 60); /* out of the lock */
    }
    referee_start(&referee, 0, pair->a);
}

static void lead_to(unsigned index, uint32_t calls, uint32_t steps)
{
    bool going = true;
    for (uint32_t i = 0; going && i < calls; i++)
        going = referee_call(&referee, index);
    if (going && steps != 0)
        (void)referee_steps(&referee, index, steps);
}

static void pair_at(const struct pair *pair, uint32_t calls, uint32_t steps)
{
    snprintf(replay, sizeof replay, "%s %u %u", pair->name, calls, steps);
    random_state = seed_given + calls * 7919 + steps;
    start_pair(pair);
    lead_to(0, calls, steps);
    const int patience = (pair->flags & PATIENT) != 0 ? LONG_PATIENCE : PATIENCE;
    for (int i = 0; i < patience && referee.led[1].pid != 0; i++)
        (void)referee_run(&referee, 1);
    if (referee.led[0].pid != 0 && dice() % 4 == 0) {
        referee_kill(&referee, 0);
        referee.figures.kills++;
    }
    referee_finish(&referee);
    referee_judge(&referee);
}

/* Instructions behind each system call of A alone. */
static uint32_t measure(const struct pair *pair, uint32_t spans[SPANS], uint32_t cap)
{
    uint32_t count = 0;
    bool going = true;
    snprintf(replay, sizeof replay, "%s 0 0", pair->name);
    start_pair(pair);
    while (going && count < SPANS) {
        uint32_t *span = &spans[count++];
        *span = 0;
        while (going && *span < cap && !tracer_at_call(referee.led[0].pid)) {
            going = referee_steps(&referee, 0, 1);
            ++*span;
        }
        if (going)
            going = referee_call(&referee, 0);
    }
    referee_finish(&referee);
    referee_judge(&referee);
    return count;
}

static void whole_pair(const struct pair *pair, uint64_t stride, uint64_t points)
{
    static uint32_t spans[SPANS];
    const struct figures was = referee.figures;
    const uint32_t count = measure(pair, spans, 3000);
    uint64_t total = 0, done = 0;
    for (uint32_t i = 0; i < count; i++)
        total += spans[i];
    uint64_t apart = stride * 16;
    if (stride > 1 && points != 0 && total * 16 / apart > points)
        apart = total * 16 / points;
    random_state = seed_given * 1000003 + (uint64_t)(pair - pairs);
    for (uint64_t at = dice() % apart; at < total * 16; at += apart) {
        uint64_t left = at / 16;
        uint32_t calls = 0;
        while (calls + 1 < count && left >= spans[calls])
            left -= spans[calls++];
        pair_at(pair, calls, (uint32_t)left);
        done++;
    }
    printf("interleave: %-19s %6llu instructions, %3u calls, %4llu points, %3llu kills, "
           "%3llu takeovers, %3llu gaps\n",
           pair->name, (unsigned long long)total, count - 1, (unsigned long long)done,
           (unsigned long long)(referee.figures.kills - was.kills),
           (unsigned long long)(referee.figures.takeovers - was.takeovers),
           (unsigned long long)(referee.figures.gaps - was.gaps));
}

/* ---- random rounds */

static const struct cast {
    unsigned flags;
    void (*before)(void);
    const char *program[ACTORS];
} casts[] = {
    {0, few, {"o|ppbp", "o|pbp", "|oppx"}},
    {0, few, {"o|pbpp", "o|lplp", "oc|rararak"}},
    {0, nearly_full, {"o|lpl", "o|ll", "|olx"}},
    {0, three_segments, {"o|plpl", "ocrrrrrrrr|akrak", "o|lllp"}},
    {0, few, {"oc|raray", "o|cra", "o|pppf"}},
    {ALONE, few, {"|opp", "|opcra", "|opx"}},
    {NEW_BOOT, three_segments, {"|op", "|oplx", "|ocra"}},
    {0, nothing, {"|opb", "|op", "|oppx"}},
    {0, dead_owner, {"o|pp", "o|bp", "oc|rara"}},
};
#define CASTS (sizeof casts / sizeof *casts)

static bool one_turn(unsigned index)
{
    const uint64_t way = dice() % 100;
    if (way < 75) {
        uint64_t steps = 1; /* geometric, 32 on average */
        while (dice() % 32 != 0)
            steps++;
        return referee_steps(&referee, index, steps);
    }
    if (way < 80)
        return referee_steps(&referee, index, 1 + dice() % 600);
    return way < 92 ? referee_call(&referee, index) : referee_run(&referee, index);
}

static void round_of(uint64_t round)
{
    snprintf(replay, sizeof replay, "random %llu", (unsigned long long)round);
    random_state = seed_given * 0x9E3779B1ULL + round * 0xC2B2AE3DULL;
    const struct cast *cast = &casts[dice() % CASTS];
    const unsigned count = 2 + (unsigned)(dice() % 2);
    unsigned births = 3;
    prepare(cast->before, (uint32_t)(dice() % 4), cast->flags);
    for (unsigned i = 0; i < count; i++)
        referee_start(&referee, i, cast->program[i]);
    for (int turns = 0; turns < 3000; turns++) {
        const unsigned index = (unsigned)(dice() % count);
        if (referee.led[index].pid == 0)
            continue;
        if (dice() % 250 == 0) {
            referee_kill(&referee, index);
            referee.figures.kills++;
            /* Only who begins unattached may be born while the gate is held: setups are not led. */
            if (births > 0 && cast->program[index][0] == '|') {
                births--;
                referee_start(&referee, index, cast->program[index]);
            }
            continue;
        }
        (void)one_turn(index);
    }
    referee_finish(&referee);
    referee_judge(&referee);
}

/* ---- the runs */

static int worker_main(unsigned worker, int argc, char **argv, int out)
{
    const char *root = getenv("MPQ_CRASH_DIR");
    snprintf(referee.base, sizeof referee.base, "%s/mpq-interleave-%d",
             root != NULL ? root : "/dev/shm", getpid());
    referee.shared = mmap(NULL, sizeof *referee.shared, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mkdir(referee.base, 0700) != 0 || referee.shared == MAP_FAILED)
        return 2;
    tracer_pin(worker);
    const uint64_t rounds = strtoull(argv[2], NULL, 10), stride = strtoull(argv[3], NULL, 10);
    const bool named = argc > 5;
    if (named && worker == 0 && strcmp(argv[4], "random") == 0)
        round_of(strtoull(argv[5], NULL, 10));
    for (size_t i = 0; i < PAIRS; i++) {
        if (named && argc > 6 && worker == 0 && strcmp(argv[4], pairs[i].name) == 0)
            pair_at(&pairs[i], (uint32_t)strtoul(argv[5], NULL, 10),
                    (uint32_t)strtoul(argv[6], NULL, 10));
        else if (!named && i % WORKERS == worker)
            whole_pair(&pairs[i], stride, 60);
        fflush(stdout);
    }
    for (uint64_t round = worker; !named && round < rounds; round += WORKERS)
        round_of(round);
    (void)rmdir(referee.base);
    return write(out, &referee.figures, sizeof referee.figures) == sizeof referee.figures ? 0 : 2;
}

int main(int argc, char **argv)
{
    if (argc < 4 || strtoull(argv[3], NULL, 10) == 0) {
        fprintf(stderr, "usage: interleave SEED ROUNDS STRIDE [random ROUND | PAIR CALLS STEPS]\n");
        return 2;
    }
    seed_given = strtoull(argv[1], NULL, 10);
    int pipes[2], rc = 0;
    if (pipe(pipes) != 0)
        return 2;
    for (unsigned worker = 0; worker < WORKERS; worker++)
        if (fork() == 0)
            exit(worker_main(worker, argc, argv, pipes[1]));
    for (unsigned worker = 0; worker < WORKERS; worker++) {
        int status = 0;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            rc = 1;
    }
    close(pipes[1]);
    struct figures sum = {0};
    for (struct figures one; read(pipes[0], &one, sizeof one) == sizeof one;) {
        const uint64_t *from = (const void *)&one;
        uint64_t *to = (void *)&sum;
        for (size_t i = 0; i < sizeof sum / sizeof *to; i++)
            to[i] += from[i];
    }
    printf("interleave: seed %llu, %llu runs, %llu turns, %llu steps, %llu kills, %llu takeovers, "
           "%llu gaps, %llu write-backs, %llu puts unfinished, %s\n",
           (unsigned long long)seed_given, (unsigned long long)sum.runs,
           (unsigned long long)sum.turns, (unsigned long long)sum.steps,
           (unsigned long long)sum.kills, (unsigned long long)sum.takeovers,
           (unsigned long long)sum.gaps, (unsigned long long)sum.flushes,
           (unsigned long long)sum.unfinished, rc == 0 ? "0 violations" : "FAILED");
    return rc;
}
