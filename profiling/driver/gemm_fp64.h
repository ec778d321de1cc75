/* SPDX-License-Identifier: MIT */
/* c = a^T b in fp64 on tensor cores: 8 warps make a tile of 128 x 128, each 32
 * x 64 of it.
 *
 * Both factors have k as their row index: a tile is 8 lines of 128 numbers. The
 * pieces of 16 bytes of line k are permuted by k, so that the 4 lines that a
 * fragment touches lie in different banks. */

enum { FP64_K = 8, FP64_STAGES = 3 };

/* Where number `column` of line `k` lies in a tile. */
DEVICE int place_fp64(int k, int column) {
    return k * 128 + (column ^ (k % 4 * 4));
}

DEVICE void load_fp64(double *tile, const double *from, int64_t row) {
    UNROLL for (int i = 0; i < 2; i++) {
        int at = threadIdx.x + 256 * i, k = at / 64, column = at % 64 * 2;
        copy16(tile + place_fp64(k, column), from + k * row + column);
    }
}

DEVICE void multiply_fp64(double sum[4][8][2], const double *ta, const double *tb) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / 2 * 32 + lane / 4, column = warp % 2 * 64 + lane / 4;
    UNROLL for (int k = lane % 4; k < FP64_K; k += 4) {
        double a[4], b[8];
        UNROLL for (int i = 0; i < 4; i++) a[i] = ta[place_fp64(k, row + 8 * i)];
        UNROLL for (int j = 0; j < 8; j++) b[j] = tb[place_fp64(k, column + 8 * j)];
        UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 8; j++) mma_fp64(sum[i][j], a[i], b[j]);
    }
}

KERNEL(256) gemm_fp64(const Gemm p) {
    SHARED double tiles[FP64_STAGES][2][FP64_K * 128];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, steps = p.k / FP64_K;
    const Corner corner = my_tile(p.m, p.n);
    const double *a = (const double *) p.a.data + batch_offset(&p.a, p.inner) + corner.row;
    const double *b = (const double *) p.b.data + batch_offset(&p.b, p.inner) + corner.column;
    double sum[4][8][2] = {{{0}}};

    UNROLL for (int stage = 0; stage < FP64_STAGES - 1; stage++) {
        if (stage < steps) {
            load_fp64(tiles[stage][0], a + stage * FP64_K * p.a.row, p.a.row);
            load_fp64(tiles[stage][1], b + stage * FP64_K * p.b.row, p.b.row);
        }
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait(FP64_STAGES - 2);
        sync_block(); /* this tile is there for all, and nobody reads the one before
                         it any more */
        int next = step + FP64_STAGES - 1;
        if (next < steps) {
            load_fp64(tiles[next % FP64_STAGES][0], a + next * FP64_K * p.a.row, p.a.row);
            load_fp64(tiles[next % FP64_STAGES][1], b + next * FP64_K * p.b.row, p.b.row);
        }
        copies_commit();
        multiply_fp64(sum, tiles[step % FP64_STAGES][0], tiles[step % FP64_STAGES][1]);
    }
    double *c = (double *) p.c.data + batch_offset(&p.c, p.inner);
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 8; j++) {
        int row = corner.row + warp / 2 * 32 + 8 * i + lane / 4,
            column = corner.column + warp % 2 * 64 + 8 * j + lane % 4 * 2;
        Doubles two = {{p.alpha * sum[i][j][0], p.alpha * sum[i][j][1]}};
        *(Doubles *) (c + row * p.c.row + column) = two;
    }
}
