/* SPDX-License-Identifier: MIT */
/* What drivers have from CUDA 11.4 on, over the double of a driver of 11.0. */
#include <string.h>

int double_fault(const char *name);
int cuGraphInstantiate_v2(void **ready, const void *graph, void *node, char *log, size_t size);

/* MIG-eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeNN, the partition of GPU NN that is
 * visible */
int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, 0xee, 16);
    uuid[15] = (char) device;
    return 0;
}

int cuGraphInstantiateWithFlags(void **ready, const void *graph, unsigned long long flags) {
    int code = double_fault("cuGraphInstantiateWithFlags");
    return code ? code : flags ? 1 : cuGraphInstantiate_v2(ready, graph, NULL, NULL, 0);
}
