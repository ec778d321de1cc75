/* SPDX-License-Identifier: MIT */
/* Texts of bounded length: nothing here allocates. */
#ifndef PAL_TEXT_H
#define PAL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { PAL_SHOWN_MAX = 64 }; /* bytes of a user's value that a message repeats */

/* A text that grows in the caller's buffer, always terminated. */
struct pal_text {
    char *data;
    size_t size;
    size_t length;
    bool full; /* something did not fit and was left out whole */
};

struct pal_text pal_text_in(char *buffer, size_t size);

/* Append; what does not fit is left out, and so is everything after it. */
void pal_text_add(struct pal_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A value as it may be shown on a terminal: control characters and other bytes outside ASCII as \xHH, at most
 * PAL_SHOWN_MAX bytes, then "...". */
struct pal_shown {
    char text[PAL_SHOWN_MAX + sizeof("...")];
};

struct pal_shown pal_show(const char *value);

/* Read a decimal number of at most `most`, without sign or leading zeros, from *place, which moves past it. */
bool pal_read_number(const char **place, unsigned most, unsigned *number);

#endif
