/* module_put.c - put, put_nowait and put_many: Python objects in, claims and flushes out.
 *
 * The path of one exact bytes object that finds room and owes no flush makes no allocation but the
 * returned int, reads no clock here, and never lets go of the interpreter lock.
 */
#include "module.h"

#define BATCH_WITH_GIL 64 /* items; a larger batch is copied without the interpreter lock */

/* ---- payloads ------------------------------------------------------------------------------- */

/* The bytes of one object; view->obj is NULL when they need no release. */
static int bytes_take(struct state *state, PyObject *object, struct mpq_item_in *in,
                      Py_buffer *view)
{
    Py_ssize_t size;
    view->obj = NULL;
    in->ext = NULL;
    in->ext_length = 0;
    if (LIKELY(PyBytes_CheckExact(object))) {
        in->body = PyBytes_AsString(object);
        size = PyBytes_Size(object);
    } else {
        if (!PyObject_CheckBuffer(object)) {
            PyObject *name = PyType_GetName(Py_TYPE(object));
            if (name)
                PyErr_Format(PyExc_TypeError,
                             "an item is bytes or another bytes-like object, not %U: encode it "
                             "first, or give the queue a codec",
                             name);
            Py_XDECREF(name);
            return -1;
        }
        if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
            view->obj = NULL;
            return -1;
        }
        in->body = view->buf;
        size = view->len;
    }
    if (UNLIKELY((uint64_t)size > UINT32_MAX)) {
        struct mpq_error error = {.pid = -1};
        (void)snprintf(error.message, sizeof error.message,
                       "an item of %zd bytes is too large: the format ends at 4 GiB", size);
        if (view->obj)
            PyBuffer_Release(view);
        view->obj = NULL;
        error_raise(state, MPQ_TOO_LARGE, &error);
        return -1;
    }
    in->length = (uint32_t)size;
    return 0;
}

mpq_status flush_wait(struct queue_object *self, uint64_t ticket, struct mpq_error *error)
{
    struct waiter waiter;
    /* A close waits for the call that a signal handler runs in, so this must not wait for it. */
    const bool nested = waiter_inside(self->handle, NULL);
    waiter_begin(&waiter, self->handle, NULL, nested ? 0 : FOREVER);
    const mpq_status status = mpq_put_flush(self->handle->queue, ticket, &waiter.call, error);
    return waiter_end(&waiter, status);
}

PyObject *accepted_raise(uint64_t accepted)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *count = PyLong_FromUnsignedLongLong(accepted);
    if (!count || PyObject_SetAttrString(value, "accepted", count) < 0)
        PyErr_Clear();
    Py_XDECREF(count);
    PyErr_Restore(type, value, traceback);
    return NULL;
}

/* ---- one item ------------------------------------------------------------------------------- */

static mpq_status one_claim(struct queue_object *self, const struct mpq_item_in *in,
                            uint64_t timeout, uint64_t *seq, uint64_t *ticket,
                            struct mpq_error *error)
{
    struct mpq_queue *queue = self->handle->queue;
    mpq_status status;
    if (LIKELY(in->length <= GIL_BYTES)) {
        status = mpq_put_try(queue, in, seq, ticket, error);
        if (LIKELY(status != MPQ_AGAIN && status != MPQ_FULL)) /* full: counted below */
            return status;
    }
    struct waiter waiter;
    waiter_begin(&waiter, self->handle, NULL, deadline_after(timeout));
    status = mpq_put(queue, in, &waiter.call, seq, ticket, error);
    status = waiter_end(&waiter, status);
    events_report(self);
    return status;
}

static PyObject *one_put(struct queue_object *self, const struct mpq_item_in *in, uint64_t timeout,
                         bool drop, bool keyed)
{
    uint64_t seq, ticket;
    struct mpq_error error;
    mpq_status status = UNLIKELY(keyed)
                            ? keyed_claim(self, in, timeout, true, &seq, &ticket, &error)
                            : one_claim(self, in, timeout, &seq, &ticket, &error);
    if (status == MPQ_FLUSH) {
        status = flush_wait(self, ticket, &error);
        if (UNLIKELY(status == MPQ_INTERRUPTED))
            return accepted_raise(1);
        if (UNLIKELY(status != MPQ_OK))
            error.accepted = 1;
    }
    if (LIKELY(status == MPQ_OK))
        return PyLong_FromUnsignedLongLong(seq);
    if (status == MPQ_FULL && drop) {
        if (!self->handle->closing)
            mpq_count_dropped(self->handle->queue, 1);
        Py_RETURN_NONE;
    }
    return error_raise(self->state, status, &error);
}

static PyObject *object_put(struct queue_object *self, PyObject *object, uint64_t timeout,
                            bool drop, PyObject *headers, PyObject *key)
{
    struct mpq_item_in in;
    Py_buffer view;
    PyObject *encoded = NULL, *result = NULL;
    uint8_t *ext = NULL;
    if (self->encode) {
        PyObject *encode = Py_NewRef(self->encode); /* it may replace itself */
        object = encoded = PyObject_CallFunctionObjArgs(encode, object, NULL);
        Py_DECREF(encode);
        if (!encoded)
            return NULL;
    }
    if (bytes_take(self->state, object, &in, &view) == 0) {
        const bool keyed = key && key != Py_None;
        if ((!headers || headers == Py_None ||
             headers_encode(headers, &ext, &in.ext_length) == 0) &&
            (!keyed || key_append(key, &ext, &in.ext_length) == 0)) {
            in.ext = ext;
            /* Asked last: encoders and buffers may run Python, and so may have closed it. */
            if (LIKELY(handle_open(self) != NULL))
                result = one_put(self, &in, timeout, drop, keyed);
        }
        PyMem_Free(ext);
        if (view.obj)
            PyBuffer_Release(&view);
    }
    Py_XDECREF(encoded);
    return result;
}

/* on_full="raise" or "drop" */
static int on_full_parse(struct state *state, PyObject *object, bool *drop)
{
    *drop = false;
    if (!object || object == state->raise)
        return 0;
    if (PyUnicode_Check(object)) {
        if (object == state->drop || PyUnicode_Compare(object, state->drop) == 0) {
            *drop = true;
            return 0;
        }
        if (PyUnicode_Compare(object, state->raise) == 0)
            return 0;
    }
    PyErr_SetString(PyExc_ValueError, "on_full is 'raise' or 'drop'");
    return -1;
}

PyObject *queue_put(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    struct queue_object *self = (struct queue_object *)object;
    if (LIKELY(nargs == 1 && !kwnames))
        return object_put(self, args[0], FOREVER, false, NULL, NULL);
    PyObject *given[ARGUMENTS_MAX];
    bool block = true, drop;
    uint64_t timeout;
    if (arguments_parse(self->state, SIGNATURE_PUT, args, nargs, kwnames, given) < 0 ||
        flag_parse(given[1], &block) < 0 || timeout_parse(given[2], &timeout) < 0 ||
        on_full_parse(self->state, given[3], &drop) < 0)
        return NULL;
    if (drop && (!given[2] || given[2] == Py_None))
        block = false; /* to drop is not to wait, unless a time is given */
    return object_put(self, given[0], block ? timeout : 0, drop, given[4], given[5]);
}

PyObject *queue_put_nowait(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    struct queue_object *self = (struct queue_object *)object;
    if (LIKELY(nargs == 1 && !kwnames))
        return object_put(self, args[0], 0, false, NULL, NULL);
    PyObject *given[ARGUMENTS_MAX];
    bool drop;
    if (arguments_parse(self->state, SIGNATURE_PUT_NOWAIT, args, nargs, kwnames, given) < 0 ||
        on_full_parse(self->state, given[1], &drop) < 0)
        return NULL;
    return object_put(self, given[0], 0, drop, given[2], given[3]);
}

/* ---- in two parts ---------------------------------------------------------------------------- */

/* (seq, ticket); ticket None: nothing is owed. None: it would have to wait, and timeout was None.
 */
PyObject *queue_claim(PyObject *object, PyObject *args)
{
    struct queue_object *self = (struct queue_object *)object;
    PyObject *body, *headers, *wait, *key = Py_None, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOO|O:_claim", &body, &headers, &wait, &key))
        return NULL;
    struct mpq_item_in in;
    Py_buffer view;
    uint64_t timeout, seq, ticket;
    if (timeout_parse(wait, &timeout) < 0 || bytes_take(self->state, body, &in, &view) < 0)
        return NULL;
    uint8_t *ext = NULL;
    struct mpq_error error;
    const bool keyed = key != Py_None;
    if ((headers == Py_None || headers_encode(headers, &ext, &in.ext_length) == 0) &&
        (!keyed || key_append(key, &ext, &in.ext_length) == 0) && handle_open(self)) {
        in.ext = ext;
        mpq_status status = MPQ_AGAIN;
        if (keyed)
            status = keyed_claim(self, &in, timeout, wait != Py_None, &seq, &ticket, &error);
        else if (wait != Py_None)
            status = one_claim(self, &in, timeout, &seq, &ticket, &error);
        else if (in.length <= GIL_BYTES)
            status = mpq_put_try(self->handle->queue, &in, &seq, &ticket, &error);
        if (status == MPQ_OK)
            result = Py_BuildValue("(KO)", (unsigned long long)seq, Py_None);
        else if (status == MPQ_FLUSH)
            result = Py_BuildValue("(KK)", (unsigned long long)seq, (unsigned long long)ticket);
        else if (wait == Py_None && (status == MPQ_AGAIN || status == MPQ_FULL))
            result = Py_NewRef(Py_None);
        else
            error_raise(self->state, status, &error);
    }
    PyMem_Free(ext);
    if (view.obj)
        PyBuffer_Release(&view);
    return result;
}

PyObject *queue_await_flush(PyObject *object, PyObject *number)
{
    struct queue_object *self = (struct queue_object *)object;
    uint64_t ticket;
    if (number_parse(number, "ticket", &ticket) < 0 || (!self->handle && !handle_open(self)))
        return NULL;
    struct mpq_error error;
    mpq_status status = flush_wait(self, ticket, &error); /* closed or not: it was put before */
    if (status == MPQ_OK)
        Py_RETURN_NONE;
    if (status == MPQ_INTERRUPTED)
        return accepted_raise(1);
    error.accepted = 1;
    return error_raise(self->state, status, &error);
}

/* ---- many items ----------------------------------------------------------------------------- */

static void bundle_release(struct bundle *bundle)
{
    if (bundle->views)
        for (uint32_t i = 0; i < bundle->count; i++)
            if (bundle->views[i].obj)
                PyBuffer_Release(&bundle->views[i]);
    PyMem_Free(bundle->views);
    PyMem_Free(bundle->in);
    Py_XDECREF(bundle->objects);
}

static PyObject *encode_all(PyObject *encode, PyObject *objects)
{
    Py_ssize_t count = PyTuple_Size(objects);
    PyObject *encoded = PyTuple_New(count);
    for (Py_ssize_t i = 0; encoded && i < count; i++) {
        PyObject *one = PyObject_CallFunctionObjArgs(encode, PyTuple_GetItem(objects, i), NULL);
        if (!one || PyTuple_SetItem(encoded, i, one) < 0)
            Py_CLEAR(encoded);
    }
    Py_DECREF(objects);
    return encoded;
}

static int bundle_take(struct queue_object *self, PyObject *items, PyObject *encode,
                       struct bundle *bundle)
{
    memset(bundle, 0, sizeof *bundle);
    if (PyBytes_Check(items) || PyUnicode_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "put_many() takes an iterable of items, not one item");
        return -1;
    }
    bundle->objects = PySequence_Tuple(items);
    if (bundle->objects && encode)
        bundle->objects = encode_all(encode, bundle->objects);
    if (!bundle->objects)
        return -1;
    Py_ssize_t count = PyTuple_Size(bundle->objects);
    if ((uint64_t)count > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "put_many() takes fewer than 2**32 items");
        return -1;
    }
    bundle->in = PyMem_Malloc((size_t)count * sizeof *bundle->in);
    if (!bundle->in) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *object = PyTuple_GetItem(bundle->objects, i);
        Py_buffer view;
        if (bytes_take(self->state, object, &bundle->in[i], &view) < 0)
            return -1;
        if (view.obj) {
            if (!bundle->views &&
                !(bundle->views = PyMem_Calloc((size_t)count, sizeof *bundle->views))) {
                PyBuffer_Release(&view);
                PyErr_NoMemory();
                return -1;
            }
            bundle->views[i] = view;
        }
        bundle->bytes += bundle->in[i].length;
        bundle->count++;
    }
    return 0;
}

static mpq_status batch_claim(struct queue_object *self, const struct mpq_item_in *in,
                              uint32_t count, bool with_gil, uint64_t deadline, uint64_t *first,
                              uint64_t *ticket, struct mpq_error *error)
{
    struct mpq_queue *queue = self->handle->queue;
    if (with_gil) {
        mpq_status status = mpq_put_batch_try(queue, in, count, first, ticket, error);
        if (status != MPQ_AGAIN && status != MPQ_FULL) /* full: counted below */
            return status;
    }
    struct waiter waiter;
    waiter_begin(&waiter, self->handle, NULL, deadline);
    mpq_status status = mpq_put_batch(queue, in, count, &waiter.call, first, ticket, error);
    status = waiter_end(&waiter, status);
    events_report(self);
    return status;
}

static PyObject *range_new(uint64_t first, uint64_t count)
{
    return PyObject_CallFunction((PyObject *)&PyRange_Type, "KK", (unsigned long long)first,
                                 (unsigned long long)(first + count));
}

static PyObject *bundle_put_whole(struct queue_object *self, struct bundle *bundle,
                                  uint64_t timeout)
{
    uint64_t first, ticket;
    struct mpq_error error;
    bool with_gil = bundle->count <= BATCH_WITH_GIL && bundle->bytes <= GIL_BYTES;
    mpq_status status = batch_claim(self, bundle->in, bundle->count, with_gil,
                                    deadline_after(timeout), &first, &ticket, &error);
    if (status == MPQ_FLUSH) {
        status = flush_wait(self, ticket, &error);
        if (status == MPQ_INTERRUPTED)
            return accepted_raise(bundle->count);
        if (status != MPQ_OK)
            error.accepted = bundle->count;
    }
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    return range_new(first, bundle->count);
}

void accepted_say(mpq_status status, struct mpq_error *error, uint32_t done, uint32_t count)
{
    if (status == MPQ_INTERRUPTED) /* its exception is set; the error is not */
        return;
    const size_t used = strlen(error->message);
    snprintf(error->message + used, sizeof error->message - used, "; %u of %u items went in before",
             done, count);
}

/* As many batches as needed. What went in before an error stays in; the exception says how much. */
static PyObject *bundle_put_split(struct queue_object *self, struct bundle *bundle,
                                  uint64_t timeout)
{
    uint64_t deadline = deadline_after(timeout), ticket = 0;
    uint32_t done = 0;
    bool owes_flush = false;
    struct mpq_error error;
    mpq_status status = MPQ_OK;
    PyObject *ranges = PyList_New(0);
    while (ranges && done < bundle->count) {
        uint64_t first;
        const struct mpq_item_in *in = bundle->in + done;
        if (!handle_open(self)) { /* another thread closed it meanwhile */
            Py_DECREF(ranges);
            return done != 0 ? accepted_raise(done) : NULL;
        }
        uint32_t fit = mpq_batch_fit(self->handle->queue, in, bundle->count - done);
        if (fit == 0)
            fit = 1; /* let the core say why */
        status = batch_claim(self, in, fit, false, deadline, &first, &ticket, &error);
        if (status != MPQ_OK && status != MPQ_FLUSH) {
            accepted_say(status, &error, done, bundle->count);
            break;
        }
        owes_flush |= status == MPQ_FLUSH;
        status = MPQ_OK;
        done += fit;
        PyObject *range = range_new(first, fit);
        if (!range || PyList_Append(ranges, range) < 0)
            Py_CLEAR(ranges);
        Py_XDECREF(range);
    }
    if (owes_flush && ranges && !PyErr_Occurred()) {
        struct mpq_error failure;
        mpq_status flushed = flush_wait(self, ticket, &failure);
        if (flushed != MPQ_OK) {
            status = flushed;
            error = failure;
        }
    }
    if (status == MPQ_OK)
        return ranges;
    Py_XDECREF(ranges);
    if (status == MPQ_INTERRUPTED && done != 0)
        return accepted_raise(done);
    error.accepted = done;
    return error_raise(self->state, status, &error);
}

static PyObject *many_put(struct queue_object *self, PyObject *encode, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *given[ARGUMENTS_MAX];
    bool atomic = true, block = true;
    uint64_t timeout;
    if (arguments_parse(self->state, SIGNATURE_PUT_MANY, args, nargs, kwnames, given) < 0 ||
        flag_parse(given[1], &atomic) < 0 || flag_parse(given[2], &block) < 0 ||
        timeout_parse(given[3], &timeout) < 0)
        return NULL;
    struct bundle bundle;
    PyObject *result = NULL;
    if (bundle_take(self, given[0], encode, &bundle) == 0 && handle_open(self)) {
        if (!block)
            timeout = 0;
        if (given[4] && given[4] != Py_None)
            result = bundle_put_keyed(self, &bundle, given[4], atomic, timeout);
        else if (!atomic)
            result = bundle_put_split(self, &bundle, timeout);
        else if (bundle.count == 0)
            result = range_new(0, 0);
        else
            result = bundle_put_whole(self, &bundle, timeout);
    }
    bundle_release(&bundle);
    return result;
}

PyObject *queue_put_many(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames)
{
    struct queue_object *self = (struct queue_object *)object;
    PyObject *encode = Py_XNewRef(self->encode); /* it may replace itself */
    PyObject *result = many_put(self, encode, args, nargs, kwnames);
    Py_XDECREF(encode);
    return result;
}

PyObject *queue_put_encoded(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    return many_put((struct queue_object *)object, NULL, args, nargs, kwnames);
}
