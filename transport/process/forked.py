"""What a forked process does first: it ends with its parent, and holds nothing of its files."""

from __future__ import annotations

import gc
import os
import signal
from itertools import pairwise
from typing import Final

from .foreign import libc
from .privileges import held_descriptors

PR_SET_PDEATHSIG: Final = 1
_MOST_FD: Final = 1 << 16


def die_with(parent: int) -> None:
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def keep_only(fd: int) -> None:
    """Close what the parent holds open, but its code: no lock outlives it in a hanging child."""
    kept = sorted({2, fd, *held_descriptors(), _MOST_FD})
    for below, above in pairwise(kept):
        os.closerange(below + 1, above)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when a child ends
    # Files of the parent's objects are closed above; collected, an object would close its number
    # once more, which by then is another file's.
    gc.freeze()
