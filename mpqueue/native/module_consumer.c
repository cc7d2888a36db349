/* module_consumer.c - the Consumer type: taking the role, reserving, settling by number.
 *
 * A reserve that finds an item at once keeps the interpreter lock and reads no clock; otherwise it
 * sleeps in the core, one slice at a time, and runs Python's signal handlers after each.
 */
#include "module.h"

#define CHUNK 256u /* items that reserve_many asks the core for at a time */

/* ---- waiting -------------------------------------------------------------------------------- */

enum act { ACT_RESERVE, ACT_PEEK, ACT_WAIT, ACT_SKIP };

#define SMALL_BYTES 512 /* items up to this go by way of the stack */

static mpq_status act_try(struct role *role, enum act act, struct mpq_room *room,
                          struct mpq_item *item, struct mpq_error *error)
{
    if (UNLIKELY(role_check(role, error) != MPQ_OK))
        return MPQ_CLOSED;
    switch (act) {
    case ACT_PEEK:
    case ACT_WAIT: return mpq_consumer_peek(role->consumer, item, error);
    case ACT_SKIP: return mpq_skip(role->consumer, &item->seq, error);
    default: return mpq_reserve_into(role->consumer, room, item, error);
    }
}

/* One slice. 1: try again; 0: time is up; -1: an exception is set. */
static int slice_wait(struct consumer_object *self, uint64_t deadline)
{
    struct mpq_call call = {.deadline_ns = deadline};
    struct mpq_error error;
    PyThreadState *thread = PyEval_SaveThread();
    mpq_status status = mpq_reserve_wait(self->role->consumer, &call, &error);
    PyEval_RestoreThread(thread);
    if (PyErr_CheckSignals() < 0)
        return -1;
    events_report((struct queue_object *)self->queue);
    if (status == MPQ_OK)
        return 1;
    if (status == MPQ_TIMEOUT)
        return 0;
    error_raise(self->state, status, &error);
    return -1;
}

/* 1: *item is filled; 0: nothing came in time; -1: an exception is set. */
static int act_wait(struct consumer_object *self, enum act act, uint64_t timeout,
                    struct mpq_room *room, struct mpq_item *item)
{
    struct role *role = self->role ? self->role : role_of(self);
    if (UNLIKELY(!role || loss_raise(self) < 0))
        return -1;
    struct mpq_error error;
    mpq_status status = act_try(role, act, room, item, &error);
    if (LIKELY(status == MPQ_OK))
        return 1;
    uint64_t deadline = deadline_after(timeout);
    bool last = false; /* the deadline has passed; look once more and then stop */
    for (;; status = act_try(role, act, room, item, &error)) {
        switch (status) {
        case MPQ_OK: return 1;
        case MPQ_CORRUPT:
            /* A look does not pass damage: a reserve will, and tell on_loss of it. */
            if (act == ACT_WAIT)
                return 1;
            if (act == ACT_PEEK) {
                error_raise(self->state, status, &error);
                return -1;
            }
            if (loss_report(self, &error, false) < 0)
                return -1;
            continue;
        case MPQ_EMPTY:
            if (timeout == 0)
                return 0;
            break;
        case MPQ_AGAIN: break;
        default: error_raise(self->state, status, &error); return -1;
        }
        if (last)
            return 0;
        int more = slice_wait(self, deadline);
        if (more < 0)
            return -1;
        last = more == 0;
    }
}

/* ---- reserving ------------------------------------------------------------------------------ */

static PyObject *consumer_reserve(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    uint64_t timeout = FOREVER;
    if (nargs || kwnames) {
        PyObject *given[ARGUMENTS_MAX];
        if (arguments_parse(self->state, SIGNATURE_RESERVE, args, nargs, kwnames, given) < 0 ||
            timeout_parse(given[0], &timeout) < 0)
            return NULL;
    }
    struct mpq_item item;
    uint8_t small[SMALL_BYTES];
    struct mpq_room room = {small, self->views ? 0 : sizeof small};
    int found;
    while (LIKELY((found = act_wait(self, ACT_RESERVE, timeout, &room, &item)) > 0)) {
        PyObject *wrapped = item_wrap(self, &item, false);
        if (LIKELY(wrapped || PyErr_Occurred()))
            return wrapped;
    }
    if (found < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *consumer_take(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *given[ARGUMENTS_MAX];
    uint64_t timeout;
    if (arguments_parse(self->state, SIGNATURE_TAKE, args, nargs, kwnames, given) < 0 ||
        timeout_parse(given[0], &timeout) < 0)
        return NULL;
    struct mpq_item found;
    uint8_t small[SMALL_BYTES];
    struct mpq_room room = {small, self->views ? 0 : sizeof small};
    PyObject *item = NULL;
    while (!item) {
        int status = act_wait(self, ACT_RESERVE, timeout, &room, &found);
        if (status < 0)
            return NULL;
        if (status == 0)
            Py_RETURN_NONE;
        item = item_wrap(self, &found, false);
        if (!item && PyErr_Occurred())
            return NULL;
    }
    if (item && self->typed && typed_decode((struct typed_object *)item) < 0)
        Py_CLEAR(item); /* before the ack: what cannot be decoded stays */
    if (!item || item_ack((struct item_object *)item, false) == 0)
        return item;
    /* The ack's sync failed, the item is in hand all the same: let the caller have it. */
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (PyObject_SetAttrString(value, "item", item) < 0)
        PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    Py_DECREF(item);
    return NULL;
}

static PyObject *consumer_peek(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct consumer_object *self = (struct consumer_object *)object;
    struct mpq_item item;
    int found;
    while ((found = act_wait(self, ACT_PEEK, 0, NULL, &item)) > 0) {
        PyObject *wrapped = item_wrap(self, &item, true);
        if (wrapped || PyErr_Occurred())
            return wrapped;
    }
    if (found < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *consumer_wait(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                               PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *given[ARGUMENTS_MAX];
    uint64_t timeout;
    if (arguments_parse(self->state, SIGNATURE_WAIT, args, nargs, kwnames, given) < 0 ||
        timeout_parse(given[0], &timeout) < 0)
        return NULL;
    struct mpq_item item = {.segment = NULL};
    int found = act_wait(self, ACT_WAIT, timeout, NULL, &item);
    if (found < 0)
        return NULL;
    if (found > 0)
        mpq_segment_release(item.segment);
    return PyBool_FromLong(found > 0);
}

static PyObject *consumer_skip(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct mpq_item item;
    int found = act_wait((struct consumer_object *)object, ACT_SKIP, 0, NULL, &item);
    if (found > 0)
        return PyLong_FromUnsignedLongLong(item.seq);
    if (found < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- reserve_many --------------------------------------------------------------------------- */

struct harvest {
    PyObject *list;
    uint64_t wanted, got;
    uint64_t bytes, bytes_max; /* bytes_max 0: no bound */
};

static int harvest_add(struct consumer_object *self, struct harvest *harvest,
                       struct mpq_item *items, uint32_t taken)
{
    int result = 0;
    for (uint32_t i = 0; i < taken; i++) {
        if (result < 0) { /* out of memory: what was not wrapped goes back */
            (void)!mpq_nack(self->role->consumer, items[i].seq, items[i].token, NULL);
            mpq_segment_release(items[i].segment);
            continue;
        }
        PyObject *item = item_wrap(self, &items[i], false);
        if (!item && !PyErr_Occurred())
            continue;
        if (!item || PyList_Append(harvest->list, item) < 0) {
            if (item)
                item_return((struct item_object *)item);
            result = -1;
        }
        Py_XDECREF(item);
        harvest->bytes += items[i].length;
        harvest->got++;
    }
    return result;
}

/* Would the next item burst the bound? The core lets the first item of a call pass it. */
static bool harvest_bursts(struct consumer_object *self, const struct harvest *harvest)
{
    if (!harvest->bytes_max || !harvest->got || role_check(self->role, NULL) != MPQ_OK)
        return false;
    if (harvest->bytes >= harvest->bytes_max)
        return true;
    struct mpq_item next;
    if (mpq_consumer_peek(self->role->consumer, &next, NULL) != MPQ_OK)
        return false;
    mpq_segment_release(next.segment);
    return harvest->bytes + next.length > harvest->bytes_max;
}

/* Sealed and nothing left: waiting for more is in vain. */
static bool harvest_complete(struct consumer_object *self, const struct harvest *harvest)
{
    bool at_end = false;
    return harvest->got && mpq_consumer_at_end(self->role->consumer, &at_end, NULL) == MPQ_OK &&
           at_end;
}

/* 1: took some; 0: stop here; -1: an exception is set; 2: nothing now, wait; 3: try again */
static int harvest_step(struct consumer_object *self, struct harvest *harvest, bool ready_only)
{
    struct mpq_item items[CHUNK];
    struct mpq_error error;
    uint32_t taken = 0;
    uint64_t missing = harvest->wanted - harvest->got;
    uint32_t ask = missing < CHUNK ? (uint32_t)missing : CHUNK;
    uint64_t most = harvest->bytes_max ? harvest->bytes_max - harvest->bytes : 0;
    uint8_t small[CHUNK * SMALL_BYTES / 4];
    struct mpq_room room = {small, self->views ? 0 : sizeof small};
    mpq_status status = role_check(self->role, &error);
    if (status == MPQ_OK)
        status =
            mpq_reserve_many_into(self->role->consumer, &room, items, ask, most, &taken, &error);
    switch (status) {
    case MPQ_OK: return harvest_add(self, harvest, items, taken) < 0 ? -1 : 1;
    case MPQ_CORRUPT:
        if (loss_report(self, &error, harvest->got > 0) < 0)
            return -1;
        return self->pending ? 0 : 3;
    case MPQ_EMPTY: return ready_only || harvest_complete(self, harvest) ? 0 : 2;
    case MPQ_AGAIN: return 2;
    default:
        if (harvest->got && status != MPQ_CLOSED) /* the next call meets it again */
            return 0;
        error_raise(self->state, status, &error);
        return -1;
    }
}

static int harvest_run(struct consumer_object *self, struct harvest *harvest, uint64_t linger,
                       uint64_t timeout)
{
    uint64_t deadline = deadline_after(timeout);
    if (timeout == 0) /* nothing is waited for */
        linger = 0;
    bool lingering = false, last = false;
    while (harvest->got < harvest->wanted && !harvest_bursts(self, harvest)) {
        if (harvest->got && !lingering) {
            lingering = true;
            uint64_t end = deadline_after(linger);
            deadline = end < deadline ? end : deadline;
        }
        int step = harvest_step(self, harvest, lingering ? linger == 0 : timeout == 0);
        if (step <= 0)
            return step;
        if (step != 2)
            continue;
        if (last || (lingering && linger == 0))
            return 0;
        int more = slice_wait(self, deadline);
        if (more < 0)
            return -1;
        last = more == 0;
    }
    return 0;
}

static PyObject *consumer_reserve_many(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                       PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *given[ARGUMENTS_MAX];
    uint64_t linger = 0, timeout;
    struct harvest harvest = {0};
    if (arguments_parse(self->state, SIGNATURE_RESERVE_MANY, args, nargs, kwnames, given) < 0 ||
        (given[2] && timeout_parse(given[2], &linger) < 0) || timeout_parse(given[3], &timeout) < 0)
        return NULL;
    if (given[2] == Py_None)
        return PyErr_Format(PyExc_TypeError, "linger is a number of seconds, not None: how long to "
                                             "wait for more once there is one");
    Py_ssize_t wanted = PyNumber_AsSsize_t(given[0], NULL); /* more than there can be: all */
    if (wanted == -1 && PyErr_Occurred())
        return NULL;
    if (given[1] && given[1] != Py_None &&
        number_parse(given[1], "max_bytes", &harvest.bytes_max) < 0)
        return NULL;
    if (wanted < 1 || (given[1] && given[1] != Py_None && !harvest.bytes_max)) {
        PyErr_SetString(PyExc_ValueError, "reserve_many() wants n >= 1 and max_bytes >= 1");
        return NULL;
    }
    if (!role_of(self) || loss_raise(self) < 0 || !(harvest.list = PyList_New(0)))
        return NULL;
    harvest.wanted = (uint64_t)wanted;
    if (harvest_run(self, &harvest, linger, timeout) == 0)
        return harvest.list;
    for (Py_ssize_t i = 0; i < PyList_Size(harvest.list); i++)
        item_return((struct item_object *)PyList_GetItem(harvest.list, i));
    Py_DECREF(harvest.list);
    return NULL;
}

/* ---- settling ------------------------------------------------------------------------------- */

/* The item as one of this consumer's, or NULL: TypeError, or StaleItem for another's. */
struct item_object *item_own(struct consumer_object *self, PyObject *object)
{
    if (!PyObject_TypeCheck(object, self->state->item_type)) {
        PyErr_SetString(PyExc_TypeError, "only an Item can be acked or nacked");
        return NULL;
    }
    struct item_object *item = (struct item_object *)object;
    if (!role_of(self))
        return NULL;
    if (LIKELY(item->role == self->role))
        return item;
    struct mpq_error error = {.pid = -1};
    (void)snprintf(error.message, sizeof error.message,
                   "item %llu was handed out by another consumer: settle it there, or reserve it "
                   "here",
                   (unsigned long long)item->seq);
    error_raise(self->state, MPQ_STALE, &error);
    return NULL;
}

static PyObject *consumer_ack(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *one;
    bool durable = false;
    if (LIKELY(nargs == 1 && !kwnames)) {
        one = args[0];
    } else {
        PyObject *given[ARGUMENTS_MAX];
        if (arguments_parse(self->state, SIGNATURE_ACK, args, nargs, kwnames, given) < 0 ||
            flag_parse(given[1], &durable) < 0)
            return NULL;
        one = given[0];
    }
    struct item_object *item = item_own(self, one);
    if (!item || item_ack(item, durable) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *consumer_nack(PyObject *object, PyObject *one)
{
    struct item_object *item = item_own((struct consumer_object *)object, one);
    if (!item || item_nack(item) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int many_ack(struct consumer_object *self, PyObject *items, bool durable)
{
    Py_ssize_t count = PyTuple_Size(items);
    uint64_t *numbers = PyMem_Malloc((size_t)count * 2 * sizeof *numbers);
    if (!numbers) {
        PyErr_NoMemory();
        return -1;
    }
    uint64_t *tokens = numbers + count;
    for (Py_ssize_t i = 0; i < count; i++) {
        struct item_object *item = item_own(self, PyTuple_GetItem(items, i));
        if (!item) {
            PyMem_Free(numbers);
            return -1;
        }
        numbers[i] = item->seq;
        tokens[i] = item->token;
    }
    struct mpq_error error;
    uint32_t bad = 0;
    mpq_status status =
        mpq_ack_many(self->role->consumer, numbers, tokens, (uint32_t)count, &bad, &error);
    PyMem_Free(numbers);
    if (status == MPQ_OK || status == MPQ_STALE)
        for (Py_ssize_t i = 0; i < count; i++)
            ((struct item_object *)PyTuple_GetItem(items, i))->settled = 1;
    if ((status == MPQ_OK || status == MPQ_STALE) && role_sync(self->role, durable) < 0)
        return -1;
    if (status == MPQ_OK)
        return 0;
    error_raise(self->state, status, &error);
    return -1;
}

static PyObject *consumer_ack_many(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *given[ARGUMENTS_MAX];
    bool durable = false;
    if (!role_of(self) ||
        arguments_parse(self->state, SIGNATURE_ACK_MANY, args, nargs, kwnames, given) < 0 ||
        flag_parse(given[1], &durable) < 0)
        return NULL;
    PyObject *items = PySequence_Tuple(given[0]);
    if (!items)
        return NULL;
    int failed = PyTuple_Size(items) ? many_ack(self, items, durable) : 0;
    Py_DECREF(items);
    if (failed < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *consumer_ack_up_to(PyObject *object, PyObject *number)
{
    struct consumer_object *self = (struct consumer_object *)object;
    uint64_t seq, acked = 0;
    if (number_parse(number, "seq", &seq) < 0)
        return NULL;
    struct role *role = role_of(self);
    if (!role)
        return NULL;
    struct mpq_error error;
    mpq_status status = mpq_ack_up_to(role->consumer, seq, &acked, &error);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    if (role_sync(role, false) < 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(acked);
}

static PyObject *consumer_rewind(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct consumer_object *self = (struct consumer_object *)object;
    struct role *role = role_of(self);
    if (!role)
        return NULL;
    uint64_t items = 0, bytes = 0;
    struct mpq_error error;
    mpq_status status = mpq_rewind(role->consumer, &items, &bytes, &error);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    return Py_BuildValue("(KK)", (unsigned long long)items, (unsigned long long)bytes);
}

static PyObject *consumer_checkpoint(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    struct consumer_object *self = (struct consumer_object *)object;
    struct role *role = role_of(self);
    if (!role)
        return NULL;
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, role->handle, role, FOREVER);
    mpq_status status = mpq_checkpoint(role->consumer, &waiter.call, &error);
    status = waiter_end(&waiter, status);
    events_report((struct queue_object *)self->queue);
    if (status != MPQ_OK)
        return error_raise(self->state, status, &error);
    Py_RETURN_NONE;
}

static int role_close(struct consumer_object *self)
{
    struct role *role = self->role;
    if (!role->closing) { /* else by what was told of a loss, or by another thread */
        role->closing = true;
        role->close_later = waiter_inside(role->handle, role);
    }
    if (role->close_later)
        return 0;
    struct mpq_error error;
    PyThreadState *thread = PyEval_SaveThread();
    mpq_status status = mpq_consumer_close(role->consumer, &error);
    PyEval_RestoreThread(thread);
    if (status == MPQ_OK || status == MPQ_FORKED || status == MPQ_CLOSED)
        return 0;
    error_raise(self->state, status, &error);
    return -1;
}

static PyObject *consumer_close(PyObject *object, PyObject *ignored)
{
    struct consumer_object *self = (struct consumer_object *)object;
    if (!self->role || self->role->close_later)
        Py_RETURN_NONE;
    /* Where another thread closes it, this waits for it: acks are durable when it returns. */
    PyObject *told =
        self->role->closing ? Py_NewRef(Py_None) : consumer_tell_losses(object, ignored);
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    if (!told) /* it closes all the same */
        PyErr_Fetch(&type, &value, &traceback);
    const int failed = role_close(self);
    if (told || failed < 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, value, traceback);
    }
    if (failed < 0)
        Py_CLEAR(told);
    return told;
}

/* ---- attributes ----------------------------------------------------------------------------- */

static PyObject *consumer_get_closed(PyObject *object, void *closure)
{
    (void)closure;
    struct role *role = ((struct consumer_object *)object)->role;
    return PyBool_FromLong(!role || role_check(role, NULL) != MPQ_OK ||
                           mpq_consumer_is_closed(role->consumer));
}

static PyObject *consumer_get_on_loss(PyObject *object, void *closure)
{
    (void)closure;
    PyObject *on_loss = ((struct consumer_object *)object)->on_loss;
    return Py_NewRef(on_loss ? on_loss : Py_None);
}

static int consumer_set_on_loss(PyObject *object, PyObject *value, void *closure)
{
    (void)closure;
    struct consumer_object *self = (struct consumer_object *)object;
    if (value && value != Py_None && !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "on_loss is None or a callable that takes a Corrupt");
        return -1;
    }
    PyObject *old = self->on_loss;
    self->on_loss = value && value != Py_None ? Py_NewRef(value) : NULL;
    Py_XDECREF(old);
    return 0;
}

/* ---- type ----------------------------------------------------------------------------------- */

static PyObject *consumer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    struct state *state = state_of(type);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct consumer_object *self = state ? (struct consumer_object *)allocate(type, 0) : NULL;
    if (self)
        self->state = state;
    return (PyObject *)self;
}

/* Adopts the role of an opened core consumer. */
static int consumer_adopt(struct consumer_object *self, struct queue_object *queue,
                          uint64_t timeout)
{
    struct handle *handle = handle_open(queue);
    struct role *role = handle ? PyMem_Calloc(1, sizeof *role) : NULL;
    if (!role) {
        if (handle)
            PyErr_NoMemory();
        return -1;
    }
    struct mpq_error error;
    struct waiter waiter;
    waiter_begin(&waiter, handle, NULL, deadline_after(timeout));
    mpq_status status = mpq_consumer_open(handle->queue, &waiter.call, &role->consumer, &error);
    (void)waiter_end(&waiter, status); /* it waits before it opens anything, only */
    if (status != MPQ_OK) {
        PyMem_Free(role);
        error_raise(self->state, status, &error);
        return -1;
    }
    role->references = 1;
    role->handle = handle;
    role->state = self->state;
    handle->references++;
    self->role = role;
    return 0;
}

static int consumer_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"queue", "wait", "views", "on_loss", "item_type", NULL};
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject *queue, *wait = NULL, *on_loss = NULL, *items = NULL;
    int views = 0;
    uint64_t timeout = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|OpOO!:Consumer", names,
                                     self->state->queue_type, &queue, &wait, &views, &on_loss,
                                     &PyType_Type, &items))
        return -1;
    if (wait && wait != Py_None && timeout_parse(wait, &timeout) < 0)
        return -1;
    if (self->role || self->opening) { /* asked after what may run Python */
        PyErr_SetString(PyExc_TypeError, "this consumer is already open");
        return -1;
    }
    self->typed = ((struct queue_object *)queue)->decode != NULL;
    PyTypeObject *base = self->typed ? self->state->typed_item_type : self->state->item_type;
    PyTypeObject *type = items ? (PyTypeObject *)items : base;
    if (!PyType_IsSubtype(type, base)) {
        PyErr_Format(PyExc_TypeError, "item_type is %s or a subclass of it",
                     self->typed ? "TypedItem" : "Item");
        return -1;
    }
    self->views = views != 0;
    Py_CLEAR(self->items);
    self->items = (PyTypeObject *)Py_NewRef((PyObject *)type);
    Py_CLEAR(self->queue);
    self->queue = Py_NewRef(queue);
    if (consumer_set_on_loss(object, on_loss, NULL) < 0)
        return -1;
    self->opening = 1;
    const int failed = consumer_adopt(self, (struct queue_object *)queue, timeout);
    self->opening = 0;
    if (failed < 0)
        return -1;
    events_report((struct queue_object *)queue);
    return 0;
}

static int consumer_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct consumer_object *self = (struct consumer_object *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->queue);
    Py_VISIT(self->on_loss);
    Py_VISIT(self->items);
    Py_VISIT(self->pending);
    return 0;
}

static int consumer_clear(PyObject *object)
{
    struct consumer_object *self = (struct consumer_object *)object;
    Py_CLEAR(self->on_loss);
    Py_CLEAR(self->pending);
    return 0;
}

static void consumer_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct consumer_object *self = (struct consumer_object *)object;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->on_loss);
    Py_CLEAR(self->pending);
    role_drop(self->role);
    Py_CLEAR(self->queue);
    Py_CLEAR(self->items);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

static PyMethodDef consumer_methods[] = {
    {"reserve", FAST(consumer_reserve),
     "reserve($self, /, timeout=None)\n--\n\nHand out the lowest ready item, verified. Blocks for "
     "at most `timeout` seconds; None when\nnothing came. Raises Sealed when the queue is sealed "
     "and drained, Closed, and Corrupt once a\nloss unless the consumer has on_loss."},
    {"reserve_many", FAST(consumer_reserve_many),
     "reserve_many($self, /, n, *, max_bytes=None, linger=0, timeout=None)\n--\n\nUp to n items, "
     "of at most max_bytes together (the first always fits). Waits up to `timeout`\nseconds for "
     "the first and then up to `linger` for more, never past the timeout nor once the queue is\n"
     "sealed and drained."},
    {"take", FAST(consumer_take),
     "take($self, /, timeout=None)\n--\n\nreserve and ack in one step: at most once. When the "
     "ack's sync fails the exception has `.item`. What cannot be decoded is not acked."},
    {"peek", consumer_peek, METH_NOARGS,
     "peek($self, /)\n--\n\nThe item that reserve would hand out now, neither taken nor "
     "counted. Corrupt, also with\non_loss, when damage lies ahead of it."},
    {"wait", FAST(consumer_wait),
     "wait($self, /, timeout=None)\n--\n\nBlock until an item, or damage to be told of, is ready "
     "(True) or the time is up.\nAdvisory: another thread may take it."},
    {"skip", consumer_skip, METH_NOARGS,
     "skip($self, /)\n--\n\nDrop the next ready item undecoded, counted; returns its seq, None "
     "when nothing is ready."},
    {"ack", FAST(consumer_ack), "ack($self, /, item, durable=False)\n--\n\nSee Item.ack()."},
    {"ack_many", FAST(consumer_ack_many),
     "ack_many($self, /, items, durable=False)\n--\n\nAck all; the good ones stand when StaleItem "
     "is raised for the others."},
    {"ack_up_to", consumer_ack_up_to, METH_O,
     "ack_up_to($self, seq, /)\n--\n\nAck everything handed out below seq (exclusive); returns how "
     "many that were.\nOutOfRange beyond what was delivered."},
    {"_redrive", consumer_redrive, METH_VARARGS,
     "_redrive(item, queue, timeout=0, /) -> seq there"},
    {"_tell_losses", consumer_tell_losses, METH_NOARGS,
     "_tell_losses() -> None\n\nHand on_loss what was kept for the next call."},
    {"nack", consumer_nack, METH_O, "nack($self, item, /)\n--\n\nSee Item.nack()."},
    {"rewind", consumer_rewind, METH_NOARGS,
     "rewind($self, /)\n--\n\nNack everything handed out: how many items, and bytes of "
     "their frames. Items\nstill in hand become stale."},
    {"checkpoint", consumer_checkpoint, METH_NOARGS,
     "checkpoint($self, /)\n--\n\nFlush, persist all acks, and give back the segments that they "
     "free."},
    {"fileno", consumer_fileno, METH_NOARGS,
     "fileno($self, /)\n--\n\nA descriptor for event loops. It is readable whenever reserve(0) "
     "might return or raise\nsomething, until one finds nothing; it may be readable in vain. It "
     "stays "
     "readable once the\nconsumer is closed, and is closed when the consumer is collected. Do not "
     "read or close it.\nThe first call starts a thread of the C core, which ends with close(); a "
     "forked child has none."},
    {"close", consumer_close, METH_NOARGS,
     "close($self, /)\n--\n\nPersist acks and give the role back; items in hand are ready again. "
     "Idempotent."},
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "Consumer[T], for type checkers."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef consumer_members[] = {
    {"queue", T_OBJECT_EX, offsetof(struct consumer_object, queue), READONLY,
     "The Queue it consumes."},
    {"views", T_BOOL, offsetof(struct consumer_object, views), READONLY,
     "True: item.body is a read-only memoryview over the segment."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef consumer_attributes[] = {
    {"closed", consumer_get_closed, NULL, "True once closed, here or with the queue.", NULL},
    {"on_loss", consumer_get_on_loss, consumer_set_on_loss,
     "None, or a callable that gets each Corrupt instead of it being raised.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot consumer_slots[] = {
    {Py_tp_doc, "Native base of mpqueue.Consumer."},
    {Py_tp_new, consumer_new},
    {Py_tp_init, consumer_init},
    {Py_tp_dealloc, consumer_dealloc},
    {Py_tp_traverse, consumer_traverse},
    {Py_tp_clear, consumer_clear},
    {Py_tp_methods, consumer_methods},
    {Py_tp_members, consumer_members},
    {Py_tp_getset, consumer_attributes},
    {0, NULL},
};

PyType_Spec consumer_spec = {
    .name = "mpqueue._native.Consumer",
    .basicsize = sizeof(struct consumer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = consumer_slots,
};
