/* What passes between a process's library and the agent on their Unix socket (SOCK_SEQPACKET). */
#pragma once

#include <stdint.h>

enum { MESSAGE_MAGIC = 0x4c475450 /* "PTGL" */, MESSAGE_VERSION = 1 };

/* Library to agent, once, with the memfd. */
struct hello {
    uint32_t magic, version;
    int32_t pid;
    uint32_t reserved;
};

/* Agent to library, again and again: record `on_ms` of every `period_ms`, at a time that the library draws, until
 * `lease_ms` have passed without another; and no more once `most_records` came in a period (0: without end).
 * Ranges: lease 1 to 60,000; period 10 to 60,000; on 0 to period. Anything else ends the connection. */
struct lease {
    uint32_t magic, version;
    uint32_t lease_ms, on_ms, period_ms;
    uint32_t most_records;
};
