"""Nothing of the bench outlives it: not after Ctrl-C, not after a crash, not after SIGKILL.

Everything it starts lives in cgroups below one name and in namespaces of one prefix; a guard in a
process of its own clears both as soon as the bench is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.diagnosis import cgroups, network
from bench.record import ROOT

LOCK: Final = Path("/run/pointillist-bench.lock")


class BenchBusyError(RuntimeError):
    """Another bench runs on this machine."""


def clear() -> str:
    """End our processes, then delete our namespaces and cgroups; say how many there were."""
    ended = cgroups.kill_all()
    spaces, groups = network.remove_all(), cgroups.remove_all()
    return f"{ended} processes, {spaces} namespaces, {groups} cgroups"


@contextlib.contextmanager
def only_bench() -> Iterator[str]:
    """Hold the machine's only bench: clears before and after, whatever ends it.

    Raises      BenchBusyError where another bench runs
    """
    with LOCK.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchBusyError("expected no other fault bench to run, one does") from None
        found = clear()
        # It clears up when this process ends without a word; it holds the lock too.
        guard = subprocess.Popen(
            [sys.executable, "-m", "bench.diagnosis.leftovers"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        try:
            yield found
        finally:
            clear()
            guard.communicate(b"done")


if __name__ == "__main__" and os.read(sys.stdin.fileno(), 16) == b"":
    clear()
