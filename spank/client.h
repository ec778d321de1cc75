/* SPDX-License-Identifier: MIT */
/* sbatch, salloc and srun: options are checked, and may come from the environment. */
#ifndef PAL_CLIENT_H
#define PAL_CLIENT_H

#include <slurm/spank.h>

#include "options.h"

/* Say on the user's terminal why a value is refused. */
void pal_client_refuse(enum pal_option option, const char *value);

/* Once the command line is read: take from the environment what was not given, so that it travels like a given
 * option. A wrong value is warned about and ignored. */
void pal_client_post_opt(spank_t spank, struct pal_options *options);

#endif
