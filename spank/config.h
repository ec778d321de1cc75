/* SPDX-License-Identifier: MIT */
/* The plug-in's arguments in plugstack.conf. */
#ifndef PAL_CONFIG_H
#define PAL_CONFIG_H

#include <limits.h>
#include <stdbool.h>

#include "text.h"

struct pal_config {
    char gpus[PATH_MAX];   /* the published scores (gpus.txt); "": scores are not used */
    char python[PATH_MAX]; /* the Python of the nodes that has slurm-pal; "": no line at a job's end */
    bool best_first;       /* order the visible devices */
    bool note;             /* one line on the job's stderr at its start */
};

/* Read key=value arguments. False when one is unknown or has a wrong value: `why` then says so, and `config`
 * holds the defaults. */
bool pal_config_parse(struct pal_config *config, int count, char *const arguments[], struct pal_text *why);

#endif
