/* Work shared out among threads, without waiting for one that has not come. */
#ifndef RAMET_PARALLEL_H
#define RAMET_PARALLEL_H

#include <stdint.h>

typedef void (*ramet_task)(void *context, int64_t task, int worker);

/* Calls run(context, task, worker) for every task once, in any order, on this thread (worker 0) and on up to
 * threads - 1 helpers (workers 1 to threads - 1), `chunk` tasks at a time. Returns when all are done. While
 * another thread of the process is in here, the caller does its tasks alone. */
void ramet_parallel(int64_t tasks, int64_t chunk, int threads, ramet_task run, void *context);

#endif
