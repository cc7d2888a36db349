/* module_once.c - puts with keys: what has been accepted before is not put again.
 *
 * A key is bytes, or text in UTF-8: the same key either way. It travels in the frame's extension,
 * where the core finds it.
 */
#include "module.h"

#define KEY_SPACE(length) ((4u + (length) + 7u) & ~(size_t)7u)

/* The bytes of a key, borrowed from it. */
static int key_bytes(PyObject *key, const char **bytes, size_t *length)
{
    Py_ssize_t size;
    if (PyBytes_Check(key)) {
        *bytes = PyBytes_AsString(key);
        size = PyBytes_Size(key);
    } else if (PyUnicode_Check(key)) {
        *bytes = PyUnicode_AsUTF8AndSize(key, &size);
        if (!*bytes)
            return -1;
    } else {
        PyErr_SetString(PyExc_TypeError, "a key is bytes or str");
        return -1;
    }
    if (size == 0 || size > (Py_ssize_t)MPQ_KEY_MAX) {
        PyErr_Format(PyExc_ValueError, "a key has 1 to %d bytes, not %zd", (int)MPQ_KEY_MAX, size);
        return -1;
    }
    *length = (size_t)size;
    return 0;
}

static void key_write(uint8_t *at, const char *bytes, size_t length)
{
    const uint16_t head[2] = {MPQ_EXT_KEY, (uint16_t)length};
    memset(at, 0, KEY_SPACE(length));
    memcpy(at, head, sizeof head);
    memcpy(at + sizeof head, bytes, length);
}

int key_append(PyObject *key, uint8_t **ext, uint16_t *ext_length)
{
    const char *bytes;
    size_t length;
    if (key_bytes(key, &bytes, &length) < 0)
        return -1;
    const size_t whole = *ext_length + KEY_SPACE(length);
    if (whole > UINT16_MAX) {
        PyErr_SetString(PyExc_ValueError,
                        "headers and key take more than 65,528 bytes: put large values into the "
                        "item's body");
        return -1;
    }
    uint8_t *grown = PyMem_Realloc(*ext, whole);
    if (!grown) {
        PyErr_NoMemory();
        return -1;
    }
    key_write(grown + *ext_length, bytes, length);
    *ext = grown;
    *ext_length = (uint16_t)whole;
    return 0;
}

mpq_status keyed_claim(struct queue_object *self, const struct mpq_item_in *in, uint64_t timeout,
                       bool may_wait, uint64_t *seq, uint64_t *ticket, struct mpq_error *error)
{
    struct mpq_queue *queue = self->handle->queue;
    struct mpq_keyed keyed;
    mpq_status status = mpq_keyed_begin(queue, &keyed, in, 1, error);
    if (status != MPQ_OK)
        return status;
    status = MPQ_AGAIN;
    if (in->length <= GIL_BYTES)
        status = mpq_put_keyed(queue, &keyed, NULL, ticket, error);
    if (may_wait && (status == MPQ_FULL || status == MPQ_AGAIN)) {
        struct waiter waiter;
        waiter_begin(&waiter, self->handle, NULL, deadline_after(timeout));
        status = mpq_put_keyed(queue, &keyed, &waiter.call, ticket, error);
        status = waiter_end(&waiter, status);
        events_report(self);
    }
    *seq = keyed.keys[0].seq;
    mpq_keyed_end(queue, &keyed);
    return status;
}

PyObject *queue_check_key(PyObject *object, PyObject *key)
{
    struct queue_object *self = (struct queue_object *)object;
    const char *bytes;
    size_t length;
    if (!handle_open(self) || key_bytes(key, &bytes, &length) < 0)
        return NULL;
    const struct mpq_item_in none = {0};
    struct mpq_keyed keyed;
    struct mpq_error error;
    const mpq_status status = mpq_keyed_begin(self->handle->queue, &keyed, &none, 1, &error);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    mpq_keyed_end(self->handle->queue, &keyed);
    Py_RETURN_NONE;
}

PyObject *item_get_key(PyObject *object, void *closure)
{
    (void)closure;
    const struct item_object *self = (const struct item_object *)object;
    size_t length;
    const uint8_t *key =
        self->ext ? mpq_extension_find((const uint8_t *)PyBytes_AsString(self->ext),
                                       (size_t)PyBytes_Size(self->ext), MPQ_EXT_KEY, &length)
                  : NULL;
    if (!key)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)key, (Py_ssize_t)length);
}

/* ---- many ----------------------------------------------------------------------------------- */

/* One buffer with the keys of all items, which refer to it; NULL with an exception set. */
static uint8_t *keys_encode(PyObject *keys, struct bundle *bundle)
{
    size_t whole = 1;
    if ((uint64_t)PyTuple_Size(keys) != bundle->count) {
        PyErr_Format(PyExc_ValueError, "%u items and %zd keys: one key an item, or None",
                     (unsigned)bundle->count, PyTuple_Size(keys));
        return NULL;
    }
    for (uint32_t i = 0; i < bundle->count; i++) {
        PyObject *key = PyTuple_GetItem(keys, (Py_ssize_t)i);
        const char *bytes;
        size_t length;
        if (key == Py_None)
            continue;
        if (key_bytes(key, &bytes, &length) < 0)
            return NULL;
        bundle->in[i].ext_length = (uint16_t)KEY_SPACE(length);
        whole += KEY_SPACE(length);
    }
    uint8_t *buffer = PyMem_Malloc(whole), *at = buffer;
    if (!buffer) {
        PyErr_NoMemory();
        return NULL;
    }
    for (uint32_t i = 0; i < bundle->count; i++) {
        const char *bytes;
        size_t length;
        if (bundle->in[i].ext_length == 0)
            continue;
        if (key_bytes(PyTuple_GetItem(keys, (Py_ssize_t)i), &bytes, &length) < 0) {
            PyMem_Free(buffer);
            return NULL;
        }
        key_write(at, bytes, length);
        bundle->in[i].ext = at;
        at += KEY_SPACE(length);
    }
    return buffer;
}

/* Appends the seqs of one batch. */
static int seqs_append(PyObject *seqs, const struct mpq_keyed *keyed)
{
    for (uint32_t i = 0; i < keyed->count; i++) {
        PyObject *seq = PyLong_FromUnsignedLongLong(keyed->keys[i].seq);
        const int failed = !seq || PyList_Append(seqs, seq) < 0;
        Py_XDECREF(seq);
        if (failed)
            return -1;
    }
    return 0;
}

static mpq_status batch_put(struct queue_object *self, const struct mpq_item_in *in, uint32_t count,
                            uint64_t deadline, PyObject *seqs, uint64_t *ticket,
                            struct mpq_error *error)
{
    struct mpq_queue *queue = self->handle->queue;
    struct mpq_keyed keyed;
    struct waiter waiter;
    waiter_begin(&waiter, self->handle, NULL, deadline);
    mpq_status status = mpq_keyed_begin(queue, &keyed, in, count, error);
    const bool begun = status == MPQ_OK;
    if (begun)
        status = mpq_put_keyed(queue, &keyed, &waiter.call, ticket, error);
    status = waiter_end(&waiter, status);
    events_report(self);
    if ((status == MPQ_OK || status == MPQ_FLUSH) && seqs_append(seqs, &keyed) < 0)
        status = MPQ_INTERRUPTED; /* with the exception that is set */
    if (begun)
        mpq_keyed_end(queue, &keyed);
    return status;
}

PyObject *bundle_put_keyed(struct queue_object *self, struct bundle *bundle, PyObject *key_list,
                           bool atomic, uint64_t timeout)
{
    const uint64_t deadline = deadline_after(timeout);
    uint64_t ticket = 0, newest = 0;
    uint32_t done = 0;
    bool owes_flush = false;
    struct mpq_error error;
    mpq_status status = MPQ_OK;
    PyObject *keys = PySequence_Tuple(key_list);
    uint8_t *buffer = keys ? keys_encode(keys, bundle) : NULL;
    PyObject *seqs = buffer ? PyList_New(0) : NULL;
    while (seqs && done < bundle->count && status == MPQ_OK) {
        const struct mpq_item_in *in = bundle->in + done;
        if (!handle_open(self)) { /* another thread closed it meanwhile */
            status = MPQ_INTERRUPTED;
            break;
        }
        const uint32_t fit =
            atomic ? bundle->count : mpq_batch_fit(self->handle->queue, in, bundle->count - done);
        status = batch_put(self, in, fit, deadline, seqs, &ticket, &error);
        if (status == MPQ_OK || status == MPQ_FLUSH) {
            owes_flush |= status == MPQ_FLUSH;
            newest = ticket > newest ? ticket : newest;
            status = MPQ_OK;
            done += fit;
        } else if (!atomic) {
            accepted_say(status, &error, done, bundle->count);
        }
    }
    if (owes_flush) {
        struct mpq_error failure;
        const mpq_status flushed = flush_wait(self, newest, &failure);
        if (flushed != MPQ_OK) {
            status = flushed;
            error = failure;
        }
    }
    PyMem_Free(buffer);
    Py_XDECREF(keys);
    if (seqs && status == MPQ_OK)
        return seqs;
    const bool failed = seqs != NULL;
    Py_XDECREF(seqs);
    if (!failed || (status == MPQ_INTERRUPTED && done == 0))
        return NULL;
    if (status == MPQ_INTERRUPTED)
        return accepted_raise(done);
    error.accepted = done;
    return error_raise(self->state, status, &error);
}
