/* workers.h - an instrument's work in two processes, one a processor. */
#ifndef WORKERS_H
#define WORKERS_H

#include <stdint.h>

#define WORKERS 2
#define FIGURES 6

/* What a worker counted; `most` is a maximum over them, the others are sums. */
struct figures {
    uint64_t sum[FIGURES];
    uint64_t most;
};

/* Forks WORKERS processes that run `work` (0 = no violation) and adds up what they counted; the
 * first that ends otherwise ends the others. 0 when all found nothing. */
int workers_run(int (*work)(unsigned worker, struct figures *figures), struct figures *total);

#endif
