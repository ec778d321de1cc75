/* SPDX-License-Identifier: MIT */
/* The published scores of GPUs: the file gpus.txt, schema pal.gpus/1.
 *
 *     # pal.gpus/1 epoch=17 written_s=1763712345 cluster=palab
 *     n0 0:A=v1@1.037:B=v1@1.016:C=v0@1.000 1:A=v0@0.98
 *     # end 17
 *
 * One line per node; per GPU its Slurm index, then per sensitivity class its variability class and its slowdown
 * (time on it / median of its model: larger is slower). A class without a score is left out. */
#ifndef PAL_GPUS_H
#define PAL_GPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

enum {
    PAL_NODE_GPUS_MAX = 256,
    PAL_INDEX_MAX = 65535,
    PAL_LINE_MAX = 64 * 1024,
    PAL_FILE_MAX = 64 * 1024 * 1024,
    PAL_SLOWDOWN_ONE = 1000000, /* slowdowns are kept in millionths: no floats, no locale */
};

/* The score of one GPU for one sensitivity class. */
struct pal_score {
    unsigned index;
    unsigned bin;        /* variability class: 1 is v1 */
    uint32_t millionths; /* slowdown; 0 where there is no score */
};

struct pal_scores {
    size_t count;
    struct pal_score gpu[PAL_NODE_GPUS_MAX];
};

/* Open the file for reading if it is a regular file of at most PAL_FILE_MAX bytes; never waits for a pipe's other
 * end. -1 on failure, and `why` gives the reason. */
int pal_gpus_open(const char *path, struct pal_text *why);

/* Find a node's scores for a sensitivity class. Reads by position: `descriptor` may be shared with other processes.
 * A node that is not listed has no scores (count 0). False when the file cannot be read, is no pal.gpus/1, is not
 * complete, or the node's line is malformed; `why` then says so and `scores` is empty. */
bool pal_gpus_find(int descriptor, const char *node, char sensitivity, struct pal_scores *scores, struct pal_text *why);

/* Read the part of a line after the node's name. False when malformed. */
bool pal_gpus_parse(const char *words, char sensitivity, struct pal_scores *scores);

/* NULL where there is no score. */
const struct pal_score *pal_score_of(const struct pal_scores *scores, unsigned index);

#endif
