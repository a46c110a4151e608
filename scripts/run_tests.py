"""Run the tests, watched from outside, and sum up what was run.

python -m scripts.run_tests [--quick | --all] [PYTEST ARGUMENTS]

Several workers run them side by side; what shares the broker or the kernel is one group. --quick
leaves out both, and what is slow. --all runs what is left for a release (marker `release`): first
side by side, then what judges time (marker `live`), by itself on the machine. WORKERS sets the
number of workers, 0 runs all in one process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts import watchdog
from tests.heartbeat import Outcome

ROOT: Final = Path(__file__).resolve().parent.parent
RUN_S: Final = 1800
STALL_S: Final = 300
"""Both of a machine without other load: the watchdog gives a loaded one up to three times."""
WORKERS: Final = 3
"""On two cores: a third of the time of the tests is spent waiting."""
NO_TESTS: Final = 5
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - pytest makes folders of our own there
"""Where tests write if it has room: ledgers, stores and logs wait for every write to a disk."""
MEMORY_BYTES: Final = 6 << 30
"""Room that has to be there: some tests write logs and sparse files of gigabytes."""

SIDE_BY_SIDE: Final = "side by side"
BY_ITSELF: Final = "by itself"
ORDINARY: Final = "not release and not images"
RUNS: Final = {
    "": {SIDE_BY_SIDE: ORDINARY},
    "quick": {SIDE_BY_SIDE: f"{ORDINARY} and not kafka and not kernel and not slow"},
    "all": {
        SIDE_BY_SIDE: "(release or fault_case) and not live and not images",
        BY_ITSELF: "live",
    },
}
"""What each run chooses, one tier after the other; all cases of faults together, see each point."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a tier ran, up to its end or until the watchdog ended it."""

    seconds: float
    ended: watchdog.Ended


def summary_file(run: str) -> Path:
    """Where figures of the newest run of RUNS lie, for `make bench-suite`."""
    return ROOT / ".venv" / f"tests{run and '-'}{run}.json"


def counted(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count tests as pytest does: one whose teardown fails passed, and is an error besides."""
    kinds = Counter(one.kind for one in outcomes)
    failed, skipped = kinds["failed"] + kinds["error"], kinds["skipped"]
    tests = kinds["passed"] + failed + skipped
    return {"tests": tests, "skipped": skipped, "failed": failed, "retried": kinds["rerun"]}


def main(arguments: list[str]) -> int:
    """Run the tiers one after the other; give 0 where all of them passed."""
    kind = next((name for name in RUNS if name and f"--{name}" in arguments), "")
    rest = [one for one in arguments if one != f"--{kind}"]
    # Every process that a test starts would otherwise compile what it imports anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Workers share the cores; threads of linear algebra beside them would only wait for each other.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    # A library that changes the locale (some test's does) must not make others fail.
    os.environ["PYTHONUTF8"] = "1"
    if _memory_has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    ran: list[Ran] = []
    for name, chosen in RUNS[kind].items():
        if name == BY_ITSELF and "-m" in rest:  # has been run
            break
        print(f"--- {name}", flush=True)
        ran.append(_tier(chosen, rest, side_by_side=name == SIDE_BY_SIDE))
        code = ran[-1].ended.code
        if code == watchdog.STOOD_STILL or (code not in {0, NO_TESTS} and "-x" in rest):
            break
    outcomes = [outcome for one in ran for outcome in one.ended.outcomes]
    total = {"seconds": sum(one.seconds for one in ran), **counted(outcomes)}
    summary_file(kind).write_text(json.dumps({"arguments": rest, **total}))
    watchdog.tell(outcomes)
    if why := ran[-1].ended.why:
        print(f"--- ended: {why}")
    print(
        f"--- {total['tests']} tests in {total['seconds']:.0f} s: {total['failed']} failed, "
        f"{total['skipped']} skipped, {total['retried']} retried"
    )
    codes = [one.ended.code for one in ran]
    bad = [code for code in codes if code not in {0, NO_TESTS}]
    return bad[0] if bad else max(codes) if set(codes) == {NO_TESTS} else 0


def _tier(chosen: str, rest: Sequence[str], *, side_by_side: bool) -> Ran:
    workers = int(os.environ.get("WORKERS", WORKERS)) if side_by_side else 0
    parallel = ["-n", str(workers), "--dist", "loadgroup"] if workers else []
    files = [] if side_by_side or any(Path(one).exists() for one in rest) else _files_of("live")
    command = [sys.executable, "-m", "pytest", "-m", chosen, *parallel, *rest, *files]
    start_s = time.monotonic()
    ended = watchdog.run(command, RUN_S, STALL_S)
    return Ran(time.monotonic() - start_s, ended)


def _memory_has_room() -> bool:
    """Whether programs and files of tests may lie in memory here: containers often give little."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return False
    free = found.f_bavail * found.f_frsize >= MEMORY_BYTES
    return free and not found.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


def _files_of(marker: str) -> list[str]:
    """Give the files with such tests: collecting all the others takes longer than some tests."""
    found = ((path, path.read_text()) for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(str(path.relative_to(ROOT)) for path, text in found if f"mark.{marker}" in text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
