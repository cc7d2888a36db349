/* module_dead.c - what an item failed of, and the ways to the dead letters and back. */
#include "module.h"

/* UTF-8 of a str, in *kept; NULL with an exception. */
static const char *text_of(PyObject *object, const char *name, PyObject **kept, Py_ssize_t *length)
{
    if (!PyUnicode_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is a str, not %R", name, (PyObject *)Py_TYPE(object));
        return NULL;
    }
    *kept = PyUnicode_AsEncodedString(object, "utf-8", "backslashreplace");
    if (!*kept)
        return NULL;
    *length = PyBytes_Size(*kept);
    return PyBytes_AsString(*kept);
}

static void note(struct item_object *item, const char *text, Py_ssize_t length)
{
    if (role_check(item->role, NULL) == MPQ_OK)
        (void)!mpq_failed(item->role->consumer, item->seq, item->token, text, (size_t)length, NULL);
}

/* What an exception says may quote the item, and texts of dead letters are not encrypted. */
static bool may_quote(const struct item_object *item)
{
    static const char encrypts[] = "+aes";
    const size_t tail = sizeof encrypts - 1;
    struct mpq_options options;
    mpq_options_get(item->role->handle->queue, &options);
    const size_t length = strnlen(options.codec, sizeof options.codec);
    return length < tail || memcmp(options.codec + length - tail, encrypts, tail) != 0;
}

void item_failed(struct item_object *item, PyObject *type, PyObject *value)
{
    if (role_check(item->role, NULL) != MPQ_OK || !mpq_keeps_failures(item->role->consumer))
        return;
    PyObject *old_type, *old_value, *old_traceback, *kept = NULL;
    PyErr_Fetch(&old_type, &old_value, &old_traceback);
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    const bool quote = name && value && may_quote(item);
    PyObject *text = quote ? PyUnicode_FromFormat("%S: %S", name, value) : NULL;
    if (!text && name && (PyErr_Clear(), true)) /* its own __str__ failed */
        text = Py_NewRef(name);
    Py_ssize_t length;
    const char *utf8 = text ? text_of(text, "text", &kept, &length) : NULL;
    if (utf8)
        note(item, utf8, length);
    Py_XDECREF(kept);
    Py_XDECREF(text);
    Py_XDECREF(name);
    PyErr_Restore(old_type, old_value, old_traceback);
}

PyObject *item_method_nack(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    struct item_object *self = (struct item_object *)object;
    if (UNLIKELY(nargs || kwnames)) {
        PyObject *given[ARGUMENTS_MAX], *kept;
        Py_ssize_t length;
        if (arguments_parse(self->role->state, SIGNATURE_ITEM_NACK, args, nargs, kwnames, given) <
            0)
            return NULL;
        if (given[0] && given[0] != Py_None) {
            const char *text = text_of(given[0], "reason", &kept, &length);
            if (!text)
                return NULL;
            note(self, text, length);
            Py_DECREF(kept);
        }
    }
    if (item_nack(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyObject *item_method_dead(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    struct item_object *self = (struct item_object *)object;
    PyObject *given[ARGUMENTS_MAX], *kept = NULL;
    const char *reason = "rejected";
    Py_ssize_t length = (Py_ssize_t)strlen(reason);
    if (arguments_parse(self->role->state, SIGNATURE_ITEM_DEAD, args, nargs, kwnames, given) < 0)
        return NULL;
    if (given[0] && !(reason = text_of(given[0], "reason", &kept, &length)))
        return NULL;
    struct mpq_error error;
    mpq_status status = role_check(self->role, &error);
    if (status == MPQ_OK) {
        PyThreadState *thread = PyEval_SaveThread();
        status = mpq_dead_letter(self->role->consumer, self->seq, self->token, reason,
                                 (size_t)length, &error);
        PyEval_RestoreThread(thread);
    }
    Py_XDECREF(kept);
    if (status == MPQ_OK || status == MPQ_STALE || status == MPQ_CORRUPT)
        self->settled = 1;
    if (status == MPQ_OK)
        Py_RETURN_NONE;
    return error_raise(self->role->state, status, &error);
}

PyObject *consumer_redrive(PyObject *object, PyObject *args)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *one, *queue, *seconds = NULL;
    uint64_t timeout = 0, seq = 0;
    if (!PyArg_ParseTuple(args, "OO!|O:_redrive", &one, self->state->queue_type, &queue, &seconds))
        return NULL;
    if (seconds && timeout_parse(seconds, &timeout) < 0)
        return NULL;
    struct item_object *item = item_own(self, one);
    struct handle *handle = item ? handle_open((struct queue_object *)queue) : NULL;
    if (!handle)
        return NULL;
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, deadline_after(timeout));
    mpq_status status = mpq_redrive(item->role->consumer, item->seq, item->token, handle->queue,
                                    &waiter.call, &seq, &error);
    status = waiter_end(&waiter, status);
    if (status == MPQ_OK || status == MPQ_STALE || status == MPQ_CORRUPT)
        item->settled = 1;
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    return PyLong_FromUnsignedLongLong(seq);
}
