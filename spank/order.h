/* SPDX-License-Identifier: MIT */
/* Lists of devices, as in CUDA_VISIBLE_DEVICES, and their order by score. */
#ifndef PAL_ORDER_H
#define PAL_ORDER_H

#include <stdbool.h>
#include <stddef.h>

#include "gpus.h"

struct pal_devices {
    size_t count;
    unsigned number[PAL_NODE_GPUS_MAX];
};

/* Read "0,2,3": different decimal numbers, at least one, nothing else. */
bool pal_devices_parse(const char *list, struct pal_devices *devices);

/* Whether entry k of a visible list is certainly the GPU with Slurm index indexes->number[k]. */
bool pal_devices_match(const struct pal_devices *visible, const struct pal_devices *indexes);

/* Write to `order` the positions of `indexes`, best score first; equal ones keep their order. A GPU without a score
 * counts as median, and comes after the best GPU that has one. */
void pal_order_best(const struct pal_scores *scores, const struct pal_devices *indexes, size_t order[]);

void pal_order_as_is(size_t count, size_t order[]);

/* The devices in that order, as a list. */
void pal_order_list(const struct pal_devices *devices, const size_t order[], struct pal_text *list);

#endif
