"""Ends processes whose parent is gone, by whatever signal it went: a program of its own.

It reads process ids, a line each, from a pipe whose other end the parent alone holds, and works
when that end is closed. A signal of the kernel at the parent's death would not do: a role that
becomes a user of its own loses it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Final

STOP_S: Final = 8.0


def main() -> None:
    """Read to the end; ask who is left to stop, and kill who has not after STOP_S."""
    children = []
    for line in sys.stdin:
        with suppress(ProcessLookupError):  # it has ended already
            children.append(os.pidfd_open(int(line)))
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_S
        for child in children:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, number)
        for child in children:
            select.select([child], [], [], max(deadline - time.monotonic(), 0.0))


if __name__ == "__main__":
    main()
