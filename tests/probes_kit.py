"""Stub libraries and callers of known numbers, and what probes made of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.bpf.uprobes import UprobeWay
from collectors.gpu_calls.probe_plan import Attachment, PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.gpu_calls.readout import ProbeDrain, ProbeLimits
from collectors.records.gpu_calls import ProbeGroup

STUBS = Path(__file__).parent / "collectors" / "gpu_calls" / "stubs"
PUSH = ("-fno-omit-frame-pointer", "-fcf-protection=none")
"""Every function begins with `push`, as in the real libraries."""
ENDBR = ("-fno-omit-frame-pointer", "-fcf-protection=full")
LIBRARIES = {
    "libcudart.so.12": "cudart.c",
    "libcuda.so.1": "cuda.c",
    "libnccl.so.2": "nccl.c",
    "librccl.so.1": "nccl.c",
    "libamdhip64.so.6": "hip.c",
}


def compile_stub(*arguments: str | Path) -> None:
    for compiler in ("gcc", "g++"):
        if shutil.which(compiler) is None:
            pytest.skip(f"needs {compiler}, as make tools installs it")
    subprocess.run(["gcc", "-O1", "-g0", "-w", *map(str, arguments)], check=True, timeout=60)


@dataclass(frozen=True)
class Stubs:
    folder: Path

    @classmethod
    def build(cls, folder: Path, flags: tuple[str, ...] = PUSH) -> Stubs:
        for name, source in LIBRARIES.items():
            compile_stub(*flags, "-shared", "-fPIC", STUBS / source, "-o", folder / name)
        return cls(folder)

    def library(self, name: str) -> Path:
        return next(self.folder.glob(f"{name}*"))

    def caller(self, *libraries: str, static: bool = False) -> Path:
        """Link the caller with some libraries; statically, with the runtime inside it."""
        program = self.folder / "-".join(("caller", *libraries, "static" * static))
        if not program.exists():
            parts = [self.library(name) for name in libraries]
            inside = [STUBS / "cudart.c"] if static else []
            options = (
                "-lpthread",
                "-ldl",
                "-Wl,--no-as-needed",
                f"-Wl,-rpath,{self.folder}",
                *PUSH,
            )
            compile_stub(*options, STUBS / "caller.c", *inside, *parts, "-o", program)
        return program


@dataclass
class Probed:
    programs: GpuPrograms
    table: ProbeTable
    drains: list[ProbeDrain] = field(default_factory=list)
    _files: int = 0

    def attach(self, path: Path, *leave_out: ProbeGroup) -> int:
        """Attach every group but some to a file; give its index."""
        self._files += 1
        self.programs.attach(self._files, str(path), attachments(path, self.table, *leave_out))
        return self._files

    def drain(self) -> ProbeDrain:
        self.drains.append(self.programs.drain(now_ns()))
        return self.drains[-1]

    def launches(self) -> Counter[tuple[int, str, int]]:
        """Launches by (pid, call, kernel)."""
        found: Counter[tuple[int, str, int]] = Counter()
        for row in (row for drain in self.drains for row in drain.launches):
            found[row.process.pid, row.call, row.kernel] += row.launches
        return found

    def calls(self, column: str = "calls") -> Counter[str]:
        found: Counter[str] = Counter()
        for row in (row for drain in self.drains for row in drain.calls):
            found[row.call] += getattr(row, column)
        return +found

    def hits(self) -> Counter[ProbeGroup]:
        found: Counter[ProbeGroup] = Counter()
        for (file_group, _), count in (hit for d in self.drains for hit in d.hits.items()):
            found[file_group.group] += count
        return found


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def attachments(path: Path, table: ProbeTable, *leave_out: ProbeGroup) -> list[Attachment]:
    with path.open("rb") as file:
        plan = PlanBook(table).plan(ElfFile.read(file), path.name)
    return [one for one in plan.attachments if one.group not in leave_out]


@contextmanager
def probing(
    table: ProbeTable | None = None,
    limits: ProbeLimits | None = None,
    only: int = 0,
    way: UprobeWay | None = None,
) -> Iterator[Probed]:
    table = table or ProbeTable.load()
    programs = GpuPrograms(table, limits, only, way)
    try:
        yield Probed(programs, table)
    finally:
        programs.close()


@contextmanager
def waiting(
    program: Path, *words: object, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a caller that waits for a line before its calls, and for another at its end."""
    child = subprocess.Popen(
        [str(program), *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "STAY": "1", "WAIT": "1", **(more or {})},
    )  # fmt: skip
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()


def begin(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


@contextmanager
def staying(program: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a caller; inside the block it has made its calls and lives."""
    with waiting(program, *words) as child:
        begin(child)
        yield child


def run(program: Path, *words: object) -> int:
    """Run a caller to its end; give its pid."""
    with subprocess.Popen([str(program), *map(str, words)], stdout=subprocess.DEVNULL) as child:
        assert child.wait(timeout=30) == 0
    return child.pid


def start_ns(pid: int) -> int:
    ticks = int(
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    )
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
