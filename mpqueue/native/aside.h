/* aside.h - the queue's files as they lie in the directory: are they as they were made? */
#ifndef MPQ_ASIDE_H
#define MPQ_ASIDE_H

#include "internal.h"

/* ---- segment.c */
/* The static header holds, and states this very size: neither cut nor longer than it was made. */
bool mpq_segment_as_made(const struct mpq_queue *queue, const uint8_t *base, uint64_t bytes,
                         uint64_t generation);
/* Out of the table of mappings. queue->mutex held, or alone. */
void mpq_segment_forget(struct mpq_queue *queue, uint64_t generation);

/* ---- aside.c */
enum mpq_intact { MPQ_INTACT_NO, MPQ_INTACT_YES, MPQ_INTACT_UNKNOWN };
/* Is what has that name a segment as it was prepared? */
enum mpq_intact mpq_segment_intact(struct mpq_queue *queue, uint64_t generation);
/* Takes what has that name away: into corrupt/, or for good where it is an empty file. True: the
 * name is free. */
bool mpq_set_aside(struct mpq_queue *queue, uint64_t generation);

/* ---- quarantine.c */
#define MPQ_SAVED "corrupt"
/* Is that a name which something that is saved gets? */
bool mpq_saved_parse(const char *name);
/* The directory is there, and is one. */
bool mpq_saved_make(struct mpq_queue *queue);

/* ---- disk.c */
/* Lists the directory; 0 = it cannot. */
uint64_t mpq_disk_bytes(struct mpq_queue *queue);

#endif
