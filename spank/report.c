/* SPDX-License-Identifier: MIT */
#include "report.h"

/* Rounded half up: slowdowns are near 1, where both forms are exact enough to compare GPUs. */
static void add_slowdown(struct pal_text *text, uint32_t millionths, uint32_t step, int digits) {
    uint32_t steps = (millionths + step / 2) / step;
    uint32_t per_one = PAL_SLOWDOWN_ONE / step;

    pal_text_add(text, "%u.%0*u", steps / per_one, digits, steps % per_one);
}

void pal_report_gpus(const struct pal_scores *scores, const struct pal_devices *indexes, const size_t order[],
                     struct pal_text *text) {
    for (size_t i = 0; i < indexes->count; i++) {
        unsigned index = indexes->number[order[i]];
        const struct pal_score *score = pal_score_of(scores, index);
        pal_text_add(text, "%s%u:", i ? "," : "", index);
        if (score) {
            pal_text_add(text, "v%u:", score->bin);
            add_slowdown(text, score->millionths, 1000, 3);
        } else {
            pal_text_add(text, "?:?");
        }
    }
}

void pal_report_note(char sensitivity, bool stated, const char *node, const struct pal_scores *scores,
                     const struct pal_devices *indexes, const size_t order[], struct pal_text *text) {
    pal_text_add(text, "pal: class %c%s; %s:", sensitivity, stated ? "" : " (not stated)", node);
    for (size_t i = 0; i < indexes->count; i++) {
        unsigned index = indexes->number[order[i]];
        const struct pal_score *score = pal_score_of(scores, index);
        pal_text_add(text, "%s GPU %u ", i ? "," : "", index);
        if (score) {
            pal_text_add(text, "v%u ", score->bin);
            add_slowdown(text, score->millionths, 10000, 2);
        } else {
            pal_text_add(text, "without score");
        }
    }
    pal_text_add(text, "\n");
}
