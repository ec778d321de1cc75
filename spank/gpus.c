/* SPDX-License-Identifier: MIT */
#include "gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lines.h"

static const char HEAD[] = "# pal.gpus/1 epoch=";
static const char END[] = "# end ";
enum { SLOWDOWN_MAX = 1000, BIN_MAX = 99 };

int pal_gpus_open(const char *path, struct pal_text *why) {
    struct stat status;
    /* O_NONBLOCK: opening a FIFO must not wait for its writer. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (descriptor < 0 || fstat(descriptor, &status) < 0) {
        pal_text_add(why, "%s", strerror(errno));
        goto fail;
    }
    if (!S_ISREG(status.st_mode)) {
        pal_text_add(why, "not a regular file");
        goto fail;
    }
    if (status.st_size > PAL_FILE_MAX) {
        pal_text_add(why, "larger than %d bytes", PAL_FILE_MAX);
        goto fail;
    }
    return descriptor;

fail:
    if (descriptor >= 0)
        close(descriptor);
    return -1;
}

/* "1.037" -> 1037000; at most six digits after the point count, more are cut. */
static bool read_slowdown(const char **place, uint32_t *millionths) {
    unsigned whole;
    uint32_t unit = PAL_SLOWDOWN_ONE / 10;
    const char *digit;

    if (!pal_read_number(place, SLOWDOWN_MAX, &whole))
        return false;
    *millionths = whole * PAL_SLOWDOWN_ONE;
    if (**place == '.') {
        for (digit = *place + 1; *digit >= '0' && *digit <= '9'; digit++) {
            *millionths += (uint32_t) (*digit - '0') * unit;
            unit /= 10;
        }
        if (digit == *place + 1)
            return false;
        *place = digit;
    }
    return *millionths > 0;
}

/* "A=v1@1.037" at *place; kept only for the wanted class. */
static bool read_class(const char **place, char sensitivity, struct pal_score *score) {
    char letter = **place;
    unsigned bin;
    uint32_t millionths;

    if (letter < 'A' || letter > 'Z' || (*place)[1] != '=' || (*place)[2] != 'v')
        return false;
    *place += 3;
    if (!pal_read_number(place, BIN_MAX, &bin) || **place != '@')
        return false;
    *place += 1;
    if (!read_slowdown(place, &millionths))
        return false;
    if (letter == sensitivity) {
        score->bin = bin;
        score->millionths = millionths;
    }
    return true;
}

/* "0:A=v1@1.037:B=v1@1.016" */
static bool read_gpu(const char **place, char sensitivity, struct pal_score *score) {
    *score = (struct pal_score){0};
    if (!pal_read_number(place, PAL_INDEX_MAX, &score->index))
        return false;
    while (**place == ':') {
        *place += 1;
        if (!read_class(place, sensitivity, score))
            return false;
    }
    return **place == ' ' || **place == '\0';
}

static bool is_listed(const struct pal_scores *scores, unsigned index) {
    for (size_t i = 0; i < scores->count; i++)
        if (scores->gpu[i].index == index)
            return true;
    return false;
}

bool pal_gpus_parse(const char *words, char sensitivity, struct pal_scores *scores) {
    scores->count = 0;
    for (words += strspn(words, " "); *words; words += strspn(words, " ")) {
        struct pal_score *score = &scores->gpu[scores->count];
        if (scores->count == PAL_NODE_GPUS_MAX || !read_gpu(&words, sensitivity, score))
            goto fail;
        if (is_listed(scores, score->index))
            goto fail;
        scores->count++;
    }
    return true;

fail:
    scores->count = 0;
    return false;
}

static bool is_line_of(const char *line, const char *node) {
    size_t length = strlen(node);

    return strncmp(line, node, length) == 0 && (line[length] == ' ' || line[length] == '\0');
}

/* The epoch in the first line, up to the next word; `epoch` holds every number of 64 bits. */
static bool read_head(const char *line, char epoch[32]) {
    size_t length;

    if (line == NULL || strncmp(line, HEAD, strlen(HEAD)) != 0)
        return false;
    line += strlen(HEAD);
    length = strspn(line, "0123456789");
    if (length == 0 || length >= 32 || (line[length] != ' ' && line[length] != '\0'))
        return false;
    memcpy(epoch, line, length);
    epoch[length] = '\0';
    return true;
}

bool pal_gpus_find(int descriptor, const char *node, char sensitivity, struct pal_scores *scores,
                   struct pal_text *why) {
    struct pal_lines lines = {.descriptor = descriptor};
    char epoch[32];
    const char *line;
    bool found = false, ended = false;

    scores->count = 0;
    if (!pal_lines_begin(&lines) || !read_head(pal_lines_next(&lines), epoch)) {
        pal_text_add(why, "%s", lines.failure ? lines.failure : "its first line is not that of a pal.gpus/1");
        goto fail;
    }
    while (!ended && (line = pal_lines_next(&lines)) != NULL) {
        if (strncmp(line, END, strlen(END)) == 0) {
            ended = strcmp(line + strlen(END), epoch) == 0;
            break;
        }
        if (found || !is_line_of(line, node))
            continue;
        found = true;
        if (!pal_gpus_parse(line + strlen(node), sensitivity, scores)) {
            pal_text_add(why, "the line of node %s is malformed", pal_show(node).text);
            goto fail;
        }
    }
    if (!ended) {
        pal_text_add(why, "%s", lines.failure ? lines.failure : "its end is missing");
        goto fail;
    }
    pal_lines_end(&lines);
    return true;

fail:
    scores->count = 0;
    pal_lines_end(&lines);
    return false;
}

const struct pal_score *pal_score_of(const struct pal_scores *scores, unsigned index) {
    for (size_t i = 0; i < scores->count; i++)
        if (scores->gpu[i].index == index && scores->gpu[i].millionths > 0)
            return &scores->gpu[i];
    return NULL;
}
