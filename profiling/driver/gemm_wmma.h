/* SPDX-License-Identifier: MIT */
/* c = a b^T in fp16 on the tensor cores of compute capability 7: 8 warps make a
 * tile of 128 x 128, each 64 x 32 of it. a[row][k], b[column][k]; lines of 16
 * numbers are 24 apart in shared memory, so that 8 lines lie in different banks.
 * Tiles are so shallow that two blocks share the 64 KiB of a multiprocessor of
 * compute capability 7.5: one computes while the other waits. */

enum { WMMA_K = 16, WMMA_LINE = 24 };

DEVICE void load_wmma(uint16_t *tile, const uint16_t *from, int64_t row) {
    int line = threadIdx.x / 2, column = threadIdx.x % 2 * 8;
    copy16(tile + line * WMMA_LINE + column, from + line * row + column);
}

DEVICE void multiply_wmma(FloatFragment sum[4][2], const uint16_t *ta, const uint16_t *tb) {
    int warp = threadIdx.x / 32;
    HalfFragment a[4], b[2];
    UNROLL for (int i = 0; i < 4; i++) wmma_load_a(&a[i], ta + (warp / 4 * 64 + 16 * i) * WMMA_LINE, WMMA_LINE);
    UNROLL for (int j = 0; j < 2; j++) wmma_load_b(&b[j], tb + (warp % 4 * 32 + 16 * j) * WMMA_LINE, WMMA_LINE);
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 2; j++) wmma(&sum[i][j], &a[i], &b[j]);
}

/* One fragment, through `patch` of 256 numbers, to 16 rows of 32 bytes. */
DEVICE void store_wmma(float *patch, const FloatFragment *sum, float alpha, uint16_t *c, int64_t row) {
    int lane = threadIdx.x % 32;
    wmma_store(patch, sum, 16);
    sync_warp();
    const float *x = patch + 8 * lane;
    Words out;
    UNROLL for (int i = 0; i < 4; i++) out.v[i] =
        (uint32_t) half_of(alpha * x[2 * i]) | (uint32_t) half_of(alpha * x[2 * i + 1]) << 16;
    *(Words *) (c + lane / 2 * row + lane % 2 * 8) = out;
    sync_warp();
}

KERNEL_FITTING(256, 2) gemm_fp16_wmma(const Gemm p) {
    SHARED uint16_t tiles[2][2][128 * WMMA_LINE];
    const int warp = threadIdx.x / 32, steps = p.k / WMMA_K;
    const Corner corner = my_tile(p.m, p.n);
    const uint16_t *a = (const uint16_t *) p.a.data + batch_offset(&p.a, p.inner) + corner.row * p.a.row;
    const uint16_t *b = (const uint16_t *) p.b.data + batch_offset(&p.b, p.inner) + corner.column * p.b.row;
    FloatFragment sum[4][2];
    UNROLL for (int i = 0; i < 8; i++) UNROLL for (int e = 0; e < 8; e++) sum[i / 2][i % 2].r[e] = 0.0f;

    load_wmma(tiles[0][0], a, p.a.row);
    load_wmma(tiles[0][1], b, p.b.row);
    copies_commit();
    for (int step = 0; step < steps; step++) {
        copies_wait(0);
        sync_block(); /* this tile is there for all, and nobody reads the one before
                         it any more */
        if (step + 1 < steps) {
            load_wmma(tiles[(step + 1) % 2][0], a + (step + 1) * WMMA_K, p.a.row);
            load_wmma(tiles[(step + 1) % 2][1], b + (step + 1) * WMMA_K, p.b.row);
        }
        copies_commit();
        multiply_wmma(sum, tiles[step % 2][0], tiles[step % 2][1]);
    }
    sync_block(); /* the tiles become patches */
    float *patch = (float *) tiles + 256 * warp;
    uint16_t *c = (uint16_t *) p.c.data + batch_offset(&p.c, p.inner) + (corner.row + warp / 4 * 64) * p.c.row +
                  corner.column + warp % 4 * 32;
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 2; j++)
        store_wmma(patch, &sum[i][j], p.alpha, c + 16 * i * p.c.row + 16 * j, p.c.row);
}
