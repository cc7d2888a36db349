/* module_headers.c - the user's headers as an entry of a frame's extension, and back.
 *
 * The extension was hashed and verified as a whole by the core; lengths are checked here all the
 * same, because another writer of the format may have made it.
 */
#include "module.h"

#define ENTRY_HEADER 4u /* u16 type, u16 length */
#define EXTENSION_MAX 65528u /* the largest multiple of 8 that a u16 holds */

static void put_u16(uint8_t *at, size_t value)
{
    at[0] = (uint8_t)(value & 0xFF);
    at[1] = (uint8_t)(value >> 8);
}

static size_t get_u16(const uint8_t *at)
{
    return (size_t)at[0] | (size_t)at[1] << 8;
}

/* UTF-8 of one half of a header, or NULL with an exception that names the header. */
static const char *text_of(PyObject *half, PyObject *key, size_t *length)
{
    Py_ssize_t size = 0;
    const char *text = PyUnicode_AsUTF8AndSize(half, &size);
    *length = (size_t)size;
    if (!text && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "header %R is no text that UTF-8 has: nothing was put", key);
    }
    return text;
}

/* Appends one "key: value"; returns the new end, or 0 with an exception set. */
static size_t pair_append(uint8_t *buffer, size_t end, PyObject *pair)
{
    PyObject *key = NULL, *value = NULL;
    if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2) {
        key = PyTuple_GetItem(pair, 0);
        value = PyTuple_GetItem(pair, 1);
    }
    if (!key || !PyUnicode_Check(key) || !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "header %R is no pair of str: headers map str to str",
                     key ? key : pair);
        return 0;
    }
    size_t key_length, value_length;
    const char *key_text = text_of(key, key, &key_length);
    const char *value_text = key_text ? text_of(value, key, &value_length) : NULL;
    if (!value_text)
        return 0;
    if (key_length > EXTENSION_MAX || value_length > EXTENSION_MAX ||
        end + 4 + key_length + value_length > EXTENSION_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "with header %R headers take more than 65,528 bytes: put large values into "
                     "the item's body",
                     key);
        return 0;
    }
    put_u16(buffer + end, key_length);
    put_u16(buffer + end + 2, value_length);
    memcpy(buffer + end + 4, key_text, key_length);
    memcpy(buffer + end + 4 + key_length, value_text, value_length);
    return end + 4 + key_length + value_length;
}

int headers_encode(PyObject *headers, uint8_t **ext, uint16_t *ext_length)
{
    *ext = NULL;
    *ext_length = 0;
    PyObject *pairs = PyMapping_Items(headers);
    if (!pairs) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "headers map str to str: %R is no mapping", headers);
        }
        return -1;
    }
    uint8_t *buffer = NULL;
    Py_ssize_t count = PyList_Size(pairs);
    if (count == 0)
        goto empty;
    buffer = PyMem_Malloc(EXTENSION_MAX);
    if (!buffer) {
        PyErr_NoMemory();
        goto failed;
    }
    size_t end = ENTRY_HEADER;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!(end = pair_append(buffer, end, PyList_GetItem(pairs, i))))
            goto failed;
    put_u16(buffer, MPQ_EXT_HEADERS);
    put_u16(buffer + 2, end - ENTRY_HEADER);
    size_t padded = (end + 7) & ~(size_t)7;
    memset(buffer + end, 0, padded - end);
    *ext = buffer;
    *ext_length = (uint16_t)padded;
empty:
    Py_DECREF(pairs);
    return 0;
failed:
    PyMem_Free(buffer);
    Py_DECREF(pairs);
    return -1;
}

PyObject *headers_decode(const uint8_t *ext, size_t ext_length)
{
    PyObject *headers = PyDict_New();
    size_t size = 0, at = 0;
    const uint8_t *value =
        headers ? mpq_extension_find(ext, ext_length, MPQ_EXT_HEADERS, &size) : NULL;
    while (value && at + 4 <= size) {
        size_t key_length = get_u16(value + at), value_length = get_u16(value + at + 2);
        if (at + 4 + key_length + value_length > size)
            break;
        const char *text = (const char *)value + at + 4;
        PyObject *key = PyUnicode_DecodeUTF8(text, (Py_ssize_t)key_length, "replace");
        PyObject *data =
            PyUnicode_DecodeUTF8(text + key_length, (Py_ssize_t)value_length, "replace");
        int failed = !key || !data || PyDict_SetItem(headers, key, data) < 0;
        Py_XDECREF(key);
        Py_XDECREF(data);
        if (failed) {
            Py_CLEAR(headers);
            break;
        }
        at += 4 + key_length + value_length;
    }
    return headers;
}
