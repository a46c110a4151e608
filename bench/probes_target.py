"""The probed process of make bench-probes, the libraries that it calls, and bpftrace beside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.record import ROOT
from bench.steered import Steered

ENTRIES: Final = {"push": 0, "endbr64": 1, "driver": 3}
"""First instruction of the launch function -> ENTRY of probes_library.c."""
BEHIND: Final = {"driver": 10}
"""First instruction -> bytes behind it at which plans probe the function instead."""
SYMBOL: Final = "cudaLaunchKernel"


class Slices(NamedTuple):
    """One pair of slices: through the probed library, and through one that nobody probes."""

    begin_ns: int
    end_ns: int
    launches: int
    own_ns: int
    bare_begin_ns: int
    bare_end_ns: int
    bare_launches: int
    bare_own_ns: int


def build(folder: Path) -> None:
    """Compile target and libraries. Raises FileNotFoundError without gcc."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = ["gcc", "-O2", "-Wall"]
    source = ROOT / "bench" / "probes_library.c"
    for name, number in ENTRIES.items():
        made = folder / f"{name}.so"
        subprocess.run(
            [*compiler, "-shared", "-fPIC", f"-DENTRY={number}", str(source), "-o", str(made)],
            check=True,
        )
    target = ROOT / "bench" / "probes_target.c"
    subprocess.run(
        [*compiler, "-pthread", str(target), "-o", str(folder / "target"), "-ldl"], check=True
    )


def copy_library(folder: Path, entry: str, name: str) -> Path:
    """Make a library of its own: probes on one copy do not touch another.

    Its file is called libcudart, as the probe tables want it.
    """
    path = folder / name / "libcudart.so.12"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shutil.copy(folder / f"{entry}.so", path)
    return path


class Target(Steered):
    """A running target; use it as a context manager."""

    def __init__(self, folder: Path, libraries: Sequence[Path]) -> None:
        # Ahead of other work: its rate is to be steady on a shared machine too.
        super().__init__(["nice", "-n", "-10", folder / "target", *libraries])

    def call(self, library: int, threads: int, calls: int) -> float:
        """Give nanoseconds of CPU time per call, all threads together."""
        return float(self.ask(f"call {library} {threads} {calls}"))

    def flat_out(self, library: int, threads: int, seconds: float) -> int:
        """Call as often as possible; give the number of calls."""
        return int(self.ask(f"flat {library} {threads} {seconds}"))

    def begin_pace(
        self, library: int, bare: int, rate: float, seconds: float, burst_ms: tuple[int, int]
    ) -> None:
        """Launch at a rate; burst_ms: work and sleep in turns, (0, 0): steadily."""
        self.tell(f"pace {library} {bare} {rate} {seconds} {burst_ms[0]} {burst_ms[1]}")

    def end_pace(self) -> list[Slices]:
        """Wait for the end, and give every pair of slices."""
        slices = []
        while (line := self.answer()) != ".":
            slices.append(Slices(*map(int, line.split())))
        return slices

    def answer(self) -> str:
        """Give its next line. Raises RuntimeError where it has ended."""
        line = super().answer()
        if not line:
            raise RuntimeError(f"the probed process ended: {self.process.poll()}")
        return line


def symbol_offset(library: Path) -> int:
    listed = subprocess.run(
        ["readelf", "-sW", os.fspath(library)], check=True, capture_output=True, text=True
    ).stdout
    for line in listed.splitlines():
        words = line.split()
        if len(words) > 7 and words[7] == SYMBOL:
            return int(words[1], 16)  # text is mapped at its file offset
    raise ValueError(f"expected {SYMBOL} in {library}")


class Bpftrace(Steered):
    """Counts calls of libraries by process; use it as a context manager.

    libraries   by a name of letters
    """

    def __init__(self, libraries: Mapping[str, Path]) -> None:
        text = [
            f"uprobe:{path}:{SYMBOL} {{ @{name}[pid] = count(); }}"
            for name, path in libraries.items()
        ]
        # It complains of a limit that it does not need.
        super().__init__(
            ["bpftrace", "-f", "json", "-e", "\n".join(text)], errors=subprocess.DEVNULL
        )

    def end(self) -> dict[str, int]:
        """Stop it; give the calls by name of the library."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=60)
        counts: dict[str, int] = {}
        for line in said.splitlines():
            content = json.loads(line) if line.startswith("{") else {}
            if content.get("type") == "map":
                for name, by_process in content["data"].items():
                    counts[name.removeprefix("@")] = sum(by_process.values())
        return counts
