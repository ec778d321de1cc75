/* SPDX-License-Identifier: MIT */
/* c = a b^T in bf16 by the warpgroup products of compute capability 9.0, which
 * take both factors from shared memory and run beside the threads.
 *
 * The block, its tiles and their places are those of gemm_tensor.h: 4 warps make
 * 128 x 128. A warpgroup is these 4 warps; one product is 64 x 128, each warp
 * has 16 of its rows. Three blocks share a multiprocessor, so that one multiplies
 * while another waits for its tiles. */

KERNEL_FITTING(128, 3) gemm_bf16_wgmma(const Gemm p) {
    SHARED_FOR_GROUPS char tiles[TENSOR_STAGES][2][TILE_BYTES];
    const int steps = p.k / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Corner corner = my_tile(p.m, p.n);
    const int64_t row_a = p.a.row * 2, row_b = p.b.row * 2; /* bytes */
    const char *a = (const char *) p.a.data + batch_offset(&p.a, p.inner) * 2 + corner.row * row_a;
    const char *b = (const char *) p.b.data + batch_offset(&p.b, p.inner) * 2 + corner.column * row_b;
    char *mine = &tiles[0][0][place(threadIdx.x / 4, threadIdx.x % 4, ALONG_K)];
    float sum[2][64];
    a += threadIdx.x / 4 * row_a + 16 * (threadIdx.x % 4);
    b += threadIdx.x / 4 * row_b + 16 * (threadIdx.x % 4);
    UNROLL for (int half = 0; half < 2; half++) UNROLL for (int i = 0; i < 64; i++) sum[half][i] = 0.0f;

    UNROLL for (int stage = 0; stage < TENSOR_STAGES - 1; stage++) {
        if (stage < steps) {
            load_pieces(mine + 2 * stage * TILE_BYTES, a, row_a);
            load_pieces(mine + (2 * stage + 1) * TILE_BYTES, b, row_b);
            a += 64;
            b += 64;
        }
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait(TENSOR_STAGES - 2);
        copies_to_products();
        sync_block(); /* this tile is there for all, and no product reads the one before
                         it any more */
        const char *ta = tiles[step % TENSOR_STAGES][0], *tb = tiles[step % TENSOR_STAGES][1];
        group_begin();
        UNROLL for (int k = 0; k < 2; k++) UNROLL for (int half = 0; half < 2; half++)
            group_mma_bf16(sum[half], ta + half * 4096 + 32 * k, tb + 32 * k);
        group_commit();
        int next = step + TENSOR_STAGES - 1;
        if (next < steps) {
            load_pieces(mine + 2 * (next % TENSOR_STAGES) * TILE_BYTES, a, row_a);
            load_pieces(mine + (2 * (next % TENSOR_STAGES) + 1) * TILE_BYTES, b, row_b);
            a += 64;
            b += 64;
        }
        copies_commit();
        group_wait();
    }
    int64_t base = batch_offset(&p.c, p.inner);
    UNROLL for (int half = 0; half < 2; half++) UNROLL for (int j = 0; j < 16; j++) {
        int64_t at =
            base + (corner.row + 64 * half + 16 * warp + lane / 4) * p.c.row + corner.column + 8 * j + lane % 4 * 2;
        store_pair(&p, at, sum[half][4 * j], sum[half][4 * j + 1], BF16);
        store_pair(&p, at + 8 * p.c.row, sum[half][4 * j + 2], sum[half][4 * j + 3], BF16);
    }
}
