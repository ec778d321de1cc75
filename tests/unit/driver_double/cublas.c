/* SPDX-License-Identifier: MIT */
/* A double of cuBLAS over that of the driver: a product by columns, c = op(a) op(b), in bf16. It computes on the host
 * once its stream is empty, in which whatever comes later is behind it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int double_fault(const char *name);
int cuStreamSynchronize(void *stream);

typedef struct {
    void *stream;
} Handle;

static int handles;

int cublas_handles(void) {
    return handles;
}

int cublasGetProperty(int which, int *value) {
    *value = which == 0 ? 12 : which == 1 ? 4 : 5;
    return double_fault("cublasGetProperty");
}

int cublasCreate_v2(Handle **handle) {
    int code = double_fault("cublasCreate_v2");
    if (code)
        return code;
    *handle = calloc(1, sizeof **handle);
    handles++;
    return 0;
}

int cublasDestroy_v2(Handle *handle) {
    free(handle);
    handles--;
    return 0;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
    handle->stream = stream;
    return 0;
}

static float number(const uint16_t *from) {
    uint32_t bits = (uint32_t) *from << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

int cublasGemmEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const uint16_t *a,
                 int type_a, int step_a, const uint16_t *b, int type_b, int step_b, const float *beta, uint16_t *c,
                 int type_c, int step_c, int compute, int algorithm) {
    int code = double_fault("cublasGemmEx");
    if (code)
        return code;
    if (type_a != 14 || type_b != 14 || type_c != 14 || compute != 68 || algorithm != -1 || *beta != 0.0f ||
        step_a < (op_a ? k : m) || step_b < (op_b ? n : k) || step_c < m || !handle->stream)
        return 7;
    if (cuStreamSynchronize(handle->stream))
        return 13;
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0.0f;
            for (int i = 0; i < k; i++)
                sum += number(a + (op_a ? row * step_a + i : i * step_a + row)) *
                       number(b + (op_b ? i * step_b + column : column * step_b + i));
            sum *= *alpha;
            uint32_t bits;
            memcpy(&bits, &sum, 4);
            c[column * step_c + row] = (uint16_t) ((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        }
    return 0;
}
