/* copied.h - a queue directory as a process that died this instant would leave it.
 *
 * A dead process is its mappings: a copy of all files, in which nobody holds a lock byte, is what
 * its survivors meet. That costs a copy where a real kill costs the whole way to the instruction.
 * What the kernel itself does at a death is left to real kills. */
#ifndef COPIED_H
#define COPIED_H

#include <stdint.h>

#include "io.h"

/* The table's stat and fstat then show the inode of the last copy's meta as that of its original,
 * and that of its dead letters': a copy is otherwise met with another epoch and a rebuilt control
 * file. */
void copied_table(struct mpq_io *io);
/* A hash of the names, sizes and bytes of all files of directory `from`, with its directories: two
 * deaths that leave the same are one. What it met stays mapped until the next look, which reads it
 * all again but hashes only what has changed. */
uint64_t copied_hash(const char *from, uint64_t seed);
/* Copies directory `from` with its directories to `to`, which is emptied or made first. */
void copied_make(const char *from, const char *to);
/* A descriptor whose description holds the lock byte of `incarnation` in the copy: to those who
 * open it, that member lives. -1 when there is no meta yet. */
int copied_hold(const char *path, uint64_t incarnation);
void copied_remove(const char *path);

#endif
