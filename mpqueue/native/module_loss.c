/* module_loss.c - who is told of a loss: on_loss, the caller, or the next call.
 *
 * What a call met after its first items is kept for the next one, here or in the core. A consumer
 * that closes before that call hands it to on_loss; where there is none, the WARNING stands.
 */
#include "module.h"

/* on_loss may take itself away while it runs. */
static int loss_tell(PyObject *on_loss, PyObject *exception)
{
    PyObject *callable = Py_NewRef(on_loss);
    PyObject *done = PyObject_CallFunctionObjArgs(callable, exception, NULL);
    Py_DECREF(callable);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int loss_report(struct consumer_object *self, const struct mpq_error *error, bool keep)
{
    events_report((struct queue_object *)self->queue);
    PyObject *exception = error_make(self->state, MPQ_CORRUPT, error);
    if (!exception)
        return -1;
    int result = 0;
    if (self->on_loss) {
        result = loss_tell(self->on_loss, exception);
    } else if (keep) {
        if (self->pending) /* another thread's: told together */
            PyException_SetContext(exception, self->pending);
        self->pending = Py_NewRef(exception);
    } else {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        result = -1;
    }
    Py_DECREF(exception);
    return result;
}

int loss_raise(struct consumer_object *self)
{
    PyObject *exception = self->pending;
    if (LIKELY(!exception))
        return 0;
    self->pending = NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
    return -1;
}

/* What is kept, told for the last time; -1 with what on_loss raised. */
static int loss_last(struct consumer_object *self)
{
    struct mpq_error error;
    PyObject *exception = self->pending;
    if (self->on_loss && exception) {
        self->pending = NULL;
        const int result = loss_tell(self->on_loss, exception);
        Py_DECREF(exception);
        if (result < 0)
            return -1;
    }
    if (!self->on_loss || role_check(self->role, NULL) != MPQ_OK ||
        !mpq_untold_loss(self->role->consumer, &error))
        return 0;
    return loss_report(self, &error, false);
}

PyObject *consumer_tell_losses(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct consumer_object *self = (struct consumer_object *)object;
    if (!self->role || role_check(self->role, NULL) != MPQ_OK)
        Py_RETURN_NONE;
    events_report((struct queue_object *)self->queue);
    if (loss_last(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}
