/* When to record: the agent's lease, and a window drawn at random in each of its periods. Times are milliseconds of the
 * monotonic clock. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "include/message.h"

struct windows {
    struct lease lease;
    uint64_t lease_until;
    uint64_t second; /* the present one, and the leases that came in it */
    uint32_t leases;
    uint64_t period_from, on_from, on_until; /* of the present period */
    uint64_t records_before;                 /* it */
    bool cut;                                /* no more in it */
};

/* Take a lease at a time when so many records have been read; false where leases came faster than an agent sends them. */
bool windows_take(struct windows *windows, const struct lease *lease, uint64_t now, uint64_t records);

/* Whether it is time to record. */
bool windows_open(struct windows *windows, uint64_t now, uint64_t records);

/* Recording has begun, later than it was time to: attaching takes most of a short window. It lasts as long as was asked. */
void windows_begun(struct windows *windows, uint64_t now);

/* Record no more in this period. */
void windows_cut(struct windows *windows);

/* How long until a window may begin, at most so long. */
uint64_t windows_wait(const struct windows *windows, uint64_t now, uint64_t most);

/* How long until the present window or its lease ends, at most so long. */
uint64_t windows_left(const struct windows *windows, uint64_t now, uint64_t most);
