/* A pool of helper threads for work of microseconds.
 *
 * OpenMP's regions end when every thread of the team has arrived. Where other processes use the cores too, a
 * thread that is not running holds all others up for the length of the scheduler's turn, at each of the hundreds
 * of regions of a step. Here the caller takes tasks until none is left and then waits only for helpers that are
 * in the middle of one: a helper that comes late has nothing to do, and nobody waits for it.
 *
 * Between two calls a helper looks for work for some tens of microseconds, then sleeps in the kernel.
 */
#define _GNU_SOURCE
#include "parallel.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <immintrin.h>

#define MAX_HELPERS 255
#define SPINS 4000      /* looks for work before a helper sleeps: about 80 us */
#define YIELD_AFTER 2000 /* looks at helpers that have not finished before the core is offered to them */

/* state: helpers at work in bits 0 to 15, bit 16 while more may join, the job's number above. */
#define OPEN ((uint64_t)1 << 16)
#define ACTIVE (OPEN - 1)
#define NEXT_JOB ((uint64_t)1 << 17)

static struct {
    _Atomic uint64_t state;
    _Atomic int64_t next; /* the first task that nobody has taken */
    _Atomic uint32_t calls; /* what sleepers wait on */
    _Atomic int sleepers;
    atomic_flag busy;
    int helpers;
    int atfork_set;
    /* Of the job; written before `state` opens it, read after joining. */
    int64_t tasks, chunk;
    int threads;
    ramet_task run;
    void *context;
} pool = {.busy = ATOMIC_FLAG_INIT};

static void work(int worker)
{
    for (;;) {
        int64_t first = atomic_fetch_add_explicit(&pool.next, pool.chunk, memory_order_relaxed);
        if (first >= pool.tasks)
            return;
        int64_t last = first + pool.chunk < pool.tasks ? first + pool.chunk : pool.tasks;
        for (int64_t task = first; task < last; task++)
            pool.run(pool.context, task, worker);
    }
}

static void sleep_until_called(uint64_t seen)
{
    uint32_t calls = atomic_load(&pool.calls);
    atomic_fetch_add(&pool.sleepers, 1);
    if (atomic_load(&pool.state) == seen)
        syscall(SYS_futex, &pool.calls, FUTEX_WAIT_PRIVATE, calls, NULL, NULL, 0);
    atomic_fetch_sub(&pool.sleepers, 1);
}

static void *help(void *argument)
{
    const int worker = (int)(intptr_t)argument;
    uint64_t done = 0; /* the last job joined */
    int spins = 0;
    for (;;) {
        uint64_t state = atomic_load_explicit(&pool.state, memory_order_acquire);
        if ((state & OPEN) && state / NEXT_JOB != done) {
            if (!atomic_compare_exchange_weak_explicit(&pool.state, &state, state + 1, memory_order_acquire,
                                                       memory_order_relaxed))
                continue;
            done = state / NEXT_JOB;
            if (worker < pool.threads)
                work(worker);
            atomic_fetch_sub_explicit(&pool.state, 1, memory_order_release);
            spins = 0;
        } else if (++spins < SPINS) {
            _mm_pause();
        } else {
            sleep_until_called(state);
            spins = 0;
        }
    }
    return NULL;
}

/* A forked process has none of its parent's threads. */
static void forget_helpers(void)
{
    pool.helpers = 0;
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.state, 0);
    atomic_flag_clear(&pool.busy);
}

static void add_helpers(int wanted)
{
    if (!pool.atfork_set) {
        pthread_atfork(NULL, NULL, forget_helpers);
        pool.atfork_set = 1;
    }
    sigset_t all, before;
    /* Signals are the business of threads that know of them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.helpers < wanted && pool.helpers < MAX_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, (void *)(intptr_t)(pool.helpers + 1)) != 0)
            break;
        pthread_detach(thread);
        pool.helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ramet_parallel(int64_t tasks, int64_t chunk, int threads, ramet_task run, void *context)
{
    if (threads < 2 || tasks <= chunk || atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        for (int64_t task = 0; task < tasks; task++)
            run(context, task, 0);
        return;
    }
    if (pool.helpers < threads - 1)
        add_helpers(threads - 1);
    pool.tasks = tasks;
    pool.chunk = chunk;
    pool.threads = threads;
    pool.run = run;
    pool.context = context;
    atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
    uint64_t job = atomic_load_explicit(&pool.state, memory_order_relaxed) / NEXT_JOB + 1;
    atomic_store(&pool.state, job * NEXT_JOB | OPEN);
    atomic_fetch_add(&pool.calls, 1);
    if (atomic_load(&pool.sleepers) > 0)
        syscall(SYS_futex, &pool.calls, FUTEX_WAKE_PRIVATE, threads - 1, NULL, NULL, 0);
    work(0);
    atomic_fetch_and(&pool.state, ~OPEN);
    for (int spins = 0; atomic_load_explicit(&pool.state, memory_order_acquire) & ACTIVE; spins++) {
        if (spins < YIELD_AFTER)
            _mm_pause();
        else
            sched_yield();
    }
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}
