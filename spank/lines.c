/* SPDX-License-Identifier: MIT */
#include "lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpus.h"

enum { BUFFER_SIZE = PAL_LINE_MAX + 2 }; /* the newline, and a terminator */

bool pal_lines_begin(struct pal_lines *lines) {
    lines->buffer = malloc(BUFFER_SIZE);
    if (lines->buffer == NULL)
        lines->failure = "out of memory";
    return lines->buffer != NULL;
}

/* Move what is left to the front and read on; false at the end of the file or on failure. */
static bool fill(struct pal_lines *lines) {
    ssize_t got;

    memmove(lines->buffer, lines->buffer + lines->begin, lines->end - lines->begin);
    lines->end -= lines->begin;
    lines->begin = 0;
    if (lines->end >= BUFFER_SIZE - 1) {
        lines->failure = "a line is too long";
        return false;
    }
    do
        got = pread(lines->descriptor, lines->buffer + lines->end, BUFFER_SIZE - 1 - lines->end, lines->position);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        lines->failure = strerror(errno);
    else if (lines->position + got > PAL_FILE_MAX) /* it may grow while we read */
        lines->failure = "the file is too large";
    if (got <= 0 || lines->failure)
        return false;
    lines->position += got;
    lines->end += (size_t) got;
    return true;
}

char *pal_lines_next(struct pal_lines *lines) {
    char *newline, *line;

    while ((newline = memchr(lines->buffer + lines->begin, '\n', lines->end - lines->begin)) == NULL)
        if (!fill(lines))
            break;
    if (lines->failure || (newline == NULL && lines->begin == lines->end))
        return NULL;
    if (newline == NULL)
        newline = lines->buffer + lines->end; /* a last line without newline */
    *newline = '\0';
    line = lines->buffer + lines->begin;
    if (memchr(line, '\0', (size_t) (newline - line)) != NULL) {
        lines->failure = "it holds a NUL byte";
        return NULL;
    }
    lines->begin = (size_t) (newline - lines->buffer) + (newline < lines->buffer + lines->end);
    return line;
}

void pal_lines_end(struct pal_lines *lines) {
    free(lines->buffer);
    lines->buffer = NULL;
}
