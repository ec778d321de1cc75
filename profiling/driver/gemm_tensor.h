/* SPDX-License-Identifier: MIT */
/* Matrix products on tensor cores: bf16, fp16, tf32, with sums in fp32.
 *
 * A block of 4 warps makes a tile of 128 x 128, each warp a quarter of 64 x 64.
 * Tiles of 8 KiB per factor go through shared memory by asynchronous copies,
 * three deep. A factor lies in memory in one of two ways: ALONG_K   a[row][k],
 * b[column][k]: a tile is 128 lines of 64 bytes of k ACROSS_K  a[k][row],
 * b[k][column]: a tile is 32 lines of 256 bytes (16-bit numbers only) Within a
 * tile the pieces of 16 bytes are permuted, so that the 8 lines that the load
 * of a matrix touches lie in different banks. */

enum { ALONG_K, ACROSS_K };
enum { TENSOR_STAGES = 3, TILE_BYTES = 8192 };

/* Where piece `piece` of line `line` lies in a tile. */
DEVICE int place(int line, int piece, int way) {
    return way == ALONG_K ? line * 64 + ((piece ^ (line >> 1 & 3)) << 4) : line * 256 + ((piece ^ (line & 7)) << 4);
}

DEVICE void load_tile(char *tile, const char *from, int64_t line_bytes, int way) {
    UNROLL for (int i = 0; i < 4; i++) {
        int at = threadIdx.x + 128 * i;
        int line = way == ALONG_K ? at / 4 : at / 16, piece = way == ALONG_K ? at % 4 : at % 16;
        copy16(tile + place(line, piece, way), from + line * line_bytes + 16 * piece);
    }
}

/* The same for ALONG_K: a thread's four pieces, the first of them at `tile` and `from`. */
DEVICE void load_pieces(char *tile, const char *from, int64_t line_bytes) {
    UNROLL for (int i = 0; i < 4; i++) copy16(tile + 2048 * i, from + 32 * i * line_bytes);
}

/* Rows `row` .. `row` + 15 of a, the half `half` of the tile's k. */
DEVICE void load_a(uint32_t r[4], const char *tile, int row, int half, int way) {
    int lane = threadIdx.x % 32;
    if (way == ALONG_K)
        load_matrices(r, tile + place(row + lane % 16, 2 * half + lane / 16, ALONG_K));
    else
        load_matrices_transposed(r,
                                 tile + place(16 * half + lane % 8 + lane / 16 * 8, row / 8 + lane / 8 % 2, ACROSS_K));
}

/* Columns `column` .. `column` + 15 of b: r[0], r[1] for the first 8, r[2],
 * r[3] for the others. */
DEVICE void load_b(uint32_t r[4], const char *tile, int column, int half, int way) {
    int lane = threadIdx.x % 32;
    if (way == ALONG_K)
        load_matrices(r, tile + place(column + lane % 8 + lane / 16 * 8, 2 * half + lane / 8 % 2, ALONG_K));
    else
        load_matrices_transposed(r, tile + place(16 * half + lane % 16, column / 8 + lane / 16, ACROSS_K));
}

DEVICE void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int format) {
    if (format == BF16)
        mma_bf16(d, a, b0, b1);
    else if (format == FP16)
        mma_fp16(d, a, b0, b1);
    else
        mma_tf32(d, a, b0, b1);
}

/* A warp's 64 x 64 of one tile of k. */
DEVICE void multiply_tile(float sum[4][8][4], const char *ta, const char *tb, int way_a, int way_b, int format) {
    int warp = threadIdx.x / 32;
    UNROLL for (int half = 0; half < 2; half++) {
        uint32_t a[4][4], b[4][4];
        UNROLL for (int i = 0; i < 4; i++) load_a(a[i], ta, warp / 2 * 64 + 16 * i, half, way_a);
        UNROLL for (int j = 0; j < 4; j++) load_b(b[j], tb, warp % 2 * 64 + 16 * j, half, way_b);
        UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 8; j++)
            multiply(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], format);
    }
}

/* Two neighbours of one row of c. */
DEVICE void store_pair(const Gemm *p, int64_t at, float x, float y, int format) {
    x *= p->alpha;
    y *= p->alpha;
    if (format == TF32) {
        float *c = (float *) p->c.data + at;
        c[0] = x;
        c[1] = y;
    } else if (format == FP16) {
        *(uint32_t *) ((uint16_t *) p->c.data + at) = (uint32_t) half_of(x) | (uint32_t) half_of(y) << 16;
    } else {
        if (p->add) {
            uint32_t old = *(const uint32_t *) ((const uint16_t *) p->add + at);
            x += low_bf16(old);
            y += high_bf16(old);
        }
        *(uint32_t *) ((uint16_t *) p->c.data + at) = pair_bf16(x, y);
    }
}

DEVICE void store_tile(const Gemm *p, Corner corner, float sum[4][8][4], int format) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = corner.row + warp / 2 * 64 + lane / 4, column = corner.column + warp % 2 * 64 + lane % 4 * 2;
    int64_t base = batch_offset(&p->c, p->inner);
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 8; j++) {
        int64_t at = base + (row + 16 * i) * p->c.row + column + 8 * j;
        store_pair(p, at, sum[i][j][0], sum[i][j][1], format);
        store_pair(p, at + 8 * p->c.row, sum[i][j][2], sum[i][j][3], format);
    }
}

DEVICE void gemm_tensor(const Gemm *p, int way_a, int way_b, int format) {
    SHARED char tiles[TENSOR_STAGES][2][TILE_BYTES];
    const int size = format == TF32 ? 4 : 2, depth = 64 / size, steps = p->k / depth;
    const Corner corner = my_tile(p->m, p->n);
    const int64_t row_a = p->a.row * size, row_b = p->b.row * size; /* bytes */
    const int64_t step_a = way_a == ALONG_K ? 64 : depth * row_a, step_b = way_b == ALONG_K ? 64 : depth * row_b;
    const char *a = (const char *) p->a.data + batch_offset(&p->a, p->inner) * size +
                    corner.row * (way_a == ALONG_K ? row_a : size);
    const char *b = (const char *) p->b.data + batch_offset(&p->b, p->inner) * size +
                    corner.column * (way_b == ALONG_K ? row_b : size);
    float sum[4][8][4] = {{{0}}};

    UNROLL for (int stage = 0; stage < TENSOR_STAGES - 1; stage++) {
        if (stage < steps) {
            load_tile(tiles[stage][0], a + stage * step_a, row_a, way_a);
            load_tile(tiles[stage][1], b + stage * step_b, row_b, way_b);
        }
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait(TENSOR_STAGES - 2);
        sync_block(); /* this tile is there for all, and nobody reads the one before
                         it any more */
        int next = step + TENSOR_STAGES - 1;
        if (next < steps) {
            load_tile(tiles[next % TENSOR_STAGES][0], a + next * step_a, row_a, way_a);
            load_tile(tiles[next % TENSOR_STAGES][1], b + next * step_b, row_b, way_b);
        }
        copies_commit();
        multiply_tile(sum, tiles[step % TENSOR_STAGES][0], tiles[step % TENSOR_STAGES][1], way_a, way_b, format);
    }
    store_tile(p, corner, sum, format);
}

/* n: the factor lies as it is written; t: transposed. Row-major, so
 * b[column][k] is "t". */
KERNEL(128) gemm_bf16_nt(const Gemm p) {
    gemm_tensor(&p, ALONG_K, ALONG_K, BF16);
}
KERNEL(128) gemm_bf16_nn(const Gemm p) {
    gemm_tensor(&p, ALONG_K, ACROSS_K, BF16);
}
KERNEL(128) gemm_bf16_tn(const Gemm p) {
    gemm_tensor(&p, ACROSS_K, ACROSS_K, BF16);
}
KERNEL(128) gemm_fp16_nt(const Gemm p) {
    gemm_tensor(&p, ALONG_K, ALONG_K, FP16);
}
KERNEL(128) gemm_tf32_nt(const Gemm p) {
    gemm_tensor(&p, ALONG_K, ALONG_K, TF32);
}
