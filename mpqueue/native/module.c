/* module.c - the extension module: state, argument tables, waiting, statuses as exceptions.
 *
 * Multi-phase initialised, heap types only, limited API of Python 3.11.
 */
#include "module.h"

struct signature {
    const char *function;
    unsigned char required, positional, total;
    const char *names[ARGUMENTS_MAX];
};

static const struct signature signatures[SIGNATURES] = {
    [SIGNATURE_PUT] = {"put", 1, 3, 6, {"item", "block", "timeout", "on_full", "headers", "key"}},
    [SIGNATURE_PUT_NOWAIT] = {"put_nowait", 1, 1, 4, {"item", "on_full", "headers", "key"}},
    [SIGNATURE_PUT_MANY] = {"put_many", 1, 1, 5, {"items", "atomic", "block", "timeout", "keys"}},
    [SIGNATURE_SEAL] = {"seal", 0, 1, 1, {"undo"}},
    [SIGNATURE_RESERVE] = {"reserve", 0, 1, 1, {"timeout"}},
    [SIGNATURE_RESERVE_MANY] = {"reserve_many", 1, 1, 4, {"n", "max_bytes", "linger", "timeout"}},
    [SIGNATURE_ACK] = {"ack", 1, 2, 2, {"item", "durable"}},
    [SIGNATURE_ACK_MANY] = {"ack_many", 1, 2, 2, {"items", "durable"}},
    [SIGNATURE_TAKE] = {"take", 0, 1, 1, {"timeout"}},
    [SIGNATURE_WAIT] = {"wait", 0, 1, 1, {"timeout"}},
    [SIGNATURE_ITEM_ACK] = {"ack", 0, 1, 1, {"durable"}},
    [SIGNATURE_ITEM_NACK] = {"nack", 0, 0, 1, {"reason"}},
    [SIGNATURE_ITEM_DEAD] = {"dead", 0, 1, 1, {"reason"}},
};

/* ---- arguments ------------------------------------------------------------------------------ */

static int argument_index(struct state *state, enum signature_index index, PyObject *name)
{
    int total = signatures[index].total;
    for (int i = 0; i < total; i++)
        if (state->names[index][i] == name)
            return i;
    for (int i = 0; i < total; i++)
        if (PyUnicode_Compare(state->names[index][i], name) == 0)
            return i;
    return -1;
}

int arguments_parse(struct state *state, enum signature_index index, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames, PyObject **out)
{
    const struct signature *signature = &signatures[index];
    if (nargs > signature->positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     signature->function, (int)signature->positional, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < signature->total; i++)
        out[i] = i < nargs ? args[i] : NULL;
    Py_ssize_t keywords = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        int at = argument_index(state, index, name);
        if (at < 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'",
                         signature->function, name);
            return -1;
        }
        if (out[at]) {
            PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'",
                         signature->function, name);
            return -1;
        }
        out[at] = args[nargs + i];
    }
    for (int i = 0; i < signature->required; i++)
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() misses the required argument '%s'",
                         signature->function, signature->names[i]);
            return -1;
        }
    return 0;
}

int timeout_parse(PyObject *object, uint64_t *timeout_ns)
{
    *timeout_ns = FOREVER;
    if (!object || object == Py_None)
        return 0;
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear(); /* an int beyond all floats */
    }
    if (!(seconds >= 0.0)) {
        PyErr_SetString(PyExc_ValueError,
                        "a timeout is a number of seconds >= 0, or None to wait for ever");
        return -1;
    }
    if (seconds < 1e9) /* 30 years; more is for ever */
        *timeout_ns = (uint64_t)(seconds * 1e9);
    return 0;
}

int number_parse(PyObject *object, const char *name, uint64_t *number)
{
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number != UINT64_MAX || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s is %R: it takes a whole number from 0 to 2**64 - 1",
                     name, object);
    }
    return -1;
}

int flag_parse(PyObject *object, bool *flag)
{
    if (!object)
        return 0;
    int truth = PyObject_IsTrue(object);
    if (truth < 0)
        return -1;
    *flag = truth != 0;
    return 0;
}

uint64_t deadline_after(uint64_t timeout_ns)
{
    if (timeout_ns == 0 || timeout_ns == FOREVER)
        return timeout_ns;
    return mpq_monotonic_ns() + timeout_ns;
}

void uuid_text(const uint8_t *uuid, char text[33])
{
    for (int i = 0; i < 16; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", uuid[i]);
}

/* ---- errors --------------------------------------------------------------------------------- */

static const char *const exception_names[] = {
    [MPQ_TIMEOUT] = "LockTimeout",
    [MPQ_FULL] = "Full",
    [MPQ_CLOSED] = "Closed",
    [MPQ_SEALED] = "Sealed",
    [MPQ_TOO_LARGE] = "TooLarge",
    [MPQ_CONSUMER_BUSY] = "ConsumerBusy",
    [MPQ_STALE] = "StaleItem",
    [MPQ_OUT_OF_RANGE] = "OutOfRange",
    [MPQ_CORRUPT] = "Corrupt",
    [MPQ_POISONED] = "Poisoned",
    [MPQ_FLUSH_FAILED] = "FlushFailed",
    [MPQ_NO_SPACE] = "NoSpace",
    [MPQ_NOT_A_QUEUE] = "NotAQueue",
    [MPQ_REMOVED] = "QueueRemoved",
    [MPQ_FORMAT] = "FormatError",
    [MPQ_MISMATCH] = "OptionsMismatch",
    [MPQ_FILESYSTEM] = "UnsupportedFilesystem",
    [MPQ_LOCK_TIMEOUT] = "LockTimeout",
    [MPQ_ATTACHED] = "QueueInUse",
    [MPQ_FORKED] = "Closed",
    [MPQ_INVALID] = "ValueError",
    [MPQ_SYSTEM] = "OSError",
    [MPQ_MEMORY] = "MemoryError",
    [MPQ_INTERNAL] = "InternalError",
};

PyObject *error_make(struct state *state, mpq_status status, const struct mpq_error *error)
{
    const char *name = NULL;
    if ((size_t)status < sizeof exception_names / sizeof exception_names[0])
        name = exception_names[status];
    if (!name)
        name = "InternalError";
    const char *reason = "";
    if (status == MPQ_FULL)
        reason = mpq_full_reason_name(error->reason);
    else if (status == MPQ_FILESYSTEM && error->fstype)
        reason = error->fstype;
    PyObject *message = PyUnicode_DecodeFSDefault(error->message);
    if (!message)
        return NULL;
    return PyObject_CallFunction(state->make_error, "sNisLKKKKK", name, message, error->os_errno,
                                 reason, (long long)error->pid,
                                 (unsigned long long)error->generation,
                                 (unsigned long long)error->offset,
                                 (unsigned long long)error->lost_items,
                                 (unsigned long long)error->lost_bytes,
                                 (unsigned long long)error->accepted);
}

PyObject *error_raise(struct state *state, mpq_status status, const struct mpq_error *error)
{
    if (status == MPQ_INTERRUPTED && PyErr_Occurred())
        return NULL;
    PyObject *exception = error_make(state, status, error);
    if (exception) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

/* ---- waiting -------------------------------------------------------------------------------- */

static _Thread_local struct waiter *innermost;

static bool close_waits(const struct waiter *waiter)
{
    return (waiter->handle && waiter->handle->close_later) ||
           (waiter->role && waiter->role->close_later);
}

static int check_signals(void *arg)
{
    struct waiter *waiter = arg;
    PyEval_RestoreThread(waiter->thread);
    int interrupted = PyErr_CheckSignals();
    if (!interrupted && close_waits(waiter)) {
        const struct mpq_error error = {.message = "closed by a signal handler", .pid = -1};
        error_raise(waiter->handle->state, MPQ_CLOSED, &error);
        interrupted = -1;
    }
    waiter->thread = PyEval_SaveThread();
    return interrupted;
}

void waiter_begin(struct waiter *waiter, struct handle *handle, struct role *role,
                  uint64_t deadline_ns)
{
    waiter->call.deadline_ns = deadline_ns;
    waiter->call.check = check_signals;
    waiter->call.arg = waiter;
    waiter->handle = handle;
    waiter->role = role;
    waiter->outer = innermost;
    innermost = waiter;
    waiter->thread = PyEval_SaveThread();
}

bool waiter_inside(const struct handle *handle, const struct role *role)
{
    for (const struct waiter *at = innermost; at; at = at->outer)
        if (at->handle == handle && (!role || at->role == role))
            return true;
    return false;
}

/* What a handler has put off. Nobody is there to be told of a failure but the log. */
static void close_now(struct handle *handle, struct role *role)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct mpq_error error;
    mpq_status status = MPQ_OK;
    PyThreadState *thread = PyEval_SaveThread();
    if (role && role->close_later)
        status = mpq_consumer_close(role->consumer, &error);
    if (status == MPQ_OK && handle->close_later) {
        const struct mpq_call call = {.deadline_ns = FOREVER};
        status = mpq_close(handle->queue, &call, &error);
    }
    PyEval_RestoreThread(thread);
    handle->close_later = false;
    if (role)
        role->close_later = false;
    if (status != MPQ_OK) {
        error_raise(handle->state, status, &error);
        PyErr_WriteUnraisable(NULL);
    }
    PyErr_Restore(type, value, traceback);
}

mpq_status waiter_end(struct waiter *waiter, mpq_status status)
{
    PyEval_RestoreThread(waiter->thread);
    innermost = waiter->outer;
    if (close_waits(waiter) && !waiter_inside(waiter->handle, NULL))
        close_now(waiter->handle, waiter->role);
    return PyErr_Occurred() ? MPQ_INTERRUPTED : status;
}

int handle_join(struct handle *handle)
{
    if (LIKELY(handle->closing || mpq_is_ready(handle->queue)))
        return 0;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, FOREVER);
    const mpq_status status = mpq_make_ready(handle->queue, &waiter.call, NULL);
    return waiter_end(&waiter, status) == MPQ_INTERRUPTED ? -1
                                                          : 0; /* other errors: the look's own */
}

/* ---- functions ------------------------------------------------------------------------------ */

static PyObject *module_destroy(PyObject *module, PyObject *args)
{
    const char *path;
    if (!PyArg_ParseTuple(args, "y:destroy", &path))
        return NULL;
    char gate[48] = "";
    struct mpq_error error = {0};
    PyThreadState *thread = PyEval_SaveThread();
    mpq_status status = mpq_destroy(path, NULL, gate, &error);
    PyEval_RestoreThread(thread);
    if (status != MPQ_OK)
        return error_raise(PyModule_GetState(module), status, &error);
    return PyUnicode_FromString(gate);
}

static PyObject *module_repair(PyObject *module, PyObject *args)
{
    const char *path;
    int dry_run = 0;
    if (!PyArg_ParseTuple(args, "y|p:repair", &path, &dry_run))
        return NULL;
    struct mpq_repair report = {0};
    struct mpq_error error = {0};
    struct waiter waiter;
    waiter_begin(&waiter, NULL, NULL, FOREVER);
    mpq_status status = mpq_repair_queue(path, NULL, dry_run != 0, &waiter.call, &report, &error);
    status = waiter_end(&waiter, status);
    if (status != MPQ_OK)
        return error_raise(PyModule_GetState(module), status, &error);
    return Py_BuildValue("(KKKKKKNN)", (unsigned long long)report.items,
                         (unsigned long long)report.gaps, (unsigned long long)report.lost_items,
                         (unsigned long long)report.lost_bytes,
                         (unsigned long long)report.torn_items,
                         (unsigned long long)report.quarantined,
                         PyBool_FromLong(report.cleared_poison != 0),
                         PyBool_FromLong(report.rebuilt != 0));
}

static PyObject *module_xxh64(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer view;
    unsigned long long seed = 0;
    if (!PyArg_ParseTuple(args, "y*|K:xxh64", &view, &seed))
        return NULL;
    uint64_t hash = mpq_xxh64(view.buf, (size_t)view.len, seed);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyMethodDef functions[] = {
    {"destroy", module_destroy, METH_VARARGS, "destroy(path, /) -> name of its semaphore"},
    {"repair", module_repair, METH_VARARGS,
     "repair(path, dry_run=False, /) -> items, gaps, lost_items, lost_bytes, torn_items, "
     "quarantined, cleared_poison, rebuilt"},
    {"look", module_look, METH_O,
     "look(path, /) -> uuid, codec, keys: what a queue says of itself, which is not joined"},
    {"xxh64", module_xxh64, METH_VARARGS,
     "xxh64(data, seed=0, /) -> int: the hash of the file format"},
    {NULL, NULL, 0, NULL},
};

/* ---- module --------------------------------------------------------------------------------- */

static PyModuleDef definition;

struct state *state_of(PyTypeObject *type)
{
    /* The class may be a Python subclass; the module hangs at the heap type of ours below it. */
    for (; type; type = PyType_GetSlot(type, Py_tp_base)) {
        PyObject *module = PyType_GetModule(type);
        if (!module)
            PyErr_Clear();
        else if (PyModule_GetDef(module) == &definition)
            return PyModule_GetState(module);
    }
    PyErr_SetString(PyExc_TypeError, "not a type of mpqueue");
    return NULL;
}

static int type_add(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type ? PyModule_AddType(module, *type) : -1;
}

static int typed_item_add(PyObject *module, struct state *state)
{
    PyObject *type =
        PyType_FromModuleAndSpec(module, &typed_item_spec, (PyObject *)state->item_type);
    state->typed_item_type = (PyTypeObject *)type;
    return type ? PyModule_AddType(module, state->typed_item_type) : -1;
}

static int module_exec(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    PyObject *exceptions = PyImport_ImportModule("mpqueue.exceptions");
    if (!exceptions)
        return -1;
    state->make_error = PyObject_GetAttrString(exceptions, "_from_native");
    Py_DECREF(exceptions);
    if (!state->make_error)
        return -1;
    for (int i = 0; i < SIGNATURES; i++)
        for (int j = 0; j < signatures[i].total; j++)
            if (!(state->names[i][j] = PyUnicode_InternFromString(signatures[i].names[j])))
                return -1;
    if (!(state->raise = PyUnicode_InternFromString("raise")) ||
        !(state->drop = PyUnicode_InternFromString("drop")))
        return -1;
    if (type_add(module, &queue_spec, &state->queue_type) < 0 ||
        type_add(module, &consumer_spec, &state->consumer_type) < 0 ||
        type_add(module, &item_spec, &state->item_type) < 0 || typed_item_add(module, state) < 0 ||
        type_add(module, &view_spec, &state->view_type) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "EVENT_LOSS", MPQ_EVENT_LOSS) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_TAKEOVER", MPQ_EVENT_TAKEOVER) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_WEAK", MPQ_EVENT_WEAK) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_LOCK_WAIT", MPQ_EVENT_LOCK_WAIT) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_RECOVERED", MPQ_EVENT_RECOVERED) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_GATE", MPQ_EVENT_GATE) < 0 ||
        PyModule_AddIntConstant(module, "EVENT_DEAD", MPQ_EVENT_DEAD) < 0 ||
        PyModule_AddIntConstant(module, "ROLE_CONSUMER", MPQ_ROLE_CONSUMER) < 0)
        return -1;
#ifdef NDEBUG
    return PyModule_AddObjectRef(module, "DEBUG", Py_False);
#else
    return PyModule_AddObjectRef(module, "DEBUG", Py_True);
#endif
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = PyModule_GetState(module);
    Py_VISIT(state->make_error);
    Py_VISIT(state->queue_type);
    Py_VISIT(state->consumer_type);
    Py_VISIT(state->item_type);
    Py_VISIT(state->typed_item_type);
    Py_VISIT(state->view_type);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    Py_CLEAR(state->make_error);
    Py_CLEAR(state->queue_type);
    Py_CLEAR(state->consumer_type);
    Py_CLEAR(state->item_type);
    Py_CLEAR(state->typed_item_type);
    Py_CLEAR(state->view_type);
    for (int i = 0; i < SIGNATURES; i++)
        for (int j = 0; j < ARGUMENTS_MAX; j++)
            Py_CLEAR(state->names[i][j]);
    Py_CLEAR(state->raise);
    Py_CLEAR(state->drop);
    while (state->spares)
        PyObject_Free(state->spare[--state->spares]);
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "mpqueue._native",
    .m_doc = "The native half of mpqueue: subclass and use mpqueue.Queue instead.",
    .m_size = sizeof(struct state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
