/* SPDX-License-Identifier: MIT */
/* What the kernels need of a GPU, under names that say what it does.
 *
 * The kernels are plain C over these few functions. Tests compile the same
 * kernels for the host against another header with the same names
 * (tests/unit/driver_double/host_platform.h), so the layout of every fragment
 * below is stated here and is part of the contract.
 *
 * Fragments of a 16 x 8 product, `lane` being 0..31, g = lane / 4, t = lane % 4
 * (PTX ISA, "Matrix Fragments for mma.m16n8k16" and ".m16n8k8"); a register
 * holds 4 bytes, so two 16-bit numbers or one tf32: a[0..3]  bytes 4t of row g,
 * of row g + 8, bytes 16 + 4t of row g, of row g + 8   (32 bytes of k per row)
 *   b0, b1   bytes 4t and 16 + 4t of column g
 *   d[0..3]  row g columns 2t, 2t + 1, then row g + 8 columns 2t, 2t + 1
 */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stdint.h>

#ifndef __CUDA_ARCH__
#define TARGET 0 /* nvcc's pass over host code: no kernel body is wanted */
#else
#define TARGET (__CUDA_ARCH__ / 10)
#endif
#define FOR_AMPERE (TARGET >= 80) /* bf16, tf32, fp64 on tensor cores, asynchronous copies */
#define FOR_VOLTA (TARGET > 0 && TARGET < 80)
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FOR_HOPPER 1 /* warpgroup products, which 9.0 alone has */
#else
#define FOR_HOPPER 0
#endif
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ == 1000
#define FOR_BLACKWELL 1 /* products whose sums lie in tensor memory: the family of 10.0 */
#else
#define FOR_BLACKWELL 0
#endif

#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
/* Registers are limited so that so many blocks fit on a multiprocessor. */
#define KERNEL_FITTING(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__ __align__(128)
#define SHARED_FOR_GROUPS __shared__ __align__(1024) /* tiles of warpgroup products */
/* Shared memory beyond 48 KiB: so many bytes as the launch gives (arguments.py). */
#define SHARED_OF_LAUNCH(name, bytes) extern __shared__ __align__(1024) char name[]
#define UNROLL _Pragma("unroll")

DEVICE void sync_block(void) {
    __syncthreads();
}
DEVICE void sync_warp(void) {
    __syncwarp();
}
DEVICE float from_lane_xor(float value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

DEVICE uint32_t shared_address(const void *pointer) {
    return (uint32_t) __cvta_generic_to_shared(pointer);
}

/* Copy 16 bytes into shared memory. They are there after copies_commit(),
 * copies_wait(n) and sync_block(). */
DEVICE void copy16(void *to, const void *from) {
#if FOR_AMPERE
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *(uint4 *) to = *(const uint4 *) from;
#endif
}

/* End a group of copies. */
DEVICE void copies_commit(void) {
#if FOR_AMPERE
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait until at most `n` groups are under way; `n` is a literal. */
#if FOR_AMPERE
#define copies_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
#define copies_wait(n) ((void) (n))
#endif

/* sin and cos of `turn` full turns. */
DEVICE void sine_cosine(float turn, float *s, float *c) {
    sincospif(2.0f * turn, s, c);
}
DEVICE void sine_cosine_double(double turn, double *s, double *c) {
    sincospi(2.0 * turn, s, c);
}

DEVICE uint16_t half_of(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#if FOR_AMPERE
/* Two floats as the nearest bf16, ties to even, in one word. */
DEVICE uint32_t pair_bf16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* Four 8 x 16-byte matrices: lane 8 i + r gives the address of row r of matrix
 * i. Register i of a lane is then bytes 4t of row g of matrix i. */
DEVICE void load_matrices(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same with each 8 x 8 matrix of 16-bit numbers transposed: rows 2t, 2t + 1
 * of column g. */
DEVICE void load_matrices_transposed(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#define MMA(shape, types)                                                                                              \
    asm volatile("mma.sync.aligned." shape ".row.col." types                                                           \
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                                            \
                 "{%0,%1,%2,%3};"                                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

/* d += a b for a 16 x 8 piece, k = 16 (bf16, fp16) or 8 (tf32). */
DEVICE void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    MMA("m16n8k16", "f32.bf16.bf16.f32");
}
DEVICE void mma_fp16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    MMA("m16n8k16", "f32.f16.f16.f32");
}
DEVICE void mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    MMA("m16n8k8", "f32.tf32.tf32.f32");
}

/* d += a b for an 8 x 8 piece, k = 4: a is row g, k = t; b is column g, k = t;
 * d is row g, columns 2t, 2t + 1. */
DEVICE void mma_fp64(double d[2], double a, double b) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, "
        "{%3}, {%0,%1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(a), "d"(b));
}
#endif

#if FOR_HOPPER || FOR_BLACKWELL
/* What asynchronous copies and stores have written is there for the products of
 * this thread, and after sync_block() of all. */
DEVICE void copies_to_products(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

#if FOR_HOPPER
/* Products of a warpgroup, 4 warps, d += a b^T with 64 rows of a, 128 lines of b,
 * k = 16. Both factors lie in shared memory in lines of 64 bytes, of which 32 are
 * used from `a` and `b` on; piece p of 16 bytes of line l lies at piece
 * p ^ (l >> 1 & 3), counted from a multiple of 512 bytes (PTX ISA, "64-byte
 * swizzling mode"). Row g of 16 rows that a warp has: d[4j], d[4j + 1] are columns
 * 8j + 2t and 8j + 2t + 1, d[4j + 2], d[4j + 3] those of row g + 8. */

/* Before the first product after the sums were touched. */
DEVICE void group_begin(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The matrix descriptor: address, 8 lines are 512 bytes, 64-byte swizzle. */
DEVICE uint64_t group_tile(const void *from) {
    return (uint64_t) (shared_address(from) >> 4 & 0x3fff) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

DEVICE void group_mma_bf16(float d[64], const void *a, const void *b) {
    asm volatile(
        "{ .reg .pred add; setp.eq.u32 add, 0, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "%64, %65, add, 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(group_tile(a)), "l"(group_tile(b))
        : "memory");
}

/* End a group of products. */
DEVICE void group_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until none is under way: their sums are there, their factors free. */
DEVICE void group_wait(void) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#endif

#if FOR_BLACKWELL
/* Products of one thread for the whole block (PTX ISA, "TensorCore 5th Generation
 * Family Instructions"): both factors in shared memory, the sums in tensor memory,
 * 128 lanes of 512 words for each multiprocessor. An address there is the lane
 * << 16 | the word. They run in their order beside the threads; what is to happen
 * after them waits for a flag. */

/* 256 words of each lane; one warp asks, and its address comes to `where`. Blocks
 * until another block of this multiprocessor gives some back, if need be. */
DEVICE void sums_reserve(uint32_t *where) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 256;" ::"r"(shared_address(where))
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

/* Give them back, by a warp, when nobody uses them any more. */
DEVICE void sums_release(uint32_t sums) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 256;" ::"r"(sums) : "memory");
}

/* A flag that products raise, by one thread; seen by all after sync_block(). */
DEVICE void flag_make(uint64_t *flag) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(flag)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Around a barrier that orders products, sums and what tensor memory is used for. */
DEVICE void products_before_sync(void) {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
DEVICE void products_after_sync(void) {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/* sums = a b^T, or += where `add`, k = 16; descriptors as in gemm_blackwell.h. */
DEVICE void product_bf16(uint32_t sums, uint64_t a, uint64_t b, uint32_t shape, int add) {
    asm volatile(
        "{ .reg .pred add; setp.ne.s32 add, %4, 0; "
        "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, add; }" ::"r"(sums),
        "l"(a), "l"(b), "r"(shape), "r"(add)
        : "memory");
}

/* The flag's phase ends when all products of this thread so far are done. */
DEVICE void products_commit(uint64_t *flag) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(flag))
        : "memory");
}

/* Wait for the end of the flag's phase of this parity. A phase that never ends is an
 * error of the kernel, not a GPU that hangs. */
DEVICE void products_wait(uint64_t *flag, uint32_t parity) {
    uint32_t done = 0;
    for (int i = 0; i < 1 << 24 && !done; i++)
        asm volatile(
            "{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
            "selp.u32 %0, 1, 0, done; }"
            : "=r"(done)
            : "r"(shared_address(flag)), "r"(parity)
            : "memory");
    if (!done)
        asm volatile("trap;");
}

/* 32 words of one lane of tensor memory for each thread of a warp: `from` names the
 * warp's first lane, which is 32 times the warp's number in the block. */
DEVICE void sums_load(float r[32], uint32_t from) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, [%32]; "
        "tcgen05.wait::ld.sync.aligned;"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]), "=f"(r[4]), "=f"(r[5]), "=f"(r[6]), "=f"(r[7]), "=f"(r[8]),
          "=f"(r[9]), "=f"(r[10]), "=f"(r[11]), "=f"(r[12]), "=f"(r[13]), "=f"(r[14]), "=f"(r[15]), "=f"(r[16]),
          "=f"(r[17]), "=f"(r[18]), "=f"(r[19]), "=f"(r[20]), "=f"(r[21]), "=f"(r[22]), "=f"(r[23]), "=f"(r[24]),
          "=f"(r[25]), "=f"(r[26]), "=f"(r[27]), "=f"(r[28]), "=f"(r[29]), "=f"(r[30]), "=f"(r[31])
        : "r"(from)
        : "memory");
}
#endif

#if FOR_VOLTA
/* 16 x 16 fragments of the first tensor cores; which lane holds what is not
 * defined. `stride` is in elements and a multiple of 8 (fp16) or 4 (fp32). */
typedef struct {
    uint32_t r[8];
} HalfFragment;
typedef struct {
    float r[8];
} FloatFragment;

#define WMMA_LOAD(operand, layout)                                                                                     \
    asm volatile("wmma.load." operand ".sync.aligned." layout                                                          \
                 ".m16n16k16.shared.f16 "                                                                              \
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, [%8], %9;"                                                                \
                 : "=r"(f->r[0]), "=r"(f->r[1]), "=r"(f->r[2]), "=r"(f->r[3]), "=r"(f->r[4]), "=r"(f->r[5]),           \
                   "=r"(f->r[6]), "=r"(f->r[7])                                                                        \
                 : "r"(shared_address(from)), "r"(stride)                                                              \
                 : "memory")

/* a[row][k] and b[column][k], k running along memory. */
DEVICE void wmma_load_a(HalfFragment *f, const uint16_t *from, int stride) {
    WMMA_LOAD("a", "row");
}
DEVICE void wmma_load_b(HalfFragment *f, const uint16_t *from, int stride) {
    WMMA_LOAD("b", "col");
}

DEVICE void wmma(FloatFragment *d, const HalfFragment *a, const HalfFragment *b) {
    asm volatile(
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 "
        "{%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19,%20,%21,%22,%23}, {%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d->r[0]), "+f"(d->r[1]), "+f"(d->r[2]), "+f"(d->r[3]), "+f"(d->r[4]), "+f"(d->r[5]), "+f"(d->r[6]),
          "+f"(d->r[7])
        : "r"(a->r[0]), "r"(a->r[1]), "r"(a->r[2]), "r"(a->r[3]), "r"(a->r[4]), "r"(a->r[5]), "r"(a->r[6]),
          "r"(a->r[7]), "r"(b->r[0]), "r"(b->r[1]), "r"(b->r[2]), "r"(b->r[3]), "r"(b->r[4]), "r"(b->r[5]),
          "r"(b->r[6]), "r"(b->r[7]));
}

/* To shared memory, row by row. */
DEVICE void wmma_store(float *to, const FloatFragment *d, int stride) {
    asm volatile(
        "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], "
        "{%1,%2,%3,%4,%5,%6,%7,%8}, %9;" ::"r"(shared_address(to)),
        "f"(d->r[0]), "f"(d->r[1]), "f"(d->r[2]), "f"(d->r[3]), "f"(d->r[4]), "f"(d->r[5]), "f"(d->r[6]), "f"(d->r[7]),
        "r"(stride)
        : "memory");
}
#endif

#endif
