"""Slices of fuzzing, what they cost and found, and the corpus that is kept of them."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from tests.fuzz.targets import NAMES, load

FUZZED: Final = Path(__file__).with_name("fuzzed.json")
ATHERIS: Final = Path(".tools/fuzz")
_OPTIONS: Final = (
    "-max_len=8192", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0",
)  # fmt: skip
_RUNS: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_MOST_KEPT: Final = 40
_LONGEST_KEPT: Final = 2_048
_FOUND: Final = ("crash-", "timeout-", "oom-", "leak-")


@dataclass(slots=True)
class Spent:
    """What one target has had.

    cpu_s       seconds of CPU, of all its slices
    executions  inputs that were tried
    crashes     inputs that broke a parser, mended since or not
    open        those that break it still
    """

    cpu_s: float = 0.0
    executions: int = 0
    crashes: int = 0
    open: int = 0


class Fuzzing:
    def __init__(self, folder: Path, fuzzed: Path = FUZZED) -> None:
        """folder: of inputs found and of crashes."""
        self._folder, self._fuzzed = folder, fuzzed
        content = json.loads(fuzzed.read_text(encoding="utf-8")) if fuzzed.exists() else {}
        self.spent = {name: Spent(**content.get(name, {})) for name in NAMES}

    def next_of(self, names: Sequence[str]) -> str | None:
        """Give the target with the least time among those without an open crash."""
        free = [name for name in names if not self._crashes(name)]
        return min(free, key=lambda name: self.spent[name].cpu_s, default=None)

    def slice(self, name: str, seconds: int) -> None:
        inputs, crashes = self._made(name), self._folder / "crashes" / name
        crashes.mkdir(parents=True, exist_ok=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        known = self._crashes(name)
        said = self._child(
            name, f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/", str(inputs)
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = self.spent[name]
        spent.cpu_s += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        runs = _RUNS.search(said)
        spent.executions += int(runs[1]) if runs else 0
        new = [file for file in self._crashes(name) if file not in known]
        found = sum(self._stands(name, file) for file in new)
        spent.crashes += found
        spent.open = len(self._crashes(name))
        if found or runs is None:
            (crashes / "said.txt").write_text(said, encoding="utf-8")
        self._write()

    def _stands(self, name: str, file: Path) -> bool:
        """Whether a find is one: a timeout also meets a process that was stopped for long."""
        if not file.name.startswith("timeout-") or "ERROR" in self._child(name, str(file)):
            return True
        file.replace(self._folder / name / file.name)
        return False

    def forget_mended(self) -> None:
        """Take inputs that break nothing any more for ordinary ones."""
        for name, found in self.open_crashes().items():
            target = load(name)
            for file in found:
                try:
                    target.fuzz(file.read_bytes())
                except Exception as error:  # noqa: BLE001 (whatever it is, it is open still)
                    print(f"{name}: {file.name} is open still: {type(error).__name__}")
                    continue
                file.replace(self._folder / name / file.name)
            target.close()
            self.spent[name].open = len(self._crashes(name))
        self._write()

    def keep(self, name: str) -> int:
        """Write the committed corpus anew: few short inputs that reach what all of them do."""
        kept = load(name).corpus
        with tempfile.TemporaryDirectory() as merged:
            self._child(name, "-merge=1", merged, str(self._made(name)), str(kept))
            inputs = sorted(Path(merged).iterdir(), key=lambda file: file.stat().st_size)
            short = [file for file in inputs if file.stat().st_size <= _LONGEST_KEPT]
            # Every n-th by size: short inputs are refused early, and long ones reach the rest.
            step = max(1, -(-len(short) // _MOST_KEPT))
            for file in kept.glob("found-*"):
                file.unlink()
            for file in short[::step]:
                content = file.read_bytes()
                (kept / f"found-{sha256(content).hexdigest()[:12]}").write_bytes(content)
        return len(list(kept.iterdir()))

    def open_crashes(self) -> dict[str, list[Path]]:
        return {name: found for name in NAMES if (found := self._crashes(name))}

    def line(self, name: str) -> str:
        spent = self.spent[name]
        return (
            f"{name:9} {spent.cpu_s / 60:7.1f} min of CPU {spent.executions:12,} inputs "
            f"{spent.crashes} crashes, {len(self._crashes(name))} open"
        )

    def _made(self, name: str) -> Path:
        """Give the folder of a target's inputs; the first time it is filled with the seeds."""
        folder, target = self._folder / name, load(name)
        folder.mkdir(parents=True, exist_ok=True)
        target.corpus.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            for number, seed in enumerate(target.seeds()):
                (folder / f"seed-{number}").write_bytes(seed)
            for file in target.corpus.iterdir():
                shutil.copy(file, folder)
        target.close()
        return folder

    def _crashes(self, name: str) -> list[Path]:
        folder = self._folder / "crashes" / name
        files = folder.iterdir() if folder.is_dir() else ()
        return sorted(file for file in files if file.name.startswith(_FOUND))

    def _child(self, name: str, *options: str) -> str:
        with tempfile.TemporaryDirectory(dir=_memory()) as room:
            environment = os.environ | {"TMPDIR": room, "PYTHONPATH": str(ATHERIS.resolve())}
            child = subprocess.run(
                [sys.executable, "-u", "-m", "tests.fuzz.child", name, *_OPTIONS, *options],
                env=environment, capture_output=True, text=True, errors="replace", check=False,
            )  # fmt: skip
        return child.stdout + child.stderr

    def _write(self) -> None:
        part = self._fuzzed.with_suffix(".part")
        rows = {name: asdict(spent) for name, spent in self.spent.items()}
        part.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        part.replace(self._fuzzed)


def _memory() -> str | None:
    """Give a folder in memory where there is one: targets write their files anew every time."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
