/* SPDX-License-Identifier: MIT */
#include "task.h"

#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

enum { LIST_MAX = 4096, REPORT_MAX = 8192, NODE_NAME_MAX = 256 };

/* Slurm sets those that gres.conf asks for, all to the same list. */
static const char *const VISIBLE[] = {
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
};
enum { VISIBLE_COUNT = sizeof(VISIBLE) / sizeof(VISIBLE[0]) };

static int scores_file = -1;

/* The GPUs of a task, and the order in which it sees them. */
struct view {
    char node[NODE_NAME_MAX];
    struct pal_devices indexes;
    struct pal_scores scores;
    size_t order[PAL_NODE_GPUS_MAX];
};

void pal_step_begin(const struct pal_config *config) {
    char reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));

    if (config->gpus[0] == '\0')
        return;
    scores_file = pal_gpus_open(config->gpus, &why);
    if (scores_file < 0)
        slurm_info("pal: no use of scores: %s: %s", config->gpus, reason);
}

void pal_step_end(void) {
    if (scores_file >= 0)
        close(scores_file);
    scores_file = -1;
}

static bool get(spank_t spank, const char *name, char *value, size_t size) {
    return spank_getenv(spank, name, value, (int) size) == ESPANK_SUCCESS;
}

static void set(spank_t spank, const char *name, const char *value) {
    if (spank_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
        slurm_debug("pal: cannot set %s", name);
}

/* Options that did not come with the step: a batch script may set the variables for the steps it starts, and the
 * submit filter may set them for a job. */
struct pal_options pal_options_in_force(spank_t spank, const struct pal_options *given) {
    struct pal_options options = *given;
    char value[PAL_VALUE_MAX + 2];

    for (enum pal_option option = 0; option < PAL_OPTION_COUNT; option++) {
        const char *variable = pal_option_rules[option].variable;
        if (variable && get(spank, variable, value, sizeof(value)) && !pal_options_fall_back(&options, option, value))
            slurm_debug("pal: %s=%s is ignored", variable, pal_show(value).text);
    }
    return options;
}

static uint32_t step_id(spank_t spank) {
    uint32_t step = SLURM_PENDING_STEP;

    if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
        return SLURM_PENDING_STEP;
    return step;
}

/* Which list holds Slurm's GPU indexes depends on the kind of step. slurmstepd sets SLURM_JOB_GPUS for the batch
 * script and salloc's interactive step, and SLURM_STEP_GPUS for every other step; for a task bound to some of the
 * step's GPUs, to those. The other one may be there too, but inherited: from the batch script, which may have run
 * on another node, or from the step in which sbatch was called. CUDA_VISIBLE_DEVICES is no source of indexes: under
 * a device cgroup it counts from 0 in every job, and with MIG it holds UUIDs. */
static bool read_indexes(spank_t spank, struct pal_devices *indexes) {
    char list[LIST_MAX];
    uint32_t step = step_id(spank);
    bool whole_job = step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP;

    return get(spank, whole_job ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS", list, sizeof(list)) &&
           pal_devices_parse(list, indexes);
}

/* All or none: variables that disagreed would name different GPUs by the same number. */
static void order_visible(spank_t spank, struct view *view) {
    struct pal_devices visible[VISIBLE_COUNT];
    size_t order[PAL_NODE_GPUS_MAX];
    char list[LIST_MAX];

    for (int i = 0; i < VISIBLE_COUNT; i++) {
        spank_err_t error = spank_getenv(spank, VISIBLE[i], list, sizeof(list));
        visible[i].count = 0;
        if (error == ESPANK_ENV_NOEXIST)
            continue;
        if (error != ESPANK_SUCCESS || !pal_devices_parse(list, &visible[i]) ||
            !pal_devices_match(&visible[i], &view->indexes)) {
            slurm_debug("pal: %s is not Slurm's list of GPUs: order left alone", VISIBLE[i]);
            return;
        }
    }
    pal_order_best(&view->scores, &view->indexes, order);
    for (int i = 0; i < VISIBLE_COUNT; i++) {
        struct pal_text text = pal_text_in(list, sizeof(list));
        if (visible[i].count == 0)
            continue;
        pal_order_list(&visible[i], order, &text);
        set(spank, VISIBLE[i], list);
        memcpy(view->order, order, sizeof(order)); /* it is what the task sees */
    }
}

/* False when there is nothing to report. */
static bool look(spank_t spank, char sensitivity, struct view *view) {
    char reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));
    int task = -1;

    if (scores_file < 0 || !read_indexes(spank, &view->indexes) ||
        !get(spank, "SLURMD_NODENAME", view->node, sizeof(view->node)))
        return false;
    pal_order_as_is(view->indexes.count, view->order);
    if (pal_gpus_find(scores_file, view->node, sensitivity, &view->scores, &why))
        return true;
    /* Not slurm_error: in a task that would also go to the job's stderr. One task reports for all. */
    if (spank_get_item(spank, S_TASK_ID, &task) == ESPANK_SUCCESS && task == 0)
        slurm_info("pal: no use of scores: %s", reason);
    return false;
}

/* Slurm leaves the options of sbatch in the job's environment, where an srun in the script would take them for
 * options of its own, which no variable can overrule. What is in force is passed on in our variables instead. */
static void forget_inherited(spank_t spank) {
    char name[64];

    for (enum pal_option option = 0; option < PAL_OPTION_COUNT; option++) {
        struct pal_text text = pal_text_in(name, sizeof(name));
        pal_text_add(&text, "SLURM_SPANK_%s", pal_option_rules[option].carrier);
        spank_unsetenv(spank, name);
    }
}

static bool holds(spank_t spank, const char *name, const char *value) {
    char found[PAL_VALUE_MAX + 2];

    return get(spank, name, found, sizeof(found)) && strcmp(found, value) == 0;
}

/* For the steps that this one starts, in the variable, with the mark that it is no word of the user's. A variable that
 * the user has set stays theirs, and goes on to the jobs that this one submits. */
static void pass_on(spank_t spank, const struct pal_options *options, enum pal_option option) {
    const struct pal_option_rule *rule = &pal_option_rules[option];
    const char *value = options->value[option];
    bool users = holds(spank, rule->variable, value) && !holds(spank, rule->mark, value);

    if (pal_options_has(options, option) && !users) {
        set(spank, rule->variable, value);
        set(spank, rule->mark, value);
    } else {
        spank_unsetenv(spank, rule->mark);
    }
}

/* The batch script; else the first task of the first step, unless a batch script has reported already. */
static bool is_job_start(spank_t spank, bool told) {
    uint32_t step = step_id(spank), task = 1;

    if (step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP)
        return true;
    return !told && step == 0 && spank_get_item(spank, S_TASK_GLOBAL_ID, &task) == ESPANK_SUCCESS && task == 0;
}

static void write_note(const struct view *view, const struct pal_options *options) {
    char note[REPORT_MAX];
    struct pal_text text = pal_text_in(note, sizeof(note));

    pal_report_note(pal_options_class(options), pal_options_has(options, PAL_CLASS), view->node, &view->scores,
                    &view->indexes, view->order, &text);
    if (text.full || write(STDERR_FILENO, note, text.length) < 0)
        slurm_debug("pal: cannot write the note");
}

void pal_task_begin(spank_t spank, const struct pal_config *config, const struct pal_options *given) {
    struct pal_options options = pal_options_in_force(spank, given);
    struct view view;
    char report[REPORT_MAX];
    struct pal_text text = pal_text_in(report, sizeof(report));
    /* A value there comes from the step that started this one, perhaps on another node. */
    bool told = spank_getenv(spank, "SLURM_PAL_GPUS", report, sizeof(report)) != ESPANK_ENV_NOEXIST;

    if (told)
        spank_unsetenv(spank, "SLURM_PAL_GPUS");
    forget_inherited(spank);
    if (pal_options_has(&options, PAL_OFF)) {
        pass_on(spank, &options, PAL_OFF);
        return;
    }
    pass_on(spank, &options, PAL_CLASS);
    if (!look(spank, pal_options_class(&options), &view))
        return;
    if (config->best_first)
        order_visible(spank, &view);
    pal_report_gpus(&view.scores, &view.indexes, view.order, &text);
    if (!text.full)
        set(spank, "SLURM_PAL_GPUS", report);
    if ((config->note || pal_options_has(&options, PAL_EXPLAIN)) && is_job_start(spank, told))
        write_note(&view, &options);
}
