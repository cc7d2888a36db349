/* module_keys.c - ids and check values of keys, as meta records them. Keys themselves stay in
 * Python: the core neither sees nor stores one. */
#include "module.h"

static PyObject *keys_tuple(const struct mpq_look *look)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)look->keys_count);
    for (uint32_t i = 0; tuple && i < look->keys_count; i++) {
        const struct mpq_key *key = &look->keys[i];
        PyObject *entry = Py_BuildValue("(Iy#)", (unsigned)key->id, (const char *)key->check,
                                        (Py_ssize_t)sizeof key->check);
        if (!entry || PyTuple_SetItem(tuple, (Py_ssize_t)i, entry) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *look_tuple(const struct mpq_look *look)
{
    char uuid[33];
    uuid_text(look->uuid, uuid);
    Py_ssize_t length = (Py_ssize_t)strnlen(look->codec, sizeof look->codec);
    PyObject *codec = PyUnicode_DecodeUTF8(look->codec, length, "replace");
    PyObject *keys = codec ? keys_tuple(look) : NULL;
    if (!keys) {
        Py_XDECREF(codec);
        return NULL;
    }
    return Py_BuildValue("(sNN)", uuid, codec, keys);
}

PyObject *module_look(PyObject *module, PyObject *path)
{
    const char *name = PyBytes_AsString(path);
    struct mpq_look look;
    struct mpq_error error;
    if (!name)
        return NULL;
    mpq_status status = mpq_look(name, NULL, &look, &error);
    if (status != MPQ_OK)
        return error_raise(PyModule_GetState(module), status, &error);
    return look_tuple(&look);
}

PyObject *queue_keys(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    struct mpq_look look;
    struct mpq_error error;
    if (!handle)
        return NULL;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status = mpq_keys_get(handle->queue, &look, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    return status == MPQ_OK ? look_tuple(&look) : error_raise(self->state, status, &error);
}

static int key_set(struct mpq_key *key, unsigned id, PyObject *check)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(check, &bytes, &length) < 0)
        return -1;
    if (length != (Py_ssize_t)sizeof key->check) {
        PyErr_SetString(PyExc_ValueError, "the check value of a key has 16 bytes");
        return -1;
    }
    *key = (struct mpq_key){.id = id};
    memcpy(key->check, bytes, sizeof key->check);
    return 0;
}

PyObject *queue_add_key(PyObject *object, PyObject *args)
{
    struct queue_object *self = (struct queue_object *)object;
    struct handle *handle = handle_open(self);
    PyObject *newest, *check, *newest_check;
    unsigned id, newest_id;
    struct mpq_key key, seen;
    struct mpq_error error;
    if (!handle || !PyArg_ParseTuple(args, "OIO:_add_key", &newest, &id, &check) ||
        key_set(&key, id, check) < 0)
        return NULL;
    if (newest != Py_None && (!PyArg_ParseTuple(newest, "IO", &newest_id, &newest_check) ||
                              key_set(&seen, newest_id, newest_check) < 0))
        return NULL;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    mpq_status status =
        mpq_key_add(handle->queue, newest != Py_None ? &seen : NULL, &key, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    if (status != MPQ_OK && status != MPQ_STALE)
        return error_raise(self->state, status, &error);
    return PyBool_FromLong(status == MPQ_OK);
}
