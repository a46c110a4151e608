"""Run the tests, and sum up what was run.

python -m scripts.run_tests [--quick | --all] [PYTEST ARGUMENTS]

Several workers run them side by side; what shares the broker or the kernel is one group. --quick
leaves out both, and what is slow. --all runs what is left for a release (marker `release`): first
side by side, then what judges time (marker `live`), by itself on the machine; and the quick tests
once more with the lowest versions that pyproject.toml allows, and by the newest Python. WORKERS
sets the number of workers, 0 runs all in one process. A process whose test stands still, even
inside C, writes the stacks of its threads and ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
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
ENVIRONMENTS: Final = {"lowest versions": ".venv-lowest", "newest Python": ".venv-newest"}
"""Where scripts/versions.sh makes what these tiers run in; one that is not there is left out."""
ORDINARY: Final = "not release and not images"
QUICK: Final = f"{ORDINARY} and not kafka and not kernel and not slow"
RUNS: Final = {
    "": {SIDE_BY_SIDE: ORDINARY},
    "quick": {SIDE_BY_SIDE: QUICK},
    "all": {
        SIDE_BY_SIDE: "(release or fault_case) and not live and not images",
        BY_ITSELF: "live",
        **dict.fromkeys(ENVIRONMENTS, QUICK),
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
    tiers, codes, lines = dict[str, dict[str, float]](), dict[str, int](), list[str]()
    for name, chosen in RUNS[kind].items():
        if codes and "-m" in rest:  # has been run
            break
        print(f"--- {name}", flush=True)
        if not _python(name).exists():
            lines.append(f"LEFT OUT: {name}: scripts/versions.sh says why")
            continue
        start_s = time.monotonic()
        codes[name], kinds = _tier(name, chosen, rest)
        tiers[name] = {"seconds": time.monotonic() - start_s, **counted(kinds)}
        lines += (f"{line} ({name})" for line in named(kinds))
        if codes[name] not in {0, NO_TESTS}:
            lines.append(f"ENDED WITH {codes[name]}: {name}")
            if "-x" in rest:
                break
    total = Counter[str]()
    for found in tiers.values():
        total.update(found)
    summary_file(kind).write_text(json.dumps({"arguments": rest, **total, "tiers": tiers}))
    print(
        f"--- {total['tests']} tests in {total['seconds']:.0f} s: {total['failed']} failed, "
        f"{total['skipped']} skipped, {total['retried']} retried",
        *lines,
        sep="\n",
    )
    bad = [code for code in codes.values() if code not in {0, NO_TESTS}]
    return bad[0] if bad else NO_TESTS if set(codes.values()) == {NO_TESTS} else 0


def _python(tier: str) -> Path:
    folder = ENVIRONMENTS.get(tier)
    return ROOT / folder / "bin" / "python" if folder else Path(sys.executable)


def _tier(name: str, chosen: str, rest: Sequence[str]) -> tuple[int, Mapping[str, Sequence[str]]]:
    """Give pytest's exit code, and which tests ended how."""
    side_by_side = name != BY_ITSELF
    workers = int(os.environ.get("WORKERS", WORKERS)) if side_by_side else 0
    # A worker that ended is not begun again: its test would end the next one, too.
    several = ["-n", str(workers), "--dist", "loadgroup", "--max-worker-restart=0"]
    parallel = several if workers else []
    files = [] if side_by_side or any(Path(one).exists() for one in rest) else _files_of("live")
    stall = ["-o", f"faulthandler_timeout={STALL_S}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [str(_python(name)), "-m", "pytest", "-m", chosen, *stall, *parallel, *rest, *files]
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
