/* SPDX-License-Identifier: MIT */
/* The values of our options: which are allowed, and where they came from. Knows nothing about Slurm. */
#ifndef PAL_OPTIONS_H
#define PAL_OPTIONS_H

#include <stdbool.h>

enum pal_option { PAL_CLASS, PAL_APP, PAL_OFF, PAL_EXPLAIN, PAL_AVOID_SLOW, PAL_NOTE, PAL_OPTION_COUNT };

/* In Slurm's numbers. */
enum pal_takes { PAL_NO_VALUE, PAL_VALUE, PAL_VALUE_OR_NONE };

/* Unset is not "no": an option that was not given may still come from the environment. */
enum pal_origin { PAL_UNSET = -1, PAL_FROM_VARIABLE, PAL_GIVEN };

enum { PAL_VALUE_MAX = 64 };

struct pal_options {
    enum pal_origin origin[PAL_OPTION_COUNT];
    char value[PAL_OPTION_COUNT][PAL_VALUE_MAX + 1];
};

struct pal_option_rule {
    const char *name;
    const char *variable; /* read where the option is not given; NULL: none */
    /* Set beside what the plug-in itself puts into a job's environment for the job's steps: jobs that this one submits
     * inherit both, and must not take them for their user's words. NULL: none. */
    const char *mark;
    /* The name under which Slurm itself carries a given option: in the job's spank_job_env, which job_submit sees and
     * the prolog inherits, and in the environment. */
    const char *carrier;
    const char *allowed; /* for messages */
    enum pal_takes takes;
    bool (*accepts)(const char *value);
};

extern const struct pal_option_rule pal_option_rules[PAL_OPTION_COUNT];

void pal_options_clear(struct pal_options *options);

/* Set an option; the last one counts. False, and nothing changed, when the value is not allowed. A flag takes any
 * value: Slurm hands it NULL, "" or "(null)", depending on the way it came. An optional value that was not stated is
 * NULL or "(null)", and kept as "". */
bool pal_options_set(struct pal_options *options, enum pal_option option, enum pal_origin origin, const char *value);

/* Take what the environment says for an option that is unset; NULL and "" say nothing. Where no value is needed, "0"
 * says no and "1" states none. False when the value is not allowed. */
bool pal_options_fall_back(struct pal_options *options, enum pal_option option, const char *value);

bool pal_options_has(const struct pal_options *options, enum pal_option option);

/* The sensitivity class whose scores count: an unstated one reads as A, the one that suffers most. */
char pal_options_class(const struct pal_options *options);

#endif
