/* SPDX-License-Identifier: MIT */
/* slurmstepd: the line at the end of a job's output (--pal-note), on which GPUs it ran.
 *
 * The words are those of palsub: `pal note` makes them beside the task, as the user and in the job's cgroup. slurmstepd
 * has a copy of the task's standard output, and writes the line there when the tasks of this node have ended. */
#ifndef PAL_END_LINE_H
#define PAL_END_LINE_H

#include <slurm/spank.h>

#include "config.h"
#include "options.h"

/* Before the tasks are forked. Does nothing unless the step is to have the line, and this is its first node. */
void pal_end_line_begin(spank_t spank, const struct pal_config *config, const struct pal_options *options);

/* In each task, as the user, before it is executed. The first one starts what makes the line. */
void pal_end_line_start(spank_t spank, const struct pal_config *config);

/* In slurmstepd, for each task that has ended; the last one is followed by the line. Waits for it at most
 * PAL_END_LINE_WAIT_MS, and not at all where a signal has ended a task: then somebody wants the job to be over. */
enum { PAL_END_LINE_WAIT_MS = 2000 };
void pal_end_line_task_ended(spank_t spank);

void pal_end_line_end(void);

#endif
