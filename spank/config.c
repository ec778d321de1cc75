/* SPDX-License-Identifier: MIT */
#include "config.h"

#include <string.h>

/* With no argument the plug-in only carries options: scores are read, and the order of devices and the job's
 * stderr touched, only where the site asks for it. */
static const struct pal_config DEFAULTS = {.gpus = "", .python = "", .best_first = false, .note = false};

static bool set_path(char path[PATH_MAX], const char *value) {
    size_t length = strlen(value);

    if (value[0] != '/' || length >= PATH_MAX)
        return false;
    memcpy(path, value, length + 1);
    return true;
}

static bool set_gpus(struct pal_config *config, const char *value) {
    return set_path(config->gpus, value);
}

static bool set_python(struct pal_config *config, const char *value) {
    return set_path(config->python, value);
}

static bool choose(const char *value, const char *no, const char *yes, bool *chosen) {
    *chosen = strcmp(value, yes) == 0;
    return *chosen || strcmp(value, no) == 0;
}

static bool set_order(struct pal_config *config, const char *value) {
    return choose(value, "slurm", "best", &config->best_first);
}

static bool set_note(struct pal_config *config, const char *value) {
    return choose(value, "0", "1", &config->note);
}

static const struct {
    const char *key;
    const char *allowed;
    bool (*set)(struct pal_config *config, const char *value);
} KEYS[] = {
    {"gpus=", "an absolute path", set_gpus},
    {"gpu_order=", "slurm or best", set_order},
    {"note=", "0 or 1", set_note},
    {"python=", "an absolute path", set_python},
};

static bool set_one(struct pal_config *config, const char *argument, struct pal_text *why) {
    for (size_t i = 0; i < sizeof(KEYS) / sizeof(KEYS[0]); i++) {
        const char *value = argument + strlen(KEYS[i].key);
        if (strncmp(argument, KEYS[i].key, strlen(KEYS[i].key)) != 0)
            continue;
        if (KEYS[i].set(config, value))
            return true;
        pal_text_add(why, "argument \"%s\" is wrong: %s%s", pal_show(argument).text, KEYS[i].key, KEYS[i].allowed);
        return false;
    }
    pal_text_add(why, "argument \"%s\" is not known (gpus=, gpu_order=, note=, python=)", pal_show(argument).text);
    return false;
}

bool pal_config_parse(struct pal_config *config, int count, char *const arguments[], struct pal_text *why) {
    *config = DEFAULTS;
    for (int i = 0; i < count; i++)
        if (!set_one(config, arguments[i], why))
            goto fail;
    return true;

fail:
    *config = DEFAULTS;
    return false;
}
