/* SPDX-License-Identifier: MIT */
/* The tests' own Slurm: one process, one job environment, and what was logged. */
#ifndef PAL_FAKE_SPANK_H
#define PAL_FAKE_SPANK_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_slurm {
    spank_context_t context;
    uint32_t step;
    uint32_t global_task;
    int local_task;
    uint32_t local_tasks;
    uint32_t node;
    int exit_status;
    char **environment; /* what S_JOB_ENV shows; NULL: an error */
    int registered;
    struct spank_option option[8];
    char log[8192];   /* slurm_error, slurm_spank_log, slurm_info */
    char debug[8192]; /* slurm_debug */
    struct {
        char name[64];
        char value[16384];
    } job[16], control[8];
};

extern struct fake_slurm fake;

/* Start anew; the environment of this process loses our variables too. */
void fake_reset(spank_context_t context);

/* In the job's environment; NULL removes. */
void fake_set(const char *name, const char *value);
const char *fake_get(const char *name);
const char *fake_control(const char *name);

/* Call an option's callback as Slurm does. */
int fake_option(const char *name, const char *argument);

#endif
