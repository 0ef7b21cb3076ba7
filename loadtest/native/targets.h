/* The requests to send, complete with their heads, built once before the measurement.
 *
 * A body may contain `<<<number>>>`; each sent request replaces it by its own number. The number has twelve digits
 * like the mark, so no length changes, and it may be in a string or be a JSON number.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "<<<number>>>"
#define MARK_BYTES 12
#define FIRST_NUMBER 100000000000ull

struct target {
    char *text;
    size_t size;
    uint32_t *marks;
    size_t mark_count;
};

struct targets {
    struct target *all;
    size_t count;
};

static void *require_memory(void *memory)
{
    if (!memory) {
        fprintf(stderr, "load: out of memory\n");
        exit(2);
    }
    return memory;
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "load: cannot read %s\n", path);
        exit(2);
    }
    size_t room = 65536, got;
    char *text = require_memory(malloc(room + 1));
    *size = 0;
    while ((got = fread(text + *size, 1, room - *size, file)) > 0)
        if ((*size += got) == room)
            text = require_memory(realloc(text, (room *= 2) + 1));
    fclose(file);
    text[*size] = 0;
    return text;
}

static void targets_add(struct targets *t, const char *method, const char *path, size_t path_size,
                        const char *body, size_t body_size, const char *headers)
{
    if ((t->count & (t->count - 1)) == 0)
        t->all = require_memory(realloc(t->all, (t->count ? t->count * 2 : 1) * sizeof *t->all));
    struct target *target = &t->all[t->count++];
    char length[80] = "";
    if (body_size || strcmp(method, "GET") != 0) {
        const char *type = strcasestr(headers, "content-type:") ? "" : "Content-Type: application/json\r\n";
        snprintf(length, sizeof length, "%sContent-Length: %zu\r\n", type, body_size);
    }
    size_t room = strlen(method) + path_size + strlen(headers) + strlen(length) + body_size + 32;
    target->text = require_memory(malloc(room));
    int head = snprintf(target->text, room, "%s %.*s HTTP/1.1\r\n%s%s\r\n", method, (int)path_size, path,
                        headers, length);
    memcpy(target->text + head, body, body_size);
    target->size = (size_t)head + body_size;
    target->marks = NULL;
    target->mark_count = 0;
    const char *at = target->text + head, *end = target->text + target->size;
    while ((at = memmem(at, (size_t)(end - at), MARK, MARK_BYTES))) {
        target->marks = require_memory(realloc(target->marks, (target->mark_count + 1) * sizeof *target->marks));
        target->marks[target->mark_count++] = (uint32_t)(at - target->text);
        at += MARK_BYTES;
    }
}

/* Read a file with one `path<TAB>body` per line. */
static void targets_read(struct targets *t, const char *file, const char *method, const char *headers)
{
    size_t size;
    char *text = read_file(file, &size), *line = text, *end = text + size;
    while (line < end) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            stop = end;
        char *tab = memchr(line, '\t', (size_t)(stop - line));
        if (stop > line) {
            char *path_end = tab ? tab : stop, *body = tab ? tab + 1 : stop;
            targets_add(t, method, line, (size_t)(path_end - line), body, (size_t)(stop - body), headers);
        }
        line = stop + 1;
    }
    free(text);
}

/* Copy the request to `out`, with its number inserted. */
static void target_write(const struct target *target, char *out, uint64_t number)
{
    memcpy(out, target->text, target->size);
    if (!target->mark_count)
        return;
    char digits[32];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)(FIRST_NUMBER + number));
    for (size_t i = 0; i < target->mark_count; i++)
        memcpy(out + target->marks[i], digits, MARK_BYTES);
}
