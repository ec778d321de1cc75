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

static bool is_one(const char *value) {
    return strcmp(value, "1") == 0;
}

#define CARRIER "_SLURM_SPANK_OPTION_pal_pal_"

const struct pal_option_rule pal_option_rules[PAL_OPTION_COUNT] = {
    [PAL_CLASS] = {"pal-class", "SLURM_PAL_CLASS", "SLURM_PAL_JOB_CLASS", CARRIER "class", "A, B or C", false,
                   is_class},
    [PAL_APP] = {"pal-app", "SLURM_PAL_APP", NULL, CARRIER "app", "1 to 64 letters, digits and _ . -", false,
                 is_application},
    [PAL_OFF] = {"pal-off", "SLURM_PAL_OFF", "SLURM_PAL_JOB_OFF", CARRIER "off", "0 or 1", true, is_one},
    [PAL_EXPLAIN] = {"pal-explain", NULL, NULL, CARRIER "explain", "", true, is_one},
};

void pal_options_clear(struct pal_options *options) {
    memset(options, 0, sizeof(*options));
    for (int option = 0; option < PAL_OPTION_COUNT; option++)
        options->origin[option] = PAL_UNSET;
}

bool pal_options_set(struct pal_options *options, enum pal_option option, enum pal_origin origin, const char *value) {
    if (pal_option_rules[option].is_flag)
        value = "1";
    if (value == NULL || !pal_option_rules[option].accepts(value))
        return false;
    strcpy(options->value[option], value); /* accepted values fit */
    options->origin[option] = origin;
    return true;
}

bool pal_options_fall_back(struct pal_options *options, enum pal_option option, const char *value) {
    bool is_flag = pal_option_rules[option].is_flag;

    if (options->origin[option] != PAL_UNSET || value == NULL || *value == '\0')
        return true;
    if (is_flag && strcmp(value, "0") == 0)
        return true;
    if (is_flag && !pal_option_rules[option].accepts(value))
        return false;
    return pal_options_set(options, option, PAL_FROM_VARIABLE, value);
}

bool pal_options_has(const struct pal_options *options, enum pal_option option) {
    return options->origin[option] != PAL_UNSET;
}

char pal_options_class(const struct pal_options *options) {
    return pal_options_has(options, PAL_CLASS) ? options->value[PAL_CLASS][0] : 'A';
}
