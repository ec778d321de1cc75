/* SPDX-License-Identifier: MIT */
/* The threads of a block as fibers of one host thread: each runs until it comes
 * to a barrier.
 *
 * Blocks run one after the other, so shared memory is a static array.
 * Asynchronous copies are carried out as late as the kernel allows, when it
 * waits for them (or at once: fibers_eager), so that a missing wait shows as
 * wrong numbers. Lanes of a warp that stand at different barriers are an error
 * of the kernel. */
#ifndef FIBERS_H
#define FIBERS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned x, y, z;
} Index;

extern Index threadIdx, blockIdx, gridDim;

enum { FIBER_EXCHANGE_BYTES = 64 }; /* the most that a lane hands in */

void fiber_sync_block(void);
void fiber_sync_warp(void);
char *fiber_exchange_buffer(void); /* of this warp; another one at each call in turn */
void fiber_copy16(void *to, const void *from);
void fiber_copies_commit(void);
void fiber_copies_wait(int n);
void fiber_wrong(void);              /* the kernel does what it must not: the launch fails */
void fiber_copies_handed_over(void); /* what has arrived may be read by a product of the warpgroup */
int fiber_all_handed_over(void);     /* whether all threads have done so since their copies arrived */

extern int fibers_eager;     /* 1: copies happen at once */
extern int fibers_hasty;     /* 1: so do products into tensor memory */
extern int fibers_conflicts; /* loads of matrices whose lines share a bank */

/* Run `body(argument)` for every thread of every block. 0, or 1 when a kernel
 * waits where its neighbours do not, copies what is not aligned, or ends with
 * copies under way. */
int fibers_run(void (*body)(const void *), const void *argument, Index grid, unsigned threads);

#endif
