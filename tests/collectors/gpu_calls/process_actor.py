"""A C program that loads, unloads, forks and executes on demand, and a watcher of what is found."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collectors.gpu_calls.discovery import Discovery, Event, ProcessGone, ProcessSeen
from collectors.gpu_calls.found_files import FileFound, FileGone
from collectors.records.basics import ProcessKey
from tests.collectors.gpu_calls import elf_kit

_PATIENCE_S = 20.0


class Actor:
    def __init__(self, program: Path, *prefix: str | Path) -> None:
        self._process = subprocess.Popen(
            [*map(str, prefix), str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    def ask(self, order: str, answers: bool = True) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        said = int(self._process.stdout.readline()) if answers else 1
        assert said > 0, order
        return said

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@dataclass
class Watcher:
    """Polls a Discovery and keeps what it says; other programs of the machine speak there too."""

    discovery: Discovery
    events: list[Event] = field(default_factory=list)

    def until(self, done: Callable[[], object]) -> None:
        """Poll until `done()` is true; give up after 20 s."""
        patience = time.monotonic() + _PATIENCE_S
        while not done():
            assert time.monotonic() < patience, "not seen"
            time.sleep(0.01)
            self.poll()

    def poll(self) -> None:
        self.events += self.discovery.poll(time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def found(self, path: Path | str) -> list[FileFound]:
        return [e for e in self.events if isinstance(e, FileFound) and e.path == str(path)]

    def gone(self, file: int) -> bool:
        return FileGone(file) in self.events

    def files(self, pid: int) -> frozenset[int] | None:
        """What the process has mapped by the last word on it; None: nothing said, or gone."""
        for event in reversed(self.events):
            if isinstance(event, ProcessSeen | ProcessGone) and event.process.pid == pid:
                return event.files if isinstance(event, ProcessSeen) else None
        return None

    def keys(self, pid: int) -> list[ProcessKey]:
        """The processes that had the pid, in the order in which they were seen."""
        seen = [e.process for e in self.events if isinstance(e, ProcessSeen | ProcessGone)]
        return [key for key in dict.fromkeys(seen) if key.pid == pid]

    def ends(self, pid: int) -> int:
        return sum(isinstance(e, ProcessGone) and e.process.pid == pid for e in self.events)


def compiled(folder: Path) -> tuple[Path, Path, Path]:
    """Give (actor, pid-reusing starter, a stub of the CUDA runtime)."""
    actor = elf_kit.compile_c(elf_kit.stub("actor"), folder / "actor")
    reuse = elf_kit.compile_c(elf_kit.stub("reuse"), folder / "reuse")
    return actor, reuse, elf_kit.library(folder / "libcudart.so.12")


def acting(program: Path, *prefix: str | Path) -> Iterator[Actor]:
    actor = Actor(program, *prefix)
    yield actor
    actor.end()
