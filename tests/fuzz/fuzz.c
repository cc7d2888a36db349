/* fuzz.c - hostile files: no input makes the core crash, hang, leak or allocate without bound.
 *
 * An input is a list of edits to one of the golden images of tests/format, so that few bytes reach
 * deep: byte 0 says which image and what is done to it, then every 12 bytes are an edit. Many edits
 * renew the hashes around them: what no hash catches has to be caught by a check.
 *
 * The image is opened (or repaired first), drained, used for one more item, checkpointed, closed,
 * and opened once more, in memory (tests/crash/memory.h) under the address sanitizer. An opening
 * may be refused; nothing may be left open or allocated.
 *
 * With libFuzzer: see Makefile. Else (FUZZ_ALONE): fuzz SEED RUNS, or fuzz FILE... to replay. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"
#include "memory.h"

#define EDIT 12
#define EDITS 40
#define PLACES 512
#define STEPS 20000
#define LARGEST (32u << 20) /* bytes of a file; more is a full disk */

static struct memory memory_world;
static int (*world_allocate)(mpq_io *io, int fd, uint64_t bytes);

struct image {
    struct {
        char name[64];
        uint8_t *data;
        uint64_t bytes;
    } files[32];
    int count;
};
static struct image images[16];
static int image_count;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void broken(const char *what, uint64_t detail)
{
    fprintf(stderr, "FAILED %s (%llu)\n", what, (unsigned long long)detail);
    abort();
}

static void on_complaint(const char *what)
{
    broken(what, 0);
}

/* ---- images */

static void load_file(struct image *image, const char *folder, const char *name)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (file == NULL || fstat(fileno(file), &info) != 0 || image->count == 32)
        broken(path, 0);
    snprintf(image->files[image->count].name, 64, "%.63s", name);
    image->files[image->count].bytes = (uint64_t)info.st_size;
    image->files[image->count].data = malloc((size_t)info.st_size + 1);
    if (fread(image->files[image->count].data, 1, (size_t)info.st_size, file) !=
        (size_t)info.st_size)
        broken(path, 1);
    image->count++;
    fclose(file);
}

static int wanted(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void load(const char *root)
{
    struct dirent **cases, **files;
    const int count = scandir(root, &cases, wanted, alphasort);
    if (count <= 0 || count > 16)
        broken("no images; run make", 0);
    for (int i = 0; i < count; i++) {
        char folder[512];
        snprintf(folder, sizeof folder, "%s/%s", root, cases[i]->d_name);
        const int inside = scandir(folder, &files, wanted, alphasort);
        for (int k = 0; k < inside; k++)
            if (strcmp(files[k]->d_name, "corrupt") != 0)
                load_file(&images[image_count], folder, files[k]->d_name);
        for (int k = 0; k < inside; k++)
            free(files[k]);
        free(files);
        free(cases[i]);
        image_count++;
    }
    free(cases);
}

static int allocate(mpq_io *io, int fd, uint64_t bytes)
{
    if (bytes > LARGEST) {
        errno = ENOSPC;
        return -1;
    }
    return world_allocate(io, fd, bytes);
}

/* ---- edits */

static uint64_t hash_seed(void)
{
    const struct memory_file *meta = memory_find(&memory_world, "meta");
    const struct mpq_meta_slot *slot = meta == NULL ? NULL : (const void *)meta->data;
    return slot == NULL || meta->bytes < MPQ_PAGE ? 0 : slot->hash_seed;
}

static uint64_t window_bytes(void)
{
    const struct memory_file *meta = memory_find(&memory_world, "meta");
    const struct mpq_meta_slot *slot = meta == NULL ? NULL : (const void *)meta->data;
    const uint64_t window = slot == NULL || meta->bytes < MPQ_PAGE ? 64 : slot->options.ack_window;
    return MPQ_CURSOR_SLOT_BYTES(window);
}

static uint64_t generation_of(const struct memory_file *file)
{
    return strncmp(file->name, "segment-", 8) == 0 ? strtoull(file->name + 8, NULL, 10) : 0;
}

/* A frame whose header holds, as the walks of the core want it. */
static bool is_frame(const struct memory_file *file, uint64_t at)
{
    const struct mpq_frame *frame = (const void *)(file->data + at);
    return at >= MPQ_SEGMENT_FIRST && at % MPQ_FRAME_ALIGN == 0 &&
           at + MPQ_FRAME_HEADER <= file->bytes &&
           mpq_xxh64(&frame->seq, 24, mpq_header_seed(hash_seed(), generation_of(file), at)) ==
               frame->header_hash;
}

static void renew_frame(const struct memory_file *file, uint64_t at)
{
    struct mpq_frame *frame = (void *)(file->data + at);
    const uint64_t seed = mpq_header_seed(hash_seed(), generation_of(file), at);
    const uint64_t body = (uint64_t)frame->ext_length + frame->length;
    frame->header_hash = mpq_xxh64(&frame->seq, 24, seed);
    if (body <= file->bytes - at - MPQ_FRAME_HEADER)
        frame->body_hash =
            mpq_xxh64(file->data + at + MPQ_FRAME_HEADER, body, mpq_body_seed(seed, frame->seq));
}

static void renew_cursor(const struct memory_file *file, uint64_t at)
{
    const uint64_t bytes = window_bytes(), start = at / bytes * bytes;
    if (start + bytes > file->bytes)
        return;
    struct mpq_cursor_slot *slot = (void *)(file->data + start);
    slot->hash = 0;
    slot->hash = mpq_xxh64(slot, bytes, hash_seed());
}

/* The hashes of the records that hold the byte at `at`. */
static void renew(const struct memory_file *file, uint64_t at)
{
    const uint64_t page = at & ~(uint64_t)(MPQ_PAGE - 1);
    if (page + MPQ_PAGE > file->bytes)
        return;
    if (strcmp(file->name, "meta") == 0) {
        struct mpq_meta_slot *slot = (void *)(file->data + page);
        slot->hash = mpq_xxh64(slot, offsetof(struct mpq_meta_slot, hash), 0);
    } else if (strcmp(file->name, "cursor") == 0) {
        renew_cursor(file, at);
    } else if (generation_of(file) != 0 && page < MPQ_SEGMENT_ROLL_A) {
        struct mpq_segment_header *header = (void *)(file->data + page);
        header->hash = mpq_xxh64(header, offsetof(struct mpq_segment_header, hash), hash_seed());
    } else if (generation_of(file) != 0 && page < MPQ_SEGMENT_FIRST) {
        struct mpq_roll *roll = (void *)(file->data + page);
        roll->hash = mpq_xxh64(roll, offsetof(struct mpq_roll, hash),
                               hash_seed() + generation_of(file) * MPQ_SEED_GENERATION);
    }
}

/* The n-th place of interest: the beginning of a record or frame. */
static uint64_t place(const struct memory_file *file, uint64_t n)
{
    static uint64_t places[PLACES];
    uint64_t count = 0;
    if (generation_of(file) == 0)
        return strcmp(file->name, "cursor") == 0 ? n % 2 * window_bytes() : n % 16 * MPQ_PAGE;
    for (uint64_t at = 0; at < MPQ_SEGMENT_FIRST; at += MPQ_PAGE)
        places[count++] = at;
    for (uint64_t at = MPQ_SEGMENT_FIRST; at < file->bytes && count < PLACES; at += MPQ_FRAME_ALIGN)
        if (is_frame(file, at))
            places[count++] = at;
    return places[n % count];
}

static void change(struct memory_file *file, unsigned kind, uint64_t at, uint32_t value,
                   uint64_t length)
{
    const uint64_t room = file->bytes - at;
    const int64_t word = (int32_t)value;
    length = length < room ? length : room;
    switch (kind) {
    case 0: memcpy(file->data + at, &word, room < 8 ? room : 8); break;
    case 1: file->data[at] ^= (uint8_t)(value | 1); break;
    case 2: memcpy(file->data + at, &value, room < 4 ? room : 4); break;
    case 3: memset(file->data + at, (int)value, length); break;
    case 4:
        if (value % file->bytes + length <= file->bytes)
            memmove(file->data + at, file->data + value % file->bytes, length);
        break;
    case 5: memory_resize(&memory_world, file, at); break;
    case 6: memory_resize(&memory_world, file, file->bytes + length); break;
    default: break;
    }
}

static void rename_over(struct memory_file *file, const char *name)
{
    if (strcmp(file->name, name) != 0)
        (void)memory_put(&memory_world, name, file->data, file->bytes);
}

static void edit(const struct image *image, const uint8_t *bytes)
{
    uint32_t where, value;
    memcpy(&where, bytes + 2, 4);
    memcpy(&value, bytes + 6, 4);
    const uint64_t length = (uint64_t)bytes[10] | (uint64_t)bytes[11] << 8;
    struct memory_file *file =
        memory_find(&memory_world, image->files[bytes[1] % image->count].name);
    const unsigned kind = bytes[0] % 16;
    if (file == NULL || file->bytes == 0)
        return;
    if (kind == 14) {
        memory_drop(&memory_world, file->name);
        return;
    }
    if (kind == 15) {
        rename_over(file, image->files[value % (uint32_t)image->count].name);
        return;
    }
    uint64_t at = (bytes[0] & 0x40) != 0 ? place(file, where >> 8) + (where & 0xff) : where;
    at %= file->bytes;
    const uint64_t frame = at & ~(uint64_t)(MPQ_FRAME_ALIGN - 1);
    const bool here = is_frame(file, frame);
    const bool before = frame >= MPQ_FRAME_ALIGN && is_frame(file, frame - MPQ_FRAME_ALIGN);
    change(file, kind % 8, at, value, length);
    if ((bytes[0] & 0x80) == 0 || at >= file->bytes)
        return;
    renew(file, at);
    if (here && frame + MPQ_FRAME_HEADER <= file->bytes)
        renew_frame(file, frame);
    if (before && frame + MPQ_FRAME_ALIGN <= file->bytes)
        renew_frame(file, frame - MPQ_FRAME_ALIGN);
}

/* ---- use */

static struct mpq_call soon(void)
{
    return (struct mpq_call){memory_world.clock_ns + 1000 * MPQ_MS, NULL, NULL};
}

static void expect(mpq_status status, const char *what, const struct mpq_error *error)
{
    switch (status) {
    case MPQ_OK:
    case MPQ_FLUSH:
    case MPQ_EMPTY:
    case MPQ_AGAIN:
    case MPQ_TIMEOUT:
    case MPQ_FULL:
    case MPQ_SEALED:
    case MPQ_TOO_LARGE:
    case MPQ_OUT_OF_RANGE:
    case MPQ_CORRUPT:
    case MPQ_POISONED:
    case MPQ_NO_SPACE:
    case MPQ_NOT_A_QUEUE:
    case MPQ_REMOVED:
    case MPQ_FORMAT:
    case MPQ_SYSTEM:
    case MPQ_MEMORY: return;
    default: fprintf(stderr, "%s: %s\n", what, error->message); broken(what, status);
    }
}

static void drain(struct mpq_consumer *consumer)
{
    struct mpq_error error;
    const struct mpq_call call = soon();
    uint64_t last = 0;
    for (int step = 0; step < STEPS; step++) {
        struct mpq_item item;
        mpq_status status = mpq_reserve_try(consumer, &item, &error);
        expect(status, "reserve", &error);
        if (status == MPQ_OK) {
            uint64_t sum = 0;
            for (uint64_t i = 0; i < item.length; i++)
                sum += item.body[i]; /* all of it can be read */
            if (sum > item.length * 255 || item.seq <= last)
                broken("out of order", item.seq);
            last = item.seq;
            mpq_segment_release(item.segment);
            expect(mpq_ack(consumer, item.seq, item.token, &error), "ack", &error);
        } else if (status == MPQ_EMPTY || status == MPQ_AGAIN) {
            status = mpq_reserve_wait(consumer, &call, &error);
            expect(status, "wait", &error);
            if (status != MPQ_OK)
                return;
        } else if (status != MPQ_CORRUPT) {
            return;
        }
    }
    broken("a drain without end", last);
}

static void use(void)
{
    struct mpq_open_args args = {.path = MEMORY_ROOT, .io = &memory_world.io};
    struct mpq_queue *queue = NULL;
    struct mpq_consumer *consumer = NULL;
    struct mpq_error error;
    mpq_options_default(&args.options);
    struct mpq_call call = soon();
    mpq_status status = mpq_open(&args, &call, &queue, &error);
    expect(status, "open", &error);
    if (status != MPQ_OK)
        return;
    status = mpq_consumer_open(queue, &call, &consumer, &error);
    expect(status, "consumer", &error);
    if (status == MPQ_OK) {
        const struct mpq_item_in in = {.body = "next", .length = 4};
        uint64_t seq, ticket = 0;
        drain(consumer);
        call = soon();
        status = mpq_put(queue, &in, &call, &seq, &ticket, &error);
        expect(status, "put", &error);
        if (status == MPQ_FLUSH)
            expect(mpq_put_flush(queue, ticket, &call, &error), "flush", &error);
        drain(consumer);
        call = soon();
        expect(mpq_checkpoint(consumer, &call, &error), "checkpoint", &error);
        expect(mpq_consumer_close(consumer, &error), "leaving", &error);
        mpq_consumer_free(consumer);
    }
    struct mpq_stats stats;
    mpq_stats_get(queue, &stats);
    call = soon();
    expect(mpq_close(queue, &call, &error), "close", &error);
    mpq_free(queue);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *root = getenv("MPQ_FUZZ_IMAGES");
    memory_complaint = on_complaint;
    load(root != NULL ? root : IMAGES);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct memory *world = &memory_world;
    const struct image *image = &images[(data[0] & 15) % image_count];
    struct mpq_error error;
    memory_start(world, 1);
    world_allocate = world->io.allocate;
    world->io.allocate = allocate;
    world->directories[MEMORY_TOP] = true;
    for (int i = 0; i < image->count; i++)
        (void)memory_put(world, image->files[i].name, image->files[i].data, image->files[i].bytes);
    if ((data[0] & 0x80) != 0)
        use(); /* its control file is this world's now, and is trusted */
    for (size_t i = 0; i < EDITS && 1 + (i + 1) * EDIT <= size; i++)
        edit(image, data + 1 + i * EDIT);
    if ((data[0] & 0x40) != 0)
        snprintf(world->boot_id, sizeof world->boot_id, "another");
    if ((data[0] & 0x20) != 0) {
        struct mpq_repair report;
        struct mpq_call call = soon();
        expect(mpq_repair_queue(MEMORY_ROOT, &world->io, true, &call, &report, &error),
               "dry repair", &error);
        call = soon();
        expect(mpq_repair_queue(MEMORY_ROOT, &world->io, false, &call, &report, &error), "repair",
               &error);
    }
    use();
    use();
    if (memory_leaks(world) != 0)
        broken("something stays open", memory_leaks(world));
    memory_end(world);
    return 0;
}

#ifdef FUZZ_ALONE
static uint64_t state;

static uint64_t dice(void)
{
    state += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static int replay(const char *path)
{
    uint8_t input[1 + EDITS * EDIT];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return 2;
    const size_t size = fread(input, 1, sizeof input, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(input, size);
}

int main(int argc, char **argv)
{
    LLVMFuzzerInitialize(&argc, &argv);
    if (argc != 3 || strspn(argv[1], "0123456789") != strlen(argv[1])) {
        for (int i = 1; i < argc; i++)
            if (replay(argv[i]) != 0)
                return 2;
        return 0;
    }
    const uint64_t seed = strtoull(argv[1], NULL, 10), runs = strtoull(argv[2], NULL, 10);
    char left[64]; /* it stays when an input ends the program */
    snprintf(left, sizeof left, "crash-%llu", (unsigned long long)seed);
    for (uint64_t run = 0; run < runs; run++) {
        uint8_t input[1 + EDITS * EDIT];
        state = seed + run * 1000003;
        const size_t size = 1 + dice() % 6 * EDIT;
        for (size_t i = 0; i < size; i++)
            input[i] = (uint8_t)(dice() >> 24);
        FILE *file = fopen(left, "wb");
        if (file == NULL || fwrite(input, 1, size, file) != size || fclose(file) != 0)
            return 2;
        (void)LLVMFuzzerTestOneInput(input, size);
    }
    (void)remove(left);
    printf("fuzz: seed %llu, %llu inputs, 0 violations\n", (unsigned long long)seed,
           (unsigned long long)runs);
    return 0;
}
#endif
