/* The connection to the agent: a Unix socket that the application never notices. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "include/message.h"

enum link_news { LINK_NOTHING, LINK_LEASE, LINK_ENDED };

/* Connect, if the agent listens and is root, this user, or the user in POINTILLIST_AGENT_UID, and hand it the memory. */
bool link_open(int memory, int32_t pid);

/* Wait so long for a message (0: not at all) and read it. A message that is not a lease ends the connection. */
enum link_news link_read(struct lease *lease, int wait_ms);

void link_close(void);
