/* error.c - statuses, their names, and messages that say what to do. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

const char *mpq_status_name(mpq_status status)
{
    switch (status) {
    case MPQ_OK: return "ok";
    case MPQ_AGAIN: return "again";
    case MPQ_FLUSH: return "flush";
    case MPQ_EMPTY: return "empty";
    case MPQ_TIMEOUT: return "timeout";
    case MPQ_INTERRUPTED: return "interrupted";
    case MPQ_FULL: return "full";
    case MPQ_CLOSED: return "closed";
    case MPQ_SEALED: return "sealed";
    case MPQ_TOO_LARGE: return "too large";
    case MPQ_CONSUMER_BUSY: return "consumer busy";
    case MPQ_STALE: return "stale item";
    case MPQ_OUT_OF_RANGE: return "out of range";
    case MPQ_CORRUPT: return "corrupt";
    case MPQ_POISONED: return "poisoned";
    case MPQ_FLUSH_FAILED: return "flush failed";
    case MPQ_NO_SPACE: return "no space";
    case MPQ_NOT_A_QUEUE: return "not a queue";
    case MPQ_REMOVED: return "queue removed";
    case MPQ_FORMAT: return "format";
    case MPQ_MISMATCH: return "options mismatch";
    case MPQ_FILESYSTEM: return "unsupported filesystem";
    case MPQ_LOCK_TIMEOUT: return "lock timeout";
    case MPQ_ATTACHED: return "attached";
    case MPQ_FORKED: return "forked";
    case MPQ_INVALID: return "invalid";
    case MPQ_SYSTEM: return "system";
    case MPQ_MEMORY: return "memory";
    case MPQ_INTERNAL: return "internal";
    }
    return "unknown";
}

const char *mpq_full_reason_name(uint32_t reason)
{
    switch (reason) {
    case MPQ_FULL_CAPACITY: return "capacity";
    case MPQ_FULL_BYTES: return "bytes";
    case MPQ_FULL_RING: return "ring";
    case MPQ_FULL_SCHEDULED: return "scheduled";
    case MPQ_FULL_PINNED: return "pinned";
    default: return "unknown";
    }
}

#define TEXT_MAX 5120 /* a path of any length, and the words around it */

/* The words that follow a long path say what to do: what does not fit is cut out of the middle. */
static void message_set(struct mpq_error *error, const char *text)
{
    const size_t room = sizeof error->message - 1, head = room / 3, length = strlen(text);
    if (length <= room) {
        memcpy(error->message, text, length + 1);
        return;
    }
    const size_t tail = room - head - 3;
    memcpy(error->message, text, head);
    memcpy(error->message + head, "...", 3);
    memcpy(error->message + head + 3, text + length - tail, tail + 1);
}

static void fill(struct mpq_error *error, mpq_status status, int os_errno, const char *suffix,
                 const char *format, va_list arguments)
{
    char text[TEXT_MAX];
    memset(error, 0, offsetof(struct mpq_error, message));
    error->status = status;
    error->os_errno = os_errno;
    error->pid = -1;
    vsnprintf(text, sizeof text, format, arguments);
    if (os_errno != 0) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, ": %s%s", strerror(os_errno), suffix);
    }
    message_set(error, text);
}

mpq_status mpq_fail(struct mpq_error *error, mpq_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, 0, "", format, arguments);
        va_end(arguments);
    }
    return status;
}

/* What to do about an error of the system that users can do something about. */
static const char *advice(int os_errno)
{
    switch (os_errno) {
    case ENOSPC:
    case EDQUOT: return "; the queue is as it was: free space, then try again";
    case EACCES:
    case EPERM:
        return "; this user may not write there: check owner and mode of the directory and its "
               "files (`mpqueue init --mode`)";
    case EROFS: return "; mounted read-only: only inspect(), peek and export work there";
    case EMFILE: return "; raise the limit of open files (ulimit -n), or close some";
    case ENFILE: return "; this machine has no free file handles: close some";
    case EFBIG: return "; raise the limit of file sizes (ulimit -f)";
    case EBADF:
        return "; other code of this process closed a descriptor that the queue keeps: open the "
               "queue again, after that code";
    case ELOOP: return " (a link, or a special file); files of a queue are regular files";
    case EIO: return "; the disk reports errors: see the kernel's log";
    default: return "";
    }
}

mpq_status mpq_fail_errno(struct mpq_error *error, const char *format, ...)
{
    int saved = errno;
    mpq_status status = MPQ_SYSTEM;
    if (saved == ENOSPC || saved == EDQUOT)
        status = MPQ_NO_SPACE;
    else if (saved == ENOMEM)
        status = MPQ_MEMORY;
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        fill(error, status, saved, advice(saved), format, arguments);
        va_end(arguments);
    }
    errno = saved;
    return status;
}
