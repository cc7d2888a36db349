/* workload.h - real processes at work on the filesystem that will lose its power. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "ledger.h"

/* Runs producers, a consumer and a writer-back on the queue at `path` until the producers are done
 * or, for half of the seeds, until all are killed. Fills the ledger. Exits when a process failed.
 */
void workload_run(struct store *store, struct ledger *ledger, const char *path);

#endif
