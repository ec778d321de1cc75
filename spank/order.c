/* SPDX-License-Identifier: MIT */
#include "order.h"

static bool holds(const struct pal_devices *devices, unsigned number) {
    for (size_t i = 0; i < devices->count; i++)
        if (devices->number[i] == number)
            return true;
    return false;
}

bool pal_devices_parse(const char *list, struct pal_devices *devices) {
    unsigned number;

    devices->count = 0;
    do {
        if (devices->count == PAL_NODE_GPUS_MAX || !pal_read_number(&list, PAL_INDEX_MAX, &number))
            return false;
        if (holds(devices, number))
            return false;
        devices->number[devices->count++] = number;
    } while (*list++ == ',');
    return list[-1] == '\0';
}

/* Slurm writes both lists in one pass over the allocated GPUs (common_gres_set_env in gres_common.c), so entries at
 * the same place belong together. The visible list repeats the indexes, or, where a device cgroup hides the other
 * GPUs, counts 0, 1, ...; anything else (a task bound to some GPUs of its step under a device cgroup, a list that
 * somebody changed) is not taken as certain. */
bool pal_devices_match(const struct pal_devices *visible, const struct pal_devices *indexes) {
    bool same = true, counted = true;

    if (visible->count != indexes->count)
        return false;
    for (size_t i = 0; i < visible->count; i++) {
        same = same && visible->number[i] == indexes->number[i];
        counted = counted && visible->number[i] == i;
    }
    return same || counted;
}

static uint32_t best_score(const struct pal_scores *scores, const struct pal_devices *indexes) {
    uint32_t best = UINT32_MAX;

    for (size_t i = 0; i < indexes->count; i++) {
        const struct pal_score *score = pal_score_of(scores, indexes->number[i]);
        if (score && score->millionths < best)
            best = score->millionths;
    }
    return best;
}

void pal_order_best(const struct pal_scores *scores, const struct pal_devices *indexes, size_t order[]) {
    uint64_t keys[PAL_NODE_GPUS_MAX]; /* twice the slowdown; odd where it is not known, so that a known one wins */
    uint32_t best = best_score(scores, indexes);
    uint32_t unknown = best != UINT32_MAX && best > PAL_SLOWDOWN_ONE ? best : PAL_SLOWDOWN_ONE;

    for (size_t i = 0; i < indexes->count; i++) {
        const struct pal_score *score = pal_score_of(scores, indexes->number[i]);
        uint64_t key = score ? 2 * (uint64_t) score->millionths : 2 * (uint64_t) unknown + 1;
        size_t place = i;
        for (; place > 0 && keys[place - 1] > key; place--) {
            keys[place] = keys[place - 1];
            order[place] = order[place - 1];
        }
        keys[place] = key;
        order[place] = i;
    }
}

void pal_order_as_is(size_t count, size_t order[]) {
    for (size_t i = 0; i < count; i++)
        order[i] = i;
}

void pal_order_list(const struct pal_devices *devices, const size_t order[], struct pal_text *list) {
    for (size_t i = 0; i < devices->count; i++)
        pal_text_add(list, "%s%u", i ? "," : "", devices->number[order[i]]);
}
