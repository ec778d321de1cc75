/* SPDX-License-Identifier: MIT */
/* c = a^T b on the ordinary arithmetic units: fp32 everywhere, fp64 where no
 * tensor core does it.
 *
 * Both factors have k as their row index, so that a tile of 8 x 128 goes to
 * shared memory as it lies and each thread reads its 8 rows and 8 columns of c
 * as vectors. 256 threads make a tile of 128 x 128; three tiles of k are under
 * way. Two blocks of fp32 share a multiprocessor, so that one computes while the
 * other waits. This file is included once for each number type. */

#ifndef GEMM_SCALAR_BODY
#define GEMM_SCALAR_BODY
enum { SCALAR_K = 8, SCALAR_STAGES = 3 };

#define REAL float
#define VECTOR Floats
#define NAME gemm_fp32
#define BLOCKS 2
#include "gemm_scalar.h"
#undef REAL
#undef VECTOR
#undef NAME
#undef BLOCKS

#if FOR_VOLTA
#define REAL double
#define VECTOR Doubles
#define NAME gemm_fp64_scalar
#define BLOCKS 1
#include "gemm_scalar.h"
#undef REAL
#undef VECTOR
#undef NAME
#undef BLOCKS
#endif

#else

#define WIDTH (16 / (int) sizeof(REAL)) /* numbers in a vector */
#define JOIN(name, part) name##_##part
#define PART(name, part) JOIN(name, part)

/* A thread's pieces of a tile, the first of them at `tile` and `from`. */
DEVICE void PART(NAME, load)(REAL *tile, const REAL *from, int64_t row) {
    UNROLL for (int k = 0; k < SCALAR_K; k += 2 * WIDTH) copy16(tile + k * 128, from + k * row);
}

KERNEL_FITTING(256, BLOCKS) NAME(const Gemm p) {
    SHARED REAL tiles[SCALAR_STAGES][2][SCALAR_K * 128];
    const int x = threadIdx.x % 16, y = threadIdx.x / 16, steps = p.k / SCALAR_K;
    const Corner corner = my_tile(p.m, p.n);
    const REAL *a = (const REAL *) p.a.data + batch_offset(&p.a, p.inner) + corner.row;
    const REAL *b = (const REAL *) p.b.data + batch_offset(&p.b, p.inner) + corner.column;
    const int line = threadIdx.x / (128 / WIDTH), column = threadIdx.x % (128 / WIDTH) * WIDTH;
    REAL *mine = &tiles[0][0][line * 128 + column];
    REAL sum[8][8] = {{0}};
    a += line * p.a.row + column;
    b += line * p.b.row + column;

    UNROLL for (int stage = 0; stage < SCALAR_STAGES - 1; stage++) {
        if (stage < steps) {
            PART(NAME, load)
            (mine + 2 * stage * SCALAR_K * 128, a, p.a.row);
            PART(NAME, load)
            (mine + (2 * stage + 1) * SCALAR_K * 128, b, p.b.row);
            a += SCALAR_K * p.a.row;
            b += SCALAR_K * p.b.row;
        }
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait(SCALAR_STAGES - 2);
        sync_block(); /* this tile is there for all, and nobody reads the one before
                         it any more */
        int next = step + SCALAR_STAGES - 1;
        if (next < steps) {
            PART(NAME, load)
            (mine + 2 * (next % SCALAR_STAGES) * SCALAR_K * 128, a, p.a.row);
            PART(NAME, load)
            (mine + (2 * (next % SCALAR_STAGES) + 1) * SCALAR_K * 128, b, p.b.row);
            a += SCALAR_K * p.a.row;
            b += SCALAR_K * p.b.row;
        }
        copies_commit();
        const VECTOR *ta = (const VECTOR *) tiles[step % SCALAR_STAGES][0];
        const VECTOR *tb = (const VECTOR *) tiles[step % SCALAR_STAGES][1];
        UNROLL for (int k = 0; k < SCALAR_K; k++) {
            VECTOR va[8 / WIDTH], vb[8 / WIDTH];
            UNROLL for (int i = 0; i < 8 / WIDTH; i++) {
                va[i] = ta[k * (128 / WIDTH) + 16 * i + y];
                vb[i] = tb[k * (128 / WIDTH) + 16 * i + x];
            }
            UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j++) sum[i][j] +=
                va[i / WIDTH].v[i % WIDTH] * vb[j / WIDTH].v[j % WIDTH];
        }
    }
    REAL *c = (REAL *) p.c.data + batch_offset(&p.c, p.inner);
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int j = 0; j < 8; j += WIDTH) {
        int row = corner.row + (16 * (i / WIDTH) + y) * WIDTH + i % WIDTH;
        int column = corner.column + (16 * (j / WIDTH) + x) * WIDTH;
        VECTOR out;
        UNROLL for (int e = 0; e < WIDTH; e++) out.v[e] = (REAL) p.alpha * sum[i][j + e];
        *(VECTOR *) (c + row * p.c.row + column) = out;
    }
}

#undef WIDTH
#undef JOIN
#undef PART
#endif
