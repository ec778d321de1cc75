/* SPDX-License-Identifier: MIT */
/* sbatch, salloc and srun: options are checked, and may come from the environment. */
#ifndef PAL_CLIENT_H
#define PAL_CLIENT_H

#include <slurm/spank.h>

#include "config.h"
#include "options.h"

/* Say on the user's terminal why a value is refused. */
void pal_client_refuse(enum pal_option option, const char *value);

/* Whether the command cannot do what an option asks for, which is then said on the user's terminal. */
bool pal_client_is_beyond(enum pal_option option);

/* Before the options are read: a new job takes nothing from the job in which it is submitted, such as the options of an
 * salloc, which Slurm leaves in the environment. An srun in a job starts a step, which has all of it. */
void pal_client_begin(void);

/* Once the command line is read: take from the environment what was not given. A wrong value is warned about and
 * ignored, and so is an option for which the site lacks something. */
void pal_client_post_opt(spank_t spank, const struct pal_config *config, struct pal_options *options);

#endif
