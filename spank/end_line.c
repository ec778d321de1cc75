/* SPDX-License-Identifier: MIT */
#include "end_line.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <slurm/slurm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1024, MAKER_LIMIT_S = 60 };

/* A pair of sockets: through `theirs` the first task sends its standard output, and then what makes the line writes. */
static int ours = -1, theirs = -1;
static uint32_t running; /* tasks of this node */
static bool hurried;

static void drop(int *descriptor) {
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

void pal_end_line_end(void) {
    drop(&ours);
    drop(&theirs);
}

/* The batch script, or the first node of a step that was given the option. Slurm's own step for what runs outside of
 * the others has no output. */
static bool is_first_node(spank_t spank) {
    uint32_t step = SLURM_EXTERN_CONT, node = 1;

    if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == SLURM_EXTERN_CONT)
        return false;
    return step == SLURM_BATCH_SCRIPT || (spank_get_item(spank, S_JOB_NODEID, &node) == ESPANK_SUCCESS && node == 0);
}

void pal_end_line_begin(spank_t spank, const struct pal_config *config, const struct pal_options *options) {
    int pair[2];

    if (!pal_options_has(options, PAL_NOTE) || pal_options_has(options, PAL_OFF) || config->python[0] == '\0')
        return;
    if (!is_first_node(spank) || spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &running) != ESPANK_SUCCESS)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        slurm_info("pal: no line at the job's end: %s", strerror(errno));
        return;
    }
    ours = pair[0], theirs = pair[1], hurried = false;
}

/* One byte with a descriptor beside it. */
union passed {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
};

static bool pass_output(void) {
    union passed control;
    char byte = 0;
    int output = STDOUT_FILENO;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};

    memset(&control, 0, sizeof(control));
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.head), &output, sizeof(output));
    return sendmsg(theirs, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* The first thing in the socket, sent before any of the user's own code has run; -1 without it. */
static int output_passed(void) {
    union passed control;
    char byte;
    int output = -1;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof(control.room)};
    struct cmsghdr *head;

    if (recvmsg(ours, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
        return -1;
    head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&output, CMSG_DATA(head), sizeof(output));
    return output;
}

/* What the user has set for Slurm's commands must not change the answers that `pal note` reads. */
static bool is_for_commands(const char *pair) {
    static const char *const starts[] = {"SQUEUE_", "SCONTROL_", "SCANCEL_", "SLURM_CLUSTERS="};

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        if (strncmp(pair, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static char **plain_environment(char *const environment[]) {
    size_t count = 0, kept = 0;
    char **plain;

    while (environment[count])
        count++;
    plain = malloc((count + 1) * sizeof(*plain));
    if (plain == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (!is_for_commands(environment[i]))
            plain[kept++] = environment[i];
    plain[kept] = NULL;
    return plain;
}

/* What the task alone has open, such as its line to the other tasks of an MPI program: the maker must not keep that
 * open. */
static void leave_to_task(void) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *one;

    while (all && (one = readdir(all))) {
        int descriptor = atoi(one->d_name);

        if (descriptor > STDERR_FILENO)
            fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    }
}

/* In a process of its own. It ends by itself in any case. */
static void make_line(const char *python, char *const environment[]) {
    char *arguments[] = {(char *) python, "-I", "-m", "slurm_pal.cli.note", NULL};
    char **plain = plain_environment(environment);
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t none;

    if (plain == NULL || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(nothing, STDERR_FILENO) < 0 ||
        dup2(theirs, STDOUT_FILENO) < 0)
        return;
    leave_to_task();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGALRM, SIG_DFL);
    alarm(MAKER_LIMIT_S);
    execve(python, arguments, plain);
}

/* The task must have no child that it does not know of, so the maker is left to slurmstepd or init. */
static void start_maker(const char *python, char *const environment[]) {
    pid_t child = fork(), ended;

    if (child == 0) {
        if (fork() == 0)
            make_line(python, environment);
        _exit(0);
    }
    if (child < 0)
        slurm_debug("pal: no line at the job's end: %s", strerror(errno));
    do
        ended = child < 0 ? 0 : waitpid(child, NULL, 0);
    while (ended < 0 && errno == EINTR);
}

void pal_end_line_start(spank_t spank, const struct pal_config *config) {
    char **environment = NULL;
    int task = -1;

    if (theirs >= 0 && spank_get_item(spank, S_TASK_ID, &task) == ESPANK_SUCCESS && task == 0 &&
        spank_get_item(spank, S_JOB_ENV, &environment) == ESPANK_SUCCESS && environment && pass_output())
        start_maker(config->python, environment);
    pal_end_line_end();
}

static long now_ms(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* The length of the line with its newline; 0 where there is none, or not in time. */
static size_t read_line(char *line, size_t size, long wait_ms) {
    long until_ms = now_ms() + wait_ms;
    size_t length = 0;

    while (length < size) {
        struct pollfd ready = {.fd = ours, .events = POLLIN};
        long left_ms = until_ms - now_ms();
        ssize_t got;
        char *end;

        if (poll(&ready, 1, left_ms > 0 ? (int) left_ms : 0) < 0 && errno == EINTR)
            continue;
        got = recv(ours, line + length, size - length, MSG_DONTWAIT);
        if (got <= 0)
            return 0;
        length += (size_t) got;
        end = memchr(line, '\n', length);
        if (end)
            return (size_t) (end - line) + 1;
    }
    return 0;
}

/* Both the line and the output are the user's, and some files below /proc can be opened by everybody but ask root's
 * rights of who writes. So this thread of slurmstepd lays down its rights meanwhile. As write(2); -1 also where it
 * cannot. */
static ssize_t write_without_rights(int output, const char *line, size_t length) {
    struct __user_cap_header_struct version = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3], none[_LINUX_CAPABILITY_U32S_3];
    ssize_t written;
    int error;

    if (syscall(SYS_capget, &version, rights) != 0)
        return -1;
    memcpy(none, rights, sizeof(none));
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        none[i].effective = 0;
    if (syscall(SYS_capset, &version, none) != 0)
        return -1;
    written = write(output, line, length);
    error = errno;
    if (syscall(SYS_capset, &version, rights) != 0)
        slurm_error("pal: cannot take up the rights of slurmstepd again: %s", strerror(errno));
    errno = error;
    return written;
}

/* slurmstepd must neither wait nor die because of what the user has made of the output: a full pipe, a closed one. */
static void write_line(int output, const char *line, size_t length) {
    struct pollfd ready = {.fd = output, .events = POLLOUT};
    struct timespec at_once = {0, 0};
    sigset_t broken_pipe, before;

    if (poll(&ready, 1, 0) != 1 || ready.revents != POLLOUT)
        return;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    if (write_without_rights(output, line, length) < 0) {
        bool is_broken = errno == EPIPE; /* before logging may change it */

        slurm_debug("pal: cannot write the line at the job's end: %s", strerror(errno));
        while (is_broken && sigtimedwait(&broken_pipe, NULL, &at_once) < 0)
            is_broken = errno == EINTR;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void pal_end_line_task_ended(spank_t spank) {
    char line[LINE_MAX_BYTES];
    int status = 0, output;
    size_t length;

    if (ours < 0)
        return;
    if (spank_get_item(spank, S_TASK_EXIT_STATUS, &status) != ESPANK_SUCCESS || WIFSIGNALED(status))
        hurried = true;
    if (running > 1) {
        running--;
        return;
    }
    drop(&theirs); /* else the end of the maker would not show */
    output = output_passed();
    length = output < 0 ? 0 : read_line(line, sizeof(line), hurried ? 0 : PAL_END_LINE_WAIT_MS);
    if (length > 0)
        write_line(output, line, length);
    drop(&output);
    pal_end_line_end();
}
