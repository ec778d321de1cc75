/* SPDX-License-Identifier: MIT */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct pal_text pal_text_in(char *buffer, size_t size) {
    buffer[0] = '\0';
    return (struct pal_text){.data = buffer, .size = size};
}

void pal_text_add(struct pal_text *text, const char *format, ...) {
    va_list values;
    int length;

    if (text->full)
        return;
    va_start(values, format);
    length = vsnprintf(text->data + text->length, text->size - text->length, format, values);
    va_end(values);
    if (length < 0 || (size_t) length >= text->size - text->length) {
        text->data[text->length] = '\0';
        text->full = true;
        return;
    }
    text->length += (size_t) length;
}

struct pal_shown pal_show(const char *value) {
    struct pal_shown shown = {0};
    struct pal_text text = pal_text_in(shown.text, PAL_SHOWN_MAX + 1);

    for (; *value && !text.full; value++) {
        unsigned char byte = (unsigned char) *value;
        pal_text_add(&text, byte < 0x20 || byte > 0x7e ? "\\x%02x" : "%c", byte);
    }
    if (text.full)
        memcpy(shown.text + text.length, "...", sizeof("..."));
    return shown;
}

bool pal_read_number(const char **place, unsigned most, unsigned *number) {
    const char *digit = *place;
    unsigned value = 0;

    for (; *digit >= '0' && *digit <= '9'; digit++) {
        unsigned next = (unsigned) (*digit - '0');
        if (value > (most - next) / 10)
            return false;
        value = value * 10 + next;
    }
    if (digit == *place || (**place == '0' && digit > *place + 1))
        return false;
    *place = digit;
    *number = value;
    return true;
}
