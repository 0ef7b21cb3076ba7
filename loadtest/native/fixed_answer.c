/* A server with the same answer for every request, to measure the load generator with almost no server cost.
 *
 * `fixed_answer PORT_FILE` listens on 127.0.0.1, writes its port to the file, and answers until it is killed.
 * Requests are counted by their empty lines, so a body must be absent or arrive in the same packet as its head.
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok";

static void fail(const char *message)
{
    perror(message);
    exit(2);
}

static int open_listener(const char *port_file)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, size) != 0 || listen(listener, 1024) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &size) != 0)
        fail("fixed_answer: listen");
    char part[4096];
    snprintf(part, sizeof part, "%s.part", port_file);
    FILE *file = fopen(part, "w");
    if (!file || fprintf(file, "%d\n", ntohs(at.sin_port)) < 0 || fclose(file) != 0 ||
        rename(part, port_file) != 0)
        fail("fixed_answer: port file");
    return listener;
}

static void answer(int fd)
{
    static char in[1 << 16], out[1 << 16];
    ssize_t size = recv(fd, in, sizeof in, 0);
    if (size <= 0) {
        close(fd);
        return;
    }
    size_t filled = 0;
    for (char *at = in; (at = memmem(at, (size_t)(in + size - at), "\r\n\r\n", 4)); at += 4) {
        if (filled + sizeof ANSWER > sizeof out)
            break;
        memcpy(out + filled, ANSWER, sizeof ANSWER - 1);
        filled += sizeof ANSWER - 1;
    }
    if (filled && send(fd, out, filled, MSG_NOSIGNAL) < 0)
        close(fd);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fixed_answer PORT_FILE\n");
        return 2;
    }
    int listener = open_listener(argv[1]), poller = epoll_create1(0), on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[256];
    if (poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event) != 0)
        fail("fixed_answer: epoll");
    for (;;) {
        int count = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd != listener) {
                answer(events[i].data.fd);
                continue;
            }
            event.data.fd = accept(listener, NULL, NULL);
            if (event.data.fd < 0)
                continue;
            setsockopt(event.data.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            epoll_ctl(poller, EPOLL_CTL_ADD, event.data.fd, &event);
        }
    }
}
