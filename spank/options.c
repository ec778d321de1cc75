/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <stddef.h>
#include <string.h>

static bool is_class(const char *value) {
    return strlen(value) == 1 && strchr("ABC", value[0]) != NULL;
}

/* What the table and a job's comment can hold: ^[A-Za-z0-9_.-]{1,64}$ */
static bool is_application(const char *value) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t length = strspn(value, letters);

    return length >= 1 && length <= PAL_VALUE_MAX && value[length] == '\0';
}

/* As palsub has it: above 1, below 10, at most four decimals. */
static bool is_bound(const char *value) {
    bool above_one = value[0] > '1';
    size_t decimals;

    if (value[0] < '1' || value[0] > '9')
        return false;
    if (value[1] == '\0')
        return above_one;
    decimals = strspn(value + 2, "0123456789");
    above_one = above_one || strpbrk(value + 2, "123456789") != NULL;
    return value[1] == '.' && decimals <= 4 && value[2 + decimals] == '\0' && above_one;
}

static bool is_one(const char *value) {
    return strcmp(value, "1") == 0;
}

#define CARRIER "_SLURM_SPANK_OPTION_pal_pal_"

const struct pal_option_rule pal_option_rules[PAL_OPTION_COUNT] = {
    [PAL_CLASS] = {"pal-class", "SLURM_PAL_CLASS", "SLURM_PAL_JOB_CLASS", CARRIER "class", "A, B or C", PAL_VALUE,
                   is_class},
    [PAL_APP] = {"pal-app", "SLURM_PAL_APP", NULL, CARRIER "app", "1 to 64 letters, digits and _ . -", PAL_VALUE,
                 is_application},
    [PAL_OFF] = {"pal-off", "SLURM_PAL_OFF", "SLURM_PAL_JOB_OFF", CARRIER "off", "0 or 1", PAL_NO_VALUE, is_one},
    [PAL_EXPLAIN] = {"pal-explain", NULL, NULL, CARRIER "explain", "", PAL_NO_VALUE, is_one},
    [PAL_AVOID_SLOW] = {"pal-avoid-slow", "SLURM_PAL_AVOID_SLOW", NULL, CARRIER "avoid_slow",
                        "a slowdown between 1.0 and 10, such as 1.10 for GPUs that are 10 % slower than the median",
                        PAL_VALUE_OR_NONE, is_bound},
    [PAL_NOTE] = {"pal-note", NULL, NULL, CARRIER "note", "", PAL_NO_VALUE, is_one},
};

void pal_options_clear(struct pal_options *options) {
    memset(options, 0, sizeof(*options));
    for (int option = 0; option < PAL_OPTION_COUNT; option++)
        options->origin[option] = PAL_UNSET;
}

bool pal_options_set(struct pal_options *options, enum pal_option option, enum pal_origin origin, const char *value) {
    const struct pal_option_rule *rule = &pal_option_rules[option];

    if (rule->takes == PAL_NO_VALUE)
        value = "1";
    if (rule->takes == PAL_VALUE_OR_NONE && (value == NULL || strcmp(value, "(null)") == 0))
        value = "";
    else if (value == NULL || !rule->accepts(value))
        return false;
    strcpy(options->value[option], value); /* accepted values fit */
    options->origin[option] = origin;
    return true;
}

bool pal_options_fall_back(struct pal_options *options, enum pal_option option, const char *value) {
    const struct pal_option_rule *rule = &pal_option_rules[option];

    if (options->origin[option] != PAL_UNSET || value == NULL || *value == '\0')
        return true;
    if (rule->takes != PAL_VALUE && strcmp(value, "0") == 0)
        return true;
    if (rule->takes == PAL_VALUE_OR_NONE && is_one(value))
        return pal_options_set(options, option, PAL_FROM_VARIABLE, NULL);
    return rule->accepts(value) && pal_options_set(options, option, PAL_FROM_VARIABLE, value);
}

bool pal_options_has(const struct pal_options *options, enum pal_option option) {
    return options->origin[option] != PAL_UNSET;
}

char pal_options_class(const struct pal_options *options) {
    return pal_options_has(options, PAL_CLASS) ? options->value[PAL_CLASS][0] : 'A';
}
