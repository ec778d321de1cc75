/* SPDX-License-Identifier: MIT */
/* What a transformer block needs beside matrix products: layer norm, softmax
 * and GELU, forward and backward. All in bf16 with sums in fp32; widths are
 * multiples of 2. A row belongs to one block of 256 threads. */

enum { ROW_THREADS = 256 };

DEVICE float block_sum(float value) {
    SHARED float parts[ROW_THREADS / 32];
    for (int mask = 16; mask; mask /= 2)
        value += from_lane_xor(value, mask);
    sync_block(); /* the sum before this one has been read */
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = value;
    sync_block();
    value = 0.0f;
    UNROLL for (int warp = 0; warp < ROW_THREADS / 32; warp++) value += parts[warp];
    return value;
}

DEVICE float block_max(float value) {
    SHARED float parts[ROW_THREADS / 32];
    for (int mask = 16; mask; mask /= 2)
        value = fmaxf(value, from_lane_xor(value, mask));
    sync_block();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = value;
    sync_block();
    value = parts[0];
    UNROLL for (int warp = 1; warp < ROW_THREADS / 32; warp++) value = fmaxf(value, parts[warp]);
    return value;
}

/* ---- layer norm: y = (x - mean) * rstd * gain + bias, one row per block */

typedef struct {
    uint64_t x, gain, bias, y; /* bf16; gain and bias of one row */
    uint64_t mean, rstd;       /* fp32, one per row */
    uint64_t dy, add, dx;      /* backward: dx = add + what comes through the norm */
    uint64_t parts;            /* backward: fp32 [chunks][2][width], sums of dgain and dbias
                                  over 64 rows */
    int32_t width;
    float epsilon;
} Norm;

#define ROW(field) ((const uint32_t *) p.field + (int64_t) blockIdx.x * (p.width / 2))
#define ROW_TO(field) ((uint32_t *) p.field + (int64_t) blockIdx.x * (p.width / 2))
#define EACH_PAIR for (int i = threadIdx.x; i < p.width / 2; i += ROW_THREADS)

KERNEL(256) layer_norm(const Norm p) {
    const uint32_t *x = ROW(x), *gain = (const uint32_t *) p.gain, *bias = (const uint32_t *) p.bias;
    uint32_t *y = ROW_TO(y);
    float sum = 0.0f, squares = 0.0f;
    EACH_PAIR sum += low_bf16(x[i]) + high_bf16(x[i]);
    float mean = block_sum(sum) / p.width;
    EACH_PAIR {
        float low = low_bf16(x[i]) - mean, high = high_bf16(x[i]) - mean;
        squares += low * low + high * high;
    }
    float rstd = 1.0f / sqrtf(block_sum(squares) / p.width + p.epsilon);
    EACH_PAIR y[i] = pair_bf16((low_bf16(x[i]) - mean) * rstd * low_bf16(gain[i]) + low_bf16(bias[i]),
                               (high_bf16(x[i]) - mean) * rstd * high_bf16(gain[i]) + high_bf16(bias[i]));
    if (threadIdx.x == 0) {
        ((float *) p.mean)[blockIdx.x] = mean;
        ((float *) p.rstd)[blockIdx.x] = rstd;
    }
}

/* With h = (x - mean) rstd and g = dy gain: dx = add + rstd (g - mean(g) - h
 * mean(g h)). */
KERNEL(256) layer_norm_back(const Norm p) {
    const uint32_t *x = ROW(x), *dy = ROW(dy), *add = ROW(add), *gain = (const uint32_t *) p.gain;
    uint32_t *dx = ROW_TO(dx);
    const float mean = ((const float *) p.mean)[blockIdx.x], rstd = ((const float *) p.rstd)[blockIdx.x];
    float sum = 0.0f, with_h = 0.0f;
    EACH_PAIR {
        float low = low_bf16(dy[i]) * low_bf16(gain[i]), high = high_bf16(dy[i]) * high_bf16(gain[i]);
        sum += low + high;
        with_h += low * (low_bf16(x[i]) - mean) * rstd + high * (high_bf16(x[i]) - mean) * rstd;
    }
    sum = block_sum(sum) / p.width;
    with_h = block_sum(with_h) / p.width;
    EACH_PAIR {
        float low = low_bf16(dy[i]) * low_bf16(gain[i]) - sum - (low_bf16(x[i]) - mean) * rstd * with_h;
        float high = high_bf16(dy[i]) * high_bf16(gain[i]) - sum - (high_bf16(x[i]) - mean) * rstd * with_h;
        dx[i] = pair_bf16(low_bf16(add[i]) + rstd * low, high_bf16(add[i]) + rstd * high);
    }
}

/* Sums of dy h and dy over 64 rows. Grid: x pieces of 512 columns, y chunks of
 * 64 rows. */
KERNEL(256) layer_norm_parts(const Norm p) {
    int pair = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (pair >= p.width / 2)
        return;
    float gain[2] = {0.0f, 0.0f}, bias[2] = {0.0f, 0.0f};
    for (int row = blockIdx.y * 64; row < (int) blockIdx.y * 64 + 64; row++) {
        uint32_t x = ((const uint32_t *) p.x)[(int64_t) row * (p.width / 2) + pair];
        uint32_t dy = ((const uint32_t *) p.dy)[(int64_t) row * (p.width / 2) + pair];
        float mean = ((const float *) p.mean)[row], rstd = ((const float *) p.rstd)[row];
        gain[0] += low_bf16(dy) * (low_bf16(x) - mean) * rstd;
        gain[1] += high_bf16(dy) * (high_bf16(x) - mean) * rstd;
        bias[0] += low_bf16(dy);
        bias[1] += high_bf16(dy);
    }
    float *out = (float *) p.parts + (int64_t) blockIdx.y * 2 * p.width + 2 * pair;
    out[0] = gain[0];
    out[1] = gain[1];
    out[p.width] = bias[0];
    out[p.width + 1] = bias[1];
}

typedef struct {
    uint64_t out, parts; /* fp32 [width], fp32 [rows][width] */
    int32_t rows, width;
} Columns;

KERNEL(256) column_sums(const Columns p) {
    int column = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (column >= p.width)
        return;
    float sum = 0.0f;
    for (int row = 0; row < p.rows; row++)
        sum += ((const float *) p.parts)[(int64_t) row * p.width + column];
    ((float *) p.out)[column] = sum;
}

/* ---- causal softmax of square matrices of scores, in place, one row per
 * block: row i sees columns 0 .. i */

typedef struct {
    uint64_t y;  /* scores, then probabilities; bf16 */
    uint64_t dy; /* backward: gradient of the probabilities, then of the scores */
    int32_t width;
    int32_t unused;
} Softmax;

/* The score if the row may see it. */
DEVICE float seen(float score, int column, int row) {
    return column <= row ? score : -INFINITY;
}

KERNEL(256) softmax(const Softmax p) {
    const int row = blockIdx.x % p.width;
    uint32_t *y = ROW_TO(y);
    float top = -INFINITY, sum = 0.0f;
    EACH_PAIR top = fmaxf(top, fmaxf(seen(low_bf16(y[i]), 2 * i, row), seen(high_bf16(y[i]), 2 * i + 1, row)));
    top = block_max(top);
    EACH_PAIR sum += expf(seen(low_bf16(y[i]), 2 * i, row) - top) + expf(seen(high_bf16(y[i]), 2 * i + 1, row) - top);
    const float share = 1.0f / block_sum(sum);
    EACH_PAIR y[i] = pair_bf16(expf(seen(low_bf16(y[i]), 2 * i, row) - top) * share,
                               expf(seen(high_bf16(y[i]), 2 * i + 1, row) - top) * share);
}

/* ds = y (dy - sum(y dy)); what a row does not see has y = 0 */
KERNEL(256) softmax_back(const Softmax p) {
    const uint32_t *y = ROW(y);
    uint32_t *dy = ROW_TO(dy);
    float sum = 0.0f;
    EACH_PAIR sum += low_bf16(y[i]) * low_bf16(dy[i]) + high_bf16(y[i]) * high_bf16(dy[i]);
    sum = block_sum(sum);
    EACH_PAIR dy[i] = pair_bf16(low_bf16(y[i]) * (low_bf16(dy[i]) - sum), high_bf16(y[i]) * (high_bf16(dy[i]) - sum));
}

/* ---- GELU (the exact one, by erf), eight numbers per thread */

typedef struct {
    uint64_t x, y; /* bf16 */
    uint64_t dy;   /* backward: gradient of y, then of x */
    uint64_t vectors;
} Gelu;

DEVICE float normal_cdf(float x) {
    return 0.5f * (1.0f + erff(x * 0.70710678f));
}
DEVICE float gelu_of(float x) {
    return x * normal_cdf(x);
}
DEVICE float gelu_slope(float x) {
    return normal_cdf(x) + x * 0.39894228f * expf(-0.5f * x * x);
}

KERNEL(256) gelu(const Gelu p) {
    uint64_t at = (uint64_t) blockIdx.x * 256 + threadIdx.x;
    if (at >= p.vectors)
        return;
    Words x = ((const Words *) p.x)[at];
    UNROLL for (int i = 0; i < 4; i++) x.v[i] = pair_bf16(gelu_of(low_bf16(x.v[i])), gelu_of(high_bf16(x.v[i])));
    ((Words *) p.y)[at] = x;
}

KERNEL(256) gelu_back(const Gelu p) {
    uint64_t at = (uint64_t) blockIdx.x * 256 + threadIdx.x;
    if (at >= p.vectors)
        return;
    Words x = ((const Words *) p.x)[at], dy = ((const Words *) p.dy)[at];
    UNROLL for (int i = 0; i < 4; i++) dy.v[i] =
        pair_bf16(low_bf16(dy.v[i]) * gelu_slope(low_bf16(x.v[i])), high_bf16(dy.v[i]) * gelu_slope(high_bf16(x.v[i])));
    ((Words *) p.dy)[at] = dy;
}

#undef ROW
#undef ROW_TO
#undef EACH_PAIR
