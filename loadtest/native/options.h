/* The options of the load generator. */
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
    const char *host, *method, *path, *body_file, *targets_file;
    int port, connections, pipeline, new_connection_each, own_targets, only_percentiles;
    double seconds, warmup, rate, drain;
    uint64_t requests;
    char headers[8192];
};

static const char USAGE[] =
    "load --port N [options]: HTTP/1.1 load over keep-alive connections; prints one JSON line\n"
    "  --host H               an IPv4 address (127.0.0.1)\n"
    "  --connections C        number of connections (1); each has one outstanding request, or --pipeline N\n"
    "  --seconds S            length of the measurement (1), after --warmup S (0)\n"
    "  --requests N           send N requests and end when all are answered\n"
    "  --rate R               an open loop of R requests per second; latency from the intended send time\n"
    "  --path P --method M    the request (/, POST), with --body-file F; <<<number>>> in it becomes a counter\n"
    "  --targets F            instead: one path<TAB>body per line, used in turn by all connections together,\n"
    "  --own-targets          or each connection its own: connection i of C uses lines i, i+C, i+2C and so on\n"
    "  --header 'Name: v'     an additional header; may be repeated\n"
    "  --new-connection-each  a connection for each request; latency from its opening\n"
    "  --drain S              time to wait for answers at the end (5)\n"
    "  --percentiles          instead: print the histogram of nanoseconds on standard input, one number per line\n";

static void usage_error(const char *message)
{
    fprintf(stderr, "load: %s\n%s", message, USAGE);
    exit(2);
}

static void add_header(struct options *o, const char *header)
{
    size_t used = strlen(o->headers);
    if ((size_t)snprintf(o->headers + used, sizeof o->headers - used, "%s\r\n", header) >=
        sizeof o->headers - used)
        usage_error("--header: must be at most 8 KiB in total");
}

static double number_of(const char *text)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0))
        usage_error("the value of an option must be a number of at least 0");
    return number;
}

static void set_option(struct options *o, int option, const char *value)
{
    switch (option) {
    case 'h': o->host = value; break;
    case 'p': o->port = (int)number_of(value); break;
    case 'c': o->connections = (int)number_of(value); break;
    case 'l': o->pipeline = (int)number_of(value); break;
    case 's': o->seconds = number_of(value); break;
    case 'w': o->warmup = number_of(value); break;
    case 'd': o->drain = number_of(value); break;
    case 'q': o->requests = (uint64_t)number_of(value); break;
    case 'r': o->rate = number_of(value); break;
    case 'm': o->method = value; break;
    case 'P': o->path = value; break;
    case 'b': o->body_file = value; break;
    case 't': o->targets_file = value; break;
    case 'H': add_header(o, value); break;
    case 'n': o->new_connection_each = 1; break;
    case 'o': o->own_targets = 1; break;
    case 'x': o->only_percentiles = 1; break;
    default: fputs(USAGE, stderr); exit(2);
    }
}

static void parse_options(struct options *o, int argc, char **argv)
{
    static const struct option table[] = {
        {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"connections", 1, 0, 'c'}, {"pipeline", 1, 0, 'l'},
        {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'w'}, {"drain", 1, 0, 'd'}, {"requests", 1, 0, 'q'},
        {"rate", 1, 0, 'r'}, {"method", 1, 0, 'm'}, {"path", 1, 0, 'P'}, {"body-file", 1, 0, 'b'},
        {"targets", 1, 0, 't'}, {"header", 1, 0, 'H'}, {"new-connection-each", 0, 0, 'n'},
        {"own-targets", 0, 0, 'o'}, {"percentiles", 0, 0, 'x'}, {0, 0, 0, 0},
    };
    *o = (struct options){.host = "127.0.0.1", .method = "POST", .path = "/", .connections = 1,
                          .pipeline = 1, .seconds = 1, .drain = 5};
    int option;
    while ((option = getopt_long(argc, argv, "", table, NULL)) != -1)
        set_option(o, option, optarg);
    if (optind < argc)
        usage_error("unexpected argument without an option");
    if (o->only_percentiles)
        return;
    if (o->port < 1 || o->port > 65535)
        usage_error("--port: must be 1 to 65535");
    if (o->connections < 1 || o->pipeline < 1)
        usage_error("--connections and --pipeline: must be at least 1");
    if (o->pipeline > 1 && (o->rate > 0 || o->new_connection_each))
        usage_error("--pipeline: must not be used with --rate or --new-connection-each");
    if (o->own_targets && !o->targets_file)
        usage_error("--own-targets: requires --targets");
    char host[128];
    snprintf(host, sizeof host, "Host: %.80s:%d", o->host, o->port);
    add_header(o, host);
}
