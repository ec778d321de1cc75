/* SPDX-License-Identifier: MIT */
/* The line at a job's end, against a fake Slurm: tasks are processes, as slurmstepd's are. */
#include <fcntl.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "fake_spank.h"

/* Run a step of `fake.local_tasks` tasks with --pal-note, in which what makes the line is `program`, and the standard
 * output of the first task is `output`. `option` is given, too. `length` bytes are in a regular file before its end. */
static void run_step(const char *program, const char *option, int output, off_t length) {
    char path[] = "/tmp/pal-spank-XXXXXX", python[64];
    char *arguments[] = {python};
    int maker = mkstemp(path);
    struct stat file;

    CHECK(maker >= 0 && write(maker, program, strlen(program)) == (ssize_t) strlen(program));
    CHECK(fchmod(maker, 0700) == 0 && close(maker) == 0);
    snprintf(python, sizeof(python), "python=%s", path);
    CHECK(slurm_spank_init(NULL, 1, arguments) == 0 && fake_option("pal-note", "(null)") == 0);
    if (option)
        CHECK(fake_option(option, "(null)") == 0);
    CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0 && slurm_spank_user_init(NULL, 0, NULL) == 0);
    for (fake.local_task = 0; fake.local_task < (int) fake.local_tasks; fake.local_task++) {
        pid_t task = fork();
        if (task == 0) {
            dup2(fake.local_task == 0 ? output : open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
            _exit(slurm_spank_task_init(NULL, 0, NULL));
        }
        CHECK(waitpid(task, NULL, 0) == task);
    }
    for (uint32_t task = 0; task < fake.local_tasks; task++) {
        CHECK(fstat(output, &file) == 0 && file.st_size == length); /* not before the last task has ended */
        CHECK(slurm_spank_task_exit(NULL, 0, NULL) == 0);
    }
    CHECK(slurm_spank_exit(NULL, 0, NULL) == 0);
    unlink(path);
}

/* What such a step leaves in the file that is its output. */
static const char *output_of_step(const char *program, const char *option) {
    static char text[4096];
    int output = file_of("ran\n", 4);
    ssize_t length;

    run_step(program, option, output, 4);
    length = pread(output, text, sizeof(text) - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    close(output);
    return text;
}

static void begin_step(uint32_t step, uint32_t tasks) {
    static char *environment[] = {"SQUEUE_FORMAT=%i", "SLURM_JOB_ID=7", "SLURM_CLUSTERS=x", NULL};

    fake_reset(S_CTX_REMOTE);
    fake.step = step;
    fake.local_tasks = tasks;
    fake.environment = environment;
}

#define MAKER "#!/bin/sh\necho \"$SLURM_JOB_ID ${SQUEUE_FORMAT-plain} ${SLURM_CLUSTERS-plain} $*\"\necho more\n"
#define MADE "ran\n7 plain plain -I -m slurm_pal.cli.note\n"

/* slurmstepd neither waits for who reads the output nor dies with them. */
static void test_pipes(void) {
    char block[4096] = "";
    int ends[2];

    CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(ends[1], block, sizeof(block)) > 0)
        continue;
    CHECK(fcntl(ends[1], F_SETFL, 0) == 0); /* a write would now wait for ever: */
    alarm(60);
    begin_step(SLURM_BATCH_SCRIPT, 1);
    run_step(MAKER, NULL, ends[1], 0);
    alarm(0);
    close(ends[0]);
    begin_step(SLURM_BATCH_SCRIPT, 1);
    run_step(MAKER, NULL, ends[1], 0);
    close(ends[1]);
}

/* Whatever makes the line is the user's, and so is the output. What asks who writes there must not find root: like the
 * file that stays set-user-ID when root writes, so do files of the kernel below /proc accept more from root. */
static void test_rights(void) {
    int output = file_of("ran\n", 4);
    struct stat file;

    CHECK(fchmod(output, S_ISUID | 0700) == 0);
    begin_step(SLURM_BATCH_SCRIPT, 1);
    run_step(MAKER, NULL, output, 4);
    CHECK(fstat(output, &file) == 0 && file.st_size > 4 && !(file.st_mode & S_ISUID));
    CHECK(fchmod(output, S_ISUID | 0700) == 0 && pwrite(output, "x", 1, 0) == 1 && fstat(output, &file) == 0);
    CHECK(geteuid() != 0 || file.st_mode & S_ISUID); /* slurmstepd has its rights again */
    close(output);
}

/* What a task has open and hands on, as its line to the other tasks of an MPI program, is not the maker's to keep. */
static void test_descriptors(void) {
    enum { OF_TASK = 77 };

    CHECK(dup2(STDERR_FILENO, OF_TASK) == OF_TASK);
    begin_step(SLURM_BATCH_SCRIPT, 1);
    CHECK_TEXT(output_of_step("#!/bin/sh\ntest -e /proc/$$/fd/77 && echo kept || echo left\n", NULL), "ran\nleft\n");
    close(OF_TASK);
}

void run_end_line_cases(void) {
    begin_step(SLURM_BATCH_SCRIPT, 1);
    CHECK_TEXT(output_of_step(MAKER, NULL), MADE);
    begin_step(3, 3); /* srun: once, when all have ended */
    CHECK_TEXT(output_of_step(MAKER, NULL), MADE);
    begin_step(3, 1);
    fake.node = 1; /* another node of the step */
    CHECK_TEXT(output_of_step(MAKER, NULL), "ran\n");
    begin_step(SLURM_EXTERN_CONT, 1);
    CHECK_TEXT(output_of_step(MAKER, NULL), "ran\n");
    begin_step(SLURM_BATCH_SCRIPT, 1);
    CHECK_TEXT(output_of_step(MAKER, "pal-off"), "ran\n");
    begin_step(SLURM_BATCH_SCRIPT, 1);
    fake.environment = NULL;
    CHECK_TEXT(output_of_step(MAKER, NULL), "ran\n");
    begin_step(SLURM_BATCH_SCRIPT, 1);
    CHECK_TEXT(output_of_step("#!/bin/sh\nprintf unfinished\n", NULL), "ran\n");
    begin_step(SLURM_BATCH_SCRIPT, 1);
    CHECK_TEXT(output_of_step("#!/bin/sh\nprintf '%5000s\\n' x\n", NULL), "ran\n");
    begin_step(SLURM_BATCH_SCRIPT, 1);
    fake.exit_status = SIGTERM; /* somebody has ended the job: nobody waits for what is not there yet */
    CHECK_TEXT(output_of_step("#!/bin/sh\nsleep 1\necho late\n", NULL), "ran\n");
    test_descriptors();
    test_pipes();
    test_rights();
}
