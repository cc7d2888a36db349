/* keys.c - the list of keys that a queue's items are encrypted with: ids and check values in meta.
 *
 * A check value tells whether somebody holds the same key; it does not tell the key. Who opens a
 * queue compares before it joins, so that a wrong key touches nothing. */
#include "internal.h"

static void copy(struct mpq_look *look, const struct mpq_meta_slot *meta)
{
    memcpy(look->uuid, meta->uuid, sizeof look->uuid);
    memcpy(look->codec, meta->options.codec, sizeof look->codec);
    look->keys_count = meta->keys_count;
    memcpy(look->keys, meta->keys, sizeof look->keys);
}

mpq_status mpq_look(const char *path, const struct mpq_io *io, struct mpq_look *look,
                    struct mpq_error *error)
{
    const struct mpq_open_args args = {.path = path, .io = io};
    struct mpq_queue *queue;
    struct mpq_meta_slot meta;
    mpq_status status = mpq_handle_open(&args, false, &queue, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_meta_read(queue, &meta, error);
    if (status == MPQ_OK)
        copy(look, &meta);
    atomic_store(&queue->closing, 1);
    mpq_free(queue);
    return status;
}

mpq_status mpq_keys_get(struct mpq_queue *queue, struct mpq_look *look, const struct mpq_call *call,
                        struct mpq_error *error)
{
    struct mpq_meta_slot meta;
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    status = mpq_meta_read(queue, &meta, error);
    if (status == MPQ_OK)
        copy(look, &meta);
    mpq_exit(queue);
    return status;
}

static bool same(const struct mpq_key *left, const struct mpq_key *right)
{
    return left->id == right->id && memcmp(left->check, right->check, sizeof left->check) == 0;
}

struct addition {
    const struct mpq_key *newest;
    struct mpq_key key;
    bool stale;
};

static void add_key(struct mpq_meta_slot *meta, void *arg)
{
    struct addition *addition = arg;
    const struct mpq_key *newest = meta->keys_count != 0 ? &meta->keys[meta->keys_count - 1] : NULL;
    addition->stale = (newest == NULL) != (addition->newest == NULL) ||
                      (newest != NULL && !same(newest, addition->newest));
    if (addition->stale)
        return;
    if (meta->keys_count == MPQ_KEYS)
        memmove(meta->keys, meta->keys + 1, --meta->keys_count * sizeof meta->keys[0]);
    meta->keys[meta->keys_count++] = addition->key;
}

mpq_status mpq_key_add(struct mpq_queue *queue, const struct mpq_key *newest,
                       const struct mpq_key *key, const struct mpq_call *call,
                       struct mpq_error *error)
{
    struct addition addition = {.newest = newest, .key = *key};
    mpq_status status = mpq_enter(queue, call, error);
    if (status != MPQ_OK)
        return status;
    addition.key.reserved = 0;
    addition.key.since = queue->io->wall_ns(queue->io);
    status = mpq_usable(queue, error);
    if (status == MPQ_OK)
        status = mpq_meta_update(queue, add_key, &addition, call, error);
    mpq_exit(queue);
    if (status == MPQ_OK && addition.stale)
        status =
            mpq_fail(error, MPQ_STALE, "%s: another process recorded a key meanwhile", queue->path);
    return status;
}
