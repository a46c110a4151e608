#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "descriptor.h"

#define DEFAULT_SOCKET "/run/pointillist/gpu-time.sock"

static int fd = -1;
static struct file own;

static bool still_ours(void) { return still_is(fd, own); }

static bool trusted(int to) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(to, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return false;
    const char *user = secure_getenv("POINTILLIST_AGENT_UID");
    return peer.uid == 0 || peer.uid == geteuid() || (user != NULL && peer.uid == (uid_t)strtoul(user, NULL, 10));
}

static bool say_hello(int to, int memory, int32_t pid) {
    struct hello hello = {.magic = MESSAGE_MAGIC, .version = MESSAGE_VERSION, .pid = pid};
    struct iovec part = {&hello, sizeof hello};
    union {
        struct cmsghdr aligned;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &memory, sizeof memory);
    return sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof hello;
}

bool link_open(int memory, int32_t pid) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = secure_getenv("POINTILLIST_GPU_TIME_SOCKET");
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s", path ? path : DEFAULT_SOCKET);
    if (length >= (int)sizeof address.sun_path)
        return false;
    int to = above_standard(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (to < 0)
        return false;
    if (connect(to, (struct sockaddr *)&address, sizeof address) != 0 || !trusted(to) || !say_hello(to, memory, pid)) {
        close(to);
        return false;
    }
    own = file_of(to);
    fd = to;
    return true;
}

static bool is_lease(const struct lease *lease, ssize_t length) {
    return length == (ssize_t)sizeof *lease && lease->magic == MESSAGE_MAGIC && lease->version == MESSAGE_VERSION
        && lease->lease_ms >= 1 && lease->lease_ms <= 60000 && lease->period_ms >= 10 && lease->period_ms <= 60000
        && lease->on_ms <= lease->period_ms;
}

enum link_news link_read(struct lease *lease, int wait_ms) {
    if (!still_ours()) {
        fd = -1;
        return LINK_ENDED;
    }
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    if (wait_ms > 0) {
        poll(&waiting, 1, wait_ms);
        if (!still_ours()) {
            fd = -1;
            return LINK_ENDED;
        }
    }
    struct lease came;
    ssize_t length = recv(fd, &came, sizeof came, MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return LINK_NOTHING;
    if (!is_lease(&came, length)) {
        link_close();
        return LINK_ENDED;
    }
    *lease = came;
    return LINK_LEASE;
}

void link_close(void) {
    if (still_ours())
        close(fd);
    fd = -1;
}
