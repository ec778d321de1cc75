/* SPDX-License-Identifier: MIT */
/* Seeded N(0,1) numbers, made on the device: nothing is uploaded, and number i
 * of a seed is always the same.
 *
 * Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
 * numbers: as easy as 1, 2, 3", SC'11), made normal by Box and Muller. */

typedef struct {
    uint64_t out;
    uint64_t count; /* numbers, a multiple of 4 */
    uint64_t seed;
    uint32_t stream; /* another one for each array of a benchmark */
    int32_t format;  /* BF16 .. FP64 */
    float scale;     /* standard deviation */
    float offset;    /* mean */
} Normal;

DEVICE void philox(uint32_t c[4], uint64_t seed) {
    uint32_t k0 = (uint32_t) seed, k1 = (uint32_t) (seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t) 0xD2511F53u * c[0], p1 = (uint64_t) 0xCD9E8D57u * c[2];
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t) (p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t) p1;
        c[2] = (uint32_t) (p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t) p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

DEVICE void normal_pair(uint32_t r0, uint32_t r1, float *x, float *y) {
    float s, c, radius = sqrtf(-2.0f * logf(((float) (r0 >> 8) + 1.0f) * 0x1p-24f)); /* (0, 1] */
    sine_cosine((float) (r1 >> 8) * 0x1p-24f, &s, &c);
    *x = radius * c;
    *y = radius * s;
}

DEVICE void normal_pair_double(const uint32_t r[4], double *x, double *y) {
    uint64_t u = ((uint64_t) r[0] << 32 | r[1]) >> 11, v = ((uint64_t) r[2] << 32 | r[3]) >> 11;
    double s, c, radius = sqrt(-2.0 * log(((double) u + 1.0) * 0x1p-53));
    sine_cosine_double((double) v * 0x1p-53, &s, &c);
    *x = radius * c;
    *y = radius * s;
}

DEVICE uint32_t pair_of(float low, float high, int format) {
#if FOR_AMPERE
    if (format == BF16)
        return pair_bf16(low, high);
#endif
    return (uint32_t) half_of(low) | (uint32_t) half_of(high) << 16;
}

DEVICE void store_floats(const Normal *p, uint64_t quad, const float z[4]) {
    Floats x;
    for (int i = 0; i < 4; i++)
        x.v[i] = p->format == TF32 ? tf32_of(p->offset + p->scale * z[i]) : p->offset + p->scale * z[i];
    if (p->format == BF16 || p->format == FP16)
        for (int i = 0; i < 2; i++)
            ((uint32_t *) p->out)[2 * quad + i] = pair_of(x.v[2 * i], x.v[2 * i + 1], p->format);
    else
        ((Floats *) p->out)[quad] = x;
}

/* Four numbers per thread and step. */
KERNEL(256) normal_fill(const Normal p) {
    uint64_t step = (uint64_t) gridDim.x * 256;
    for (uint64_t quad = (uint64_t) blockIdx.x * 256 + threadIdx.x; quad < p.count / 4; quad += step) {
        if (p.format == FP64) {
            for (int half = 0; half < 2; half++) {
                uint32_t r[4] = {(uint32_t) quad, (uint32_t) (quad >> 32), p.stream, (uint32_t) half};
                double x, y;
                philox(r, p.seed);
                normal_pair_double(r, &x, &y);
                Doubles two = {{p.offset + p.scale * x, p.offset + p.scale * y}};
                ((Doubles *) p.out)[2 * quad + half] = two;
            }
        } else {
            uint32_t r[4] = {(uint32_t) quad, (uint32_t) (quad >> 32), p.stream, 0u};
            float z[4];
            philox(r, p.seed);
            normal_pair(r[0], r[1], &z[0], &z[1]);
            normal_pair(r[2], r[3], &z[2], &z[3]);
            store_floats(&p, quad, z);
        }
    }
}
