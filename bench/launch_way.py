"""Which modules one kernel launch passes, from a drain on a host to a row of `pointillist query`.

    python -P launch_way.py FOLDER

Runs the tree in the working directory, which may be an older one, and prints the modules as JSON,
by stretch of the way. Ten production agents, a Leader and a Helper share a process and a stepped
clock; each agent replays a trace with one launch in the window. A module is on the way when one of
its functions runs in a round in which the launch moves on: the agent's from the launch to its
drain, the agent's and both aggregators' from the window's end to its release, and the command.
What runs as a module is imported does not count.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

WINDOW_S: Final = 60
INTO_WINDOW_S: Final = 10
KERNEL: Final = "ampere_sgemm_128x64_nn"
CELL: Final = "gpu_time/gemm"
STEP_MS: Final = 200


class Watch:
    """Notes whose functions run, while it is on, in every thread."""

    def __init__(self, root: Path) -> None:
        self._root, self._on = f"{root}/", False
        self._files: set[str] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._on and event == "call" and frame.f_code.co_name != "<module>":
            self._files.add(frame.f_code.co_filename)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def take(self) -> list[str]:
        """Give the files below the root noted since the last call."""
        own = [name.removeprefix(self._root) for name in self._files if name.startswith(self._root)]
        self._files.clear()
        return sorted(name for name in own if not name.startswith(("tests/", "bench/", ".")))


def write_trace(path: Path, at_s: float) -> Path:
    """Write a trace with a launch so many seconds after the one that begins it."""
    events = [
        {"ph": "X", "cat": "kernel", "name": KERNEL, "ts": at, "dur": 5_000, "args": {"device": 0}}
        for at in (0, at_s * 1e6)
    ]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)
    return path


def begin(folder: Path) -> Any:
    """Start the fleet of the tree in the working directory, by that tree's own kit."""
    from edge_agent.config import ReplaySection, SourcesSection
    from privacy.noise_table import LiveSampler
    from tests import outage_kit
    from transport.factory import TransportTable

    kit: Any = outage_kit
    first = kit.T0 + 2 * WINDOW_S
    trace = write_trace(folder / "trace.json.gz", 2 * WINDOW_S + INTO_WINDOW_S)
    kit.SourcesSection = partial(SourcesSection, replay=(ReplaySection(trace, loop=False),))
    return kit.OutageFleet(
        folder, TransportTable(folder / "log"), window_s=WINDOW_S, windows=1, lateness_s=5,
        first=first, sampler=lambda _number: LiveSampler(os.urandom),
    )  # fmt: skip


class Way:
    def __init__(self, fleet: Any, watch: Watch) -> None:
        self._fleet, self._watch = fleet, watch

    def along(self, until: Callable[[], bool], *, aggregators: bool) -> list[str]:
        """Let everybody live on; give the modules of one agent, and of the aggregators."""
        fleet = self._fleet
        while not until():
            for agent in fleet.agents[1:]:
                agent.step()
            with self._watch.on():
                fleet.agents[0].step()
            with self._watch.on() if aggregators else contextlib.nullcontext():
                fleet.leader._turn()  # noqa: SLF001 - a turn of `run`, which would end the shell too
                calls = fleet.leader._calls  # noqa: SLF001 - the Helper answers
                getattr(calls, "_pool", calls).submit(lambda: None).result()
            fleet.stepped.sleep_ms(STEP_MS)
        return self._watch.take()

    def ask(self) -> list[str]:
        from pointillist.cli import main

        sql = f"SELECT window_start, value FROM releases WHERE cell = '{CELL}'"  # noqa: S608 (a constant)
        folder = str(self._fleet.folder / "releases")
        sys.argv = ["pointillist", "query", "--folder", folder, "--json", sql]
        answer = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(answer), self._watch.on():
            main()
        if len(json.loads(answer.getvalue())) != 1:
            raise AssertionError(f"expected one row, got {answer.getvalue()}")
        return self._watch.take()


def stretches(folder: Path) -> dict[str, list[str]]:
    """Send a launch on its way; give the modules of each stretch."""
    fleet = begin(folder)
    first, watch = fleet.first, Watch(Path.cwd())
    way = Way(fleet, watch)
    try:
        drained_s = first + INTO_WINDOW_S + 1
        fleet.run_to(first + INTO_WINDOW_S - 1)
        drained = way.along(lambda: fleet.now_s() >= drained_s, aggregators=False)
        fleet.run_to(first + WINDOW_S - 1)
        released = way.along(
            lambda: fleet.now_s() >= first + WINDOW_S and len(fleet.ends()) > 0, aggregators=True
        )
        return {"drained": drained, "released": released, "printed": way.ask()}
    finally:
        sys.setprofile(None)
        fleet.close()


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = stretches(Path(sys.argv[1]))
    json.dump(found, sys.stdout)
