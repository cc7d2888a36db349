/* module_lease.c - item.extend(): more time, or less, for whoever holds an item. */
#include "module.h"

PyObject *item_extend(PyObject *object, PyObject *seconds)
{
    struct item_object *item = (struct item_object *)object;
    uint64_t ns;
    if (seconds == Py_None) {
        PyErr_SetString(PyExc_TypeError, "extend() takes a number of seconds, not None");
        return NULL;
    }
    if (timeout_parse(seconds, &ns) < 0)
        return NULL;
    struct mpq_error error;
    mpq_status status = role_check(item->role, &error);
    if (status == MPQ_OK)
        status = mpq_extend(item->role->consumer, item->seq, item->token, ns, &error);
    if (status == MPQ_STALE)
        item->settled = 1;
    if (status == MPQ_OK)
        Py_RETURN_NONE;
    return error_raise(item->role->state, status, &error);
}
