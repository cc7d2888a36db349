/* module_item.c - Item: one hand-out, and View: the read-only memory under item.body.
 *
 * An item holds the C role and its bytes but no Python object that could lead back to it, so it
 * needs no garbage collector. A TypedItem, which holds its decoded value too, has one. A View holds
 * a segment mapping and outlives item, consumer, queue.
 */
#include <errno.h>

#include "module.h"

struct view_object {
    PyObject_HEAD struct mpq_segment *segment;
    const uint8_t *body;
    Py_ssize_t length;
};

/* ---- settling ------------------------------------------------------------------------------- */

int role_sync(struct role *role, bool durable)
{
    /* The ack before this found the role open and the interpreter lock was held since (I3). */
    if (LIKELY(!durable && !mpq_ack_needs_sync(role->consumer)))
        return 0;
    struct mpq_error error;
    PyThreadState *thread = PyEval_SaveThread();
    mpq_status status = mpq_consumer_sync(role->consumer, &error);
    PyEval_RestoreThread(thread);
    if (status == MPQ_OK)
        return 0;
    error_raise(role->state, status, &error);
    return -1;
}

int item_ack(struct item_object *item, bool durable)
{
    struct mpq_error error;
    mpq_status status = role_check(item->role, &error);
    if (LIKELY(status == MPQ_OK))
        status = mpq_ack(item->role->consumer, item->seq, item->token, &error);
    if (LIKELY(status == MPQ_OK || status == MPQ_STALE))
        item->settled = 1;
    if (LIKELY(status == MPQ_OK))
        return role_sync(item->role, durable);
    error_raise(item->role->state, status, &error);
    return -1;
}

int item_nack(struct item_object *item)
{
    struct mpq_error error;
    mpq_status status = role_check(item->role, &error);
    if (LIKELY(status == MPQ_OK))
        status = mpq_nack(item->role->consumer, item->seq, item->token, &error);
    if (status == MPQ_OK || status == MPQ_STALE)
        item->settled = 1;
    if (status == MPQ_OK)
        return 0;
    error_raise(item->role->state, status, &error);
    return -1;
}

void item_return(struct item_object *item)
{
    if (!item->settled && role_check(item->role, NULL) == MPQ_OK)
        (void)!mpq_nack(item->role->consumer, item->seq, item->token, NULL);
    item->settled = 1;
}

/* The last reference is gone and nobody acked or nacked: the item is ready again, and somebody
 * should know. Silent where there is nothing to give back: after close, in a forked child. */
static void item_abandon(struct item_object *item)
{
    if (role_check(item->role, NULL) != MPQ_OK ||
        mpq_nack(item->role->consumer, item->seq, item->token, NULL) != MPQ_OK)
        return;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_WarnFormat(PyExc_ResourceWarning, 1,
                         "item %llu of %s was dropped without ack or nack: it is ready again; "
                         "use `with item:` or call one of them",
                         (unsigned long long)item->seq, mpq_path(item->role->handle->queue)) < 0)
        PyErr_WriteUnraisable((PyObject *)Py_TYPE((PyObject *)item));
    PyErr_Restore(type, value, traceback);
}

/* ---- making --------------------------------------------------------------------------------- */

/* The file may be truncated between the hash and the copy; what lies in a room is ours. */
static PyObject *bytes_copy(const struct mpq_item *item, const uint8_t *from, size_t length)
{
    if (LIKELY(item->segment == NULL))
        return PyBytes_FromStringAndSize((const char *)from, (Py_ssize_t)length);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (!bytes)
        return NULL;
    char *to = PyBytes_AsString(bytes);
    bool whole;
    if (LIKELY(length <= GIL_BYTES)) {
        whole = mpq_copy_out(to, from, length);
    } else {
        PyThreadState *thread = PyEval_SaveThread();
        whole = mpq_copy_out(to, from, length);
        PyEval_RestoreThread(thread);
    }
    if (UNLIKELY(!whole)) {
        Py_CLEAR(bytes);
        errno = EFAULT;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    return bytes;
}

static PyObject *body_copy(const struct mpq_item *item)
{
    return bytes_copy(item, item->body, item->length);
}

static PyObject *body_view(struct consumer_object *consumer, const struct mpq_item *item)
{
    const uint8_t *body;
    struct mpq_segment *segment = NULL; /* what is empty refers to none */
    if (item->segment)
        segment = mpq_item_view(consumer->role->consumer, item, &body);
    PyObject *exporter;
    if (!segment) { /* or out of mappings: the promise is a read-only view, not zero copies */
        exporter = body_copy(item);
    } else {
        struct view_object *view = PyObject_New(struct view_object, consumer->state->view_type);
        if (view) {
            view->segment = segment;
            view->body = body;
            view->length = (Py_ssize_t)item->length;
        } else {
            mpq_segment_release(segment);
        }
        exporter = (PyObject *)view;
    }
    PyObject *memory = exporter ? PyMemoryView_FromObject(exporter) : NULL;
    Py_XDECREF(exporter);
    return memory;
}

/* The allocator's round trip is a tenth of what a hand-out costs. */
static struct item_object *item_new(struct state *state, PyTypeObject *type)
{
    if (UNLIKELY(type != state->item_type)) {
        allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
        return (struct item_object *)allocate(type, 0);
    }
    if (LIKELY(state->spares))
        return (struct item_object *)PyObject_Init(state->spare[--state->spares], type);
    return PyObject_New(struct item_object, type);
}

static void item_free(struct state *state, PyTypeObject *type, PyObject *object)
{
    if (LIKELY(type == state->item_type && state->spares < SPARE_ITEMS)) {
        state->spare[state->spares++] = object;
    } else {
        freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
        release(object);
    }
    Py_DECREF(type);
}

/* Making an object may run Python, and a large copy lets go of the interpreter lock: others may
 * have closed the consumer (false, with Closed set), or have settled the item (false). Also false,
 * with InternalError set: control was overwritten. */
static bool still_there(struct role *role, const struct mpq_item *item)
{
    struct mpq_error error;
    mpq_status status = role_check(role, &error);
    if (LIKELY(status == MPQ_OK)) {
        if (LIKELY(mpq_item_intact(role->consumer, item)))
            return true;
        status = mpq_item_settled(role->consumer, &error);
        if (status == MPQ_OK)
            return false;
    }
    error_raise(role->state, status, &error);
    return false;
}

PyObject *item_wrap(struct consumer_object *consumer, const struct mpq_item *item, bool peeked)
{
    struct role *role = consumer->role;
    struct item_object *self = item_new(consumer->state, consumer->items);
    if (UNLIKELY(!self)) {
        mpq_segment_release(item->segment);
        if (!peeked)
            (void)!mpq_nack(role->consumer, item->seq, item->token, NULL);
        return NULL;
    }
    role->references++;
    self->role = role;
    self->seq = item->seq;
    self->epoch = item->epoch;
    self->origin_seq = item->origin_seq;
    self->enqueued_at = item->enqueued_at;
    self->token = item->token;
    self->attempts = item->attempts;
    self->settled = peeked;
    self->ext = NULL;
    if (UNLIKELY(consumer->typed))
        ((struct typed_object *)self)->decode =
            Py_XNewRef(((struct queue_object *)consumer->queue)->decode);
    self->body = consumer->views && !peeked ? body_view(consumer, item) : body_copy(item);
    bool whole = self->body != NULL;
    if (UNLIKELY(item->ext_length) && whole) {
        self->ext = bytes_copy(item, item->ext, item->ext_length);
        whole = self->ext != NULL;
    }
    if (item->segment && whole)
        whole = still_there(role, item);
    mpq_segment_release(item->segment);
    if (LIKELY(whole))
        return (PyObject *)self;
    item_return(self);
    Py_DECREF(self);
    return NULL;
}

static void item_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct item_object *self = (struct item_object *)object;
    struct state *state = self->role->state;
    if (!self->settled)
        item_abandon(self);
    Py_XDECREF(self->body);
    Py_XDECREF(self->ext);
    role_drop(self->role);
    item_free(state, type, object);
}

/* ---- methods -------------------------------------------------------------------------------- */

static PyObject *item_method_ack(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    struct item_object *self = (struct item_object *)object;
    bool durable = false;
    if (UNLIKELY(nargs || kwnames)) {
        PyObject *given[ARGUMENTS_MAX];
        if (arguments_parse(self->role->state, SIGNATURE_ITEM_ACK, args, nargs, kwnames, given) <
                0 ||
            flag_parse(given[0], &durable) < 0)
            return NULL;
    }
    if (item_ack(self, durable) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* For who took it on somebody's behalf and could not hand it over. */
static PyObject *item_method_unreserve(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct item_object *self = (struct item_object *)object;
    if (!self->settled && role_check(self->role, NULL) == MPQ_OK)
        (void)!mpq_unreserve(self->role->consumer, self->seq, self->token, NULL);
    self->settled = 1;
    Py_RETURN_NONE;
}

static PyObject *item_enter(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    return Py_NewRef(object);
}

static PyObject *item_exit(PyObject *object, PyObject *args)
{
    struct item_object *self = (struct item_object *)object;
    if (self->settled)
        Py_RETURN_FALSE;
    if (PyTuple_Size(args) > 0 && PyTuple_GetItem(args, 0) != Py_None) {
        item_failed(self, PyTuple_GetItem(args, 0), PyTuple_GetItem(args, 1));
        /* The exception of the block matters more than a consumer that was closed inside it. */
        item_return(self);
        Py_RETURN_FALSE;
    }
    if (item_ack(self, false) < 0)
        return NULL;
    Py_RETURN_FALSE;
}

static PyObject *item_reduce(PyObject *object, PyObject *ignored)
{
    (void)object;
    (void)ignored;
    PyErr_SetString(PyExc_TypeError, "an Item belongs to the process that reserved it: send its "
                                     "body and id, and ack it here");
    return NULL;
}

static PyObject *item_repr(PyObject *object)
{
    struct item_object *self = (struct item_object *)object;
    return PyUnicode_FromFormat("<mpqueue.Item seq=%llu attempts=%u bytes=%zd%s>",
                                (unsigned long long)self->seq, (unsigned)self->attempts,
                                PyObject_Size(self->body), self->settled ? " settled" : "");
}

/* ---- attributes ----------------------------------------------------------------------------- */

static uint64_t little_u64(const uint8_t *at)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static PyObject *item_get_id(PyObject *object, void *closure)
{
    (void)closure;
    struct item_object *self = (struct item_object *)object;
    const uint8_t *uuid = mpq_uuid(self->role->handle->queue);
    uint64_t epoch = self->epoch, seq = self->origin_seq;
    if (self->ext) {
        size_t length;
        const uint8_t *origin =
            mpq_extension_find((const uint8_t *)PyBytes_AsString(self->ext),
                               (size_t)PyBytes_Size(self->ext), MPQ_EXT_ORIGIN, &length);
        if (origin && length >= 32) {
            uuid = origin;
            epoch = little_u64(origin + 16);
            seq = little_u64(origin + 24);
        }
    }
    char text[33];
    uuid_text(uuid, text);
    return PyUnicode_FromFormat("%s:%llu:%llu", text, (unsigned long long)epoch,
                                (unsigned long long)seq);
}

static PyObject *item_get_enqueued_at(PyObject *object, void *closure)
{
    (void)closure;
    return PyFloat_FromDouble((double)((struct item_object *)object)->enqueued_at / 1e9);
}

static PyObject *item_get_headers(PyObject *object, void *closure)
{
    (void)closure;
    struct item_object *self = (struct item_object *)object;
    if (!self->ext)
        return PyDict_New();
    return headers_decode((const uint8_t *)PyBytes_AsString(self->ext),
                          (size_t)PyBytes_Size(self->ext));
}

static PyObject *item_get_extension(PyObject *object, void *closure)
{
    (void)closure;
    PyObject *ext = ((struct item_object *)object)->ext;
    return ext ? Py_NewRef(ext) : PyBytes_FromStringAndSize(NULL, 0);
}

static PyObject *item_get_settled(PyObject *object, void *closure)
{
    (void)closure;
    struct item_object *self = (struct item_object *)object;
    if (!self->settled && role_check(self->role, NULL) == MPQ_OK) /* by ack_up_to, rewind */
        self->settled = !mpq_handed_out(self->role->consumer, self->seq, self->token);
    return PyBool_FromLong(self->settled);
}

/* ---- typed items ---------------------------------------------------------------------------- */

int typed_decode(struct typed_object *typed)
{
    if (typed->value)
        return 0;
    if (!typed->decode) { /* the hook was taken away, or the garbage collector was here */
        PyErr_SetString(PyExc_AttributeError, "this item has no decoder");
        return -1;
    }
    PyObject *decode = Py_NewRef(typed->decode);
    PyObject *value = PyObject_CallFunctionObjArgs(decode, (PyObject *)typed, NULL);
    Py_DECREF(decode);
    if (!value)
        return -1;
    if (typed->value) /* another thread decoded it meanwhile: one value for all */
        Py_DECREF(value);
    else
        typed->value = value;
    return 0;
}

static PyObject *typed_get_value(PyObject *object, void *closure)
{
    (void)closure;
    struct typed_object *typed = (struct typed_object *)object;
    return typed_decode(typed) < 0 ? NULL : Py_NewRef(typed->value);
}

static int typed_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct typed_object *typed = (struct typed_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(typed->decode);
    Py_VISIT(typed->value);
    return 0;
}

static int typed_clear(PyObject *object)
{
    struct typed_object *typed = (struct typed_object *)object;
    Py_CLEAR(typed->decode);
    Py_CLEAR(typed->value);
    return 0;
}

static void typed_dealloc(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    (void)typed_clear(object);
    item_dealloc(object);
}

/* ---- types ---------------------------------------------------------------------------------- */

static PyMethodDef item_methods[] = {
    {"ack", (PyCFunction)(void (*)(void))item_method_ack, METH_FASTCALL | METH_KEYWORDS,
     "ack($self, /, durable=False)\n--\n\nDone: the item will not come again. Repeats are "
     "harmless; StaleItem when it was handed out anew\nmeanwhile. durable=True (and policy sync) "
     "returns "
     "after the ack is on disk."},
    {"nack", (PyCFunction)(void (*)(void))item_method_nack, METH_FASTCALL | METH_KEYWORDS,
     "nack($self, /, *, reason=None)\n--\n\nNot done: ready again in its own place, at once. "
     "`reason` is kept for a dead letter, while\nthe queue has max_attempts. StaleItem as for "
     "ack()."},
    {"dead", (PyCFunction)(void (*)(void))item_method_dead, METH_FASTCALL | METH_KEYWORDS,
     "dead($self, /, reason='rejected')\n--\n\nMove it to the dead letters: durable there, then "
     "acked here. When they take nothing (Full,\nNoSpace, ...) it is still in hand. StaleItem as "
     "for "
     "ack()."},
    {"extend", item_extend, METH_O,
     "extend($self, seconds, /)\n--\n\nThe lease ends that many seconds from now, whatever was "
     "left of "
     "it. No effect where the\nqueue had no lease_timeout at the hand-out. StaleItem as for "
     "ack()."},
    {"_unreserve", item_method_unreserve, METH_NOARGS,
     "Ready again in its place, and this hand-out is not counted as an attempt. Never raises."},
    {"__enter__", item_enter, METH_NOARGS, NULL},
    {"__exit__", item_exit, METH_VARARGS, NULL},
    {"__reduce__", item_reduce, METH_NOARGS, NULL},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Item[T], for type checkers."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef item_members[] = {
    {"body", T_OBJECT_EX, offsetof(struct item_object, body), READONLY,
     "The payload: bytes, or a read-only memoryview from a consumer with views=True."},
    {"value", T_OBJECT_EX, offsetof(struct item_object, body), READONLY,
     "What was put: the decoded body where the queue has a codec, else the body itself."},
    {"seq", T_ULONGLONG, offsetof(struct item_object, seq), READONLY, "Its number in the queue."},
    {"attempts", T_UINT, offsetof(struct item_object, attempts), READONLY,
     "How often it was handed out, this time included; of a peeked item: so far."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef item_attributes[] = {
    {"id", item_get_id, NULL, "uuid:epoch:seq, the same in every redelivery and copy.", NULL},
    {"enqueued_at", item_get_enqueued_at, NULL,
     "Wall clock of the first put, seconds; in a burst of puts up to some 10 us old.", NULL},
    {"key", item_get_key, NULL, "The key that it was put with, as bytes; None without one.", NULL},
    {"headers", item_get_headers, NULL, "A new dict of its headers; {} when there are none.", NULL},
    {"_extension", item_get_extension, NULL, "Extension of its frame, bytes.", NULL},
    {"settled", item_get_settled, NULL, "True once acked, nacked or found stale here.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot item_slots[] = {
    {Py_tp_doc, "An item in the consumer's hands: ack it, nack it, or use it as a context "
                "manager, which\nacks on a normal exit and nacks on any exception."},
    {Py_tp_dealloc, item_dealloc},
    {Py_tp_repr, item_repr},
    {Py_tp_methods, item_methods},
    {Py_tp_members, item_members},
    {Py_tp_getset, item_attributes},
    {0, NULL},
};

PyType_Spec item_spec = {
    .name = "mpqueue._native.Item",
    .basicsize = sizeof(struct item_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = item_slots,
};

static PyGetSetDef typed_attributes[] = {
    {"value", typed_get_value, NULL,
     "The decoded body, made at the first use and kept. CodecError when it cannot be.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot typed_slots[] = {
    {Py_tp_doc, "An item of a queue with a codec."},
    {Py_tp_dealloc, typed_dealloc},
    {Py_tp_traverse, typed_traverse},
    {Py_tp_clear, typed_clear},
    {Py_tp_getset, typed_attributes},
    {0, NULL},
};

PyType_Spec typed_item_spec = {
    .name = "mpqueue._native.TypedItem",
    .basicsize = sizeof(struct typed_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = typed_slots,
};

static int view_buffer(PyObject *object, Py_buffer *buffer, int flags)
{
    struct view_object *self = (struct view_object *)object;
    union {
        const uint8_t *shared;
        void *buffer;
    } memory = {.shared = self->body}; /* exported read-only */
    return PyBuffer_FillInfo(buffer, object, memory.buffer, self->length, 1, flags);
}

static void view_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    mpq_segment_release(((struct view_object *)object)->segment);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot view_slots[] = {
    {Py_tp_doc, "Keeps a segment mapped while a memoryview of it lives."},
    {Py_tp_dealloc, view_dealloc},
    {Py_bf_getbuffer, view_buffer},
    {0, NULL},
};

PyType_Spec view_spec = {
    .name = "mpqueue._native.View",
    .basicsize = sizeof(struct view_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = view_slots,
};
