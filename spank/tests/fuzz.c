/* SPDX-License-Identifier: MIT */
/* Random inputs against what must hold for every input. Half of them are valid ones with a few bytes changed. */
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../config.h"
#include "../options.h"
#include "../order.h"
#include "check.h"
#include "fake_spank.h"

static const char INTERESTING[] = "\n\n  ,,::==@@..vv0011239ABCZ#end pal.gpus/1\t\\\"\x1b\xff-";

static char random_byte(struct random *random) {
    if (random_below(random, 4) == 0)
        return (char) random_below(random, 256);
    return INTERESTING[random_below(random, sizeof(INTERESTING) - 1)];
}

static size_t random_text(struct random *random, char *text, size_t most) {
    size_t length = random_below(random, (uint32_t) most);

    for (size_t i = 0; i < length; i++)
        text[i] = random_byte(random);
    text[length] = '\0';
    return length;
}

/* Change, insert, remove or cut; the length may grow by one per change. */
static size_t mutate(struct random *random, char *text, size_t length, unsigned changes) {
    while (changes-- && length > 0) {
        size_t place = random_below(random, (uint32_t) length);
        switch (random_below(random, 8)) {
        case 0:
            length = place;
            break;
        case 1:
        case 2:
            memmove(text + place, text + place + 1, length - place - 1);
            length--;
            break;
        case 3:
        case 4:
            memmove(text + place + 1, text + place, length - place);
            length++;
            text[place] = random_byte(random);
            break;
        default:
            text[place] = random_byte(random);
        }
    }
    text[length] = '\0';
    return length;
}

static void fuzz_options(struct random *random) {
    char value[200], plain[] = "resnet-50.v2_b";
    struct pal_options options, before;
    enum pal_option option = (enum pal_option) random_below(random, PAL_OPTION_COUNT);
    struct pal_shown shown;

    if (random_below(random, 2)) {
        random_text(random, value, sizeof(value));
    } else {
        strcpy(value, random_below(random, 2) ? plain : "1.2034");
        mutate(random, value, strlen(value), random_below(random, 3));
    }
    pal_options_clear(&options);
    before = options;
    if (pal_options_set(&options, option, PAL_GIVEN, value)) {
        CHECK(pal_options_has(&options, option));
        CHECK(pal_option_rules[option].takes == PAL_NO_VALUE || strcmp(options.value[option], value) == 0);
        for (const char *byte = options.value[option]; *byte; byte++)
            CHECK(*byte > ' ' && *byte < 0x7f && strchr("=;|,\\\"'/", *byte) == NULL);
    } else {
        CHECK(memcmp(&before, &options, sizeof(options)) == 0);
    }
    pal_options_fall_back(&options, PAL_OFF, value);
    shown = pal_show(value);
    CHECK(strlen(shown.text) <= PAL_SHOWN_MAX + 3);
    for (const char *byte = shown.text; *byte; byte++)
        CHECK(*byte >= ' ' && *byte < 0x7f);
}

static void fuzz_config(struct random *random) {
    static const char *const starts[] = {"gpus=/x", "gpu_order=best", "note=1", "python=/x"};
    char argument[2][300], reason[256];
    char *arguments[2] = {argument[0], argument[1]};
    struct pal_config config;
    struct pal_text why = pal_text_in(reason, sizeof(reason));
    bool good;

    for (int i = 0; i < 2; i++) {
        strcpy(argument[i], starts[random_below(random, 4)]);
        mutate(random, argument[i], strlen(argument[i]), random_below(random, 3));
    }
    good = pal_config_parse(&config, 2, arguments, &why);
    CHECK(good == (why.length == 0 && !why.full));
    CHECK(good || (config.python[0] == '\0' && config.gpus[0] == '\0' && !config.best_first && !config.note));
}

enum { FILE_MAX = 6000 };

/* A valid file of a few nodes; what it says about n1 for class A is in `truth`. */
static size_t make_file(struct random *random, char *text, struct pal_scores *truth) {
    unsigned epoch = random_below(random, 300);
    size_t length = (size_t) sprintf(text, "# pal.gpus/1 epoch=%u written_s=1\n", epoch);

    truth->count = 0;
    for (unsigned node = 0; node < 3; node++) {
        length += (size_t) sprintf(text + length, "n%u", node);
        for (unsigned gpu = random_below(random, 12); gpu > 0; gpu--) {
            struct pal_score score = {gpu, random_below(random, 9), 500000 + random_below(random, 1000000)};
            length += (size_t) sprintf(text + length, " %u:C=v1@1.5:A=v%u@%u.%06u", score.index, score.bin,
                                       score.millionths / 1000000, score.millionths % 1000000);
            if (node == 1)
                truth->gpu[truth->count++] = score;
        }
        text[length++] = '\n';
    }
    return length + (size_t) sprintf(text + length, "# end %u\n", epoch);
}

static void fuzz_gpus(struct random *random) {
    char text[FILE_MAX], reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));
    struct pal_scores scores, truth;
    unsigned changes = random_below(random, 6);
    size_t length = make_file(random, text, &truth);
    int descriptor;
    bool found;

    length = changes < 5 ? mutate(random, text, length, changes) : random_text(random, text, FILE_MAX);
    descriptor = file_of(text, length);
    found = pal_gpus_find(descriptor, "n1", 'A', &scores, &why);
    close(descriptor);
    CHECK(found == (why.length == 0));
    CHECK(found || scores.count == 0);
    CHECK(scores.count <= PAL_NODE_GPUS_MAX);
    for (size_t i = 0; i < scores.count; i++)
        CHECK(scores.gpu[i].index <= PAL_INDEX_MAX && scores.gpu[i].bin <= 99 && scores.gpu[i].millionths < 1001000000);
    if (changes == 0)
        CHECK(found && scores.count == truth.count &&
              memcmp(scores.gpu, truth.gpu, truth.count * sizeof(truth.gpu[0])) == 0);
}

static void fuzz_order(struct random *random) {
    struct pal_devices devices = {.count = 1 + random_below(random, 12)}, again;
    struct pal_scores scores = {.count = 0};
    size_t order[PAL_NODE_GPUS_MAX];
    bool seen[PAL_NODE_GPUS_MAX] = {false};
    char list[256];
    struct pal_text text = pal_text_in(list, sizeof(list));

    for (size_t i = 0; i < devices.count; i++) {
        devices.number[i] = 20 * random_below(random, 3) + (unsigned) i;
        if (random_below(random, 4))
            scores.gpu[scores.count++] =
                (struct pal_score){devices.number[i], 1, 990000 + 10000 * random_below(random, 3)};
    }
    pal_order_best(&scores, &devices, order);
    for (size_t i = 0; i < devices.count; i++) {
        CHECK(order[i] < devices.count && !seen[order[i]]);
        seen[order[i]] = true;
    }
    for (size_t i = 1; i < devices.count; i++) {
        const struct pal_score *left = pal_score_of(&scores, devices.number[order[i - 1]]);
        const struct pal_score *right = pal_score_of(&scores, devices.number[order[i]]);
        if (left && right)
            CHECK(left->millionths < right->millionths ||
                  (left->millionths == right->millionths && order[i - 1] < order[i]));
        CHECK(left || right || order[i - 1] < order[i]);
    }
    CHECK(scores.count == 0 || pal_score_of(&scores, devices.number[order[0]]) != NULL);
    pal_order_list(&devices, order, &text);
    CHECK(!text.full && pal_devices_parse(list, &again) && again.count == devices.count);
    random_text(random, list, 40);
    pal_devices_parse(list, &again);
    CHECK(again.count <= PAL_NODE_GPUS_MAX);
}

static void random_list(struct random *random, char *list) {
    unsigned count = random_below(random, 5);

    list[0] = '\0';
    for (unsigned i = 0; i < count; i++)
        sprintf(list + strlen(list), "%s%u", i ? "," : "", i + (random_below(random, 4) == 0));
    if (random_below(random, 3) == 0)
        mutate(random, list, strlen(list), 2);
}

/* What the plug-in reports about GPUs is in the order in which the task sees them. */
static void check_told(const char *told, const char *visible) {
    struct pal_devices devices;
    unsigned number = 0;

    CHECK(pal_devices_parse(visible, &devices));
    for (size_t i = 0; i < devices.count; i++) {
        CHECK(pal_read_number(&told, PAL_INDEX_MAX, &number) && number == devices.number[i] && *told == ':');
        told += strcspn(told, ",");
        told += *told == ',';
    }
    CHECK(*told == '\0');
}

static int compare(const void *left, const void *right) {
    return *(const char *) left - *(const char *) right;
}

/* The whole plug-in in one task: whatever it is given, the variable names the same devices afterwards, and where
 * the plug-in reports about GPUs, in that order. */
static void fuzz_task(struct random *random) {
    char text[FILE_MAX], gpus[80], list[64], before[64], after[64];
    char *arguments[] = {gpus, "gpu_order=best", "note=0"};
    struct pal_scores truth;
    size_t length = make_file(random, text, &truth);
    int descriptor = file_of(text, mutate(random, text, length, random_below(random, 2)));

    snprintf(gpus, sizeof(gpus), "gpus=/proc/self/fd/%d", descriptor);
    fake_reset(S_CTX_REMOTE);
    fake.step = random_below(random, 2) ? SLURM_BATCH_SCRIPT : 0;
    fake_set("SLURMD_NODENAME", "n1");
    random_list(random, list);
    fake_set("SLURM_JOB_GPUS", list);
    if (random_below(random, 4) == 0)
        random_list(random, list);
    fake_set("SLURM_STEP_GPUS", list);
    if (random_below(random, 4) == 0)
        random_list(random, list);
    fake_set("CUDA_VISIBLE_DEVICES", list);
    CHECK(slurm_spank_init(NULL, 3, arguments) == 0);
    random_text(random, text, 100);
    fake_option("pal-class", text);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0 && slurm_spank_user_init(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_task_init(NULL, 0, NULL) == 0 && slurm_spank_exit(NULL, 0, NULL) == 0);
    close(descriptor);
    if (fake_get("SLURM_PAL_GPUS") && strcmp(list, fake_get(fake.step ? "SLURM_JOB_GPUS" : "SLURM_STEP_GPUS")) == 0)
        check_told(fake_get("SLURM_PAL_GPUS"), fake_get("CUDA_VISIBLE_DEVICES"));
    snprintf(before, sizeof(before), "%s", list);
    snprintf(after, sizeof(after), "%s", fake_get("CUDA_VISIBLE_DEVICES"));
    CHECK(strlen(before) == strlen(after));
    qsort(before, strlen(before), 1, compare);
    qsort(after, strlen(after), 1, compare);
    CHECK_TEXT(after, before);
}

void run_fuzz(uint64_t seed, unsigned long rounds) {
    static void (*const fuzzers[])(struct random *) = {fuzz_options, fuzz_config, fuzz_gpus, fuzz_order, fuzz_task};
    struct random random = {.state = seed ? seed : 1};

    for (unsigned long i = 0; i < rounds && check_failures < 20; i++)
        fuzzers[i % 5](&random);
}
