/* SPDX-License-Identifier: MIT */
/* The SPANK plug-in `pal`: options of sbatch, srun and salloc, and the order of the GPUs that a task sees.
 *
 * This file has only what Slurm calls, and in which program: client.c is for sbatch, salloc and srun, task.c for
 * slurmstepd. Nothing here fails a job: whatever goes wrong is logged, and the job runs as if there were no plug-in.
 * Only an option with a wrong value on the command line is refused. */

/* Everything is hidden (-fvisibility=hidden) except what spank.h declares and what SPANK_PLUGIN defines. */
#pragma GCC visibility push(default)
#include <slurm/spank.h>

SPANK_PLUGIN(pal, 1);
#pragma GCC visibility pop

#include "client.h"
#include "config.h"
#include "end_line.h"
#include "options.h"
#include "task.h"

static struct pal_config config;
static bool usable; /* the arguments in plugstack.conf were understood */
static struct pal_options options;

/* Slurm calls this for an option on the command line, in the script or in Slurm's own variables, and again in
 * slurmstepd with what the client sent; there a wrong value can only be forged, and is ignored. */
static int take_option(int value, const char *argument, int remote) {
    enum pal_option option = (enum pal_option) value;

    if (!remote && pal_client_is_beyond(option))
        return ESPANK_BAD_ARG;
    if (pal_options_set(&options, option, PAL_GIVEN, argument))
        return ESPANK_SUCCESS;
    if (remote)
        slurm_debug("pal: --%s ignored", pal_option_rules[option].name);
    else
        pal_client_refuse(option, argument);
    return ESPANK_BAD_ARG;
}

/* Static: sbatch and srun export symbols of their own that would replace ours. */
static struct spank_option table[] = {
    {"pal-class", "A|B|C", "[pal] how much the job suffers from slow GPUs: A most, C least", PAL_VALUE, PAL_CLASS,
     take_option},
    {"pal-app", "NAME", "[pal] application that gives the job its class", PAL_VALUE, PAL_APP, take_option},
    {"pal-off", NULL, "[pal] leave placement and GPU order to Slurm", PAL_NO_VALUE, PAL_OFF, take_option},
    {"pal-explain", NULL, "[pal] show what was decided, and the GPUs at job start", PAL_NO_VALUE, PAL_EXPLAIN,
     take_option},
    {"pal-avoid-slow", "[X]", "[pal] keep the job off GPUs slower than X (1.10: 10 % slower than the median)",
     PAL_VALUE_OR_NONE, PAL_AVOID_SLOW, take_option},
    {"pal-note", NULL, "[pal] a line at the end of the output: on which GPUs the job ran", PAL_NO_VALUE, PAL_NOTE,
     take_option},
    SPANK_OPTIONS_TABLE_END,
};

static void register_options(spank_t spank) {
    pal_options_clear(&options);
    for (struct spank_option *option = table; option->name; option++)
        if (spank_option_register(spank, option) != ESPANK_SUCCESS)
            slurm_debug("pal: cannot register --%s", option->name);
}

/* A mistake of the site is reported to the site, in slurmd's log, not to every user who submits a job. */
static void read_arguments(int count, char *arguments[], bool is_node) {
    char reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));

    usable = pal_config_parse(&config, count, arguments, &why);
    if (usable)
        return;
    if (is_node)
        slurm_error("pal: plugstack.conf: %s; the plug-in does nothing", reason);
    else
        slurm_debug("pal: plugstack.conf: %s; the plug-in does nothing", reason);
}

int slurm_spank_init(spank_t spank, int count, char *arguments[]) {
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
        pal_client_begin();
        read_arguments(count, arguments, false);
        register_options(spank);
        break;
    case S_CTX_REMOTE:
        read_arguments(count, arguments, true);
        register_options(spank);
        break;
    case S_CTX_SLURMD:
        read_arguments(count, arguments, true); /* so that a mistake shows at slurmd's start */
        break;
    default:
        break;
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[]) {
    (void) count, (void) arguments;
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
        if (usable)
            pal_client_post_opt(spank, &config, &options);
        break;
    default:
        break;
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_user_init(spank_t spank, int count, char *arguments[]) {
    struct pal_options in_force;

    (void) count, (void) arguments;
    if (usable) {
        pal_step_begin(&config);
        in_force = pal_options_in_force(spank, &options);
        pal_end_line_begin(spank, &config, &in_force);
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char *arguments[]) {
    (void) count, (void) arguments;
    if (usable) {
        pal_task_begin(spank, &config, &options);
        pal_end_line_start(spank, &config);
    }
    return ESPANK_SUCCESS;
}

int slurm_spank_task_exit(spank_t spank, int count, char *arguments[]) {
    (void) count, (void) arguments;
    pal_end_line_task_ended(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int count, char *arguments[]) {
    (void) spank, (void) count, (void) arguments;
    pal_step_end();
    pal_end_line_end();
    return ESPANK_SUCCESS;
}
