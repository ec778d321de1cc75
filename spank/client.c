/* SPDX-License-Identifier: MIT */
#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

void pal_client_refuse(enum pal_option option, const char *value) {
    const struct pal_option_rule *rule = &pal_option_rules[option];

    slurm_error("pal: --%s=%s is not allowed: give %s", rule->name, pal_show(value ? value : "").text, rule->allowed);
}

bool pal_client_is_beyond(enum pal_option option) {
    if (option != PAL_NOTE || strcmp(program_invocation_short_name, "salloc") != 0)
        return false;
    slurm_error(
        "pal: --pal-note is not for salloc, whose job has no output of its own: give it to srun, or run "
        "\"pal note\" before you leave");
    return true;
}

/* job_submit sees the environment of batch jobs only. Under the variable's own name, since what the script says ranks
 * above a variable and below an option. */
static void carry(spank_t spank, const struct pal_options *options, enum pal_option option) {
    const struct pal_option_rule *rule = &pal_option_rules[option];
    const char *value = options->value[option][0] ? options->value[option] : "1"; /* none stated */

    if (spank_job_control_setenv(spank, rule->variable, value, 1) != ESPANK_SUCCESS)
        slurm_debug("pal: cannot pass %s on", rule->variable);
}

static void forget(const struct pal_option_rule *rule) {
    const char *mark = rule->mark ? getenv(rule->mark) : NULL;
    const char *value = rule->variable ? getenv(rule->variable) : NULL;
    char name[64];
    struct pal_text text = pal_text_in(name, sizeof(name));

    if (mark && value && strcmp(mark, value) == 0)
        unsetenv(rule->variable);
    if (mark)
        unsetenv(rule->mark);
    pal_text_add(&text, "SLURM_SPANK_%s", rule->carrier);
    unsetenv(name);
    unsetenv(rule->carrier);
}

void pal_client_begin(void) {
    if (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))
        return;
    for (enum pal_option option = 0; option < PAL_OPTION_COUNT; option++)
        forget(&pal_option_rules[option]);
}

void pal_client_post_opt(spank_t spank, const struct pal_config *config, struct pal_options *options) {
    if (pal_options_has(options, PAL_NOTE) && config->python[0] == '\0')
        slurm_spank_log("pal: warning: --pal-note is ignored: plugstack.conf has no python=");
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
