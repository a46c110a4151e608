"""`make bench-discovery`: what the first process of an unseen file misses.

A child loads a fresh copy of the real CUDA runtime, which no process has mapped before: so many
milliseconds pass from its mapping to the probes of launches. Ten more copies each find the programs
not loaded yet, as the first library of a host does.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.discovery import Discovery, DiscoveryThread
from collectors.gpu_calls.found_files import FileFound, FileGone
from collectors.gpu_calls.loaders import LaterPrograms, Programs
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.records.gpu_calls import ProbeGroup

LOADS: Final = 20
FIRSTS: Final = 10
LOADER: Final = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(); sys.stdin.read()"


class Attaching:
    """Attaches as the agent does: launches first. Times are milliseconds from the mapping."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self.launches: list[float] = []
        self.seen = 0

    def __call__(self, event: FileFound | FileGone) -> None:
        if not isinstance(event, FileFound) or not event.mapped_ns or "/bench-" not in event.path:
            return
        for group, parts in groupby(event.plan.attachments, lambda part: part.group):
            self.programs.attach(event.file, event.open_path, list(parts))
            if group is ProbeGroup.LAUNCH:
                self.launches.append(_ms_since(event.mapped_ns))
        self.seen += 1


def _ms_since(at_ns: int) -> float:
    return (boottime_ns() - at_ns) / 1e6


def _runtime() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in Path(place).glob("cuda_runtime/lib/libcudart.so.12"):
            return path
    raise SystemExit("expected the CUDA runtime 12.9, as make setup installs it")


def _load_copy(attaching: Attaching, folder: Path) -> None:
    """Load a copy, and wait until it is seen."""
    number = attaching.seen
    copy = shutil.copy(_runtime(), folder / f"libcudart-{number}.so.12")
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, copy], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        patience = time.monotonic() + 20
        while attaching.seen <= number:
            if time.monotonic() > patience:
                raise SystemExit(f"not found within 20 s: {copy}")
            time.sleep(0.02)
        with suppress(BrokenPipeError):
            child.communicate(timeout=20)


def _load_first_copies(attaching: Attaching, folder: Path, load: Callable[[], Programs]) -> None:
    """Load copies, each of which is the first library that the programs are loaded for."""
    before = attaching.programs
    for _ in range(FIRSTS):
        now_ns = boottime_ns()
        with closing(LaterPrograms(load, now_ns, tries=True)) as attaching.programs:
            attaching.programs.try_out()
            _load_copy(attaching, folder)
    attaching.programs = before


def _spread(what: str, values: list[float]) -> list[Figure]:
    return [
        Figure(f"{what}_ms_{name}", round(float(np.percentile(values, percent)), 2), "ms")
        for name, percent in (("median", 50), ("p95", 95))
    ]


def measure(kept: Parts) -> Measured:
    """Load copies."""
    found = kept.get("discovery", _discover)["launch_probes_attached"]
    what = "launch_probes_attached"
    return Measured([
        *_spread(what, found[:LOADS]),
        *_spread(f"first_library_{what}", found[LOADS:]),
    ])  # fmt: skip


def _discover() -> Part:
    table = ProbeTable.load()
    programs = GpuPrograms(table)
    attaching = Attaching(programs)
    discovery = Discovery(PlanBook(table))
    thread = DiscoveryThread(discovery, attaching)
    thread.start()
    with TemporaryDirectory(prefix="bench-") as name:
        for _ in range(LOADS):
            _load_copy(attaching, Path(name))
        _load_first_copies(attaching, Path(name), partial(GpuPrograms, table))
    thread.stop()
    programs.close()
    return {"launch_probes_attached": attaching.launches}
