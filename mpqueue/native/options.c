/* options.c - the options of a queue: defaults, bounds, agreement at opening, changes. */
#include <stdio.h>

#include "internal.h"

#define MIB (1024ULL * 1024ULL)

void mpq_options_default(struct mpq_options *options)
{
    memset(options, 0, sizeof *options);
    options->segment_size = 16 * MIB;
    options->max_segments = 64;
    options->keep_segments = 2;
    options->max_item = 64 * MIB;
    options->durability = MPQ_DURABILITY_GROUP;
    options->interval_items = 1000;
    options->interval_ns = 100 * MPQ_MS;
    options->ack_window = 32768;
    options->ack_linger_ns = 10 * MPQ_MS;
    options->max_members = 1024;
    options->file_mode = 0600;
}

#define BOUND(condition, text)                                                                     \
    if (!(condition))                                                                              \
    return mpq_fail(error, MPQ_INVALID, "%s", text)

mpq_status mpq_options_check(const struct mpq_options *o, struct mpq_error *error)
{
    BOUND(o->segment_size >= 64 * 1024 && o->segment_size <= 1024 * MIB &&
              o->segment_size % MPQ_PAGE == 0,
          "segment_size must be a multiple of 4096 from 64 KiB to 1 GiB");
    BOUND(o->max_segments >= 4 && o->max_segments <= MPQ_RING / 2,
          "max_segments must be from 4 to 8192");
    BOUND(o->keep_segments <= 64, "keep_segments must be from 0 to 64");
    BOUND(o->max_bytes == 0 || o->max_bytes >= MPQ_FRAME_EXTENT(0, 1),
          "max_bytes must be at least 64, the frame of the smallest item, or none");
    BOUND(o->max_item >= 1 && o->max_item <= 2048 * MIB, "max_item must be from 1 byte to 2 GiB");
    BOUND(o->durability <= MPQ_DURABILITY_SYNC, "durability must be sync, group, interval or none");
    BOUND(o->interval_items >= 1, "interval_items must be at least 1");
    BOUND(o->ack_window >= 64 && o->ack_window <= (1u << 22) && o->ack_window % 64 == 0,
          "ack_window must be a multiple of 64 from 64 to 4194304");
    BOUND(o->max_members >= 1 && o->max_members <= 65536, "max_members must be from 1 to 65536");
    BOUND(o->max_attempts <= 0xFFFF, "max_attempts must be from 1 to 65535, or none");
    BOUND(o->key_window <= (1u << 22), "key_window must be at most 4194304, or none");
    BOUND(o->backoff_count <= MPQ_BACKOFF_MAX, "backoff takes at most 16 steps");
    BOUND((o->file_mode & ~0777u) == 0 && (o->file_mode & 0600) == 0600,
          "mode must be permission bits with read and write for the owner");
    return MPQ_OK;
}

/* ---- at opening */

/* How people write the value of an option. */
enum looks { COUNT, BOUND, SECONDS, BOUND_SECONDS, OCTAL };

static void write_value(char out[24], enum looks looks, uint64_t value)
{
    if ((looks == BOUND || looks == BOUND_SECONDS) && value == 0)
        snprintf(out, 24, "none");
    else if (looks == SECONDS || looks == BOUND_SECONDS)
        snprintf(out, 24, "%g", (double)value / 1e9);
    else
        snprintf(out, 24, looks == OCTAL ? "0%llo" : "%llu", (unsigned long long)value);
}

static const char *codec_name(const struct mpq_options *options)
{
    return options->codec[0] != '\0' ? options->codec : "bytes";
}

static mpq_status disagree(struct mpq_queue *queue, const char *name, enum looks looks,
                           uint64_t now, uint64_t wanted, bool fixed, struct mpq_error *error)
{
    char has[24], asks[24];
    write_value(has, looks, now);
    write_value(asks, looks, wanted);
    return mpq_fail(error, MPQ_MISMATCH,
                    "%s: the queue has %s = %s, not %s; leave the option out, "
                    "or %s",
                    queue->path, name, has, asks,
                    fixed ? "init another queue: this one is fixed"
                          : "change it with `mpqueue set`");
}

mpq_status mpq_options_agree(struct mpq_queue *queue, uint32_t given,
                             const struct mpq_options *wanted, struct mpq_error *error)
{
    const struct mpq_options now = queue->created;
    const struct {
        uint32_t bit;
        const char *name;
        enum looks looks;
        bool fixed;
        uint64_t now, wanted;
    } numbers[] = {
#define NUMBER(bit, field, name, looks, fixed)                                                     \
    {MPQ_GIVEN_##bit, name, looks, fixed, now.field, wanted->field}
        NUMBER(SEGMENT_SIZE, segment_size, "segment_size", COUNT, true),
        NUMBER(CAPACITY, capacity, "capacity", BOUND, false),
        NUMBER(MAX_BYTES, max_bytes, "max_bytes", BOUND, false),
        NUMBER(MAX_ITEM, max_item, "max_item", COUNT, false),
        NUMBER(INTERVAL, interval_ns, "interval", SECONDS, false),
        NUMBER(ACK_LINGER, ack_linger_ns, "ack_linger", SECONDS, false),
        NUMBER(RETAIN, retain_ns, "retain", SECONDS, false),
        NUMBER(LEASE_TIMEOUT, lease_timeout_ns, "lease_timeout", BOUND_SECONDS, false),
        NUMBER(DEAD_RETAIN, dead_retain_ns, "dead_retain", BOUND_SECONDS, false),
        NUMBER(MAX_SEGMENTS, max_segments, "max_segments", COUNT, false),
        NUMBER(KEEP_SEGMENTS, keep_segments, "keep_segments", COUNT, false),
        NUMBER(INTERVAL_ITEMS, interval_items, "interval_items", COUNT, false),
        NUMBER(ACK_WINDOW, ack_window, "ack_window", COUNT, true),
        NUMBER(MAX_MEMBERS, max_members, "max_members", COUNT, true),
        NUMBER(MAX_ATTEMPTS, max_attempts, "max_attempts", BOUND, false),
        NUMBER(KEY_WINDOW, key_window, "key_window", BOUND, true),
        NUMBER(MODE, file_mode, "mode", OCTAL, true),
#undef NUMBER
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((given & numbers[i].bit) != 0 && numbers[i].now != numbers[i].wanted)
            return disagree(queue, numbers[i].name, numbers[i].looks, numbers[i].now,
                            numbers[i].wanted, numbers[i].fixed, error);
    if ((given & MPQ_GIVEN_DURABILITY) != 0 && wanted->durability != now.durability) {
        static const char *const names[] = {"none", "interval", "group", "sync"};
        return mpq_fail(
            error, MPQ_MISMATCH,
            "%s: the queue has durability = %s, not %s; leave the option out, or change "
            "it with `mpqueue set`",
            queue->path, names[now.durability & 3], names[wanted->durability & 3]);
    }
    if ((given & MPQ_GIVEN_BACKOFF) != 0 &&
        (wanted->backoff_count != now.backoff_count ||
         memcmp(wanted->backoff_ns, now.backoff_ns, sizeof now.backoff_ns) != 0))
        return mpq_fail(error, MPQ_MISMATCH,
                        "%s: the queue has another backoff list; leave the option out, or change "
                        "it with `mpqueue set`",
                        queue->path);
    if ((given & MPQ_GIVEN_CODEC) != 0 && strncmp(wanted->codec, now.codec, sizeof now.codec) != 0)
        return mpq_fail(
            error, MPQ_MISMATCH,
            "%s: the queue has codec = %.32s, not %.32s; leave the option out, or init another "
            "queue",
            queue->path, codec_name(&now), codec_name(wanted));
    return MPQ_OK;
}

/* ---- of an open queue */

void mpq_options_get(struct mpq_queue *queue, struct mpq_options *options)
{
    *options = queue->created;
    struct mpq_control *control = queue->control;
    if (control == NULL)
        return;
    options->capacity = mpq_load(control->capacity);
    options->max_bytes = mpq_load(control->max_bytes);
    options->max_item = mpq_load(control->max_item);
    options->interval_ns = mpq_load(control->interval_ns);
    options->ack_linger_ns = mpq_load(control->ack_linger_ns);
    options->retain_ns = mpq_load(control->retain_ns);
    options->lease_timeout_ns = mpq_load(control->lease_timeout_ns);
    options->dead_retain_ns = mpq_load(control->dead_retain_ns);
    options->max_segments = mpq_load(control->max_segments);
    options->keep_segments = mpq_load(control->keep_segments);
    options->interval_items = mpq_load(control->interval_items);
    options->durability = mpq_load(control->durability);
    options->max_attempts = mpq_load(control->max_attempts);
    options->backoff_count = mpq_load(control->backoff_count);
    for (unsigned i = 0; i < MPQ_BACKOFF_MAX; i++)
        options->backoff_ns[i] = mpq_load(control->backoff_ns[i]);
}

static void apply(uint32_t given, const struct mpq_options *from, struct mpq_options *to)
{
#define TAKE(bit, field)                                                                           \
    if ((given & (bit)) != 0)                                                                      \
    to->field = from->field
    TAKE(MPQ_GIVEN_CAPACITY, capacity);
    TAKE(MPQ_GIVEN_MAX_BYTES, max_bytes);
    TAKE(MPQ_GIVEN_MAX_ITEM, max_item);
    TAKE(MPQ_GIVEN_INTERVAL, interval_ns);
    TAKE(MPQ_GIVEN_ACK_LINGER, ack_linger_ns);
    TAKE(MPQ_GIVEN_RETAIN, retain_ns);
    TAKE(MPQ_GIVEN_LEASE_TIMEOUT, lease_timeout_ns);
    TAKE(MPQ_GIVEN_DEAD_RETAIN, dead_retain_ns);
    TAKE(MPQ_GIVEN_MAX_SEGMENTS, max_segments);
    TAKE(MPQ_GIVEN_KEEP_SEGMENTS, keep_segments);
    TAKE(MPQ_GIVEN_INTERVAL_ITEMS, interval_items);
    TAKE(MPQ_GIVEN_DURABILITY, durability);
    TAKE(MPQ_GIVEN_MAX_ATTEMPTS, max_attempts);
#undef TAKE
    if ((given & MPQ_GIVEN_BACKOFF) != 0) {
        to->backoff_count = from->backoff_count;
        memcpy(to->backoff_ns, from->backoff_ns, sizeof to->backoff_ns);
    }
}

struct set_options {
    uint32_t given;
    const struct mpq_options *options;
    struct mpq_options result;
};

static void set_options(struct mpq_meta_slot *meta, void *arg)
{
    struct set_options *set = arg;
    apply(set->given, set->options, &meta->options);
    set->result = meta->options;
}

mpq_status mpq_options_set(struct mpq_queue *queue, uint32_t given,
                           const struct mpq_options *options, const struct mpq_call *call,
                           struct mpq_error *error)
{
    const uint32_t fixed = MPQ_GIVEN_SEGMENT_SIZE | MPQ_GIVEN_ACK_WINDOW | MPQ_GIVEN_MAX_MEMBERS |
                           MPQ_GIVEN_CODEC | MPQ_GIVEN_MODE | MPQ_GIVEN_KEY_WINDOW;
    if ((given & fixed) != 0)
        return mpq_fail(
            error, MPQ_INVALID,
            "%s: segment_size, ack_window, max_members, key_window, codec and mode are fixed "
            "when a queue is made; make another queue",
            queue->path);
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    struct mpq_options checked;
    mpq_options_get(queue, &checked);
    apply(given, options, &checked);
    status = mpq_usable(queue, error);
    if (status == MPQ_OK)
        status = mpq_options_check(&checked, error);
    struct set_options set = {.given = given, .options = options};
    if (status == MPQ_OK)
        status = mpq_meta_update(queue, set_options, &set, call, error);
    if (status == MPQ_OK)
        status = mpq_lock_take(queue, call, error);
    if (status == MPQ_OK) {
        mpq_config_store(queue->control, &set.result);
        mpq_lock_release(queue);
        mpq_wake(queue, &queue->control->space_event, &queue->control->space_waiting);
        mpq_wake(queue, &queue->control->items_event, &queue->control->items_waiting);
        /* What was put under a policy that does not flush is visible under this one when it is. */
        if ((given & MPQ_GIVEN_DURABILITY) != 0 && mpq_visible_is_durable(queue))
            status = mpq_flush(queue, call, error);
    }
    mpq_exit(queue);
    return status;
}
