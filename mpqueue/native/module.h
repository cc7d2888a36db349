/* module.h - what the files of the binding (module*.c) share. They alone include Python.h.
 *
 * Owns: reference-counted C handles under the Python objects, argument tables, waiting without the
 * interpreter lock. Never: touches a shared byte; that is the core's.
 *
 * I1  Reference counts and flags here change only with the interpreter lock held.
 * I2  `try` calls of the core run with that lock held; whatever may sleep or sync runs without it.
 * I3  `closing` is set, with the interpreter lock held, before the core's close begins, and nothing
 *     calls the core with that lock held once it is set: a try call never meets a close under way.
 * I4  A core handle is freed by whoever drops its last reference, so a call in another thread,
 *     which holds one through its object, never sees freed memory; after close it sees MPQ_CLOSED.
 */
#ifndef MPQ_MODULE_H
#define MPQ_MODULE_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdio.h>
#include <string.h>

#include "mpq.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define FOREVER UINT64_MAX
#define ARGUMENTS_MAX 6
#define GIL_BYTES 65536u /* copying more than this is done without the interpreter lock */

enum signature_index {
    SIGNATURE_PUT,
    SIGNATURE_PUT_NOWAIT,
    SIGNATURE_PUT_MANY,
    SIGNATURE_SEAL,
    SIGNATURE_RESERVE,
    SIGNATURE_RESERVE_MANY,
    SIGNATURE_ACK,
    SIGNATURE_ACK_MANY,
    SIGNATURE_TAKE,
    SIGNATURE_WAIT,
    SIGNATURE_ITEM_ACK,
    SIGNATURE_ITEM_NACK,
    SIGNATURE_ITEM_DEAD,
    SIGNATURES
};

#define SPARE_ITEMS 4

struct state {
    PyObject *make_error; /* mpqueue.exceptions._from_native */
    PyTypeObject *queue_type, *consumer_type, *item_type, *typed_item_type, *view_type;
    PyObject *names[SIGNATURES][ARGUMENTS_MAX]; /* interned argument names */
    PyObject *raise, *drop; /* interned values of on_full */
    PyObject *spare[SPARE_ITEMS]; /* memory of dead Items: a consumer makes one after the other */
    unsigned spares;
};

/* The core's queue, shared by the Queue object and the roles opened on it. */
struct handle {
    size_t references;
    struct mpq_queue *queue;
    struct mpq_stats last; /* snapshots taken when close began */
    struct mpq_options last_options;
    bool closing; /* I3 */
    bool close_runs, close_later; /* see waiter_end */
    struct state *state;
};

/* The core's consumer, shared by the Consumer object and its items. */
struct role {
    size_t references;
    struct mpq_consumer *consumer;
    struct handle *handle;
    struct state *state;
    bool closing; /* I3; the handle's counts too */
    bool close_later; /* see waiter_end */
};

struct queue_object {
    PyObject_HEAD struct handle *handle; /* NULL before __init__ */
    struct state *state;
    PyObject *encode; /* NULL or a callable: what is put -> bytes-like */
    PyObject *decode; /* NULL or a callable: TypedItem -> its value */
};

struct consumer_object {
    PyObject_HEAD struct role *role; /* NULL before __init__ */
    struct state *state;
    PyObject *queue;
    PyObject *on_loss; /* NULL or a callable that gets each Corrupt instead of it being raised */
    PyTypeObject *items; /* Item or a subclass; of TypedItem when typed */
    PyObject *pending; /* NULL or an exception that the next reserve raises */
    char views;
    char opening; /* __init__ waits for the role, without the interpreter lock */
    char typed; /* items are decoded by the queue's hook */
};

struct item_object {
    PyObject_HEAD struct role *role;
    PyObject *body;
    PyObject *ext; /* NULL or bytes: the frame's extension */
    uint64_t seq, epoch, origin_seq, enqueued_at, token;
    uint32_t attempts;
    char settled;
};

struct typed_object {
    struct item_object item;
    PyObject *decode; /* a callable: this item -> its value */
    PyObject *value; /* NULL until it was decoded */
};

/* ---- module.c */

struct state *state_of(PyTypeObject *type);
/* Sorts the arguments of a METH_FASTCALL|METH_KEYWORDS call into out[]; NULL where not given. */
int arguments_parse(struct state *state, enum signature_index index, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames, PyObject **out);
/* None or absent = FOREVER, else nanoseconds; ValueError when negative or not a number. */
int timeout_parse(PyObject *object, uint64_t *timeout_ns);
/* A whole number from 0 to 2**64 - 1; ValueError names it. */
int number_parse(PyObject *object, const char *name, uint64_t *number);
int flag_parse(PyObject *object, bool *flag);
uint64_t deadline_after(uint64_t timeout_ns);
/* A new exception for a status, or NULL with another one set. */
PyObject *error_make(struct state *state, mpq_status status, const struct mpq_error *error);
/* Sets it; always NULL. MPQ_INTERRUPTED leaves what the signal handler raised. */
PyObject *error_raise(struct state *state, mpq_status status, const struct mpq_error *error);

void uuid_text(const uint8_t *uuid, char text[33]);

/* A core call without the interpreter lock whose check() runs Python's signal handlers. A handler
 * may close what the call works on; the core's close would wait for the call to leave, and the call
 * for the handler. So it is put off: the call ends with Closed, and waiter_end closes. */
struct waiter {
    PyThreadState *thread;
    struct mpq_call call;
    struct handle *handle; /* NULL: of none */
    struct role *role; /* NULL: not one of a consumer */
    struct waiter *outer; /* of this thread, which runs a handler inside it */
};
void waiter_begin(struct waiter *waiter, struct handle *handle, struct role *role,
                  uint64_t deadline_ns);
/* The status, or MPQ_INTERRUPTED when a handler raised during work that the core does not need. */
mpq_status waiter_end(struct waiter *waiter, mpq_status status);
/* Before calls that only look: in a forked child the first one joins, and may have to wait. -1: a
 * signal handler raised. */
int handle_join(struct handle *handle);
/* Does this thread run a handler inside a call on that handle, or role? */
bool waiter_inside(const struct handle *handle, const struct role *role);

/* ---- module_queue.c */

extern PyType_Spec queue_spec;
void handle_drop(struct handle *handle);
/* Hands events worth a WARNING to the object's _report_events. What that raises is not the
 * caller's business: it is printed as unraisable. */
void events_report(struct queue_object *queue);
/* NULL with Closed set once close began, and before __init__ ran. */
struct handle *handle_open(struct queue_object *queue);

/* ---- module_put.c: METH_FASTCALL | METH_KEYWORDS methods of Queue */

PyObject *queue_put(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *queue_put_nowait(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *queue_put_many(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
/* put_many of what is encoded already. */
PyObject *queue_put_encoded(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);
/* A put in its two parts, for event loops; the first takes what is encoded already. */
PyObject *queue_claim(PyObject *object, PyObject *args);
PyObject *queue_await_flush(PyObject *object, PyObject *number);

/* Waits for what the policy promises. */
mpq_status flush_wait(struct queue_object *self, uint64_t ticket, struct mpq_error *error);
/* Raises what is set, which did not come from the core, and says by it what went in before. */
PyObject *accepted_raise(uint64_t accepted);
/* Adds to the error of a put_many in parts how much of it went in before. */
void accepted_say(mpq_status status, struct mpq_error *error, uint32_t done, uint32_t count);

struct bundle { /* the items of one put_many */
    PyObject *objects; /* a tuple; keeps the bytes alive */
    struct mpq_item_in *in;
    Py_buffer *views; /* NULL while every object is exact bytes */
    uint32_t count;
    uint64_t bytes;
};

/* ---- module_once.c */

/* Adds a key to an extension, which PyMem_Malloc made, or none; -1 with an exception set. */
int key_append(PyObject *key, uint8_t **ext, uint16_t *ext_length);
/* The first part of a put of one item with a key in its extension. may_wait false: a try call. */
mpq_status keyed_claim(struct queue_object *self, const struct mpq_item_in *in, uint64_t timeout,
                       bool may_wait, uint64_t *seq, uint64_t *ticket, struct mpq_error *error);
/* Raises what a put with that key raises for it. */
PyObject *queue_check_key(PyObject *object, PyObject *key);
PyObject *item_get_key(PyObject *item, void *closure);
/* A list with the seq of every item; not atomic: in as many batches as needed. */
PyObject *bundle_put_keyed(struct queue_object *self, struct bundle *bundle, PyObject *key_list,
                           bool atomic, uint64_t timeout);

/* ---- module_headers.c: the user's headers as an extension entry, and back */

/* Allocates *ext with PyMem_Malloc; NULL and 0 for an empty mapping. */
int headers_encode(PyObject *headers, uint8_t **ext, uint16_t *ext_length);
PyObject *headers_decode(const uint8_t *ext, size_t ext_length);

/* ---- module_keys.c: which keys a queue's items are encrypted with */

PyObject *module_look(PyObject *module, PyObject *path);
PyObject *queue_keys(PyObject *object, PyObject *ignored);
PyObject *queue_add_key(PyObject *object, PyObject *args);

/* ---- module_role.c */

void role_drop(struct role *role);
/* MPQ_CLOSED, with *error filled unless it is NULL, once close began; else MPQ_OK. */
mpq_status role_check(const struct role *role, struct mpq_error *error);
/* The role while it may be used, else NULL with Closed set. */
struct role *role_of(struct consumer_object *consumer);
PyObject *consumer_fileno(PyObject *object, PyObject *ignored);

/* ---- module_loss.c */

/* A loss: told to on_loss, kept for the next call, or raised. -1 with an exception set. */
int loss_report(struct consumer_object *self, const struct mpq_error *error, bool keep);
/* -1 with what an earlier call has kept. */
int loss_raise(struct consumer_object *self);
PyObject *consumer_tell_losses(PyObject *object, PyObject *ignored);

/* ---- module_lease.c */

PyObject *item_extend(PyObject *object, PyObject *seconds);

/* ---- module_dead.c: METH_FASTCALL | METH_KEYWORDS methods of Item, and one of Consumer */

PyObject *item_method_nack(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *item_method_dead(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames);
PyObject *consumer_redrive(PyObject *object, PyObject *args);
/* An exception leaves the block of an item: its text is kept for a dead letter. Raises nothing. */
void item_failed(struct item_object *item, PyObject *type, PyObject *value);

/* ---- module_consumer.c, module_item.c */

extern PyType_Spec consumer_spec;
extern PyType_Spec item_spec;
extern PyType_Spec typed_item_spec;
extern PyType_Spec view_spec;
/* Wraps what the core handed out and takes over item->segment, also when it fails: then the item
 * is ready again. A peeked item is settled from the start and never a view. NULL without an
 * exception: somebody settled it before its bytes were copied; look again. */
PyObject *item_wrap(struct consumer_object *consumer, const struct mpq_item *item, bool peeked);
/* Gives an item of a failed call back without a warning. */
void item_return(struct item_object *item);
/* The item as one of this consumer's, or NULL: TypeError, or StaleItem for another's. */
struct item_object *item_own(struct consumer_object *self, PyObject *object);
/* Makes the value of a TypedItem unless it is there; -1 with what its decoder raised. */
int typed_decode(struct typed_object *typed);
/* -1 with an exception set. Acks are synced where the policy or the caller wants it. */
int item_ack(struct item_object *item, bool durable);
int item_nack(struct item_object *item);
int role_sync(struct role *role, bool durable);

#endif
