/* SPDX-License-Identifier: MIT */
/* slurmstepd: what a step and its tasks learn about their GPUs. */
#ifndef PAL_TASK_H
#define PAL_TASK_H

#include <slurm/spank.h>

#include "config.h"
#include "options.h"

/* Once per step and node, with the user's rights, before the tasks are forked: open the scores. The tasks share the
 * open file, so that all of them order their GPUs by the same scores even when a new file is published meanwhile;
 * two that differ could both take the same GPU for their own. */
void pal_step_begin(const struct pal_config *config);
void pal_step_end(void);

/* The options of the step, and for those that did not come with it what the job's environment says. */
struct pal_options pal_options_in_force(spank_t spank, const struct pal_options *given);

/* In each task, as the user, before it is executed. */
void pal_task_begin(spank_t spank, const struct pal_config *config, const struct pal_options *given);

#endif
