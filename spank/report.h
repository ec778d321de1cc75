/* SPDX-License-Identifier: MIT */
/* What a job learns about its GPUs. */
#ifndef PAL_REPORT_H
#define PAL_REPORT_H

#include "order.h"

/* "0:v1:1.037,3:v0:0.980": index, variability class, slowdown; "2:?:?" without a score. */
void pal_report_gpus(const struct pal_scores *scores, const struct pal_devices *indexes, const size_t order[],
                     struct pal_text *text);

/* "pal: class A; n3: GPU 0 v1 1.04, GPU 3 v0 0.98" and a newline. `stated`: the job named its class. */
void pal_report_note(char sensitivity, bool stated, const char *node, const struct pal_scores *scores,
                     const struct pal_devices *indexes, const size_t order[], struct pal_text *text);

#endif
