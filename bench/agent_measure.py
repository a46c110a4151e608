"""What the kernel says a process used and its BPF objects occupy, and what stands beside the agent.

Beside it stands a workload, in turns with the agent and without.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Final

import psutil

from collectors.bpf.bpf_maps import bpf_descriptor, object_info
from collectors.ebpf.ebpf_tables import PROGRAMS
from edge_agent.local.history_read import HistoryReader

MIB: Final = 1 << 20
_OBJECTS: Final = {"prog_id": (13, 64), "map_id": (14, 24)}
"""By kind of number: BPF_*_GET_FD_BY_ID, and where the name lies in struct bpf_*_info."""
_NAME_BYTES: Final = 16
PROBE_NAMES: Final = frozenset({
    "rows", "returns", "launches", "calls", "errors", "copies", "collectives", "memory",
    "allocations", "threads", "sampled", "controls", "rooms", "losses", "names", "samples",
    "stacks", "gpu_launch", "gpu_entry", "gpu_count", "gpu_return",
})  # fmt: skip
"""Of the maps and programs of `bpf/gpu.bpf.c`, as the kernel has them."""
LOAD: Final = Path(__file__).with_name("agent_load.py")
TRIPS_PER_S: Final = 4_000
"""Two switches a trip: 8,000 a second, under the stated 10,000."""
SAMPLE_S: Final = 2.5
PINGPONG_TRIPS: Final = 100_000
_CONFIDENCE: Final = 0.95


class _ById(ctypes.Structure):
    """bpf_attr of the commands that open an object by its number."""

    _fields_ = (("number", ctypes.c_uint32), ("next", ctypes.c_uint32), ("flags", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process and its children, those that ended included.

    user_s, system_s   on a CPU
    rss_mib            resident memory of the process itself
    family_mib         of all of them, a page that several share counted once
    """

    at_s: float
    user_s: float
    system_s: float
    rss_mib: float
    family_mib: float


def look(pid: int) -> Usage:
    agent = psutil.Process(pid)
    user = system = shared = 0.0
    for one in (agent, *agent.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended while we looked: the agent has its time
            shared += one.memory_full_info().pss
            times = one.cpu_times()
            user += times.user + times.children_user
            system += times.system + times.children_system
    return Usage(time.monotonic(), user, system, agent.memory_info().rss / MIB, shared / MIB)


def core_percent(before: Usage, after: Usage) -> tuple[float, float]:
    """Give (user, system) percent of one core between two looks."""
    percent = 100 / (after.at_s - before.at_s)
    return (
        percent * (after.user_s - before.user_s),
        percent * (after.system_s - before.system_s),
    )


def bpf_bytes(pid: int) -> int:
    """Give the bytes of BPF maps and programs of the 100 Hz sampler in a process. Needs root."""
    held: dict[tuple[str, int], int] = {}
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            lines = (line.partition(":") for line in info.read_text().splitlines())
            fields = {key: value.strip() for key, _, value in lines}
            for kind in _OBJECTS.keys() & fields.keys():
                held[kind, int(fields[kind])] = int(fields.get("memlock", 0))
    return sum(size for of, size in held.items() if bpf_name(*of) not in PROBE_NAMES)


def bpf_name(kind: str, number: int) -> str:
    """Give the name of a BPF map (`map_id`) or program (`prog_id`); empty where it is gone."""
    command, at = _OBJECTS[kind]
    try:
        fd = bpf_descriptor(command, _ById(number))
    except FileNotFoundError:
        return ""
    try:
        return object_info(fd)[at : at + _NAME_BYTES].split(b"\0")[0].decode()
    finally:
        os.close(fd)


def bpf_cost(history: Path, since_ns: int, until_ns: int) -> float:
    """Read the agent's own account from its local history; Unix time in nanoseconds.

    One hit in 256 is timed and stands for all.
    Returns     percent of one core of all programs and the timer
    """
    sums: dict[tuple[str, str], float] = {}
    with HistoryReader(history) as reader:
        for row in reader.rows("metric", since_ns, until_ns, "bpf_cost.*"):
            place = row["name"].removeprefix("bpf_cost."), row["key"]
            sums[place] = sums.get(place, 0) + row["value"]
    total_ns = 0.0
    for program in (*PROGRAMS, "on_tick"):
        timed, timed_ns = (sums.get((f"timed_{k}", program), 0.0) for k in ("hits", "ns"))
        if timed:
            total_ns += sums.get(("hits", program), 0.0) * timed_ns / timed
    return 100 * total_ns / (until_ns - since_ns)


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload: seconds of wall time, and context switches."""

    wall_s: float
    switches: int


def run(*arguments: object) -> Sample:
    done = subprocess.run(
        [sys.executable, "-S", str(LOAD), *map(str, arguments)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall_ns, switches = map(int, done.stdout.split())
    return Sample(wall_ns / 1e9, switches)


def fitted() -> tuple[object, ...]:
    """Give the workload with network traffic: it hashes so much that a trip takes 1/4000 s."""
    trips, size = 4_000, 1 << 17

    def trip_s(hashed: int) -> float:
        return min(run("network", trips, hashed).wall_s for _ in range(3)) / trips

    bare, full = trip_s(128), trip_s(size)
    wanted = max(1.0 / TRIPS_PER_S - bare, 0.0)
    hashed = max(128, round(size * wanted / (full - bare)))
    return "network", round(SAMPLE_S * TRIPS_PER_S), hashed


def pingpong() -> Sample:
    return run("pingpong", PINGPONG_TRIPS)


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the interval of order statistics that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def median_of(values: list[float]) -> Median:
    """Give the median; no assumption on the values but that they are independent."""
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * comb(n, k) / 2**n
        if outside > 1 - _CONFIDENCE:
            break
        k += 1
    k = max(k - 1, 0)
    return Median(statistics.median(ordered), ordered[k], ordered[n - 1 - k])
