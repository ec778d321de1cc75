/* SPDX-License-Identifier: MIT */
#include "fibers.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { MOST_THREADS = 256, STACK_BYTES = 64 << 10, MOST_COPIES = 64 };
enum State { READY, AT_WARP, AT_BLOCK, DONE };

typedef struct {
    void *to;
    const void *from;
    int group;
} Copy;

typedef struct {
    ucontext_t start;
    jmp_buf here;
    enum State state;
    int begun, turn;              /* turn: which exchange buffer is next */
    int group, copies, kept_back; /* kept_back: copies have arrived that were not handed over */
    Copy copy[MOST_COPIES];
} Fiber;

Index threadIdx, blockIdx, gridDim;
int fibers_eager, fibers_hasty, fibers_conflicts;

static Fiber fiber[MOST_THREADS];
static char *stacks;
static char exchange[MOST_THREADS / 32][2][32 * FIBER_EXCHANGE_BYTES];
static jmp_buf scheduler;
static void (*body)(const void *);
static const void *argument;
static int wrong;
static unsigned threads_of_block;

/* Let the next lane of this warp go on, or the scheduler where that one waits or
 * is new. */
static void go_on(void) {
    unsigned next = threadIdx.x + 1;
    if (next % 32 == 0 || fiber[next].state != READY || !fiber[next].begun)
        _longjmp(scheduler, 1);
    threadIdx.x = next;
    _longjmp(fiber[next].here, 1);
}

static void stop_at(enum State state) {
    Fiber *me = &fiber[threadIdx.x];
    me->state = state;
    if (!_setjmp(me->here))
        go_on();
}

void fiber_sync_block(void) {
    stop_at(AT_BLOCK);
}
void fiber_sync_warp(void) {
    stop_at(AT_WARP);
}

char *fiber_exchange_buffer(void) {
    int turn = fiber[threadIdx.x].turn ^= 1;
    return exchange[threadIdx.x / 32][turn];
}

void fiber_copy16(void *to, const void *from) {
    Fiber *me = &fiber[threadIdx.x];
    if (((uintptr_t) to | (uintptr_t) from) & 15 || me->copies == MOST_COPIES) {
        wrong = 1;
        return;
    }
    if (fibers_eager)
        memcpy(to, from, 16);
    Copy one = {to, from, me->group};
    me->copy[me->copies++] = one;
}

void fiber_copies_commit(void) {
    fiber[threadIdx.x].group++;
}

/* Carry out the copies of all groups but the last n. */
void fiber_copies_wait(int n) {
    Fiber *me = &fiber[threadIdx.x];
    int kept = 0;
    for (int i = 0; i < me->copies; i++)
        if (me->copy[i].group >= me->group - n)
            me->copy[kept++] = me->copy[i];
        else if (!fibers_eager)
            memcpy(me->copy[i].to, me->copy[i].from, 16);
    me->kept_back |= kept < me->copies;
    me->copies = kept;
}

void fiber_wrong(void) {
    wrong = 1;
}

void fiber_copies_handed_over(void) {
    fiber[threadIdx.x].kept_back = 0;
}

int fiber_all_handed_over(void) {
    for (unsigned i = 0; i < threads_of_block; i++)
        if (fiber[i].kept_back)
            return 0;
    return 1;
}

/* A fiber runs its thread of one block after the other: making a new one costs system calls. */
static void live(void) {
    for (;;) {
        body(argument);
        Fiber *me = &fiber[threadIdx.x];
        me->state = DONE;
        if (me->copies)
            wrong = 1;
        if (!_setjmp(me->here))
            go_on();
    }
}

static void resume(unsigned thread) {
    Fiber *next = &fiber[thread];
    threadIdx.x = thread;
    if (_setjmp(scheduler))
        return;
    if (next->begun)
        _longjmp(next->here, 1);
    next->begun = 1;
    setcontext(&next->start);
}

static void begin(unsigned thread) {
    Fiber *one = &fiber[thread];
    if (!one->begun || one->state != DONE) { /* new, or left at a barrier by a kernel that went wrong */
        getcontext(&one->start);
        one->start.uc_stack.ss_sp = stacks + (size_t) thread * STACK_BYTES;
        one->start.uc_stack.ss_size = STACK_BYTES;
        one->start.uc_link = NULL;
        makecontext(&one->start, live, 0);
        one->begun = 0;
    }
    one->state = READY;
    one->turn = one->group = one->copies = one->kept_back = 0;
}

/* Run the lanes of one warp until all of them stand at the block's barrier or
 * are done. */
static void run_warp(unsigned first, unsigned lanes) {
    for (;;) {
        unsigned at_warp = 0;
        for (unsigned i = first; i < first + lanes; i++) {
            if (fiber[i].state == READY)
                resume(i);
            at_warp += fiber[i].state == AT_WARP;
        }
        if (at_warp && at_warp < lanes)
            wrong = 1; /* the others never come */
        if (!at_warp || wrong)
            return;
        for (unsigned i = first; i < first + lanes; i++)
            fiber[i].state = READY;
    }
}

static void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; i++)
        begin(i);
    for (unsigned done = 0; done < threads && !wrong;) {
        done = 0;
        for (unsigned first = 0; first < threads && !wrong; first += 32)
            run_warp(first, threads - first < 32 ? threads - first : 32);
        for (unsigned i = 0; i < threads; i++)
            done += fiber[i].state == DONE;
        if (done && done < threads)
            wrong = 1; /* some have left, others wait at a barrier */
        for (unsigned i = 0; i < threads && !done; i++)
            fiber[i].state = READY;
    }
}

int fibers_run(void (*kernel)(const void *), const void *parameters, Index grid, unsigned threads) {
    if (threads > MOST_THREADS || !(stacks || (stacks = malloc((size_t) MOST_THREADS * STACK_BYTES))))
        return 1;
    body = kernel;
    argument = parameters;
    gridDim = grid;
    threads_of_block = threads;
    wrong = 0;
    for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid.x && !wrong; blockIdx.x++)
                run_block(threads);
    return wrong;
}
