"""Run the tests from outside: what stands still is told, dumped and ended, even inside C.

python -m scripts.watchdog [--run-s 3600] [--stall-s 600] -- python -m pytest [...]

A run that takes longer than --run-s, or of which one process has told no beat for --stall-s while
in a test (nobody at all, between tests), is dumped: every thread of every process that it began,
children of its children too. Then all of them are ended, by their ids, and the exit code is 124.
Each test that had failed or needed another try by then is named, as pytest itself no longer can.
Processes that are left when the command ends are told, ended and a failure as well.

Both limits are those of a machine with a core for each process that wants to run: at a load of two
a core they are twice as long, at most three times.
"""

from __future__ import annotations

import argparse
import bisect
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import psutil

from tests.heartbeat import (
    FOLDER,
    NESTED,
    STACKS_SIGNAL,
    Beat,
    Outcome,
    read_beats,
    read_outcomes,
)
from transport.process.foreign import libc

STOOD_STILL: Final = 124
LEFT_BEHIND: Final = 3
_LOOK_S: Final = 0.2
_GRACE_S: Final = 3.0
"""For helpers of the command that end by themselves once they see it gone."""
_DUMP_S: Final = 60.0
_PR_SET_CHILD_SUBREAPER: Final = 36
MOST_STRETCH: Final = 3.0
"""A run of 20 minutes ends within the hour, whatever the load."""
TOLD: Final = {"failed": "failed", "error": "error", "rerun": "retried"}
"""What is named of a run, by pytest's word and ours."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: its exit code or one of ours, and why we ended it, None if we did not."""

    code: int
    outcomes: Sequence[Outcome]
    why: str | None = None


def main(arguments: Sequence[str]) -> int:
    """Run a command and watch it; give its exit code, or one of ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run-s", type=float, default=3600.0, help="of the whole run")
    parser.add_argument("--stall-s", type=float, default=600.0, help="of one step of one test")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    ended = run(given.command, given.run_s, given.stall_s)
    if ended.why is not None:
        tell(ended.outcomes)
        say(f"watchdog: {ended.why}")
    return ended.code


def run(command: Sequence[str], run_s: float, stall_s: float) -> Ended:
    """Run a command and watch it; where we are ended ourselves, name what had failed by then."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, _interrupted)
    with tempfile.TemporaryDirectory(prefix="heartbeat-") as folder:
        try:
            # Inside: it may run already when we are ended before we know it.
            child = subprocess.Popen(command, env=_environment(folder))
            why = watch(child, Path(folder), run_s, stall_s)
            if why is not None:
                say(f"watchdog: {why}")
                for process in descendants():
                    dump(process, Path(folder))
            code = _after(child) if why is None else STOOD_STILL
            return Ended(code, read_outcomes(Path(folder)), why)
        except (SystemExit, KeyboardInterrupt):
            tell(read_outcomes(Path(folder)))
            raise
        finally:
            end_all()


def watch(child: subprocess.Popen[bytes], folder: Path, run_s: float, stall_s: float) -> str | None:
    """Wait for the end; say in one line why there is none in time."""
    clock = LoadClock(time.monotonic())
    while child.poll() is None:
        _reap(child.pid)
        clock.look(time.monotonic(), stretch())
        beats = list(read_beats(folder))
        why = None
        if clock.since(clock.start_s) > run_s:
            tests = ", ".join(beat.test for beat in beats if beat.test)
            why = f"the run took longer than {run_s:g} s, in {tests or 'no test'}"
        elif late := stalled(beats, clock.since, clock.start_s, stall_s):
            why = f"{late} stood still for {stall_s:g} s"
        if why is not None:
            say(f"watchdog: at this machine's load a second took {clock.mean_stretch():.1f} s")
            return why
        time.sleep(_LOOK_S)
    return None


class LoadClock:
    """Seconds since a moment that count for less while the machine is loaded.

    All times are seconds of CLOCK_MONOTONIC.
    """

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self._looks_s, self._counted_s = [start_s], [0.0]

    def look(self, now_s: float, stretched: float) -> None:
        """Count the time since the last look, at the load of now."""
        gone_s = now_s - self._looks_s[-1]
        self._counted_s.append(self._counted_s[-1] + gone_s / stretched)
        self._looks_s.append(now_s)

    def since(self, moment_s: float) -> float:
        """Give what has been counted since a moment, to within the time between two looks."""
        place = bisect.bisect_right(self._looks_s, moment_s) - 1
        return self._counted_s[-1] - self._counted_s[max(place, 0)]

    def mean_stretch(self) -> float:
        """Say how long a second that was counted took in the mean."""
        return (self._looks_s[-1] - self.start_s) / (self._counted_s[-1] or 1.0)


def stretch() -> float:
    """Say how long a second of one process may take now: by processes that want to run per core."""
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(max(load, 1.0), MOST_STRETCH)


def stalled(
    beats: Sequence[Beat], since: Callable[[float], float], start_s: float, stall_s: float
) -> str | None:
    """Name the test that has stood still longest, or say that nobody is in one, or give None.

    since   how long ago a moment was
    A process between tests, such as the one that hands tests to workers, may be silent as long as
    another one beats.
    """
    running = [beat for beat in beats if beat.test and psutil.pid_exists(beat.pid)]
    if running:
        oldest = min(running, key=lambda beat: beat.since_s)
        return oldest.test if since(oldest.since_s) > stall_s else None
    last_s = max((beat.since_s for beat in beats), default=start_s)
    return "the run, between tests," if since(last_s) > stall_s else None


def tell(outcomes: Sequence[Outcome]) -> None:
    """Name each test that failed or was retried, once for each."""
    for kind, word in TOLD.items():
        for test, why in {one.test: one.why for one in outcomes if one.kind == kind}.items():
            say(f"{word}: {test}: {why}")


def dump(process: psutil.Process, folder: Path) -> None:
    """Show what every thread of a process does: its stacks, and what the kernel says of it."""
    with suppress(psutil.NoSuchProcess):
        say(f"\n=== {process.pid} {' '.join(process.cmdline()) or process.name()}")
        say(python_stacks(process.pid, folder))
        for thread in sorted(Path(f"/proc/{process.pid}/task").glob("*")):
            say(_kernel_view(thread))


def python_stacks(pid: int, folder: Path) -> str:
    """Give the stacks with those of C between them, or what the process itself can tell."""
    spy = Path(sys.executable).with_name("py-spy")
    command = [str(spy), "dump", "--native", "--pid", str(pid)]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DUMP_S)
        if done.returncode == 0:
            return done.stdout
    stacks = folder / f"{pid}.stacks"
    if not stacks.exists():  # not a process of pytest
        return "no Python stacks"
    os.kill(pid, STACKS_SIGNAL)
    deadline_s = time.monotonic() + _GRACE_S
    while not stacks.stat().st_size and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    return stacks.read_text(errors="replace")


def adopt_orphans() -> None:
    """Become the parent of what our children leave behind, so that nothing gets out of sight."""
    if libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "expected to adopt orphans")


def descendants() -> list[psutil.Process]:
    """Give every process that we or our children began and that has not ended."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if _status(one) not in {None, psutil.STATUS_ZOMBIE}]


def end_all() -> None:
    """Kill what is left, by process id."""
    deadline_s = time.monotonic() + _GRACE_S
    while (left := descendants()) and time.monotonic() < deadline_s:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=_LOOK_S)
    _reap(0)


def say(text: str) -> None:
    """Tell on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def _after(child: subprocess.Popen[bytes]) -> int:
    deadline_s = time.monotonic() + _GRACE_S
    while (left := descendants()) and time.monotonic() < deadline_s:
        time.sleep(_LOOK_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            say(f"watchdog: left behind: {process.pid} {' '.join(process.cmdline())}")
    return child.returncode or (LEFT_BEHIND if left else 0)


def _environment(folder: str) -> dict[str, str]:
    plugins = [os.environ.get("PYTEST_PLUGINS", ""), "tests.heartbeat"]
    named = ",".join(plugin for plugin in plugins if plugin)
    kept = {name: value for name, value in os.environ.items() if name != NESTED}
    return {**kept, FOLDER: folder, "PYTEST_PLUGINS": named}


def _reap(command: int) -> None:
    """Take the exit codes of adopted processes; the command's own is its owner's."""
    for process in psutil.Process().children():
        if process.pid != command and _status(process) == psutil.STATUS_ZOMBIE:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _status(process: psutil.Process) -> str | None:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return None


def _kernel_view(thread: Path) -> str:
    name, where, call, stack = (
        _read(thread / part) for part in ("comm", "wchan", "syscall", "stack")
    )
    frames = "".join(f"\n      {line}" for line in stack.splitlines())
    return f"  thread {thread.name} {name}: waits in {where or '?'}, system call {call}{frames}"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # it has ended, or is not ours to look at
        return ""


def _interrupted(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
