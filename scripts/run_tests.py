"""Run the tests in two tiers, each watched from outside, and sum up what was run.

python -m scripts.run_tests [--quick] [PYTEST ARGUMENTS]

First everything that only has to be right, by several workers side by side; what shares the broker
or the kernel is one group of it. Then what judges time (marker `live`), by itself on the machine.
WORKERS sets the number of workers, 0 runs all in one process.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from scripts import watchdog

ROOT: Final = Path(__file__).resolve().parent.parent
COUNTS: Final = "POINTILLIST_TEST_COUNTS"
"""Names the file into which tests/conftest.py counts what was run."""
SUMMARY: Final = ROOT / ".venv" / "tests.json"
"""Figures of the newest run, for `make bench-suite`."""
RUN_S: Final = 1800
STALL_S: Final = 300
WORKERS: Final = 3
"""On two cores: a third of the time of the tests is spent waiting."""
NO_TESTS: Final = 5
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - pytest makes folders of our own there
"""Where tests write if it has room: ledgers, stores and logs wait for every write to a disk."""
MEMORY_BYTES: Final = 6 << 30
"""Room that has to be there: some tests write logs and sparse files of gigabytes."""

APART: Final = "not long and not spark and not images and not charts and not deb"
"""What has a make target of its own."""
TIERS: Final = {"side by side": f"not live and {APART}", "by itself": f"live and {APART}"}
QUICK: Final = f"{TIERS['side by side']} and not kafka and not kernel and not slow"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a tier ran; `retried` tests needed a further try."""

    seconds: float
    tests: int
    skipped: int
    failed: int
    retried: int


def main(arguments: list[str]) -> int:
    """Run the tiers one after the other; give 0 where all of them passed."""
    quick = "--quick" in arguments
    rest = [one for one in arguments if one != "--quick"]
    tiers = {"side by side": QUICK} if quick else TIERS
    # Every process that a test starts would otherwise compile what it imports anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Workers share the cores; threads of linear algebra beside them would only wait for each other.
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    # A library that changes the locale (some test's does) must not make others fail.
    os.environ["PYTHONUTF8"] = "1"
    if _memory_has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    ran: list[Ran] = []
    codes: list[int] = []
    for name, chosen in tiers.items():
        print(f"--- {name}", flush=True)
        code, result = _tier(chosen, rest, side_by_side=name == "side by side")
        codes.append(code)
        ran.append(result)
        if code == watchdog.STOOD_STILL or (code not in {0, NO_TESTS} and "-x" in rest):
            break
    total = Ran(
        *(sum(values) for values in zip(*(asdict(one).values() for one in ran), strict=True))
    )
    SUMMARY.write_text(json.dumps({"quick": quick, "arguments": rest, **asdict(total)}))
    print(
        f"--- {total.tests} tests in {total.seconds:.0f} s: {total.failed} failed, "
        f"{total.skipped} skipped, {total.retried} retried"
    )
    bad = [code for code in codes if code not in {0, NO_TESTS}]
    return bad[0] if bad else max(codes) if set(codes) == {NO_TESTS} else 0


def _tier(chosen: str, rest: Sequence[str], *, side_by_side: bool) -> tuple[int, Ran]:
    workers = int(os.environ.get("WORKERS", WORKERS)) if side_by_side else 0
    parallel = ["-n", str(workers), "--dist", "loadgroup"] if workers else []
    files = [] if side_by_side or any(Path(one).exists() for one in rest) else _files_of("live")
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        os.environ[COUNTS] = str(counts)
        command = [sys.executable, "-m", "pytest", "-m", chosen, *parallel, *rest, *files]
        start_s = time.monotonic()
        code = watchdog.main(["--run-s", str(RUN_S), "--stall-s", str(STALL_S), "--", *command])
        found = json.loads(counts.read_text()) if counts.exists() else {}
        return code, Ran(time.monotonic() - start_s, **({**_NOTHING, **found}))


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


_NOTHING: Final = {"tests": 0, "skipped": 0, "failed": 0, "retried": 0}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
