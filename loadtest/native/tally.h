/* The counters of a run, and their report as one JSON line. */
#include "histogram.h"

#include <stdio.h>
#include <sys/resource.h>

struct tally {
    /* For the measured time and the drain after it. */
    struct histogram latency;
    uint64_t answers, refused, body_bytes, statuses[600];
    /* For the whole run. */
    uint64_t sent, malformed, broken, unconnected, reconnects, unanswered, unsent;
    uint64_t answered_in_time;
    double seconds;
    char refusal[512];
    const char *complaint;
};

/* Store the first answer that is not 2xx, escaped for a JSON string. */
static void remember_refusal(struct tally *t, int status, const char *body, size_t size)
{
    int at = snprintf(t->refusal, sizeof t->refusal, "%d ", status);
    for (size_t i = 0; i < size && at < 300; i++) {
        unsigned char byte = (unsigned char)body[i];
        at += snprintf(t->refusal + at, sizeof t->refusal - (size_t)at,
                       byte == '"' || byte == '\\' ? "\\%c" : byte < 32 || byte > 126 ? "?" : "%c", byte);
    }
}

/* Reset the counters of the measured time. */
static void tally_begin(struct tally *t)
{
    memset(&t->latency, 0, sizeof t->latency);
    memset(t->statuses, 0, sizeof t->statuses);
    t->answers = t->refused = t->body_bytes = 0;
}

static void print_count(const char *name, uint64_t count)
{
    printf("\"%s\":%llu,", name, (unsigned long long)count);
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void tally_print(const struct tally *t)
{
    printf("{\"seconds\":%.6f,\"per_second\":%.1f,", t->seconds,
           t->seconds > 0 ? (double)t->answered_in_time / t->seconds : 0.0);
    print_count("answers", t->answered_in_time);
    print_count("sent", t->sent);
    print_count("refused", t->refused);
    print_count("malformed", t->malformed);
    print_count("broken", t->broken);
    print_count("unconnected", t->unconnected);
    print_count("reconnects", t->reconnects);
    print_count("unanswered", t->unanswered);
    print_count("unsent", t->unsent);
    print_count("body_bytes", t->body_bytes);
    printf("\"cpu_seconds\":%.6f,\"statuses\":{", cpu_seconds());
    const char *comma = "";
    for (int status = 0; status < 600; status++)
        if (t->statuses[status]) {
            printf("%s\"%d\":%llu", comma, status, (unsigned long long)t->statuses[status]);
            comma = ",";
        }
    printf("},\"refusal\":\"%s\",\"complaint\":\"%s\",\"latency_us\":", t->refusal,
           t->complaint ? t->complaint : "");
    histogram_print(&t->latency, stdout);
    printf("}\n");
}
