/* SPDX-License-Identifier: MIT */
/* One function per room of the plug-in; then all of it against a fake Slurm. */
#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../config.h"
#include "../options.h"
#include "../order.h"
#include "../report.h"
#include "check.h"
#include "fake_spank.h"

#define FILE_TEXT                                                                                                      \
    "# pal.gpus/1 epoch=17 written_s=1763712345 cluster=palab\n"                                                       \
    "n0 0:A=v1@1.037:B=v1@1.016:C=v0@1.000 1:A=v0@0.98 2:C=v0@1 3:A=v0@0.98\n"                                         \
    "n10 0:A=v3@1.5\n"                                                                                                 \
    "# end 17\n"

static void test_show(void) {
    char value[200];

    CHECK_TEXT(pal_show("plain").text, "plain");
    CHECK_TEXT(pal_show("a\n\x1b[1m\xff").text, "a\\x0a\\x1b[1m\\xff");
    memset(value, 'y', sizeof(value));
    value[64] = '\0';
    CHECK_TEXT(pal_show(value).text, value);
    value[64] = 'y', value[199] = '\0';
    CHECK(strlen(pal_show(value).text) == PAL_SHOWN_MAX + 3);
    CHECK(strcmp(pal_show(value).text + PAL_SHOWN_MAX, "...") == 0);
}

static void test_options(void) {
    static const char *const wrong_classes[] = {"", "a", "AB", "D", "?", " A", "A ", "v0"};
    static const char *const wrong_apps[] = {"", "a b", "a/b", "a=b", "\xc3\xa4", "a\n"};
    struct pal_options options;
    char name[PAL_VALUE_MAX + 2];

    pal_options_clear(&options);
    CHECK(!pal_options_has(&options, PAL_CLASS));
    CHECK(pal_options_class(&options) == 'A');
    for (size_t i = 0; i < sizeof(wrong_classes) / sizeof(wrong_classes[0]); i++)
        CHECK(!pal_options_set(&options, PAL_CLASS, PAL_GIVEN, wrong_classes[i]));
    for (size_t i = 0; i < sizeof(wrong_apps) / sizeof(wrong_apps[0]); i++)
        CHECK(!pal_options_set(&options, PAL_APP, PAL_GIVEN, wrong_apps[i]));
    CHECK(!pal_options_set(&options, PAL_APP, PAL_GIVEN, NULL));
    CHECK(!pal_options_has(&options, PAL_CLASS) && !pal_options_has(&options, PAL_APP));
    CHECK(pal_options_set(&options, PAL_CLASS, PAL_GIVEN, "B"));
    CHECK(pal_options_set(&options, PAL_CLASS, PAL_GIVEN, "C"));
    CHECK(pal_options_class(&options) == 'C');
    memset(name, 'x', sizeof(name));
    name[PAL_VALUE_MAX + 1] = '\0';
    CHECK(!pal_options_set(&options, PAL_APP, PAL_GIVEN, name));
    name[PAL_VALUE_MAX] = '\0';
    CHECK(pal_options_set(&options, PAL_APP, PAL_GIVEN, name));
    CHECK_TEXT(options.value[PAL_APP], name);
    CHECK(pal_options_set(&options, PAL_OFF, PAL_GIVEN, "(null)"));
    CHECK(pal_options_set(&options, PAL_EXPLAIN, PAL_GIVEN, NULL));
    CHECK(pal_options_set(&options, PAL_NOTE, PAL_GIVEN, "(null)"));
}

static void test_bounds(void) {
    static const char *const good[] = {"1.1", "1.0001", "9.9999", "2", "2.", "9", "1.10"};
    static const char *const wrong[] = {"",      "1",   "1.",  "1.0", "1.0000", "0.9",  "10", "1.00001", "1.12345",
                                        "1.2.3", "1,2", "1e1", "x",   " 1.2",   "1.2 ", "-2", "+2",      "nan"};
    struct pal_options options;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        pal_options_clear(&options);
        CHECK(pal_options_set(&options, PAL_AVOID_SLOW, PAL_GIVEN, good[i]));
        CHECK_TEXT(options.value[PAL_AVOID_SLOW], good[i]);
    }
    pal_options_clear(&options);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(!pal_options_set(&options, PAL_AVOID_SLOW, PAL_GIVEN, wrong[i]));
    CHECK(!pal_options_has(&options, PAL_AVOID_SLOW));
    CHECK(pal_options_set(&options, PAL_AVOID_SLOW, PAL_GIVEN, NULL)); /* the site's */
    CHECK_TEXT(options.value[PAL_AVOID_SLOW], "");
    CHECK(pal_options_set(&options, PAL_AVOID_SLOW, PAL_GIVEN, "1.3"));
    CHECK(pal_options_set(&options, PAL_AVOID_SLOW, PAL_GIVEN, "(null)")); /* so Slurm hands it on */
    CHECK(pal_options_has(&options, PAL_AVOID_SLOW) && options.value[PAL_AVOID_SLOW][0] == '\0');
    pal_options_clear(&options);
    CHECK(!pal_options_fall_back(&options, PAL_AVOID_SLOW, "yes"));
    CHECK(!pal_options_fall_back(&options, PAL_AVOID_SLOW, "(null)"));
    CHECK(pal_options_fall_back(&options, PAL_AVOID_SLOW, "0") && !pal_options_has(&options, PAL_AVOID_SLOW));
    CHECK(pal_options_fall_back(&options, PAL_AVOID_SLOW, "1") && options.value[PAL_AVOID_SLOW][0] == '\0');
    pal_options_clear(&options);
    CHECK(pal_options_fall_back(&options, PAL_AVOID_SLOW, "1.5"));
    CHECK_TEXT(options.value[PAL_AVOID_SLOW], "1.5");
}

static void test_fall_back(void) {
    struct pal_options options;

    pal_options_clear(&options);
    CHECK(pal_options_fall_back(&options, PAL_CLASS, NULL));
    CHECK(pal_options_fall_back(&options, PAL_CLASS, ""));
    CHECK(!pal_options_fall_back(&options, PAL_CLASS, "b"));
    CHECK(!pal_options_has(&options, PAL_CLASS));
    CHECK(pal_options_fall_back(&options, PAL_CLASS, "B"));
    CHECK(options.origin[PAL_CLASS] == PAL_FROM_VARIABLE);
    CHECK(pal_options_fall_back(&options, PAL_OFF, "0") && !pal_options_has(&options, PAL_OFF));
    CHECK(!pal_options_fall_back(&options, PAL_OFF, "yes") && !pal_options_has(&options, PAL_OFF));
    CHECK(pal_options_fall_back(&options, PAL_OFF, "1") && pal_options_has(&options, PAL_OFF));
    CHECK(pal_options_set(&options, PAL_CLASS, PAL_GIVEN, "C"));
    CHECK(pal_options_fall_back(&options, PAL_CLASS, "nonsense")); /* not looked at */
    CHECK(pal_options_class(&options) == 'C');
}

static void test_config(void) {
    static char *const good[] = {"note=0", "gpus=/a/b", "gpu_order=best", "note=1", "python=/p"};
    static char *const wrong[] = {"gpus=", "gpus=relative", "gpu_order=worst", "note=2",      "note",    "gpus", "",
                                  "=",     "x=1",           "gpu_order=",      "note=1 more", "python=p"};
    struct pal_config config;
    char reason[256], path[PATH_MAX + 8];
    char *arguments[2] = {"gpu_order=best", path};
    struct pal_text why;

    why = pal_text_in(reason, sizeof(reason));
    CHECK(pal_config_parse(&config, 0, NULL, &why));
    CHECK(config.gpus[0] == '\0' && !config.best_first && !config.note);
    CHECK(pal_config_parse(&config, 5, good, &why) && why.length == 0);
    CHECK(strcmp(config.gpus, "/a/b") == 0 && config.best_first && config.note);
    CHECK(strcmp(config.python, "/p") == 0);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        why = pal_text_in(reason, sizeof(reason));
        snprintf(path, sizeof(path), "%s", wrong[i]);
        CHECK(!pal_config_parse(&config, 2, arguments, &why));
        CHECK(why.length > 0 && !config.best_first);
    }
    why = pal_text_in(reason, sizeof(reason));
    memset(path, '/', sizeof(path));
    memcpy(path, "gpus=", 5);
    path[PATH_MAX + 5] = '\0'; /* PATH_MAX bytes: no room for the terminator */
    CHECK(!pal_config_parse(&config, 2, arguments, &why));
    path[PATH_MAX + 4] = '\0'; /* PATH_MAX - 1 bytes: the longest that fits */
    CHECK(pal_config_parse(&config, 2, arguments, &why));
}

static bool find_in(const char *content, const char *node, char sensitivity, struct pal_scores *scores) {
    char reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));
    int descriptor = file_of(content, strlen(content));
    bool found = pal_gpus_find(descriptor, node, sensitivity, scores, &why);

    CHECK(found == (why.length == 0));
    CHECK(found || scores->count == 0);
    close(descriptor);
    return found;
}

static void test_gpus(void) {
    struct pal_scores scores;

    CHECK(find_in(FILE_TEXT, "n0", 'A', &scores) && scores.count == 4);
    CHECK(scores.gpu[0].index == 0 && scores.gpu[0].bin == 1 && scores.gpu[0].millionths == 1037000);
    CHECK(pal_score_of(&scores, 1)->millionths == 980000 && pal_score_of(&scores, 2) == NULL);
    CHECK(pal_score_of(&scores, 4) == NULL);
    CHECK(find_in(FILE_TEXT, "n0", 'C', &scores) && pal_score_of(&scores, 2)->millionths == 1000000);
    CHECK(find_in(FILE_TEXT, "n10", 'A', &scores) && pal_score_of(&scores, 0)->bin == 3);
    CHECK(find_in(FILE_TEXT, "n1", 'A', &scores) && scores.count == 0); /* not listed; n10 is another */
    CHECK(find_in("# pal.gpus/1 epoch=1\n# end 1", "n1", 'A', &scores));
}

static void test_broken_files(void) {
    static const char *const broken[] = {
        "",
        "\n",
        "garbage",
        "# pal.gpus/2 epoch=17\n# end 17\n",
        "# pal.gpus/1 epoch=\n# end \n",
        "# pal.gpus/1 epoch=17x\n# end 17\n",
        "# pal.gpus/1 epoch=17\n",
        "# pal.gpus/1 epoch=17\nn0 0:A=v1@1.0\n",
        "# pal.gpus/1 epoch=17\nn0 0:A=v1@1.0\n# end 16\n",
        "# pal.gpus/1 epoch=17\nn0 0:A=v1@1.0\n# end 1\n",
        "# pal.gpus/1 epoch=17\nn0 0:A=v1@1.0\n# end 177\n",
        "# pal.gpus/1 epoch=99999999999999999999999999999999999\n# end 99999999999999999999999999999999999\n",
    };
    struct pal_scores scores;
    char *text;
    size_t length;

    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++)
        CHECK(!find_in(broken[i], "n0", 'A', &scores));
    for (length = 0; length < strlen(FILE_TEXT) - 1; length++) { /* cut anywhere except before its last newline */
        text = strndup(FILE_TEXT, length);
        CHECK(!find_in(text, "n0", 'A', &scores));
        free(text);
    }
    length = file_of("# pal.gpus/1 epoch=1\nn0 0\0 1\n# end 1\n", 37);
    CHECK(!pal_gpus_find((int) length, "n0", 'A', &scores, &(struct pal_text){.full = true}));
    close((int) length);
    for (length = PAL_LINE_MAX - 1; length <= PAL_LINE_MAX + 2; length++) {
        text = malloc(length + 100);
        sprintf(text, "# pal.gpus/1 epoch=1\nn1 %*s\n# end 1\n", (int) length - 3, "");
        CHECK(find_in(text, "n0", 'A', &scores) == (length <= PAL_LINE_MAX));
        free(text);
    }
}

static void test_lines_of_a_node(void) {
    static const char *const good[] = {
        "", " ", " 0", " 0:A=v0@1", "  0:A=v0@1  1:A=v99@999.999999", " 0:Z=v0@1.1234567"};
    static const char *const wrong[] = {" x",           " 0:",       " 0:A",       " 0:A=v@1",   " 0:A=v0@",
                                        " 0:A=v0@0",    " 0:a=v0@1", " 0:A=v0@1.", " 0:A=v0@-1", " 0:A=v0@1e3",
                                        " 0:A=v0@nan",  " 0 0",      " 0:A=v0@1x", " 65536",     " 0:A=v100@1",
                                        " 0:A=v0@1001", " -1",       " 0:A=v0@1:"};
    struct pal_scores scores;
    char words[8192] = "";

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK(pal_gpus_parse(good[i], 'A', &scores));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(!pal_gpus_parse(wrong[i], 'A', &scores) && scores.count == 0);
    for (int i = 0; i < PAL_NODE_GPUS_MAX; i++)
        sprintf(words + strlen(words), " %d", i);
    CHECK(pal_gpus_parse(words, 'A', &scores) && scores.count == PAL_NODE_GPUS_MAX);
    strcat(words, " 9999");
    CHECK(!pal_gpus_parse(words, 'A', &scores));
}

static void test_open(void) {
    char directory[] = "/tmp/pal-spank-XXXXXX", path[64], reason[256];
    struct pal_text why = pal_text_in(reason, sizeof(reason));
    int descriptor;

    CHECK(mkdtemp(directory) != NULL);
    CHECK(pal_gpus_open(directory, &why) < 0);
    CHECK_TEXT(reason, "not a regular file");
    snprintf(path, sizeof(path), "%s/x", directory);
    CHECK(pal_gpus_open(path, &why) < 0);
    CHECK(mkfifo(path, 0600) == 0);
    CHECK(pal_gpus_open(path, &why) < 0); /* and does not wait */
    unlink(path);
    descriptor = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK(ftruncate(descriptor, (off_t) PAL_FILE_MAX + 1) == 0);
    CHECK(pal_gpus_open(path, &why) < 0);
    CHECK(ftruncate(descriptor, PAL_FILE_MAX) == 0);
    close(descriptor);
    descriptor = pal_gpus_open(path, &why);
    CHECK(descriptor >= 0);
    close(descriptor);
    unlink(path);
    rmdir(directory);
}

static void test_devices(void) {
    static const char *const wrong[] = {"",        ",",   "0,", ",0",    "0,,1", "0,0", "NoDevFiles",
                                        "GPU-123", "0 1", "-1", "65536", "00",   "0,01"};
    struct pal_devices visible, indexes;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(!pal_devices_parse(wrong[i], &visible));
    CHECK(pal_devices_parse("2,3", &indexes) && indexes.count == 2 && indexes.number[1] == 3);
    CHECK(pal_devices_parse("2,3", &visible) && pal_devices_match(&visible, &indexes));
    CHECK(pal_devices_parse("0,1", &visible) && pal_devices_match(&visible, &indexes)); /* a device cgroup */
    CHECK(pal_devices_parse("3,2", &visible) && !pal_devices_match(&visible, &indexes));
    CHECK(pal_devices_parse("1,0", &visible) && !pal_devices_match(&visible, &indexes));
    CHECK(pal_devices_parse("1,2", &visible) && !pal_devices_match(&visible, &indexes));
    CHECK(pal_devices_parse("2", &visible) && !pal_devices_match(&visible, &indexes));
}

static void check_order(const char *words, const char *list, const char *wanted) {
    struct pal_scores scores;
    struct pal_devices indexes;
    size_t order[PAL_NODE_GPUS_MAX];
    char text[256];
    struct pal_text ordered = pal_text_in(text, sizeof(text));

    CHECK(pal_gpus_parse(words, 'A', &scores) && pal_devices_parse(list, &indexes));
    pal_order_best(&scores, &indexes, order);
    pal_order_list(&indexes, order, &ordered);
    CHECK_TEXT(text, wanted);
}

static void test_order(void) {
    check_order(" 0:A=v1@1.04 1:A=v0@0.98", "0,1", "1,0");
    check_order(" 0:A=v0@0.98 1:A=v0@0.98 2:A=v0@0.98", "0,1,2", "0,1,2"); /* stable */
    check_order(" 0:A=v0@1.000001 1:A=v0@1", "0,1", "1,0");
    check_order(" 1:A=v0@0.9 2:A=v0@1.1", "0,1,2", "1,0,2"); /* unknown counts as 1 */
    check_order(" 1:A=v0@1.2 2:A=v0@1.1", "0,1,2", "2,0,1"); /* but is never best */
    check_order(" 1:A=v0@1", "0,1", "1,0");
    check_order("", "3,1,2", "3,1,2");
}

static void test_report(void) {
    struct pal_scores scores;
    struct pal_devices indexes;
    size_t order[PAL_NODE_GPUS_MAX];
    char text[256];
    struct pal_text report = pal_text_in(text, sizeof(text));

    CHECK(pal_gpus_parse(" 0:A=v1@1.0369 1:A=v0@0.996 3:A=v2@12", 'A', &scores));
    CHECK(pal_devices_parse("0,1,2,3", &indexes));
    pal_order_best(&scores, &indexes, order);
    pal_report_gpus(&scores, &indexes, order, &report);
    CHECK_TEXT(text, "1:v0:0.996,2:?:?,0:v1:1.037,3:v2:12.000");
    report = pal_text_in(text, sizeof(text));
    pal_report_note('A', true, "n3", &scores, &indexes, order, &report);
    CHECK_TEXT(text, "pal: class A; n3: GPU 1 v0 1.00, GPU 2 without score, GPU 0 v1 1.04, GPU 3 v2 12.00\n");
    report = pal_text_in(text, 20);
    pal_report_gpus(&scores, &indexes, order, &report);
    CHECK(report.full && strlen(text) < 20);
}

static void test_client(void) {
    static char *broken[] = {"colour=red"};

    fake_reset(S_CTX_ALLOCATOR);
    CHECK(slurm_spank_init(NULL, 0, NULL) == 0 && fake.registered == 6);
    CHECK(fake_option("pal-class", "X\n") != 0);
    CHECK_TEXT(fake.log, "pal: --pal-class=X\\x0a is not allowed: give A, B or C\n");
    CHECK(fake_option("pal-class", "A") == 0 && fake_option("pal-class", "C") == 0);
    setenv("SLURM_PAL_CLASS", "B", 1);
    setenv("SLURM_PAL_APP", "resnet50", 1);
    setenv("SLURM_PAL_OFF", "maybe", 1);
    setenv("SLURM_PAL_AVOID_SLOW", "1", 1);
    fake.log[0] = '\0';
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
    CHECK_TEXT(fake.log, "pal: warning: SLURM_PAL_OFF=maybe is ignored: give 0 or 1\n");
    CHECK(fake_control("_SLURM_SPANK_OPTION_pal_pal_class") == NULL); /* Slurm carries what was given */
    CHECK(fake_control("SLURM_PAL_CLASS") == NULL);
    CHECK_TEXT(fake_control("SLURM_PAL_APP"), "resnet50");
    CHECK(fake_control("SLURM_PAL_OFF") == NULL);
    CHECK_TEXT(fake_control("SLURM_PAL_AVOID_SLOW"), "1");

    fake_reset(S_CTX_LOCAL); /* wrong arguments: options are accepted, nothing else happens, no user sees it */
    CHECK(slurm_spank_init(NULL, 1, broken) == 0 && fake.registered == 6);
    CHECK(fake_option("pal-class", "A") == 0);
    setenv("SLURM_PAL_APP", "resnet50", 1);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
    CHECK(fake_control("SLURM_PAL_APP") == NULL && fake.log[0] == '\0' && fake.debug[0] != '\0');
}

/* sbatch and srun as a job of class C calls them, which is off for the plug-in. */
static void submit_inside(spank_context_t context, const char *class, const char *outer_job) {
    fake_reset(context);
    setenv("_SLURM_SPANK_OPTION_pal_pal_class", "C", 1);
    setenv("SLURM_SPANK__SLURM_SPANK_OPTION_pal_pal_class", "C", 1);
    setenv("SLURM_PAL_CLASS", class, 1);
    setenv("SLURM_PAL_JOB_CLASS", "C", 1);
    setenv("SLURM_PAL_OFF", "1", 1);
    setenv("SLURM_PAL_JOB_OFF", "1", 1);
    if (outer_job)
        setenv("SLURM_JOB_ID", outer_job, 1);
    CHECK(slurm_spank_init(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
}

static void test_client_in_a_job(void) {
    submit_inside(S_CTX_ALLOCATOR, "C", "7"); /* a job of its own: nothing of the outer one */
    CHECK(fake_control("SLURM_PAL_CLASS") == NULL && fake_control("SLURM_PAL_OFF") == NULL);
    CHECK(getenv("SLURM_PAL_CLASS") == NULL && getenv("SLURM_PAL_JOB_CLASS") == NULL);
    CHECK(getenv("SLURM_PAL_OFF") == NULL && getenv("SLURM_PAL_JOB_OFF") == NULL);
    CHECK(getenv("_SLURM_SPANK_OPTION_pal_pal_class") == NULL);
    CHECK(getenv("SLURM_SPANK__SLURM_SPANK_OPTION_pal_pal_class") == NULL);
    submit_inside(S_CTX_LOCAL, "C", NULL); /* srun, for a new job */
    CHECK(fake_control("SLURM_PAL_CLASS") == NULL && getenv("SLURM_PAL_CLASS") == NULL);
    submit_inside(S_CTX_ALLOCATOR, "B", "7"); /* what the job itself has set is a word */
    CHECK_TEXT(fake_control("SLURM_PAL_CLASS"), "B");
    CHECK(getenv("SLURM_PAL_JOB_CLASS") == NULL);
    submit_inside(S_CTX_LOCAL, "C", "7"); /* a step has all of its job */
    CHECK_TEXT(getenv("SLURM_PAL_CLASS"), "C");
    CHECK_TEXT(getenv("SLURM_PAL_JOB_CLASS"), "C");
    CHECK_TEXT(getenv("_SLURM_SPANK_OPTION_pal_pal_class"), "C");
    unsetenv("_SLURM_SPANK_OPTION_pal_pal_class");
    unsetenv("SLURM_SPANK__SLURM_SPANK_OPTION_pal_pal_class");
    fake_reset(S_CTX_LOCAL);
}

/* What sbatch says of --pal-note; `python` is an argument of the plug-in, NULL for none. */
static void ask_for_note(char *python) {
    fake_reset(S_CTX_ALLOCATOR);
    CHECK(slurm_spank_init(NULL, python ? 1 : 0, &python) == 0);
    CHECK(fake_option("pal-note", NULL) == 0);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
}

static void test_client_note(void) {
    char *name = program_invocation_short_name;

    ask_for_note("python=/usr/bin/python3");
    CHECK_TEXT(fake.log, "");
    ask_for_note(NULL);
    CHECK_TEXT(fake.log, "pal: warning: --pal-note is ignored: plugstack.conf has no python=\n");
    program_invocation_short_name = "salloc";
    fake_reset(S_CTX_ALLOCATOR);
    CHECK(slurm_spank_init(NULL, 0, NULL) == 0);
    CHECK(fake_option("pal-note", NULL) != 0 && fake_option("pal-off", NULL) == 0);
    CHECK(strncmp(fake.log, "pal: --pal-note is not for salloc, ", 35) == 0);
    program_invocation_short_name = name;
}

/* A step on node n0 with the scores of FILE_TEXT; `set` has been called for its environment. */
static void run_task(char *order) {
    char path[64], gpus[80];
    char *arguments[] = {gpus, order};
    int descriptor = file_of(FILE_TEXT, strlen(FILE_TEXT));

    snprintf(path, sizeof(path), "/proc/self/fd/%d", descriptor);
    snprintf(gpus, sizeof(gpus), "gpus=%s", path);
    CHECK(slurm_spank_init(NULL, 2, arguments) == 0);
    CHECK(fake_option("pal-class", "A") == 0);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_user_init(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_task_init(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_exit(NULL, 0, NULL) == 0);
    close(descriptor);
}

static void test_task(void) {
    fake_reset(S_CTX_REMOTE);
    fake.step = 3;
    fake_set("SLURMD_NODENAME", "n0");
    fake_set("SLURM_STEP_GPUS", "0,1,2");
    fake_set("SLURM_JOB_GPUS", "3");
    fake_set("CUDA_VISIBLE_DEVICES", "0,1,2");
    fake_set("ROCR_VISIBLE_DEVICES", "0,1,2");
    fake_set("SLURM_SPANK__SLURM_SPANK_OPTION_pal_pal_class", "A");
    run_task("gpu_order=best");
    CHECK(fake_get("SLURM_SPANK__SLURM_SPANK_OPTION_pal_pal_class") == NULL);
    CHECK_TEXT(fake_get("CUDA_VISIBLE_DEVICES"), "1,2,0");
    CHECK_TEXT(fake_get("ROCR_VISIBLE_DEVICES"), "1,2,0");
    CHECK_TEXT(fake_get("SLURM_PAL_GPUS"), "1:v0:0.980,2:?:?,0:v1:1.037");
    CHECK_TEXT(fake_get("SLURM_PAL_CLASS"), "A");
    CHECK_TEXT(fake_get("SLURM_PAL_JOB_CLASS"), "A"); /* no word of the user's */
    CHECK(fake_get("ZE_AFFINITY_MASK") == NULL && fake.log[0] == '\0');

    fake_set("CUDA_VISIBLE_DEVICES", "GPU-8a2,GPU-1f3,GPU-77b"); /* one cannot be mapped: none is touched */
    fake_set("ROCR_VISIBLE_DEVICES", "0,1,2");
    fake.registered = 0;
    run_task("gpu_order=best");
    CHECK_TEXT(fake_get("CUDA_VISIBLE_DEVICES"), "GPU-8a2,GPU-1f3,GPU-77b");
    CHECK_TEXT(fake_get("ROCR_VISIBLE_DEVICES"), "0,1,2");
    CHECK_TEXT(fake_get("SLURM_PAL_GPUS"), "0:v1:1.037,1:v0:0.980,2:?:?");

    fake_reset(S_CTX_REMOTE); /* a batch script: the other list; inherited values are not believed */
    fake.step = SLURM_BATCH_SCRIPT;
    fake_set("SLURMD_NODENAME", "n0");
    fake_set("SLURM_STEP_GPUS", "3");
    fake_set("SLURM_JOB_GPUS", "0,1");
    fake_set("CUDA_VISIBLE_DEVICES", "0,1");
    run_task("gpu_order=slurm");
    CHECK_TEXT(fake_get("CUDA_VISIBLE_DEVICES"), "0,1");
    CHECK_TEXT(fake_get("SLURM_PAL_GPUS"), "0:v1:1.037,1:v0:0.980");
    fake_set("SLURM_JOB_GPUS", NULL);
    fake.registered = 0;
    run_task("gpu_order=best");
    CHECK(fake_get("SLURM_PAL_GPUS") == NULL);
}

/* The class that a task of a step without options gets, of its variable and the plug-in's mark. */
static void run_plain_task(const char *variable, const char *mark) {
    fake_reset(S_CTX_REMOTE);
    fake_set("SLURM_PAL_CLASS", variable);
    fake_set("SLURM_PAL_JOB_CLASS", mark);
    CHECK(slurm_spank_init(NULL, 0, NULL) == 0);
    CHECK(slurm_spank_task_init(NULL, 0, NULL) == 0);
}

static void test_words_of_the_user_stay_theirs(void) {
    run_plain_task("C", NULL); /* set by the user: goes on to the jobs that this one submits */
    CHECK_TEXT(fake_get("SLURM_PAL_CLASS"), "C");
    CHECK(fake_get("SLURM_PAL_JOB_CLASS") == NULL);
    run_plain_task("C", "B"); /* set in the job */
    CHECK_TEXT(fake_get("SLURM_PAL_CLASS"), "C");
    CHECK(fake_get("SLURM_PAL_JOB_CLASS") == NULL);
    run_plain_task("C", "C"); /* from the job's options */
    CHECK_TEXT(fake_get("SLURM_PAL_CLASS"), "C");
    CHECK_TEXT(fake_get("SLURM_PAL_JOB_CLASS"), "C");
    run_plain_task(NULL, "C");
    CHECK(fake_get("SLURM_PAL_CLASS") == NULL && fake_get("SLURM_PAL_JOB_CLASS") == NULL);
}

static void test_task_off(void) {
    fake_reset(S_CTX_REMOTE);
    fake_set("SLURMD_NODENAME", "n0");
    fake_set("SLURM_STEP_GPUS", "0,1");
    fake_set("CUDA_VISIBLE_DEVICES", "0,1");
    fake_set("SLURM_PAL_OFF", "1");
    fake_set("SLURM_PAL_GPUS", "7:v0:1.000");
    run_task("gpu_order=best");
    CHECK_TEXT(fake_get("CUDA_VISIBLE_DEVICES"), "0,1");
    CHECK(fake_get("SLURM_PAL_GPUS") == NULL && fake_get("SLURM_PAL_CLASS") == NULL);

    fake_reset(S_CTX_REMOTE); /* wrong arguments in plugstack.conf: as if there were no plug-in */
    fake_set("SLURM_PAL_GPUS", "7:v0:1.000");
    run_task("gpu_order=fastest");
    CHECK_TEXT(fake_get("SLURM_PAL_GPUS"), "7:v0:1.000");
    CHECK(fake_get("SLURM_PAL_CLASS") == NULL && strstr(fake.log, "gpu_order=slurm or best") != NULL);
}

void run_cases(void) {
    test_show();
    test_options();
    test_bounds();
    test_fall_back();
    test_config();
    test_gpus();
    test_broken_files();
    test_lines_of_a_node();
    test_open();
    test_devices();
    test_order();
    test_report();
    test_client();
    test_client_in_a_job();
    test_client_note();
    test_task();
    test_words_of_the_user_stay_theirs();
    test_task_off();
}
