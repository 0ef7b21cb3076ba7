/* Parses HTTP/1.1 answers from a stream of bytes that may be split anywhere.
 *
 * It is strict, because a lenient load generator hides errors that would break a client: each answer has exactly
 * one Content-Length of plain digits (204 and 304 may have none), lines end in CRLF, and the version is 1.1. The
 * body is counted and discarded.
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
    char *partial; /* the received part of a split head */
    size_t partial_size;
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

/* Return the number after the colon, or -1 unless it is 1 to 15 digits between optional blanks. */
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

/* Parse a complete head, including its empty line. */
static enum reading read_head(struct reader *r, const char *head, size_t size)
{
    const char *end = head + size - 2, *line = head;
    int64_t length = -1;
    r->closes = 0;
    if (size < 16 || memcmp(head, "HTTP/1.1 ", 9) != 0 || !isdigit((unsigned char)head[9]) ||
        !isdigit((unsigned char)head[10]) || !isdigit((unsigned char)head[11]) ||
        (head[12] != ' ' && head[12] != '\r'))
        return malformed(r, "the status line is not HTTP/1.1");
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
            return malformed(r, "a Transfer-Encoding, only Content-Length is supported");
        } else if (is_field(line, line_size, "connection")) {
            r->closes = memmem(line, line_size, "close", 5) != NULL;
        }
        line = stop + 1;
    }
    if (r->status < 200)
        return malformed(r, "an unexpected interim answer");
    if (r->status == 204 || r->status == 304)
        length = 0;
    if (length < 0)
        return malformed(r, "no Content-Length");
    r->body_size = r->body_left = (uint64_t)length;
    r->in_body = 1;
    return READING_MORE;
}

/* Append to the received part of a split head; *used is the size of the data that belongs to it. */
static enum reading append_head(struct reader *r, const char *data, size_t size, size_t *used)
{
    if (!r->partial && !(r->partial = malloc(HEAD_BYTES_MAX)))
        abort();
    size_t before = r->partial_size, taken = HEAD_BYTES_MAX - before;
    if (taken > size)
        taken = size;
    memcpy(r->partial + before, data, taken);
    r->partial_size += taken;
    /* The empty line may itself be split. */
    size_t from = before > 3 ? before - 3 : 0;
    const char *end = memmem(r->partial + from, r->partial_size - from, "\r\n\r\n", 4);
    if (!end) {
        *used = taken;
        return r->partial_size < HEAD_BYTES_MAX ? READING_MORE : malformed(r, HEAD_TOO_LARGE);
    }
    size_t head_size = (size_t)(end - r->partial) + 4;
    *used = head_size - before;
    r->partial_size = 0;
    return read_head(r, r->partial, head_size);
}

/* Parse up to the end of one answer; *used is the size of the parsed data. */
static enum reading read_answer(struct reader *r, const char *data, size_t size, size_t *used)
{
    *used = 0;
    if (!r->in_body) {
        const char *end = r->partial_size ? NULL : memmem(data, size, "\r\n\r\n", 4);
        enum reading result;
        if (end) {
            *used = (size_t)(end - data) + 4;
            result = *used > HEAD_BYTES_MAX ? malformed(r, HEAD_TOO_LARGE) : read_head(r, data, *used);
        } else {
            result = append_head(r, data, size, used);
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
    r->partial_size = 0;
    r->in_body = 0;
}
