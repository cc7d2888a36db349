/* powercut.c - records a workload on a real filesystem and cuts its power, many times.
 *
 * usage: powercut run IMAGE KIND POLICY SEED POINTS FOLDER VERIFY_EVERY VERIFIER...
 *        powercut replay IMAGE RECORDING POINT FOLDER VERIFIER...
 *
 * IMAGE holds a fresh filesystem; KIND names its row in kinds[]; FOLDER gets two mount points and,
 * when a point fails, the recording. VERIFIER is a command that reads paths of queues, a line each,
 * and answers "clean" or the complaint. The last line is "done" with figures, or FAILED.
 *
 * A point: the permanent image takes in everything up to the last flush before the cut, some of the
 * pending writes are applied on top, the filesystem is mounted, the queue is opened under another
 * boot id and checked. What that session writes is journaled like the recording was, so its own
 * recovery can be cut again. Then the disk goes back: a point costs what it touched. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "device.h"
#include "workload.h"

#define JOURNAL_BYTES (1ull << 30)
#define LEVELS PRODUCERS /* a cut, and up to three inside recovery */

struct filesystem {
    const char *name, *type, *options;
    uint64_t whole_from, whole_to; /* the superblock */
    const char *check[5]; /* run after the unmount: the filesystem is whole */
    uint32_t check_every;
};

static const struct filesystem kinds[] = {
    {"ext4", "ext4", "", 1024, 2048, {"e2fsck", "-fn", 0}, 20},
    {"ext4-4k", "ext4", "", 1024, 2048, {"e2fsck", "-fn", 0}, 20},
    {"ext4-writeback", "ext4", "data=writeback", 1024, 2048, {"e2fsck", "-fn", 0}, 20},
    {"ext4-journal", "ext4", "data=journal", 1024, 2048, {"e2fsck", "-fn", 0}, 20},
    {"xfs", "xfs", "nouuid", 0, 0, {"xfs_repair", "-n", 0}, 50},
    {"btrfs", "btrfs", "nodiscard", 65536, 69632, {"btrfs", "check", "--readonly", 0}, 50},
};

struct point {
    struct cut cut;
    uint32_t again[LEVELS]; /* per mille of the session where the next level cuts; 0: nowhere */
};

struct figures {
    uint32_t points, again, pending, torn, kept, unpromised, withdrawn, absent, verified, fscked;
};

struct world {
    const struct filesystem *kind;
    struct store *store;
    struct ledger *ledger;
    struct session *session;
    struct verdict *verdict;
    struct device device;
    struct figures figures;
    uint32_t points, verify_every;
    bool keeps_images;
    FILE *ask, *answer; /* of the verifier */
    char folder[400], mounted[450], path[480];
};

static void *shared(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("powercut: mmap");
        exit(2);
    }
    return memory;
}

static _Noreturn void give_up(const char *what, int error)
{
    fprintf(stderr, "powercut: %s: %s\n", what, strerror(error));
    exit(2);
}

static void choose(struct world *world, size_t kind)
{
    world->kind = &kinds[kind];
    world->store->whole_from = kinds[kind].whole_from;
    world->store->whole_to = kinds[kind].whole_to;
}

/* ---- keeping and finding recordings */

static void load_image(struct store *store, const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        give_up(path, errno);
    for (off_t at = 0; (at = lseek(file, at, SEEK_DATA)) >= 0;) {
        const off_t end = lseek(file, at, SEEK_HOLE);
        while (at < end) {
            const ssize_t got = pread(file, store->disk + at, (size_t)(end - at), at);
            if (got <= 0)
                give_up(path, errno);
            at += got;
        }
    }
    close(file);
}

/* For whoever looks into a failure: the disk as it is when the power comes back. */
static void save_image(const struct world *world, uint32_t level)
{
    static const uint8_t zeros[PAGE];
    const struct store *store = world->store;
    char path[512];
    snprintf(path, sizeof path, "%s/cut-%u.img", world->folder, level);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)store->disk_bytes) != 0)
        give_up(path, errno);
    for (uint64_t at = 0; at < store->disk_bytes; at += PAGE)
        if (memcmp(store->disk + at, zeros, PAGE) != 0 &&
            pwrite(file, store->disk + at, PAGE, (off_t)at) != PAGE)
            give_up(path, errno);
    close(file);
}

static void save_recording(const struct world *world)
{
    char path[512];
    snprintf(path, sizeof path, "%s/recording", world->folder);
    FILE *file = fopen(path, "wb");
    const uint32_t kind = (uint32_t)(world->kind - kinds);
    if (file == NULL || fwrite(&kind, sizeof kind, 1, file) != 1 ||
        fwrite(&world->points, sizeof world->points, 1, file) != 1 ||
        fwrite(world->ledger, sizeof *world->ledger, 1, file) != 1)
        give_up(path, errno);
    store_forget(world->store, world->ledger->ended);
    if (store_save(world->store, file) != 0 || fclose(file) != 0)
        give_up(path, errno);
}

static void load_recording(struct world *world, const char *path)
{
    FILE *file = fopen(path, "rb");
    uint32_t kind;
    if (file == NULL || fread(&kind, sizeof kind, 1, file) != 1 ||
        fread(&world->points, sizeof world->points, 1, file) != 1 ||
        fread(world->ledger, sizeof *world->ledger, 1, file) != 1 ||
        store_load(world->store, file) != 0)
        give_up(path, errno);
    fclose(file);
    if (kind >= sizeof kinds / sizeof *kinds)
        give_up(path, EINVAL);
    choose(world, kind);
}

static void record(struct world *world, uint64_t seed, uint32_t durability)
{
    ledger_start(world->ledger, seed, durability);
    int error =
        device_mount(&world->device, world->mounted, world->kind->type, world->kind->options);
    if (error != 0)
        give_up("mount of the fresh filesystem", error);
    world->ledger->mounted = atomic_load(&world->store->position);
    workload_run(world->store, world->ledger, world->path);
    world->ledger->ended = atomic_load(&world->store->position);
    if ((error = device_unmount(world->mounted)) != 0)
        give_up("unmount after the recording", error);
    if (world->store->overflow)
        give_up("the recording", ENOSPC);
    store_forget(world->store, world->ledger->ended);
    store_revert(world->store);
}

/* ---- where to cut */

static int by_place(const void *a, const void *b)
{
    const struct point *left = a, *right = b;
    if (left->cut.at != right->cut.at)
        return left->cut.at < right->cut.at ? -1 : 1;
    return left->cut.seed < right->cut.seed ? -1 : left->cut.seed > right->cut.seed;
}

/* Five of nine cuts fall right before a flush, where most is pending, evenly over all flushes; one
 * right behind a flush, where every promise is due; the rest anywhere. */
static struct point *plan(const struct world *world)
{
    const struct ledger *ledger = world->ledger;
    const struct entry *entries = world->store->entries;
    struct point *points = calloc(world->points, sizeof *points);
    uint32_t *flushes = calloc(ledger->ended + 1, sizeof *flushes), count = 0;
    uint64_t random = ledger->seed * 77;
    static const uint32_t percents[] = {10, 50, 90};
    if (points == NULL || flushes == NULL)
        give_up("plan", ENOMEM);
    for (uint32_t i = ledger->mounted; i < ledger->ended; i++)
        if (entries[i].kind == FLUSH)
            flushes[count++] = i;
    if (count == 0)
        give_up("no flush was recorded", ENODATA);
    for (uint32_t i = 0; i < world->points; i++) {
        struct point *point = &points[i];
        struct cut *cut = &point->cut;
        const uint64_t where = mix(&random) % 9;
        const uint32_t even = (uint32_t)((uint64_t)i * count / world->points);
        cut->at = where < 5 ? flushes[even] : flushes[even] + 1;
        if (where > 5)
            cut->at =
                ledger->mounted + (uint32_t)(mix(&random) % (ledger->ended - ledger->mounted + 1));
        cut->mode = (enum mode)(mix(&random) % MODES);
        cut->percent = percents[mix(&random) % 3];
        cut->seed = mix(&random);
        for (uint32_t level = 0; level + 1 < LEVELS; level++) {
            const uint64_t choice = mix(&random);
            point->again[level] = choice % 6 == 0 ? 1 + (uint32_t)(choice / 6 % 1000) : 0;
        }
    }
    free(flushes);
    qsort(points, world->points, sizeof *points, by_place);
    return points;
}

/* ---- one image */

static int run_tool(const struct world *world, const char *const *words)
{
    const char *command[7];
    size_t count = 0;
    while (words[count] != NULL) {
        command[count] = words[count];
        count++;
    }
    command[count] = world->device.loop;
    command[count + 1] = NULL;
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_RDWR);
        dup2(nowhere, 0);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        execvp(command[0], (char *const *)(uintptr_t)command);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static bool complain(struct world *world, const char *what, int status)
{
    if (!world->verdict->failed)
        snprintf(world->verdict->text, sizeof world->verdict->text, "%s (%d)", what, status);
    world->verdict->failed = true;
    return false;
}

/* It is started here because only this process's children see what is mounted. */
static void start_verifier(struct world *world, char **command)
{
    int ask[2], answer[2];
    if (pipe(ask) != 0 || pipe(answer) != 0)
        give_up("pipe", errno);
    if (fork() == 0) {
        dup2(ask[0], 0);
        dup2(answer[1], 1);
        close(ask[1]);
        execvp(command[0], command);
        _exit(127);
    }
    close(ask[0]);
    close(answer[1]);
    fcntl(ask[1], F_SETFD, FD_CLOEXEC);
    world->ask = fdopen(ask[1], "w");
    world->answer = fdopen(answer[0], "r");
}

static bool verify(struct world *world)
{
    char answer[400];
    fprintf(world->ask, "%s\n", world->path);
    fflush(world->ask);
    if (fgets(answer, sizeof answer, world->answer) == NULL)
        return complain(world, "nobody answers for verify", 0);
    world->figures.verified++;
    if (strcmp(answer, "clean\n") == 0)
        return true;
    answer[strcspn(answer, "\n")] = '\0';
    return complain(world, answer, 0);
}

/* A process of its own, so that a hang, a crash or a leak is one point's. */
static bool session(struct world *world, struct state *state, uint32_t level, int part,
                    uint64_t random)
{
    struct check check = {world->store,   world->ledger, world->session, state,
                          world->verdict, world->path,   level,          random};
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (part == 1)
            check_open(&check);
        check_drain(&check, part == 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        return complain(world, WTERMSIG(status) == SIGALRM ? "hung" : "killed by signal",
                        WTERMSIG(status));
    return status == 0 || complain(world, "ended with status", WEXITSTATUS(status));
}

static bool use(struct world *world, struct state *state, uint32_t level, uint32_t number)
{
    const bool verifies = world->verify_every != 0 && number % world->verify_every == 0;
    const uint64_t random = world->ledger->seed * 100003 + number * LEVELS + level;
    char boot[40];
    snprintf(boot, sizeof boot, "cut-%u-%u", number, level);
    setenv("MPQ_BOOT_ID", boot, 1);
    memset(world->verdict, 0, sizeof *world->verdict);
    atomic_store(&world->session->count, 0);
    const int error =
        device_mount(&world->device, world->mounted, world->kind->type, world->kind->options);
    if (error != 0)
        return complain(world, "the filesystem does not mount", error);
    bool good;
    if (verifies)
        good = session(world, state, level, 1, random) &&
               (world->verdict->absent ||
                (verify(world) && session(world, state, level, 2, random) && verify(world)));
    else
        good = session(world, state, level, 0, random);
    const int left = device_unmount(world->mounted);
    if (left != 0)
        give_up("unmount after a session", left);
    if (good && number % world->kind->check_every == 0) {
        const int status = run_tool(world, world->kind->check);
        world->figures.fscked++;
        if (status != 0)
            return complain(world, "the filesystem is damaged afterwards", status);
    }
    return good;
}

/* Where in the session before: two times of three while the queue was being opened. */
static uint32_t place_again(const struct world *world, uint32_t from, uint32_t per_mille)
{
    uint32_t end = atomic_load(&world->store->position);
    if (per_mille % 3 != 0 && world->session->count != 0)
        end = world->session->events[0].position;
    return from + (uint32_t)((uint64_t)(end - from) * per_mille / 1000);
}

static bool examine(struct world *world, const struct point *point, uint32_t number)
{
    struct store *store = world->store;
    struct figures *figures = &world->figures;
    static struct state state;
    struct cut cuts[LEVELS];
    store_forget(store, world->ledger->ended);
    store_advance(store, store_flushed(store, store->base, point->cut.at));
    cuts[0] = point->cut;
    cuts[0].from = store->base;
    ledger_state(world->ledger, point->cut.at, &state);
    bool good = true;
    for (uint32_t level = 0; good && level < LEVELS; level++) {
        store_revert(store);
        for (uint32_t i = 0; i <= level; i++) {
            const struct cut_figures cut = store_cut(store, &cuts[i]);
            if (i == level) {
                figures->pending += cut.pending != 0;
                figures->kept += cut.kept != 0;
                figures->torn += cut.torn != 0;
            }
        }
        if (world->keeps_images)
            save_image(world, level);
        const uint32_t from = atomic_load(&store->position);
        good = use(world, &state, level, number);
        if (level == 0)
            figures->points++;
        else
            figures->again++;
        figures->unpromised += world->verdict->unpromised != 0;
        figures->withdrawn += world->verdict->withdrawn != 0;
        figures->absent += world->verdict->absent;
        if (level + 1 == LEVELS || point->again[level] == 0 || store->overflow)
            break;
        cuts[level + 1] =
            (struct cut){from, place_again(world, from, point->again[level]),
                         (enum mode)(point->again[level] % MODES), 50, point->cut.seed + level};
        session_state(world->session, world->ledger, cuts[level + 1].at, &state);
    }
    if (!good) {
        printf("FAILED seed %llu kind %s policy %u point %u position %u: %s\n",
               (unsigned long long)world->ledger->seed, world->kind->name,
               world->ledger->durability, number, point->cut.at, world->verdict->text);
        fflush(stdout);
    }
    store_revert(store);
    return good;
}

/* ---- the whole */

static void prepare(struct world *world, const char *image, const char *folder)
{
    struct stat found;
    char fuse[450];
    if (stat(image, &found) != 0)
        give_up(image, errno);
    snprintf(world->folder, sizeof world->folder, "%s", folder);
    snprintf(fuse, sizeof fuse, "%s/device", folder);
    snprintf(world->mounted, sizeof world->mounted, "%s/mounted", folder);
    snprintf(world->path, sizeof world->path, "%s/spool", world->mounted);
    if ((mkdir(fuse, 0700) != 0 && errno != EEXIST) ||
        (mkdir(world->mounted, 0700) != 0 && errno != EEXIST))
        give_up(folder, errno);
    world->store = store_new((uint64_t)found.st_size, JOURNAL_BYTES);
    world->ledger = shared(sizeof *world->ledger);
    world->session = shared(sizeof *world->session);
    world->verdict = shared(sizeof *world->verdict);
    load_image(world->store, image);
    device_start(&world->device, world->store, fuse);
    printf("loop %s\n", world->device.loop);
    fflush(stdout);
}

static void report(const struct world *world, double recorded, double checked)
{
    const struct figures *f = &world->figures;
    uint32_t flushes = 0, items = 0, durable = 0, acks = 0;
    for (uint32_t i = world->ledger->mounted; i < world->ledger->ended; i++)
        flushes += world->store->entries[i].kind == FLUSH;
    for (uint32_t id = 0; id < ITEMS; id++) {
        items += world->ledger->items[id].returned != NEVER;
        durable += world->ledger->items[id].durable != NEVER;
        acks += world->ledger->items[id].ack_durable != NEVER;
    }
    printf("done entries=%u flushes=%u items=%u durable=%u acks=%u refused=%u points=%u again=%u "
           "pending=%u kept=%u torn=%u unpromised=%u withdrawn=%u absent=%u verified=%u fscked=%u "
           "recorded_ms=%u checked_ms=%u\n",
           world->ledger->ended - world->ledger->mounted, flushes, items, durable, acks,
           world->ledger->refused, f->points, f->again, f->pending, f->kept, f->torn, f->unpromised,
           f->withdrawn, f->absent, f->verified, f->fscked, (uint32_t)(recorded * 1000),
           (uint32_t)(checked * 1000));
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int run(struct world *world, char **arguments)
{
    static const char *const policies[] = {"none", "interval", "group", "sync"};
    const uint64_t seed = strtoull(arguments[3], NULL, 10);
    uint32_t durability = 0;
    while (durability < 3 && strcmp(policies[durability], arguments[2]) != 0)
        durability++;
    world->points = (uint32_t)strtoul(arguments[4], NULL, 10);
    world->verify_every = (uint32_t)strtoul(arguments[6], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    prepare(world, arguments[0], arguments[5]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, arguments[1]) == 0)
            choose(world, i);
    if (world->kind == NULL)
        give_up(arguments[1], EINVAL);
    start_verifier(world, arguments + 7);
    const double started = seconds();
    record(world, seed, durability);
    const double recorded = seconds();
    struct point *points = plan(world);
    bool good = true;
    for (uint32_t i = 0; good && i < world->points; i++)
        good = examine(world, &points[i], i);
    free(points);
    if (good)
        report(world, recorded - started, seconds() - recorded);
    else
        save_recording(world);
    return good ? 0 : 1;
}

static int replay(struct world *world, char **arguments)
{
    const uint32_t number = (uint32_t)strtoul(arguments[2], NULL, 10);
    prepare(world, arguments[0], arguments[3]);
    load_recording(world, arguments[1]);
    start_verifier(world, arguments + 4);
    world->verify_every = 1;
    world->keeps_images = true;
    struct point *points = plan(world);
    if (number >= world->points)
        give_up("the recording has fewer points", ERANGE);
    const bool good = examine(world, &points[number], number);
    free(points);
    printf("%s\n", good ? "the point passes" : "the point fails");
    return good ? 0 : 1;
}

/* However it ends: nothing stays mounted or attached. */
static struct world the_world;
static pid_t owner;

static void clean_up(void)
{
    if (getpid() != owner || the_world.device.server == 0)
        return;
    if (umount2(the_world.mounted, 0) != 0 && errno == EBUSY)
        (void)umount2(the_world.mounted, MNT_DETACH);
    device_stop(&the_world.device);
}

int main(int argc, char **argv)
{
    int status = 2;
    owner = getpid();
    atexit(clean_up);
    if (argc > 9 && strcmp(argv[1], "run") == 0)
        status = run(&the_world, argv + 2);
    else if (argc > 6 && strcmp(argv[1], "replay") == 0)
        status = replay(&the_world, argv + 2);
    else
        fprintf(stderr, "usage: see the top of powercut.c\n");
    return status;
}
