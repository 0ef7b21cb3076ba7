/* Reads HTTP/1.1 answers out of a stream of bytes, wherever it was split.
 *
 * Strict, because a load generator that guesses hides what a client would trip over: each answer has exactly
 * one Content-Length of plain digits (none is fine for 204 and 304), lines end in CRLF, the version is 1.1. The
 * body is counted and not kept.
 */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEAD_BYTES_MAX 16384
#define HEAD_TOO_LARGE "a head over 16 KiB"

enum reading { READING_MORE, READING_DONE, READING_MALFORMED };

struct reader {
    char *held; /* the part of a head that has come, while it is split */
    size_t held_size;
    uint64_t body_size, body_left;
    int status;
    int in_body, closes;
    const char *complaint;
};

static enum reading malformed(struct reader *r, const char *complaint)
{
    r->complaint = complaint;
    return READING_MALFORMED;
}

static int is_field(const char *line, size_t size, const char *name)
{
    size_t length = strlen(name);
    return size > length && line[length] == ':' && strncasecmp(line, name, length) == 0;
}

/* The number behind the colon, or -1 unless it is 1 to 15 digits between optional blanks. */
static int64_t length_of(const char *line, size_t size)
{
    const char *at = (const char *)memchr(line, ':', size) + 1, *end = line + size;
    while (at < end && *at == ' ')
        at++;
    while (end > at && end[-1] == ' ')
        end--;
    if (end == at || end - at > 15)
        return -1;
    int64_t number = 0;
    for (; at < end; at++) {
        if (!isdigit((unsigned char)*at))
            return -1;
        number = number * 10 + (*at - '0');
    }
    return number;
}

/* Takes a whole head, its empty line included. */
static enum reading read_head(struct reader *r, const char *head, size_t size)
{
    const char *end = head + size - 2, *line = head;
    int64_t length = -1;
    r->closes = 0;
    if (size < 16 || memcmp(head, "HTTP/1.1 ", 9) != 0 || !isdigit((unsigned char)head[9]) ||
        !isdigit((unsigned char)head[10]) || !isdigit((unsigned char)head[11]) ||
        (head[12] != ' ' && head[12] != '\r'))
        return malformed(r, "the status line is not one of HTTP/1.1");
    r->status = atoi(head + 9);
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop || stop == line || stop[-1] != '\r')
            return malformed(r, "a line of the head does not end in CRLF");
        size_t line_size = (size_t)(stop - line) - 1;
        if (line != head && !memchr(line, ':', line_size))
            return malformed(r, "a header has no colon");
        if (is_field(line, line_size, "content-length")) {
            if (length >= 0)
                return malformed(r, "two Content-Length headers");
            if ((length = length_of(line, line_size)) < 0)
                return malformed(r, "a Content-Length that is not plain digits");
        } else if (is_field(line, line_size, "transfer-encoding")) {
            return malformed(r, "a Transfer-Encoding, where only a Content-Length is understood");
        } else if (is_field(line, line_size, "connection")) {
            r->closes = memmem(line, line_size, "close", 5) != NULL;
        }
        line = stop + 1;
    }
    if (r->status < 200)
        return malformed(r, "an interim answer that nobody asked for");
    if (r->status == 204 || r->status == 304)
        length = 0;
    if (length < 0)
        return malformed(r, "no Content-Length");
    r->body_size = r->body_left = (uint64_t)length;
    r->in_body = 1;
    return READING_MORE;
}

/* Adds to what is held of a head that came in pieces; *used is how much of the data belongs to it. */
static enum reading hold_head(struct reader *r, const char *data, size_t size, size_t *used)
{
    if (!r->held && !(r->held = malloc(HEAD_BYTES_MAX)))
        abort();
    size_t before = r->held_size, taken = HEAD_BYTES_MAX - before;
    if (taken > size)
        taken = size;
    memcpy(r->held + before, data, taken);
    r->held_size += taken;
    /* The empty line may itself be split. */
    size_t from = before > 3 ? before - 3 : 0;
    const char *end = memmem(r->held + from, r->held_size - from, "\r\n\r\n", 4);
    if (!end) {
        *used = taken;
        return r->held_size < HEAD_BYTES_MAX ? READING_MORE : malformed(r, HEAD_TOO_LARGE);
    }
    size_t head_size = (size_t)(end - r->held) + 4;
    *used = head_size - before;
    r->held_size = 0;
    return read_head(r, r->held, head_size);
}

/* Reads to the end of one answer at most; *used is how much of the data it took. */
static enum reading read_answer(struct reader *r, const char *data, size_t size, size_t *used)
{
    *used = 0;
    if (!r->in_body) {
        const char *end = r->held_size ? NULL : memmem(data, size, "\r\n\r\n", 4);
        enum reading result;
        if (end) {
            *used = (size_t)(end - data) + 4;
            result = *used > HEAD_BYTES_MAX ? malformed(r, HEAD_TOO_LARGE) : read_head(r, data, *used);
        } else {
            result = hold_head(r, data, size, used);
        }
        if (result != READING_MORE || !r->in_body)
            return result;
    }
    size_t taken = size - *used < r->body_left ? size - *used : (size_t)r->body_left;
    *used += taken;
    r->body_left -= taken;
    if (r->body_left)
        return READING_MORE;
    r->in_body = 0;
    return READING_DONE;
}

static void reader_reset(struct reader *r)
{
    r->held_size = 0;
    r->in_body = 0;
}
