/* tracer.h - a child that stops before an operation, and is led through it instruction by
 * instruction or from system call to system call. */
#ifndef TRACER_H
#define TRACER_H

#include <stdbool.h>
#include <sys/types.h>

/* The user's: says where in which run, ends the program. */
__attribute__((noreturn)) void tracer_failed(const char *what, int detail);

/* A child runs setup(arg), stops, and will run op(arg) and stop again. */
pid_t tracer_start(void (*setup)(void *arg), void (*op)(void *arg), void *arg);
/* SIGKILL, and waits until nothing is left of it. */
void tracer_kill(pid_t child);
/* False: the operation has ended. */
bool tracer_step(pid_t child);
/* Through the next system call. */
bool tracer_skip(pid_t child);
/* Lets it run to its end. */
void tracer_finish(pid_t child);
/* The next instruction is a system call. */
bool tracer_at_call(pid_t child);
/* To the worker-th processor: stepping costs half when both sides share one. */
void tracer_pin(unsigned worker);

#endif
