/* SPDX-License-Identifier: MIT */
/* main ROUNDS [SEED]: all cases, then ROUNDS random inputs. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

int check_failures;

bool check_that(bool holds, const char *what, const char *file, int line) {
    if (!holds) {
        check_failures++;
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    }
    return holds;
}

bool check_text(const char *got, const char *wanted, const char *file, int line) {
    if (got != NULL && strcmp(got, wanted) == 0)
        return true;
    check_failures++;
    fprintf(stderr, "%s:%d: got \"%s\", wanted \"%s\"\n", file, line, got ? got : "(null)", wanted);
    return false;
}

uint32_t random_below(struct random *random, uint32_t limit) {
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return (uint32_t) ((random->state * 2685821657736338717u) >> 32) % limit;
}

int file_of(const char *content, unsigned long length) {
    int descriptor = memfd_create("pal", MFD_CLOEXEC);

    if (descriptor < 0 || write(descriptor, content, length) != (ssize_t) length) {
        perror("memfd_create");
        exit(2);
    }
    return descriptor;
}

static int open_descriptors(void) {
    int count = 0;

    for (int descriptor = 0; descriptor < 1024; descriptor++)
        count += fcntl(descriptor, F_GETFD) >= 0;
    return count;
}

int main(int count, char *arguments[]) {
    int open_at_first = open_descriptors();
    unsigned long rounds = count > 1 ? strtoul(arguments[1], NULL, 10) : 1000;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 20261121;

    run_cases();
    run_end_line_cases();
    run_fuzz(seed, rounds);
    CHECK(open_descriptors() == open_at_first);
    printf("cases and %lu random inputs (seed %llu): %d failures\n", rounds, (unsigned long long) seed, check_failures);
    return check_failures != 0;
}
