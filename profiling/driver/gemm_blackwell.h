/* SPDX-License-Identifier: MIT */
/* c = a b^T in bf16 by the products of compute capability 10.0 and 10.3, which take
 * both factors from shared memory, keep the sums in tensor memory and are started
 * by one thread.
 *
 * A block of 4 warps makes 256 x 128: two products of 128 x 128, one above the
 * other, share each tile of b, since 128 x 128 alone would need twice what the
 * second-level cache gives. Tiles are those of gemm_tensor.h, four deep; a stage is
 * two of a and one of b. Two blocks share a multiprocessor, and so all of its tensor
 * memory. */

enum { SUM_ROWS = 256, SUM_STAGES = 4, SUM_STAGE_BYTES = 3 * TILE_BYTES };
enum { SUM_SHARED_BYTES = SUM_STAGES * SUM_STAGE_BYTES + 32 };

/* The shared memory descriptor (PTX ISA, "Shared memory descriptor" of tcgen05):
 *   0-13   address >> 4: `from` is within the first line of a tile
 *   16-29  leading dimension, not used by a swizzled factor along k: 1
 *   32-45  from 8 lines to the next, >> 4: 8 lines of 64 bytes
 *   46-48  the constant 1
 *   49-51  base offset: 0, tiles begin at multiples of 512 bytes
 *   52     leading dimension is relative: 0
 *   61-63  4: 64-byte swizzling, which is `place` for ALONG_K */
DEVICE uint64_t product_tile(const char *from) {
    return (uint64_t) (shared_address(from) >> 4 & 0x3fff) | 1ull << 16 | (uint64_t) (512 >> 4) << 32 | 1ull << 46 |
           4ull << 61;
}

/* The instruction descriptor (PTX ISA, "Instruction descriptor", for .kind::f16):
 *   4-5    type of the sums: 1, fp32
 *   7-9    type of a: 1, bf16
 *   10-12  type of b: 1, bf16
 *   13-16  nothing negated, both factors along k: 0
 *   17-22  columns >> 3
 *   24-28  rows >> 4 */
#define PRODUCT_SHAPE (1u << 4 | 1u << 7 | 1u << 10 | (128u >> 3) << 17 | (128u >> 4) << 24)

/* Eight neighbours of one row of c. */
DEVICE void store_eight(const Gemm *p, int64_t at, const float *x) {
    Words out;
    UNROLL for (int i = 0; i < 4; i++) {
        float low = p->alpha * x[2 * i], high = p->alpha * x[2 * i + 1];
        if (p->add) {
            uint32_t old = ((const uint32_t *) ((const uint16_t *) p->add + at))[i];
            low += low_bf16(old);
            high += high_bf16(old);
        }
        out.v[i] = pair_bf16(low, high);
    }
    *(Words *) ((uint16_t *) p->c.data + at) = out;
}

KERNEL_FITTING(128, 2) gemm_bf16_tcgen05(const Gemm p) {
    SHARED_OF_LAUNCH(tiles, SUM_SHARED_BYTES);
    uint64_t *done = (uint64_t *) (tiles + SUM_STAGES * SUM_STAGE_BYTES); /* two flags, in turn */
    uint32_t *where = (uint32_t *) (done + 2);
    const int steps = p.k / 32, warp = threadIdx.x / 32;
    Corner corner = my_tile(p.m / 2, p.n);
    corner.row *= 2;
    const int64_t row_a = p.a.row * 2, row_b = p.b.row * 2; /* bytes */
    const char *a = (const char *) p.a.data + batch_offset(&p.a, p.inner) * 2 + corner.row * row_a;
    const char *b = (const char *) p.b.data + batch_offset(&p.b, p.inner) * 2 + corner.column * row_b;
    char *mine = tiles + place(threadIdx.x / 4, threadIdx.x % 4, ALONG_K);
    a += threadIdx.x / 4 * row_a + 16 * (threadIdx.x % 4);
    b += threadIdx.x / 4 * row_b + 16 * (threadIdx.x % 4);

    if (warp == 0)
        sums_reserve(where);
    if (threadIdx.x == 0) {
        flag_make(&done[0]);
        flag_make(&done[1]);
    }
    UNROLL for (int stage = 0; stage < SUM_STAGES - 1; stage++) {
        if (stage < steps) {
            char *to = mine + stage * SUM_STAGE_BYTES;
            load_pieces(to, a, row_a);
            load_pieces(to + TILE_BYTES, a + 128 * row_a, row_a);
            load_pieces(to + 2 * TILE_BYTES, b, row_b);
            a += 64;
            b += 64;
        }
        copies_commit();
    }
    products_before_sync();
    sync_block();
    products_after_sync();
    const uint32_t sums = *where;

    for (int step = 0; step < steps; step++) {
        copies_wait(SUM_STAGES - 2);
        copies_to_products();
        sync_block(); /* this stage is there for all */
        if (threadIdx.x == 0) {
            const char *now = tiles + step % SUM_STAGES * SUM_STAGE_BYTES;
            products_after_sync();
            UNROLL for (int k = 0; k < 2; k++) UNROLL for (int half = 0; half < 2; half++)
                product_bf16(sums + 128 * half, product_tile(now + half * TILE_BYTES + 32 * k),
                             product_tile(now + 2 * TILE_BYTES + 32 * k), PRODUCT_SHAPE, step || k);
            products_commit(&done[step % 2]);
        }
        if (step) /* no product reads the stage before it any more: it is the next to be filled */
            products_wait(&done[(step - 1) % 2], (step - 1) / 2 % 2);
        int next = step + SUM_STAGES - 1;
        if (next < steps) {
            char *to = mine + next % SUM_STAGES * SUM_STAGE_BYTES;
            load_pieces(to, a, row_a);
            load_pieces(to + TILE_BYTES, a + 128 * row_a, row_a);
            load_pieces(to + 2 * TILE_BYTES, b, row_b);
            a += 64;
            b += 64;
        }
        copies_commit();
    }
    products_wait(&done[(steps - 1) % 2], (steps - 1) / 2 % 2);
    sync_warp();
    products_after_sync();

    int64_t base = batch_offset(&p.c, p.inner) + (corner.row + threadIdx.x) * p.c.row + corner.column;
    for (int half = 0; half < 2; half++)
        UNROLL for (int part = 0; part < 4; part++) {
            float r[32];
            sums_load(r, sums + ((uint32_t) (32 * warp) << 16) + 128 * half + 32 * part);
            UNROLL for (int i = 0; i < 4; i++)
                store_eight(&p, base + 128 * half * p.c.row + 32 * part + 8 * i, r + 8 * i);
        }
    products_before_sync();
    sync_block(); /* nobody reads the sums any more */
    products_after_sync();
    if (warp == 0)
        sums_release(sums);
}
