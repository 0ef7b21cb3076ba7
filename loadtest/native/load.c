/* A load generator that costs far less than the server: one thread, epoll, no allocation during a run.
 *
 * A closed loop (each connection sends its next request when the previous one is answered) measures the maximum
 * rate of a server. An open loop (--rate) measures the waiting time at a given load: latency counts from the time
 * at which a request was due, so requests that a stalled server delays count too.
 *
 * Rates count the answers within the measured time. Latencies include the answers that arrive later, during the
 * drain; otherwise the slowest would be missing. Failures are counted and reported, never retried.
 */
#define _GNU_SOURCE
#include "connection.h"
#include "options.h"
#include "targets.h"

#include <arpa/inet.h>
#include <sys/timerfd.h>
#include <time.h>

#define SECOND 1000000000ull

static struct options options;
static struct targets targets;
static struct connection *connections;
static uint64_t issued, started, began_measuring, ended, last_answer;
static int timer, stopping;
static unsigned *idle, idle_first, idle_count; /* a ring of connections, in the open loop */
static char buffer[1 << 18];

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static int may_issue(void)
{
    return !stopping && (!options.requests || issued < options.requests);
}

/* Append the next request to the unsent bytes. */
static void put_request(struct connection *c, uint64_t began)
{
    uint64_t turn = options.own_targets
                        ? (uint64_t)(c - connections) + c->turns * (uint64_t)options.connections
                        : tally.sent;
    const struct target *target = &targets.all[turn % targets.count];
    if (c->out_size + target->size > c->out_room) {
        c->out_room = (c->out_size + target->size) * 2;
        c->out = require_memory(realloc(c->out, c->out_room));
    }
    target_write(target, c->out + c->out_size, tally.sent);
    c->out_size += target->size;
    c->began[(c->first + c->outstanding) % (unsigned)options.pipeline] = began;
    c->outstanding++;
    c->turns++;
    tally.sent++;
}

/* Begin a request on a connection without an outstanding one, opening the connection if needed. */
static void begin_request(struct connection *c, uint64_t due)
{
    issued++;
    outstanding++;
    if (c->is_open) {
        put_request(c, due);
        flush(c);
        return;
    }
    c->has_due = 1;
    c->due = due;
    if (!c->retry_at)
        open_connection(c);
}

/* Continue on a connection with capacity for a request: wait for its turn, or send at once. */
static void continue_sending(struct connection *c)
{
    if (!started || c->is_idle)
        return;
    if (options.rate > 0) {
        c->is_idle = 1;
        idle[(idle_first + idle_count++) % (unsigned)options.connections] = (unsigned)(c - connections);
        return;
    }
    if (options.new_connection_each) {
        if (may_issue())
            begin_request(c, clock_ns());
        return;
    }
    while (c->outstanding < (unsigned)options.pipeline && may_issue()) {
        issued++;
        outstanding++;
        put_request(c, now);
    }
    flush(c);
}

/* Send the due requests of the open loop, and set the timer for the next. */
static void issue_due(void)
{
    while (idle_count && may_issue()) {
        uint64_t due = started + (uint64_t)((double)issued * 1e9 / options.rate);
        if (due > now) {
            struct itimerspec at = {.it_value = {(time_t)(due / SECOND), (long)(due % SECOND)}};
            timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
            return;
        }
        struct connection *c = &connections[idle[idle_first]];
        idle_first = (idle_first + 1) % (unsigned)options.connections;
        idle_count--;
        c->is_idle = 0;
        /* A connection that broke in the meantime becomes idle again when it is open. */
        if (c->is_open || options.new_connection_each)
            begin_request(c, due);
    }
}

static void opened(struct connection *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error && !started) {
        fprintf(stderr, "load: cannot connect to %s:%d: %s\n", options.host, options.port, strerror(error));
        exit(2);
    }
    if (error) {
        tally.unconnected++;
        open_later(c);
        return;
    }
    c->is_open = 1;
    open_count++;
    if (c->has_due) {
        c->has_due = 0;
        put_request(c, c->due);
        flush(c);
        return;
    }
    watch(c, EPOLL_CTL_MOD, 0);
    continue_sending(c);
}

/* Record an answer; the last `taken` bytes before `end` belong to it, unless it was split. */
static void record_answer(struct connection *c, const char *end, size_t taken)
{
    const struct reader *r = &c->reader;
    tally.answers++;
    tally.body_bytes += r->body_size;
    tally.statuses[r->status < 600 ? r->status : 599]++;
    if (r->status / 100 != 2) {
        tally.refused++;
        if (!*tally.refusal)
            remember_refusal(&tally, r->status, end - r->body_size, r->body_size <= taken ? r->body_size : 0);
    }
    histogram_add(&tally.latency, now - c->began[c->first]);
    c->first = (c->first + 1) % (unsigned)options.pipeline;
    c->outstanding--;
    outstanding--;
    last_answer = now;
}

static void readable(struct connection *c)
{
    ssize_t n = recv(c->fd, buffer, sizeof buffer, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        break_connection(c);
        return;
    }
    now = clock_ns();
    for (size_t at = 0, used; at < (size_t)n; at += used) {
        enum reading result = READING_MALFORMED;
        c->reader.complaint = "bytes that answer no request";
        if (c->outstanding)
            result = read_answer(&c->reader, buffer + at, (size_t)n - at, &used);
        if (result == READING_MALFORMED) {
            tally.malformed++;
            tally.complaint = c->reader.complaint;
            break_connection(c);
            return;
        }
        if (result == READING_MORE)
            return;
        record_answer(c, buffer + at + used, used);
        if (c->reader.closes || options.new_connection_each) {
            close_connection(c);
            if (!options.new_connection_each)
                open_connection(c);
            break;
        }
    }
    if (c->is_open || options.new_connection_each)
        continue_sending(c);
}

static void open_again(void)
{
    for (int i = 0; i < options.connections && retrying; i++) {
        struct connection *c = &connections[i];
        if (!c->retry_at || c->retry_at > now)
            continue;
        c->retry_at = 0;
        retrying--;
        if (c->has_due || !options.new_connection_each)
            open_connection(c);
        else
            continue_sending(c);
    }
}

static void handle(int ms)
{
    static struct epoll_event events[256];
    int count = epoll_wait(poller, events, 256, ms);
    now = clock_ns();
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        uint64_t expirations;
        if (!c) {
            if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN)
                perror("load: timer");
            continue;
        }
        if (!c->is_open)
            opened(c);
        else if (events[i].events & EPOLLOUT)
            flush(c);
        if (c->is_open && (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
            readable(c);
    }
    if (retrying)
        open_again();
}

/* Begin and end the measured time; return 0 when the run is over. */
static int keep_time(uint64_t measure_at, uint64_t end_at)
{
    if (!began_measuring && now >= measure_at) {
        tally_begin(&tally);
        began_measuring = now;
    }
    if (!stopping && (options.requests ? issued >= options.requests : now >= end_at)) {
        stopping = 1;
        ended = now;
        tally.answered_in_time = tally.answers;
    }
    return !stopping || (outstanding && now < ended + (uint64_t)(options.drain * 1e9));
}

static int wait_ms(uint64_t measure_at, uint64_t end_at)
{
    uint64_t next = stopping ? now + SECOND / 50 : !began_measuring ? measure_at : end_at;
    if (options.requests && !stopping)
        next = now + SECOND;
    if (retrying && next > now + RETRY_NS)
        next = now + RETRY_NS;
    uint64_t ms = next > now ? (next - now) / 1000000 + 1 : 0;
    return ms > 1000 ? 1000 : (int)ms;
}

static void open_all(void)
{
    uint64_t deadline = clock_ns() + 10 * SECOND;
    for (int i = 0; i < options.connections; i++)
        open_connection(&connections[i]);
    do
        handle(100);
    while (open_count < options.connections && now < deadline);
    if (open_count < options.connections) {
        fprintf(stderr, "load: only %d of %d connections opened in 10 s\n", open_count, options.connections);
        exit(2);
    }
}

static void run(void)
{
    now = clock_ns();
    if (!options.new_connection_each)
        open_all();
    started = now = clock_ns();
    uint64_t measure_at = started + (uint64_t)(options.warmup * 1e9);
    uint64_t end_at = measure_at + (uint64_t)(options.seconds * 1e9);
    for (int i = 0; i < options.connections; i++)
        continue_sending(&connections[i]);
    while (keep_time(measure_at, end_at)) {
        if (options.rate > 0)
            issue_due();
        handle(wait_ms(measure_at, end_at));
    }
    if (options.requests)
        tally.answered_in_time = tally.answers;
    uint64_t until = options.requests ? last_answer : ended;
    tally.seconds = until > began_measuring ? (double)(until - began_measuring) / 1e9 : 0;
    uint64_t due = (uint64_t)((double)(ended - started) / 1e9 * options.rate);
    tally.unsent = due > issued && !options.requests ? due - issued : 0;
    tally.unanswered = outstanding;
}

static void prepare(void)
{
    if (options.targets_file) {
        targets_read(&targets, options.targets_file, options.method, options.headers);
    } else {
        size_t size = 0;
        const char *body = options.body_file ? read_file(options.body_file, &size) : "";
        targets_add(&targets, options.method, options.path, strlen(options.path), body, size, options.headers);
    }
    if (!targets.count)
        usage_error("--targets: must name a file with at least one line");
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    if (inet_pton(AF_INET, options.host, &address.sin_addr) != 1)
        usage_error("--host: must be an IPv4 address");
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (poller < 0 || timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event) != 0) {
        perror("load: epoll");
        exit(2);
    }
    connections = require_memory(calloc((size_t)options.connections, sizeof *connections));
    idle = require_memory(calloc((size_t)options.connections, sizeof *idle));
    for (int i = 0; i < options.connections; i++) {
        connections[i].fd = -1;
        connections[i].began = require_memory(calloc((size_t)options.pipeline, sizeof(uint64_t)));
    }
}

int main(int argc, char **argv)
{
    parse_options(&options, argc, argv);
    if (options.only_percentiles) {
        unsigned long long value;
        while (scanf("%llu", &value) == 1)
            histogram_add(&tally.latency, value);
        histogram_print(&tally.latency, stdout);
        putchar('\n');
        return 0;
    }
    prepare();
    run();
    tally_print(&tally);
    return 0;
}
