/* SPDX-License-Identifier: MIT */
/* Kernels of the driver-only backend.
 *
 * Plain C over the few functions of platform.h, so that the tests run the same
 * text on the host. PTX is made of it by `python -m
 * slurm_pal.profiling.driver.generate`, for compute capability 8.0 and later
 * (FOR_AMPERE), for 9.0 alone (FOR_HOPPER), for 10.0 and 10.3 (FOR_BLACKWELL) and for 7.0 and 7.5 (FOR_VOLTA). Every
 * kernel takes one struct, which the Python side mirrors field by field (arguments.py).
 */
#ifdef __CUDACC__
#include "platform.h"
#else
#include "host_platform.h" /* of the test double */
#endif

/* In this order, each after what it builds on. */
#include "numbers.h"

#include "memory.h"

#include "normal.h"

#include "gemm_scalar.h"
#if FOR_AMPERE
#include "gemm_tensor.h"

#include "gemm_fp64.h"

#include "block.h"
#if FOR_HOPPER
#include "gemm_hopper.h"
#endif
#if FOR_BLACKWELL
#include "gemm_blackwell.h"
#endif
#endif
#if FOR_VOLTA
#include "gemm_wmma.h"
#endif
