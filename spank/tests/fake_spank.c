/* SPDX-License-Identifier: MIT */
#include "fake_spank.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_slurm fake;

void fake_reset(spank_context_t context) {
    memset(&fake, 0, sizeof(fake));
    fake.context = context;
    unsetenv("SLURM_PAL_CLASS");
    unsetenv("SLURM_PAL_APP");
    unsetenv("SLURM_PAL_OFF");
    unsetenv("SLURM_PAL_AVOID_SLOW");
    unsetenv("SLURM_PAL_JOB_CLASS");
    unsetenv("SLURM_PAL_JOB_OFF");
    unsetenv("SLURM_JOB_ID");
}

void fake_set(const char *name, const char *value) {
    for (int i = 0; i < 16; i++) {
        bool same = strcmp(fake.job[i].name, name) == 0;
        if (!same && (fake.job[i].name[0] != '\0' || value == NULL))
            continue;
        snprintf(fake.job[i].name, sizeof(fake.job[i].name), "%s", value ? name : "");
        snprintf(fake.job[i].value, sizeof(fake.job[i].value), "%s", value ? value : "");
        if (same || value)
            return;
    }
}

const char *fake_get(const char *name) {
    for (int i = 0; i < 16; i++)
        if (strcmp(fake.job[i].name, name) == 0)
            return fake.job[i].value;
    return NULL;
}

const char *fake_control(const char *name) {
    for (int i = 0; i < 8; i++)
        if (strcmp(fake.control[i].name, name) == 0)
            return fake.control[i].value;
    return NULL;
}

int fake_option(const char *name, const char *argument) {
    for (int i = 0; i < fake.registered; i++)
        if (strcmp(fake.option[i].name, name) == 0)
            return fake.option[i].cb(fake.option[i].val, argument, fake.context == S_CTX_REMOTE);
    return -1;
}

spank_context_t spank_context(void) {
    return fake.context;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option) {
    (void) spank;
    if (fake.registered == 8)
        return ESPANK_NOSPACE;
    fake.option[fake.registered++] = *option;
    return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int size) {
    const char *value = fake_get(name);

    (void) spank;
    if (value == NULL)
        return ESPANK_ENV_NOEXIST;
    return snprintf(buffer, (size_t) size, "%s", value) >= size ? ESPANK_NOSPACE : ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite) {
    (void) spank, (void) overwrite;
    fake_set(name, value);
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name) {
    (void) spank;
    fake_set(name, NULL);
    return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite) {
    (void) spank, (void) overwrite;
    for (int i = 0; i < 8; i++) {
        if (fake.control[i].name[0] != '\0' && strcmp(fake.control[i].name, name) != 0)
            continue;
        snprintf(fake.control[i].name, sizeof(fake.control[i].name), "%s", name);
        snprintf(fake.control[i].value, sizeof(fake.control[i].value), "%s", value);
        return ESPANK_SUCCESS;
    }
    return ESPANK_NOSPACE;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...) {
    va_list places;
    spank_err_t error = ESPANK_SUCCESS;

    (void) spank;
    va_start(places, item);
    if (item == S_JOB_STEPID)
        *va_arg(places, uint32_t *) = fake.step;
    else if (item == S_TASK_GLOBAL_ID)
        *va_arg(places, uint32_t *) = fake.global_task;
    else if (item == S_TASK_ID)
        *va_arg(places, int *) = fake.local_task;
    else if (item == S_JOB_LOCAL_TASK_COUNT)
        *va_arg(places, uint32_t *) = fake.local_tasks;
    else if (item == S_JOB_NODEID)
        *va_arg(places, uint32_t *) = fake.node;
    else if (item == S_TASK_EXIT_STATUS)
        *va_arg(places, int *) = fake.exit_status;
    else if (item == S_JOB_ENV && fake.environment)
        *va_arg(places, char ***) = fake.environment;
    else
        error = ESPANK_BAD_ARG;
    va_end(places);
    return error;
}

static void append(char *log, size_t size, const char *format, va_list values) {
    size_t length = strlen(log);

    vsnprintf(log + length, size - length, format, values);
    length = strlen(log);
    snprintf(log + length, size - length, "\n");
}

#define LOGGER(name, place)                                                                                            \
    void name(const char *format, ...) {                                                                               \
        va_list values;                                                                                                \
        va_start(values, format);                                                                                      \
        append(fake.place, sizeof(fake.place), format, values);                                                        \
        va_end(values);                                                                                                \
    }

LOGGER(slurm_error, log)
LOGGER(slurm_info, log)
LOGGER(slurm_spank_log, log)
LOGGER(slurm_debug, debug)
