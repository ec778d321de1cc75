/* SPDX-License-Identifier: MIT */
/* Number formats, vectors of 16 bytes, and the arguments of a matrix product.
 */

enum { BF16, FP16, TF32, FP32, FP64 };

typedef struct {
    float v[4];
} __attribute__((aligned(16))) Floats; /* 16 bytes */
typedef struct {
    double v[2];
} __attribute__((aligned(16))) Doubles; /* 16 bytes */
typedef struct {
    uint32_t v[4];
} __attribute__((aligned(16))) Words; /* 16 bytes: eight 16-bit numbers */

DEVICE uint32_t bits_of(float value) {
    union {
        float f;
        uint32_t u;
    } both;
    both.f = value;
    return both.u;
}

DEVICE float float_of(uint32_t bits) {
    union {
        float f;
        uint32_t u;
    } both;
    both.u = bits;
    return both.f;
}

/* The nearest number with the 10 bits of mantissa that tf32 has: what a tensor
 * core makes of others is not defined. */
DEVICE float tf32_of(float value) {
    return float_of((bits_of(value) + 0x1000u) & 0xffffe000u);
}

/* Two bf16 of one word. */
DEVICE float low_bf16(uint32_t word) {
    return float_of(word << 16);
}
DEVICE float high_bf16(uint32_t word) {
    return float_of(word & 0xffff0000u);
}

/* One factor or the result of a product, row-major: element (i, j) of batch
 * entry z at data + i * row + j + (z / inner) * outer_step + (z % inner) *
 * inner_step, all in elements. */
typedef struct {
    uint64_t data;
    int64_t row;
    int64_t outer_step;
    int64_t inner_step;
} Operand;

/* c = alpha * a b (+ add, laid out as c). Grid: x tiles of 128 x 128, y batch
 * entries. m and n are multiples of 128, k of 32; pointers and strides of 16
 * bytes. */
typedef struct {
    Operand a, b, c;
    uint64_t add; /* 0: nothing is added */
    int32_t m, n, k;
    int32_t inner;
    float alpha;
    int32_t unused;
} Gemm;

/* The first row and column of this block's tile. Eight rows of tiles are walked
 * together, so that blocks that run at the same time share what they read
 * through the second-level cache. */
typedef struct {
    int row, column;
} Corner;

DEVICE Corner my_tile(int m, int n) {
    int rows = m / 128, columns = n / 128;
    int band = blockIdx.x / (8 * columns), within = blockIdx.x % (8 * columns);
    int height = rows - 8 * band < 8 ? rows - 8 * band : 8;
    Corner corner;
    corner.row = 128 * (8 * band + within % height);
    corner.column = 128 * (within / height);
    return corner;
}

DEVICE int64_t batch_offset(const Operand *x, int inner) {
    return (int64_t) (blockIdx.y / inner) * x->outer_step + (int64_t) (blockIdx.y % inner) * x->inner_step;
}
