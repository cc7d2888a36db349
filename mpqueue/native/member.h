/* member.h - who is attached, who is dead, and what is inherited by a fork: member.c, for
 * internal.h.
 */
#ifndef MPQ_MEMBER_H
#define MPQ_MEMBER_H

/* ---- member.c */
/* 0 = taken, 1 = somebody holds it, -1 = errno. ESTALE: meta was replaced. */
int mpq_pin_take(struct mpq_queue *queue, uint64_t offset, uint64_t bytes, struct mpq_pin *pin);
void mpq_pin_drop(struct mpq_queue *queue, struct mpq_pin *pin);
/* Waits for a byte in slices; MPQ_CLOSED once a close of this handle has begun. */
mpq_status mpq_pin_wait(struct mpq_queue *queue, uint64_t offset, const struct mpq_call *call,
                        struct mpq_pin *pin, const char *what, struct mpq_error *error);
/* True only with the kernel's word for it: monotone. */
bool mpq_dead(struct mpq_queue *queue, uint64_t incarnation);
/* Takes an incarnation; the gate is held. */
mpq_status mpq_join(struct mpq_queue *queue, struct mpq_error *error);
void mpq_leave(struct mpq_queue *queue);
/* In a forked child: joins anew (takes the gate). */
mpq_status mpq_rejoin(struct mpq_queue *queue, const struct mpq_call *call,
                      struct mpq_error *error);
/* The range is held: every entry is of the dead. */
void mpq_members_clear(struct mpq_queue *queue);
/* What members had published before a flush took its snapshot, and that it is done: for
 * unsynced_bytes. */
void mpq_members_mark(struct mpq_queue *queue);
void mpq_members_flushed(struct mpq_queue *queue);
/* Counters of members of now and before that the cursor keeps. */
void mpq_members_sum(struct mpq_queue *queue, uint64_t *full, uint64_t *dropped);
/* -1 when unknown */
int64_t mpq_pid_of(struct mpq_queue *queue, uint64_t incarnation);

static inline bool mpq_forked(const struct mpq_queue *queue)
{
    return MPQ_UNLIKELY(mpq_load(queue->fork->incarnation) == 0);
}

/* Entry of a blocking call: rejoins after a fork, refuses a closed handle, counts it in. */
mpq_status mpq_enter(struct mpq_queue *queue, const struct mpq_call *call, struct mpq_error *error);
/* ... also when control was taken away: for what must be given back all the same. */
mpq_status mpq_enter_leaving(struct mpq_queue *queue, const struct mpq_call *call,
                             struct mpq_error *error);
/* Runs call->check, in a wait. A signal handler may fork there: the child goes on with the call as
 * a process of its own. */
mpq_status mpq_call_check(struct mpq_queue *queue, const struct mpq_call *call,
                          struct mpq_error *error);
void mpq_exit(struct mpq_queue *queue);

/* Descriptors that are kept: other code of the process may close numbers that it does not own, and
 * have them for files of its own then, which must not be written to, nor closed. */
struct mpq_file_id mpq_fd_id(const struct mpq_io *io, int fd);
bool mpq_fd_is(const struct mpq_io *io, int fd, const struct mpq_file_id *id);
void mpq_fd_close(const struct mpq_io *io, int fd, const struct mpq_file_id *id);

#endif
