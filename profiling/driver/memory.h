/* SPDX-License-Identifier: MIT */
/* Memory bandwidth, the reduction of an all-reduce, and nothing at all. Each
 * thread moves four vectors of 16 bytes, all loads first, so that enough of
 * them are under way. */

typedef struct {
    uint64_t out, first, second;
    uint64_t vectors; /* of 16 bytes, a multiple of 1024 */
    float factor;
    int32_t unused;
} Stream;

/* out = first + factor * second */
KERNEL(256) hbm_triad(const Stream p) {
    uint64_t at = (uint64_t) blockIdx.x * 1024 + threadIdx.x;
    Floats b[4], c[4];
    UNROLL for (int i = 0; i < 4; i++) {
        b[i] = ((const Floats *) p.first)[at + 256 * i];
        c[i] = ((const Floats *) p.second)[at + 256 * i];
    }
    UNROLL for (int i = 0; i < 4; i++) {
        UNROLL for (int j = 0; j < 4; j++) b[i].v[j] += p.factor * c[i].v[j];
        ((Floats *) p.out)[at + 256 * i] = b[i];
    }
}

/* out = first */
KERNEL(256) hbm_copy(const Stream p) {
    uint64_t at = (uint64_t) blockIdx.x * 1024 + threadIdx.x;
    Words b[4];
    UNROLL for (int i = 0; i < 4; i++) b[i] = ((const Words *) p.first)[at + 256 * i];
    UNROLL for (int i = 0; i < 4; i++)((Words *) p.out)[at + 256 * i] = b[i];
}

/* out = factor * (first + second), out being first: one step of a ring */
KERNEL(256) ring_add(const Stream p) {
    uint64_t at = (uint64_t) blockIdx.x * 1024 + threadIdx.x;
    UNROLL for (int i = 0; i < 4; i++) {
        Floats x = ((const Floats *) p.first)[at + 256 * i], y = ((const Floats *) p.second)[at + 256 * i];
        UNROLL for (int j = 0; j < 4; j++) x.v[j] = p.factor * (x.v[j] + y.v[j]);
        ((Floats *) p.out)[at + 256 * i] = x;
    }
}

KERNEL(32) empty(void) {
}
