/* SPDX-License-Identifier: MIT */
#include "client.h"

#include <stdlib.h>

#include "text.h"

void pal_client_refuse(enum pal_option option, const char *value) {
    const struct pal_option_rule *rule = &pal_option_rules[option];

    slurm_error("pal: --%s=%s is not allowed: give %s", rule->name, pal_show(value ? value : "").text, rule->allowed);
}

/* An option from its variable is passed on under the name of a given one: nobody has to look in two places. */
static void carry(spank_t spank, const struct pal_options *options, enum pal_option option) {
    const struct pal_option_rule *rule = &pal_option_rules[option];
    const char *value = options->value[option];

    if (setenv(rule->carrier, value, 1) < 0 ||
        spank_job_control_setenv(spank, rule->carrier, value, 1) != ESPANK_SUCCESS)
        slurm_debug("pal: cannot pass %s on", rule->variable);
}

void pal_client_post_opt(spank_t spank, struct pal_options *options) {
    for (enum pal_option option = 0; option < PAL_OPTION_COUNT; option++) {
        const struct pal_option_rule *rule = &pal_option_rules[option];
        const char *value = rule->variable ? getenv(rule->variable) : NULL;

        if (!pal_options_fall_back(options, option, value))
            slurm_spank_log("pal: warning: %s=%s is ignored: give %s", rule->variable, pal_show(value).text,
                            rule->allowed);
        if (options->origin[option] == PAL_FROM_VARIABLE)
            carry(spank, options, option);
    }
}
