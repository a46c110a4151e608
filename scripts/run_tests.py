"""Run the tests, and sum up what was run.

python -m scripts.run_tests [--quick | --all] [PYTEST ARGUMENTS]

Several workers run them side by side; what shares the broker or the kernel is one group. --quick
leaves out both, and what is slow. --all runs what is left for a release (marker `release`): first
side by side, then what judges time (marker `live`), by itself on the machine. WORKERS sets the
number of workers, 0 runs all in one process. A process whose test stands still, even inside C,
writes the stacks of its threads and ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
RUN_S: Final = 2700
STALL_S: Final = 1200
"""Of one test with its fixtures, as pytest-timeout has it of its body alone."""
KINDS: Final = "POINTILLIST_TESTS_COUNTED"
"""Names the file into which tests/conftest.py writes which tests ended how."""
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


def summary_file(run: str) -> Path:
    """Where figures of the newest run of RUNS lie, for `make bench-suite`."""
    return ROOT / ".venv" / f"tests{run and '-'}{run}.json"


def counted(kinds: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Count tests as pytest does: one whose teardown fails passed, and is an error besides."""
    count = Counter({kind: len(names) for kind, names in kinds.items()})
    failed, skipped = count["failed"] + count["error"], count["skipped"]
    tests = count["passed"] + failed + skipped
    return {"tests": tests, "skipped": skipped, "failed": failed, "retried": count["rerun"]}


def named(kinds: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Name what a reader of the last lines alone has to know; in capitals, what is no test."""
    for kind, names in kinds.items():
        if kind in {"failed", "error", "rerun"} or kind.isupper():
            yield from (f"{kind.upper()}: {name}" for name in dict.fromkeys(names))


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
    codes, start_s = dict[str, int](), time.monotonic()
    kinds = defaultdict[str, list[str]](list)
    for name, chosen in RUNS[kind].items():
        if name == BY_ITSELF and "-m" in rest:  # has been run
            break
        print(f"--- {name}", flush=True)
        code, found = _tier(chosen, rest, side_by_side=name == SIDE_BY_SIDE)
        codes[name] = code
        for ended, tests in found.items():
            kinds[ended] += tests
        if code not in {0, NO_TESTS} and "-x" in rest:
            break
    total = {"seconds": time.monotonic() - start_s, **counted(kinds)}
    summary_file(kind).write_text(json.dumps({"arguments": rest, **total}))
    print(
        f"--- {total['tests']} tests in {total['seconds']:.0f} s: {total['failed']} failed, "
        f"{total['skipped']} skipped, {total['retried']} retried"
    )
    bad = {name: code for name, code in codes.items() if code not in {0, NO_TESTS}}
    for line in (*named(kinds), *(f"ENDED WITH {code}: {name}" for name, code in bad.items())):
        print(line)
    return next(iter(bad.values()), NO_TESTS if {*codes.values()} == {NO_TESTS} else 0)


def _tier(
    chosen: str, rest: Sequence[str], *, side_by_side: bool
) -> tuple[int, Mapping[str, Sequence[str]]]:
    """Give pytest's exit code, and which tests ended how."""
    workers = int(os.environ.get("WORKERS", WORKERS)) if side_by_side else 0
    # A worker that ended is not begun again: its test would end the next one, too.
    several = ["-n", str(workers), "--dist", "loadgroup", "--max-worker-restart=0"]
    parallel = several if workers else []
    files = [] if side_by_side or any(Path(one).exists() for one in rest) else _files_of("live")
    stall = ["-o", f"faulthandler_timeout={STALL_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-m", chosen, *stall, *parallel, *rest, *files]
    with TemporaryDirectory() as folder:
        kinds = Path(folder) / "kinds.json"
        with subprocess.Popen(command, env={**os.environ, KINDS: str(kinds)}) as run:
            try:
                code = run.wait(RUN_S)
            except subprocess.TimeoutExpired:
                begun = psutil.Process(run.pid)
                for process in (*begun.children(recursive=True), begun):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                sys.exit(f"--- ended: expected an end within {RUN_S:,} s")
        return code, json.loads(kinds.read_text()) if kinds.exists() else {}


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
