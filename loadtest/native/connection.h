/* One connection of the load: its socket, its unsent bytes, and its outstanding requests.
 *
 * A connection that breaks or cannot be opened is opened again a little later, and its outstanding requests are
 * counted as lost.
 */
#include "answer.h"
#include "tally.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RETRY_NS 10000000ull

struct connection {
    int fd, is_open, wants_write;
    int is_idle; /* waits for a request of the open loop */
    int has_due; /* a request waits until it is open */
    struct reader reader;
    char *out;
    size_t out_size, out_sent, out_room;
    uint64_t *began; /* a ring: the start times of the outstanding requests */
    unsigned first, outstanding;
    uint64_t turns;    /* number of requests sent */
    uint64_t retry_at; /* when to open it again, or 0 */
    uint64_t due;
};

static struct tally tally;
static struct sockaddr_in address;
static uint64_t now;
static int poller, retrying, open_count;
static unsigned outstanding; /* on all connections, including requests that wait for one to open */

static void watch(struct connection *c, int operation, int wants_write)
{
    struct epoll_event event = {.events = EPOLLIN | (wants_write ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, operation, c->fd, &event) != 0) {
        perror("load: epoll_ctl");
        exit(2);
    }
    c->wants_write = wants_write;
}

/* Close the connection; its outstanding requests are lost. */
static void close_connection(struct connection *c)
{
    unsigned lost = c->outstanding + (unsigned)c->has_due;
    tally.broken += lost;
    outstanding -= lost;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    open_count -= c->is_open;
    c->is_open = c->wants_write = c->has_due = 0;
    c->out_size = c->out_sent = 0;
    c->outstanding = 0;
    reader_reset(&c->reader);
}

static void open_later(struct connection *c)
{
    close_connection(c);
    c->retry_at = now + RETRY_NS;
    retrying++;
}

static void break_connection(struct connection *c)
{
    tally.reconnects++;
    open_later(c);
}

static void open_connection(struct connection *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        perror("load: socket");
        exit(2);
    }
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS) {
        tally.unconnected++;
        open_later(c);
        return;
    }
    watch(c, EPOLL_CTL_ADD, 1);
}

static void flush(struct connection *c)
{
    while (c->out_sent < c->out_size) {
        ssize_t n = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            break_connection(c);
            return;
        }
        c->out_sent += (size_t)n;
    }
    int wants_write = c->out_sent < c->out_size;
    if (!wants_write)
        c->out_size = c->out_sent = 0;
    if (wants_write != c->wants_write)
        watch(c, EPOLL_CTL_MOD, wants_write);
}
