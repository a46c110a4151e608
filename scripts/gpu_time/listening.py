"""The agent's end of the socket, with a plan that is set by hand."""

from __future__ import annotations

import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from collectors.gpu_time.listener import Listener, Reporter, WindowPlan
from collectors.gpu_time.segment import RecordingState, Snapshot

OBJECTS: Final = Path(__file__).resolve().parents[2] / "cupti" / "objects"
OFF: Final = WindowPlan(0, 1_000)
ON: Final = WindowPlan(1_000, 1_000)
_SETTLES_S: Final = 0.5
"""Records of finished kernels are flushed every 0.1 s."""


class Sum(NamedTuple):
    launches: int
    ns: int


class Listening:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpu-time.sock"
        self._listener = Listener(self.path)
        self._plan = OFF
        self._reporters: dict[int, Reporter] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to load the library and to find this."""
        return injected(self.path)

    def plan(self, plan: WindowPlan) -> None:
        self._plan = plan
        self._lease()

    def look(self, pid: int) -> Snapshot:
        return self._reporters[pid].segment.read()

    def settled(self, pid: int) -> Snapshot:
        """Give it once all that has run was read."""
        time.sleep(_SETTLES_S)
        return self.look(pid)

    def wait(self, pid: int, state: RecordingState | None = None) -> float:
        """Wait until a process reports, in that state. Gives the seconds; raises RuntimeError."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 10:
            known = pid in self._reporters
            if known and (state is None or self.look(pid).header["state"] == state):
                return time.monotonic() - begun_s
            time.sleep(0.002)
        raise RuntimeError(f"expected process {pid} to report in state {state} within 10 s")

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._listener.close()
        for reporter in self._reporters.values():
            reporter.close()

    def _serve(self) -> None:
        while not self._ending.wait(0.2):
            for reporter in self._listener.accept():
                self._reporters[reporter.pid] = reporter
            self._lease()

    def _lease(self) -> None:
        for reporter in list(self._reporters.values()):
            reporter.lease(self._plan, 1_000)


def injected(socket: Path, machine: str | None = None) -> dict[str, str]:
    """Give what a program, this machine's or another's, needs to load the library and find it."""
    library = OBJECTS / f"libpointillist-gpu-time.{machine or platform.machine()}.so"
    return {
        "CUDA_INJECTION64_PATH": str(library),
        "POINTILLIST_GPU_TIME_SOCKET": str(socket),
        "POINTILLIST_GPU_TIME_DEBUG": "1",
    }


@contextmanager
def listening() -> Iterator[Listening]:
    with tempfile.TemporaryDirectory() as folder:
        found = Listening(Path(folder))
        try:
            yield found
        finally:
            found.close()


def sums(snapshot: Snapshot) -> dict[tuple[int, str], Sum]:
    """Add up by (kind, name)."""
    return {
        (int(row["kind"]), name): Sum(int(row["count"]), int(row["total_ns"]))
        for name, row in zip(snapshot.names, snapshot.rows, strict=True)
    }


def since(before: Snapshot, after: Snapshot) -> dict[tuple[int, str], Sum]:
    old = sums(before)
    grown = {}
    for key, new in sums(after).items():
        then = old.get(key, Sum(0, 0))
        if new.launches > then.launches:
            grown[key] = Sum(new.launches - then.launches, new.ns - then.ns)
    return grown
