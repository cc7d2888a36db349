/* module_role.c - the role that a Consumer and its items share: its end, and its descriptor. */
#include "module.h"

void role_drop(struct role *role)
{
    if (!role || --role->references)
        return;
    /* Closing persists acks; a failure is latched in the queue. */
    PyThreadState *thread = PyEval_SaveThread();
    (void)mpq_consumer_close(role->consumer, NULL);
    mpq_consumer_free(role->consumer);
    PyEval_RestoreThread(thread);
    handle_drop(role->handle);
    PyMem_Free(role);
}

mpq_status role_check(const struct role *role, struct mpq_error *error)
{
    if (LIKELY(!role->closing && !role->handle->closing))
        return MPQ_OK;
    if (error) {
        *error = (struct mpq_error){.status = MPQ_CLOSED, .pid = -1};
        (void)snprintf(error->message, sizeof error->message,
                       "%s: this consumer was closed and its items are ready again: take the role "
                       "anew with consumer()",
                       mpq_path(role->handle->queue));
    }
    return MPQ_CLOSED;
}

struct role *role_of(struct consumer_object *consumer)
{
    struct role *role = consumer->role;
    if (LIKELY(role && !role->closing && !role->handle->closing))
        return role;
    struct mpq_error error = {.message = "this consumer was never opened", .pid = -1};
    if (role)
        (void)role_check(role, &error);
    error_raise(consumer->state, MPQ_CLOSED, &error);
    return NULL;
}

PyObject *consumer_fileno(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct consumer_object *self = (struct consumer_object *)object;
    struct role *role = role_of(self);
    if (!role)
        return NULL;
    struct mpq_error error;
    int fd;
    mpq_status status = mpq_consumer_fd(role->consumer, &fd, &error);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    return PyLong_FromLong(fd);
}
