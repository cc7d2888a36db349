/* module_queue.c - the Queue type: opening, closing, options, numbers. Putting is module_put.c. */
#include "module.h"

/* ---- handles -------------------------------------------------------------------------------- */

void handle_drop(struct handle *handle)
{
    if (!handle || --handle->references)
        return;
    /* Nobody can be told of a failed flush here; the core has latched it for everyone. */
    struct mpq_call call = {.deadline_ns = FOREVER};
    PyThreadState *thread = PyEval_SaveThread();
    (void)mpq_close(handle->queue, &call, NULL);
    mpq_free(handle->queue);
    PyEval_RestoreThread(thread);
    PyMem_Free(handle);
}

/* For what can be answered after close too. */
static struct handle *handle_of(struct queue_object *queue)
{
    if (LIKELY(queue->handle != NULL))
        return queue->handle;
    struct mpq_error error = {.message = "this queue was never opened", .pid = -1};
    error_raise(queue->state, MPQ_CLOSED, &error);
    return NULL;
}

struct handle *handle_open(struct queue_object *queue)
{
    struct handle *handle = handle_of(queue);
    if (LIKELY(handle && !handle->closing))
        return handle;
    if (handle) {
        struct mpq_error error = {.pid = -1};
        (void)snprintf(error.message, sizeof error.message,
                       "%s: this handle was closed; open the queue again", mpq_path(handle->queue));
        error_raise(queue->state, MPQ_CLOSED, &error);
    }
    return NULL;
}

void events_report(struct queue_object *queue)
{
    struct mpq_event_info info;
    if (queue->handle->closing || PyErr_Occurred())
        return;
    uint32_t events = mpq_events_take(queue->handle->queue, &info);
    if (LIKELY(!events))
        return;
    PyObject *done = PyObject_CallMethod((PyObject *)queue, "_report_events", "IKKKKKs",
                                         (unsigned)events, (unsigned long long)info.lost_items,
                                         (unsigned long long)info.lost_bytes,
                                         (unsigned long long)info.lock_holder_pid,
                                         (unsigned long long)info.torn_items,
                                         (unsigned long long)info.recovered_at_most,
                                         mpq_status_name(info.dead_status));
    if (!done)
        PyErr_WriteUnraisable((PyObject *)queue);
    Py_XDECREF(done);
}

/* ---- options -------------------------------------------------------------------------------- */

struct field {
    const char *name;
    size_t offset;
    unsigned size;
    uint32_t given; /* MPQ_GIVEN_*, for options */
};

#define OPTION(name, bit)                                                                          \
    {#name, offsetof(struct mpq_options, name), sizeof(((struct mpq_options *)0)->name),           \
     MPQ_GIVEN_##bit}

static const struct field option_fields[] = {
    OPTION(segment_size, SEGMENT_SIZE),
    OPTION(capacity, CAPACITY),
    OPTION(max_bytes, MAX_BYTES),
    OPTION(max_item, MAX_ITEM),
    OPTION(interval_ns, INTERVAL),
    OPTION(ack_linger_ns, ACK_LINGER),
    OPTION(retain_ns, RETAIN),
    OPTION(lease_timeout_ns, LEASE_TIMEOUT),
    OPTION(dead_retain_ns, DEAD_RETAIN),
    OPTION(max_segments, MAX_SEGMENTS),
    OPTION(keep_segments, KEEP_SEGMENTS),
    OPTION(interval_items, INTERVAL_ITEMS),
    OPTION(ack_window, ACK_WINDOW),
    OPTION(max_members, MAX_MEMBERS),
    OPTION(durability, DURABILITY),
    OPTION(key_window, KEY_WINDOW),
    OPTION(max_attempts, MAX_ATTEMPTS),
    OPTION(file_mode, MODE),
};
#define OPTION_FIELDS (sizeof option_fields / sizeof option_fields[0])

static PyObject *field_get(const struct field *field, const void *from)
{
    uint64_t wide;
    uint32_t narrow;
    if (field->size == sizeof wide) {
        memcpy(&wide, (const char *)from + field->offset, sizeof wide);
        return PyLong_FromUnsignedLongLong(wide);
    }
    memcpy(&narrow, (const char *)from + field->offset, sizeof narrow);
    return PyLong_FromUnsignedLong(narrow);
}

static int field_set(const struct field *field, void *to, PyObject *value)
{
    uint64_t wide = PyLong_AsUnsignedLongLong(value);
    if (wide == UINT64_MAX && PyErr_Occurred())
        return -1;
    uint32_t narrow = (uint32_t)wide;
    if (field->size == sizeof narrow && narrow != wide) {
        PyErr_Format(PyExc_ValueError, "option %s is out of range", field->name);
        return -1;
    }
    if (field->size == sizeof narrow)
        memcpy((char *)to + field->offset, &narrow, sizeof narrow);
    else
        memcpy((char *)to + field->offset, &wide, sizeof wide);
    return 0;
}

static int backoff_set(struct mpq_options *options, PyObject *steps)
{
    Py_ssize_t count = PyTuple_Size(steps);
    if (count < 0)
        return -1;
    if (count > (Py_ssize_t)MPQ_BACKOFF_MAX) {
        PyErr_Format(PyExc_ValueError, "backoff has at most %d steps", (int)MPQ_BACKOFF_MAX);
        return -1;
    }
    options->backoff_count = (uint32_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        options->backoff_ns[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(steps, i));
        if (options->backoff_ns[i] == UINT64_MAX && PyErr_Occurred())
            return -1;
    }
    return 0;
}

static int codec_set(struct mpq_options *options, PyObject *name)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text)
        return -1;
    if ((size_t)length >= sizeof options->codec || strlen(text) != (size_t)length) {
        PyErr_Format(PyExc_ValueError, "the name of a codec has at most %d bytes and no NUL: %R",
                     (int)sizeof options->codec - 1, name);
        return -1;
    }
    memset(options->codec, 0, sizeof options->codec);
    memcpy(options->codec, text, (size_t)length);
    return 0;
}

static int options_set(PyObject *dict, struct mpq_options *options, uint32_t *given)
{
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &at, &key, &value)) {
        size_t i = 0;
        if (!PyUnicode_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "names of options are str");
            return -1;
        }
        if (PyUnicode_CompareWithASCIIString(key, "backoff_ns") == 0) {
            if (backoff_set(options, value) < 0)
                return -1;
            *given |= MPQ_GIVEN_BACKOFF;
            continue;
        }
        if (PyUnicode_CompareWithASCIIString(key, "codec") == 0) {
            if (codec_set(options, value) < 0)
                return -1;
            *given |= MPQ_GIVEN_CODEC;
            continue;
        }
        while (i < OPTION_FIELDS && PyUnicode_CompareWithASCIIString(key, option_fields[i].name))
            i++;
        if (i == OPTION_FIELDS) {
            PyErr_Format(PyExc_TypeError, "no option is called '%U'", key);
            return -1;
        }
        if (field_set(&option_fields[i], options, value) < 0)
            return -1;
        *given |= option_fields[i].given;
    }
    return 0;
}

static int dict_add(PyObject *dict, const char *name, PyObject *value)
{
    int failed = !value || PyDict_SetItemString(dict, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

static PyObject *fields_dict(const struct field *fields, size_t count, const void *from)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < count; i++)
        if (dict_add(dict, fields[i].name, field_get(&fields[i], from)) < 0)
            Py_CLEAR(dict);
    return dict;
}

static PyObject *numbers_tuple(const uint64_t *numbers, size_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
        if (!number || PyTuple_SetItem(tuple, (Py_ssize_t)i, number) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* What was read out of a control that was taken away or overwritten is not shown. */
static bool usable(struct state *state, struct handle *handle)
{
    struct mpq_error error;
    if (handle->closing)
        return true;
    mpq_status status = mpq_usable(handle->queue, &error);
    if (status != MPQ_OK)
        (void)error_raise(state, status, &error);
    return status == MPQ_OK;
}

static PyObject *queue_options(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct handle *handle = handle_of((struct queue_object *)object);
    if (!handle)
        return NULL;
    struct mpq_options options = handle->last_options;
    if (!handle->closing)
        mpq_options_get(handle->queue, &options);
    if (!usable(((struct queue_object *)object)->state, handle))
        return NULL;
    PyObject *dict = fields_dict(option_fields, OPTION_FIELDS, &options);
    size_t steps =
        options.backoff_count < MPQ_BACKOFF_MAX ? options.backoff_count : MPQ_BACKOFF_MAX;
    Py_ssize_t length = (Py_ssize_t)strnlen(options.codec, sizeof options.codec);
    if (dict &&
        (dict_add(dict, "backoff_ns", numbers_tuple(options.backoff_ns, steps)) < 0 ||
         dict_add(dict, "codec", PyUnicode_DecodeUTF8(options.codec, length, "replace")) < 0))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *queue_set_options(PyObject *object, PyObject *dict)
{
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    if (!handle)
        return NULL;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "options are a dict");
        return NULL;
    }
    struct mpq_options options;
    struct mpq_error error;
    uint32_t given = 0;
    mpq_options_default(&options);
    if (options_set(dict, &options, &given) < 0)
        return NULL;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status = mpq_options_set(handle->queue, given, &options, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

/* ---- numbers -------------------------------------------------------------------------------- */

#define STAT(name)                                                                                 \
    {#name, offsetof(struct mpq_stats, name), sizeof(((struct mpq_stats *)0)->name), 0}

static const struct field stats_fields[] = {
    STAT(enqueued_items),
    STAT(enqueued_bytes),
    STAT(delivered_items),
    STAT(redelivered_items),
    STAT(acked_items),
    STAT(nacked_items),
    STAT(expired_leases),
    STAT(dead_items),
    STAT(gap_items),
    STAT(skipped_items),
    STAT(lost_items),
    STAT(lost_bytes),
    STAT(lost_segments),
    STAT(torn_items),
    STAT(dropped_items),
    STAT(duplicate_items),
    STAT(keys_remembered),
    STAT(keys_damaged),
    STAT(settled_items),
    STAT(settled_bytes),
    STAT(depth),
    STAT(backlog_bytes),
    STAT(ready_items),
    STAT(reserved_items),
    STAT(reserved_bytes),
    STAT(scheduled_items),
    STAT(unsynced_items),
    STAT(unsynced_bytes),
    STAT(floor),
    STAT(next_seq),
    STAT(read_seq),
    STAT(epoch),
    STAT(floor_lag_items),
    STAT(oldest_age_ns),
    STAT(segments),
    STAT(kept_segments),
    STAT(disk_bytes),
    STAT(capacity_bytes),
    STAT(oldest_generation),
    STAT(tail_generation),
    STAT(segments_made),
    STAT(segments_reused),
    STAT(segments_removed),
    STAT(unreclaimed),
    STAT(flushes),
    STAT(flush_ns),
    STAT(full),
    STAT(waits),
    STAT(lock_waits),
    STAT(lock_wait_max_ns),
    STAT(takeovers),
    STAT(cursor_writes),
    STAT(loss_events),
    STAT(corrupt_saved),
    STAT(corrupt_skipped),
    STAT(members),
    STAT(members_alive),
    STAT(consumer_attached),
    STAT(consumer_pid),
    STAT(blocked_on_claim_pid),
    STAT(blocked_on_window),
    STAT(recoveries),
    STAT(recovered_at_most),
    STAT(sealed),
    STAT(poison_errno),
    STAT(poison_stage),
    STAT(weak),
    STAT(fault),
    STAT(durability),
};

/* A closed handle keeps the snapshot that was taken when close began. */
static void stats_take(struct handle *handle, struct mpq_stats *stats)
{
    if (handle->closing)
        *stats = handle->last;
    else
        mpq_stats_get(handle->queue, stats);
}

static PyObject *queue_stats(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct handle *handle = handle_of((struct queue_object *)object);
    if (!handle || handle_join(handle) < 0)
        return NULL;
    struct mpq_stats stats;
    stats_take(handle, &stats);
    if (!usable(((struct queue_object *)object)->state, handle))
        return NULL;
    PyObject *dict =
        fields_dict(stats_fields, sizeof stats_fields / sizeof stats_fields[0], &stats);
    if (dict &&
        dict_add(dict, "flush_histogram", numbers_tuple(stats.flush_histogram, MPQ_HISTOGRAM)) < 0)
        Py_CLEAR(dict);
    return dict;
}

static Py_ssize_t queue_length(PyObject *object)
{
    struct handle *handle = handle_of((struct queue_object *)object);
    if (!handle || handle_join(handle) < 0)
        return -1;
    const uint64_t depth = handle->closing ? handle->last.depth : mpq_depth(handle->queue);
    return usable(((struct queue_object *)object)->state, handle) ? (Py_ssize_t)depth : -1;
}

static int queue_truth(PyObject *object)
{
    (void)object;
    return 1;
}

static PyObject *queue_members(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct handle *handle = handle_open((struct queue_object *)object);
    if (!handle || handle_join(handle) < 0 || !handle_open((struct queue_object *)object))
        return NULL;
    uint32_t room = 64, count;
    struct mpq_member_info *infos = NULL;
    for (;;) { /* members may join between the calls */
        struct mpq_member_info *larger = PyMem_Realloc(infos, room * sizeof *infos);
        if (!larger) {
            PyMem_Free(infos);
            return PyErr_NoMemory();
        }
        infos = larger;
        count = mpq_members(handle->queue, infos, room);
        if (count <= room)
            break;
        room = count + 16;
    }
    PyObject *members =
        usable(((struct queue_object *)object)->state, handle) ? PyList_New(0) : NULL;
    for (uint32_t i = 0; members && i < count; i++) {
        const struct mpq_member_info *info = &infos[i];
        PyObject *command =
            PyUnicode_DecodeLocaleAndSize(info->command,
                                          (Py_ssize_t)strnlen(info->command, sizeof info->command),
                                          "surrogateescape");
        PyObject *member =
            command ? Py_BuildValue("(KKKNINNKKKKKKKKKKKK)", (unsigned long long)info->incarnation,
                                    (unsigned long long)info->pid,
                                    (unsigned long long)info->pid_namespace, command,
                                    (unsigned)info->role, PyBool_FromLong((long)info->alive),
                                    PyBool_FromLong((long)info->weak),
                                    (unsigned long long)info->start_time,
                                    (unsigned long long)info->joined_at,
                                    (unsigned long long)info->enqueued_items,
                                    (unsigned long long)info->enqueued_bytes,
                                    (unsigned long long)info->unsynced_bytes,
                                    (unsigned long long)info->full,
                                    (unsigned long long)info->dropped_items,
                                    (unsigned long long)info->waits,
                                    (unsigned long long)info->lock_waits,
                                    (unsigned long long)info->lock_wait_max_ns,
                                    (unsigned long long)info->flushes,
                                    (unsigned long long)info->flush_ns)
                    : NULL;
        if (!member || PyList_Append(members, member) < 0)
            Py_CLEAR(members);
        Py_XDECREF(member);
    }
    PyMem_Free(infos);
    return members;
}

/* ---- acts ----------------------------------------------------------------------------------- */

static PyObject *queue_still_there(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    struct mpq_error error;
    if (!handle)
        return NULL;
    mpq_status status = mpq_still_there(handle->queue, &error);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

static PyObject *queue_flush(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    if (!handle)
        return NULL;
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status = mpq_flush(handle->queue, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    events_report(self);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

static PyObject *queue_seal(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    struct queue_object *self = (struct queue_object *)object;
    PyObject *given[ARGUMENTS_MAX];
    bool undo = false;
    struct handle *handle = handle_open(self);
    if (!handle || arguments_parse(self->state, SIGNATURE_SEAL, args, nargs, kwnames, given) < 0 ||
        flag_parse(given[0], &undo) < 0)
        return NULL;
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status = mpq_seal(handle->queue, undo, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

static PyObject *queue_close(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = self->handle;
    if (!handle)
        Py_RETURN_NONE;
    events_report(self);
    if (!handle->closing) {
        mpq_stats_get(handle->queue, &handle->last);
        mpq_options_get(handle->queue, &handle->last_options);
        handle->closing = true;
    }
    if (waiter_inside(handle, NULL)) {
        handle->close_later = !handle->close_runs;
        Py_RETURN_NONE;
    }
    handle->close_runs = true;
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status = mpq_close(handle->queue, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    handle->close_runs = false;
    if (status != MPQ_OK && status != MPQ_FORKED)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

static PyObject *queue_open_gate(PyObject *object, PyObject *args)
{
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    const char *name;
    unsigned long long device, inode;
    if (!handle || !PyArg_ParseTuple(args, "zKK:_open_gate", &name, &device, &inode))
        return NULL;
    mpq_open_gate(handle->queue, name);
    mpq_gate_identity(handle->queue, device, inode);
    events_report(self);
    Py_RETURN_NONE;
}

static PyObject *queue_report_events(PyObject *object, PyObject *args)
{
    (void)object;
    (void)args;
    Py_RETURN_NONE;
}

/* ---- attributes ----------------------------------------------------------------------------- */

/* closure: the offset of the hook */
static PyObject *queue_get_hook(PyObject *object, void *closure)
{
    PyObject *hook = *(PyObject **)((char *)object + (size_t)closure);
    return Py_NewRef(hook ? hook : Py_None);
}

static int queue_set_hook(PyObject *object, PyObject *value, void *closure)
{
    PyObject **hook = (PyObject **)((char *)object + (size_t)closure), *old = *hook;
    *hook = value && value != Py_None ? Py_NewRef(value) : NULL;
    Py_XDECREF(old);
    return 0;
}

static PyObject *queue_get_uuid(PyObject *object, void *closure)
{
    (void)closure;
    struct handle *handle = handle_of((struct queue_object *)object);
    if (!handle)
        return NULL;
    char text[33];
    uuid_text(mpq_uuid(handle->queue), text);
    return PyUnicode_FromString(text);
}

static PyObject *queue_get_incarnation(PyObject *object, void *closure)
{
    (void)closure;
    struct handle *handle = handle_of((struct queue_object *)object);
    return handle ? PyLong_FromUnsignedLongLong(mpq_incarnation(handle->queue)) : NULL;
}

static PyObject *queue_get_path(PyObject *object, void *closure)
{
    (void)closure;
    struct handle *handle = handle_of((struct queue_object *)object);
    return handle ? PyUnicode_DecodeFSDefault(mpq_path(handle->queue)) : NULL;
}

static PyObject *queue_get_gate_name(PyObject *object, void *closure)
{
    (void)closure;
    struct handle *handle = handle_of((struct queue_object *)object);
    return handle ? PyUnicode_FromString(mpq_gate_name(handle->queue)) : NULL;
}

static PyObject *queue_get_closed(PyObject *object, void *closure)
{
    (void)closure;
    struct handle *handle = ((struct queue_object *)object)->handle;
    return PyBool_FromLong(!handle || handle->closing);
}

/* ---- type ----------------------------------------------------------------------------------- */

static PyObject *queue_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    struct state *state = state_of(type);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct queue_object *self = state ? (struct queue_object *)allocate(type, 0) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

static int queue_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"path", "create", "options", "allow_filesystem", NULL};
    struct queue_object *self = (struct queue_object *)object;
    struct mpq_open_args open = {.create = true};
    PyObject *options = NULL;
    int create = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y|pO!z:Queue", names, &open.path, &create,
                                     &PyDict_Type, &options, &open.allow_filesystem))
        return -1;
    if (self->handle) {
        PyErr_SetString(PyExc_TypeError, "this queue is already open");
        return -1;
    }
    open.create = create != 0;
    mpq_options_default(&open.options);
    if (options && options_set(options, &open.options, &open.given) < 0)
        return -1;
    struct handle *handle = PyMem_Calloc(1, sizeof *handle);
    if (!handle) {
        PyErr_NoMemory();
        return -1;
    }
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, NULL, NULL, FOREVER);
    mpq_status status = mpq_open(&open, &waiter.call, &handle->queue, &error);
    (void)waiter_end(&waiter, status); /* it waits before it opens anything, only */
    if (status != MPQ_OK) {
        PyMem_Free(handle);
        error_raise(self->state, status, &error);
        return -1;
    }
    handle->references = 1;
    handle->state = self->state;
    self->handle = handle;
    events_report(self);
    return 0;
}

static int queue_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct queue_object *)object)->encode);
    Py_VISIT(((struct queue_object *)object)->decode);
    return 0;
}

static int queue_clear(PyObject *object)
{
    Py_CLEAR(((struct queue_object *)object)->encode);
    Py_CLEAR(((struct queue_object *)object)->decode);
    return 0;
}

static void queue_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct queue_object *self = (struct queue_object *)object;
    PyObject_GC_UnTrack(object);
    (void)queue_clear(object);
    handle_drop(self->handle);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

#define PUT_DOC                                                                                    \
    "($self, /, item, block=True, timeout=None, *, on_full='raise', headers=None, "                \
    "key=None)\n--\n\n"                                                                            \
    "Append one bytes-like item and return its seq. When it returns, the item is as durable as\n"  \
    "the queue's policy says. Blocks while the queue is full, for at most `timeout` seconds;\n"    \
    "then raises Full. on_full='drop' counts the item as dropped instead and returns None, and\n"  \
    "waits only where a `timeout` is given.\n"                                                     \
    "headers: a mapping of str to str that travels with the item.\n"                               \
    "key: bytes or str of 1 to 1,024 bytes, where there is a key_window: an item whose key was\n"  \
    "accepted before is not put again; the seq of the first is returned once it is durable.\n"     \
    "A signal handler that raises while this waits for durability leaves the item in the queue.\n" \
    "Raises Full, Sealed, Closed, TooLarge, NoSpace, Poisoned, FlushFailed (outcome unknown)."
#define PUT_NOWAIT_DOC                                                                             \
    "($self, /, item, *, on_full='raise', headers=None, key=None)\n--\n\n"                         \
    "put() that never waits for room; it still waits for durability where the policy asks for it."
#define PUT_MANY_DOC                                                                               \
    "($self, /, items, *, atomic=True, block=True, timeout=None, keys=None)\n--\n\n"               \
    "Append all items with consecutive seqs, all or nothing, with one flush; returns a range.\n"   \
    "A batch holds at most 4,096 items and half a segment, else TooLarge and nothing is put.\n"    \
    "atomic=False splits into as many batches as needed and returns a list of ranges; its\n"       \
    "exceptions carry `accepted`, the number of items that went in.\n"                             \
    "keys: one for each item, or None for one without, as in put(); returns a list of seqs."

static PyMethodDef queue_methods[] = {
    {"put", FAST(queue_put), "put" PUT_DOC},
    {"push", FAST(queue_put), "push" PUT_DOC},
    {"put_nowait", FAST(queue_put_nowait), "put_nowait" PUT_NOWAIT_DOC},
    {"try_push", FAST(queue_put_nowait), "try_push" PUT_NOWAIT_DOC},
    {"put_many", FAST(queue_put_many), "put_many" PUT_MANY_DOC},
    {"enqueue_bulk", FAST(queue_put_many), "enqueue_bulk" PUT_MANY_DOC},
    {"_claim", queue_claim, METH_VARARGS,
     "_claim(body, headers, timeout, key=None, /) -> (seq, ticket) | None\n\nThe first part of a "
     "put, of what is encoded already. A ticket that is not None is for\n_await_flush(). None: it "
     "would have to wait, and timeout was None."},
    {"_check_key", queue_check_key, METH_O, "_check_key(key, /) -> None\n\nRaises as put()."},
    {"_await_flush", queue_await_flush, METH_O,
     "_await_flush(ticket, /) -> None\n\nThe second part: waits for the disk."},
    {"_put_encoded", FAST(queue_put_encoded), "put_many() of what is encoded already."},
    {"flush", queue_flush, METH_NOARGS,
     "flush($self, /)\n--\n\nReturn when everything published before the call is durable, whatever "
     "the policy, and\nthe acks of this handle's consumer too. Raises FlushFailed, Poisoned."},
    {"seal", FAST(queue_seal),
     "seal($self, /, undo=False)\n--\n\nEnd the input for every process, durably: puts raise "
     "Sealed, "
     "the consumer drains and then\ngets Sealed. undo=True lifts it."},
    {"close", queue_close, METH_NOARGS,
     "close($self, /)\n--\n\nLeave the queue: flush what this handle published, close its "
     "consumer, "
     "wake its blocked\ncalls with Closed. Idempotent. Raises FlushFailed or Poisoned; the handle "
     "is closed all the same."},
    {"_members", queue_members, METH_NOARGS, "One tuple a member."},
    {"_options", queue_options, METH_NOARGS, "Options as stored."},
    {"_set_options", queue_set_options, METH_O, "Change stored options."},
    {"_keys", queue_keys, METH_NOARGS, "What look() tells, of this queue."},
    {"_add_key", queue_add_key, METH_VARARGS, "Record a key, durably; False: keys changed."},
    {"_stats", queue_stats, METH_NOARGS, "Counters and gauges as stored."},
    {"_still_there", queue_still_there, METH_NOARGS, "QueueRemoved when its files are gone."},
    {"_open_gate", queue_open_gate, METH_VARARGS,
     "Use the named semaphore of this st_dev and st_ino (0: unknown), or None: a futex."},
    {"_report_events", queue_report_events, METH_VARARGS, "Called with events worth a warning."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Queue[T], for type checkers."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef queue_attributes[] = {
    {"uuid", queue_get_uuid, NULL, "32 hex digits that name this queue.", NULL},
    {"path", queue_get_path, NULL, "Absolute path of the queue's directory.", NULL},
    {"incarnation", queue_get_incarnation, NULL,
     "Number of this process's attachment; never reused.", NULL},
    {"gate_name", queue_get_gate_name, NULL, "Name of the queue's semaphore.", NULL},
    {"closed", queue_get_closed, NULL, "True once close() was called.", NULL},
    {"_encode", queue_get_hook, queue_set_hook,
     "None, or a callable that makes bytes of what put() is given.",
     (void *)offsetof(struct queue_object, encode)},
    {"_decode", queue_get_hook, queue_set_hook,
     "None, or a callable that makes the value of an item that it is given.",
     (void *)offsetof(struct queue_object, decode)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot queue_slots[] = {
    {Py_tp_doc, "Native base of mpqueue.Queue."},
    {Py_tp_new, queue_new},
    {Py_tp_init, queue_init},
    {Py_tp_dealloc, queue_dealloc},
    {Py_tp_traverse, queue_traverse},
    {Py_tp_clear, queue_clear},
    {Py_tp_methods, queue_methods},
    {Py_tp_getset, queue_attributes},
    {Py_mp_length, queue_length},
    {Py_nb_bool, queue_truth},
    {0, NULL},
};

PyType_Spec queue_spec = {
    .name = "mpqueue._native.Queue",
    .basicsize = sizeof(struct queue_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = queue_slots,
};
