"""Nothing of the bench outlives it: not after Ctrl-C, not after a crash, not after SIGKILL.

Everything it starts lives in cgroups below one name and in namespaces of one prefix; a guard in a
process of its own clears both as soon as the bench is gone.

python -m bench.diagnosis.leftovers      clears up now
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from bench.diagnosis import cgroups, network
from bench.record import ROOT

LOCK: Final = Path("/run/pointillist-bench.lock")


class BenchBusyError(RuntimeError):
    """Another bench runs on this machine."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was left over."""

    processes: int
    namespaces: int
    cgroups: int

    def __bool__(self) -> bool:
        return bool(self.processes or self.namespaces or self.cgroups)


def clear() -> Cleared:
    """End our processes, then delete our namespaces and cgroups."""
    ended = cgroups.kill_all()
    return Cleared(ended, network.remove_all(), cgroups.remove_all())


@contextlib.contextmanager
def only_bench(patience_s: float = 0.0) -> Iterator[Cleared]:
    """Hold the machine's only bench: clears before and after, whatever ends it.

    Raises      BenchBusyError where another bench still runs after `patience_s`
    """
    with LOCK.open("a") as lock:
        _take(lock, patience_s)
        found = clear()
        guard = _start_guard(lock.fileno())
        try:
            yield found
        finally:
            clear()
            guard.communicate(b"done")


def _take(lock: IO[str], patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise BenchBusyError("expected no other fault bench to run, one does") from None
            time.sleep(0.2)
        else:
            return


def _start_guard(lock: int) -> subprocess.Popen[bytes]:
    """Start a process that clears up when this one ends without a word; it holds the lock too."""
    return subprocess.Popen(
        [sys.executable, "-m", "bench.diagnosis.leftovers", "--guard"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        pass_fds=[lock],
        start_new_session=True,
    )


def _guard() -> None:
    if os.read(sys.stdin.fileno(), 16) == b"":
        clear()


if __name__ == "__main__":
    if sys.argv[1:] == ["--guard"]:
        _guard()
    elif cleared := clear():
        print(cleared)
