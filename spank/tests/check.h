/* SPDX-License-Identifier: MIT */
/* What the tests share: checks that count, and a stream of random numbers that is the same on every run. */
#ifndef PAL_CHECK_H
#define PAL_CHECK_H

#include <stdbool.h>
#include <stdint.h>

extern int check_failures;

bool check_that(bool holds, const char *what, const char *file, int line);

#define CHECK(condition) check_that((condition), #condition, __FILE__, __LINE__)
#define CHECK_TEXT(got, wanted) check_text((got), (wanted), __FILE__, __LINE__)

bool check_text(const char *got, const char *wanted, const char *file, int line);

/* xorshift64*: seeded, so that a failure can be repeated. */
struct random {
    uint64_t state;
};

uint32_t random_below(struct random *random, uint32_t limit);

/* A file with this content, unlinked already; the caller closes it. */
int file_of(const char *content, unsigned long length);

void run_cases(void);
void run_end_line_cases(void);
void run_fuzz(uint64_t seed, unsigned long rounds);

#endif
