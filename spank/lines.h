/* SPDX-License-Identifier: MIT */
/* The lines of an open file, one at a time, in bounded memory. */
#ifndef PAL_LINES_H
#define PAL_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct pal_lines {
    int descriptor;
    off_t position; /* in the file; the descriptor's own does not move */
    char *buffer;   /* begin..end are the bytes not yet handed out */
    size_t begin, end;
    const char *failure; /* NULL at a regular end of file */
};

bool pal_lines_begin(struct pal_lines *lines);

/* The next line without its newline, valid until the next call; NULL at the end or on failure: a line longer than
 * PAL_LINE_MAX, a NUL byte, a file longer than PAL_FILE_MAX, or a read error. */
char *pal_lines_next(struct pal_lines *lines);

void pal_lines_end(struct pal_lines *lines);

#endif
