/* SPDX-License-Identifier: MIT */
/* The functions of profiling/driver/platform.h for the host: the same names,
 * the same layout of fragments, plain C. Included by kernels.cu in place of
 * that header when the kernels are compiled for the double.
 *
 * The threads of a block are fibers (fibers.h); what one warp does together
 * passes through `exchange`. */
#ifndef HOST_PLATFORM_H
#define HOST_PLATFORM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fibers.h"

#define FOR_AMPERE 1 /* the double has the kernels of all architectures */
#define FOR_VOLTA 1
#define FOR_HOPPER 1
#define FOR_BLACKWELL 1

#define KERNEL(threads) void
#define KERNEL_FITTING(threads, blocks) void
#define DEVICE static inline __attribute__((always_inline, unused))
#define SHARED static _Alignas(128)
#define SHARED_FOR_GROUPS static _Alignas(1024)
#define SHARED_OF_LAUNCH(name, bytes)                                                                                  \
    char *name = shared_of_launch; /* of one block at a time */                                                        \
    _Static_assert((bytes) <= sizeof shared_of_launch, "more than a block may have")
#define UNROLL

static _Alignas(1024) char shared_of_launch[227 << 10];

DEVICE void sync_block(void) {
    fiber_sync_block();
}
DEVICE void sync_warp(void) {
    fiber_sync_warp();
}

/* What each lane of this warp hands in, seen by all: two buffers in turn, so
 * that one barrier is enough. */
DEVICE const char *exchange(const void *mine, size_t size) {
    char *buffer = fiber_exchange_buffer();
    memcpy(buffer + (threadIdx.x % 32) * FIBER_EXCHANGE_BYTES, mine, size);
    fiber_sync_warp();
    return buffer;
}
#define FROM_LANE(buffer, lane, type) ((const type *) ((buffer) + (lane) *FIBER_EXCHANGE_BYTES))

DEVICE float from_lane_xor(float value, int mask) {
    const char *all = exchange(&value, sizeof value);
    return *FROM_LANE(all, (threadIdx.x % 32) ^ mask, float);
}

DEVICE void copy16(void *to, const void *from) {
    fiber_copy16(to, from);
}
DEVICE void copies_commit(void) {
    fiber_copies_commit();
}
DEVICE void copies_wait(int n) {
    fiber_copies_wait(n);
}

DEVICE void sine_cosine(float turn, float *s, float *c) {
    *s = (float) sin(6.283185307179586 * (double) turn);
    *c = (float) cos(6.283185307179586 * (double) turn);
}
DEVICE void sine_cosine_double(double turn, double *s, double *c) {
    *s = sin(6.283185307179586 * turn);
    *c = cos(6.283185307179586 * turn);
}

DEVICE uint32_t raw(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

DEVICE float number(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* IEEE binary16, nearest, ties to even. */
DEVICE uint16_t half_of(float value) {
    int exponent;
    uint16_t sign = (uint16_t) (raw(value) >> 16 & 0x8000u);
    double size = fabs((double) value);
    if (size >= 65520.0)
        return sign | 0x7c00u;
    if (size == 0.0)
        return sign;
    frexp(size, &exponent);
    if (exponent < -13)
        exponent = -13;                                           /* subnormal */
    uint16_t steps = (uint16_t) rint(ldexp(size, 11 - exponent)); /* 1024 .. 2048, or less when subnormal */
    return (uint16_t) (sign | (((exponent + 13) << 10) + steps));
}

DEVICE float from_half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return (float) (bits & 0x8000 ? -size : size);
}

DEVICE uint32_t pair_bf16(float low, float high) {
    uint32_t l = raw(low), h = raw(high);
    l = (l + 0x7fffu + (l >> 16 & 1u)) >> 16;
    h = (h + 0x7fffu + (h >> 16 & 1u)) >> 16;
    return l | h << 16;
}

/* ---- matrices of 8 rows of 16 bytes */

/* The 8 lines of each matrix should lie in different banks: 16 bytes each of
 * 128. */
DEVICE void note_conflicts(const char *all) {
    if (threadIdx.x % 32)
        return;
    for (int i = 0; i < 4; i++) {
        unsigned banks = 0;
        for (int line = 0; line < 8; line++)
            banks |= 1u << ((uintptr_t) *FROM_LANE(all, 8 * i + line, const char *) / 16 % 8);
        fibers_conflicts += banks != 255;
    }
}

DEVICE void load_matrices(uint32_t r[4], const void *row) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const char *all = exchange(&row, sizeof row);
    note_conflicts(all);
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], *FROM_LANE(all, 8 * i + g, const char *) + 4 * t, 4);
}

DEVICE void load_matrices_transposed(uint32_t r[4], const void *row) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const char *all = exchange(&row, sizeof row);
    note_conflicts(all);
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 2; e++)
            memcpy((char *) &r[i] + 2 * e, *FROM_LANE(all, 8 * i + 2 * t + e, const char *) + 2 * g, 2);
}

typedef struct {
    uint32_t a[4], b[2];
} Factors;

/* Row `row` of a is bytes 0..31 of k: lane 4 (row % 8) + t has bytes 4t and 16
 * + 4t. */
DEVICE uint32_t word_of_a(const char *all, int row, int word) {
    return FROM_LANE(all, row % 8 * 4 + word % 4, Factors)->a[row / 8 + word / 4 * 2];
}
DEVICE uint32_t word_of_b(const char *all, int column, int word) {
    return FROM_LANE(all, column * 4 + word % 4, Factors)->b[word / 4];
}

DEVICE float low_product(uint32_t a, uint32_t b, int format) {
    if (format == 0) /* bf16 */
        return number(a << 16) * number(b << 16) + number(a & 0xffff0000u) * number(b & 0xffff0000u);
    if (format == 1) /* fp16 */
        return from_half((uint16_t) a) * from_half((uint16_t) b) +
               from_half((uint16_t) (a >> 16)) * from_half((uint16_t) (b >> 16));
    return (a | b) & 0x1fffu ? NAN : number(a) * number(b); /* tf32 has 10 bits of mantissa, others
                                                               are undefined */
}

DEVICE void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int format) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    Factors mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const char *all = exchange(&mine, sizeof mine);
    for (int i = 0; i < 4; i++)
        for (int word = 0; word < 8; word++)
            d[i] += low_product(word_of_a(all, g + i / 2 * 8, word), word_of_b(all, 2 * t + i % 2, word), format);
}
DEVICE void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    mma(d, a, b0, b1, 0);
}
DEVICE void mma_fp16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    mma(d, a, b0, b1, 1);
}
DEVICE void mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    mma(d, a, b0, b1, 2);
}

DEVICE void mma_fp64(double d[2], double a, double b) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    double mine[2] = {a, b};
    const char *all = exchange(mine, sizeof mine);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++)
            d[i] += FROM_LANE(all, 4 * g + k, double)[0] * FROM_LANE(all, 4 * (2 * t + i) + k, double)[1];
}

/* ---- products of a warpgroup: done as late as the kernel allows, when it waits
 * for them; from copies that were not handed over, and without group_begin, they
 * give no number */

typedef struct {
    float *d;
    const char *a, *b;
    int committed;
} GroupProduct;

static struct {
    GroupProduct pending[8];
    int count, begun;
} group_of[256];

DEVICE void copies_to_products(void) {
    fiber_copies_handed_over();
}
DEVICE void group_begin(void) {
    group_of[threadIdx.x].begun = 1;
}

DEVICE void group_mma_bf16(float d[64], const void *a, const void *b) {
    GroupProduct one = {d, a, b, 0};
    if (!group_of[threadIdx.x].begun || !fiber_all_handed_over() || group_of[threadIdx.x].count == 8)
        d[0] = NAN;
    else
        group_of[threadIdx.x].pending[group_of[threadIdx.x].count++] = one;
}

DEVICE void group_commit(void) {
    for (int i = 0; i < group_of[threadIdx.x].count; i++)
        group_of[threadIdx.x].pending[i].committed = 1;
}

/* The 16-bit number `k` of line `line`, of a tile that begins at a multiple of
 * 512 bytes; `from` is within its first line. */
DEVICE float group_number(const char *from, int line, int k) {
    int byte = (int) ((uintptr_t) from % 512) + 64 * line + 2 * k;
    uint16_t bits;
    byte ^= (byte >> 7 & 3) << 4;
    memcpy(&bits, from - (uintptr_t) from % 512 + byte, 2);
    return number((uint32_t) bits << 16);
}

DEVICE void group_wait(void) {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    for (int i = 0; i < group_of[threadIdx.x].count; i++) {
        const GroupProduct *one = &group_of[threadIdx.x].pending[i];
        for (int at = 0; at < 64; at++) {
            int row = 16 * warp + g + at / 2 % 2 * 8, column = at / 4 * 8 + 2 * t + at % 2;
            for (int k = 0; k < 16; k++)
                one->d[at] += one->committed ? group_number(one->a, row, k) * group_number(one->b, column, k) : NAN;
        }
    }
    group_of[threadIdx.x].count = group_of[threadIdx.x].begun = 0;
}

/* ---- products of one thread, sums in tensor memory: done when a thread waits for
 * their flag (or at once: fibers_hasty). What the kernel must not do gives no
 * number: copies that were not handed over, words that were not reserved, a
 * descriptor of another kind of factor than is known here, a wait for products
 * that nobody has committed */

enum { TENSOR_LANES = 128, TENSOR_WORDS = 512, RESERVED_WORDS = 256, MOST_PRODUCTS = 64 };

typedef struct {
    uint32_t sums, shape;
    uint64_t a, b;
    int add, good;
    uint64_t *flag; /* set: no product, but the end of this flag's phase */
} OneProduct;

static struct {
    float sums[TENSOR_LANES][TENSOR_WORDS];
    uint32_t base, reserved; /* words; 0: none */
    OneProduct queued[MOST_PRODUCTS];
    int count;
} tensor;

DEVICE uint32_t shared_address(const void *pointer) {
    return (uint32_t) ((const char *) pointer - shared_of_launch);
}

/* All lanes of one warp call it; blocks have different words in turn, and what was
 * there before is no number. */
DEVICE void sums_reserve(uint32_t *where) {
    int first = threadIdx.x % 32 == 0;
    if (first && tensor.reserved)
        fiber_wrong(); /* the block before has not given its own back */
    if (first) {
        tensor.base = tensor.base ? 0 : TENSOR_WORDS - RESERVED_WORDS;
        for (int lane = 0; lane < TENSOR_LANES; lane++)
            for (int word = 0; word < TENSOR_WORDS; word++)
                tensor.sums[lane][word] = NAN;
        tensor.reserved = RESERVED_WORDS;
        tensor.count = 0;
        *where = tensor.base;
    }
    fiber_sync_warp();
}
DEVICE void sums_release(uint32_t sums) {
    if (threadIdx.x % 32 == 0 && (sums != tensor.base || !tensor.reserved || tensor.count))
        fiber_wrong();
    fiber_sync_warp();
    tensor.reserved = 0;
}

DEVICE void flag_make(uint64_t *flag) {
    *flag = 0; /* phases that have ended */
}
DEVICE void products_before_sync(void) {
}
DEVICE void products_after_sync(void) {
}

/* Number `k` of line `line` of a factor along k, as its descriptor says. */
DEVICE float described(uint64_t tile, int line, int k) {
    uint32_t start = (uint32_t) (tile & 0x3fff) << 4, lead = (uint32_t) (tile >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t) (tile >> 32 & 0x3fff) << 4, kind = (uint32_t) (tile >> 61), at;
    int width = kind == 6 ? 32 : kind == 4 ? 64 : kind == 2 ? 128 : 16; /* bytes of a line that lie together */
    uint16_t bits;
    if ((tile >> 46 & 7) != 1 || (tile >> 49 & 0xfff) || (kind && kind % 2) || (tile & 0xc000c000ull))
        return NAN;
    at = start + (uint32_t) (line / 8) * stride + (uint32_t) (line % 8 * width);
    at += kind ? 2 * (uint32_t) k : (uint32_t) (k / 8) * lead + 2 * (uint32_t) (k % 8);
    at ^= (at >> 7 & (uint32_t) (width / 16 - 1)) << 4;
    if (at + 2 > sizeof shared_of_launch)
        return NAN;
    memcpy(&bits, shared_of_launch + at, 2);
    return number((uint32_t) bits << 16);
}

DEVICE void product_now(const OneProduct *one) {
    static float a[256][16], b[256][16];
    int rows = (int) (one->shape >> 24 & 31) << 4, columns = (int) (one->shape >> 17 & 63) << 3;
    uint32_t word = one->sums & 0xffff;
    int inside = word >= tensor.base && word + (uint32_t) columns <= tensor.base + tensor.reserved;
    if (!inside || one->sums >> 16 || rows != TENSOR_LANES || columns > 256) {
        fiber_wrong();
        return;
    }
    /* fp32 sums of bf16, nothing negated, transposed or thinned out */
    int known = one->good && (one->shape & ~(31u << 24 | 63u << 17)) == (1u << 4 | 1u << 7 | 1u << 10);
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < rows; i++)
            a[i][k] = described(one->a, i, k);
        for (int j = 0; j < columns; j++)
            b[j][k] = described(one->b, j, k);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = one->add ? tensor.sums[i][word + (uint32_t) j] : 0.0f;
            for (int k = 0; k < 16; k++)
                sum += a[i][k] * b[j][k];
            tensor.sums[i][word + (uint32_t) j] = known ? sum : NAN;
        }
}

DEVICE void product_take(OneProduct one) {
    if (fibers_hasty && !one.flag)
        product_now(&one);
    else if (fibers_hasty)
        ++*one.flag;
    else if (tensor.count == MOST_PRODUCTS)
        fiber_wrong();
    else
        tensor.queued[tensor.count++] = one;
}
DEVICE void product_bf16(uint32_t sums, uint64_t a, uint64_t b, uint32_t shape, int add) {
    OneProduct one = {sums, shape, a, b, add, fiber_all_handed_over(), NULL};
    product_take(one);
}
DEVICE void products_commit(uint64_t *flag) {
    OneProduct one = {.flag = flag};
    product_take(one);
}

/* Until the phase of this parity has ended: as the hardware, a flag two phases
 * further on looks as if it had not. */
DEVICE void products_wait(uint64_t *flag, uint32_t parity) {
    int done = 0;
    while (*flag % 2 == parity && done < tensor.count) {
        const OneProduct *one = &tensor.queued[done++];
        if (one->flag)
            ++*one->flag;
        else
            product_now(one);
    }
    tensor.count -= done;
    memmove(tensor.queued, tensor.queued + done, (size_t) tensor.count * sizeof *tensor.queued);
    if (*flag % 2 == parity)
        fiber_wrong(); /* it would wait for ever */
}

DEVICE void sums_load(float r[32], uint32_t from) {
    uint32_t lane = from >> 16, word = from & 0xffff;
    if (lane != threadIdx.x / 32 * 32 || word < tensor.base || word + 32 > tensor.base + tensor.reserved) {
        fiber_wrong(); /* a warp sees its own quarter of the lanes only */
        return;
    }
    memcpy(r, &tensor.sums[lane + threadIdx.x % 32][word], 32 * sizeof *r);
}

/* ---- 16 x 16 fragments: lane l holds the numbers 8 l .. 8 l + 7, row by row
 * (a layout of our own: the real one is undefined, and no kernel may depend on
 * it) */

typedef struct {
    uint32_t r[8];
} HalfFragment; /* one number in each */
typedef struct {
    float r[8];
} FloatFragment;

DEVICE void wmma_load_a(HalfFragment *f, const uint16_t *from, int stride) {
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 8; i++)
        f->r[i] = from[lane / 2 * stride + lane % 2 * 8 + i];
}
DEVICE void wmma_load_b(HalfFragment *f, const uint16_t *from, int stride) {
    wmma_load_a(f, from, stride);
}

DEVICE void wmma(FloatFragment *d, const HalfFragment *a, const HalfFragment *b) {
    int row = threadIdx.x % 32 / 2, column = threadIdx.x % 2 * 8;
    HalfFragment mine[2] = {*a, *b};
    const char *all = exchange(mine, sizeof mine);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 16; k++)
            d->r[i] += from_half((uint16_t) FROM_LANE(all, 2 * row + k / 8, HalfFragment)[0].r[k % 8]) *
                       from_half((uint16_t) FROM_LANE(all, 2 * (column + i) + k / 8, HalfFragment)[1].r[k % 8]);
}

DEVICE void wmma_store(float *to, const FloatFragment *d, int stride) {
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 8; i++)
        to[lane / 2 * stride + lane % 2 * 8 + i] = d->r[i];
}

#endif
