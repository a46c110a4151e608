"""What the kernel says a process used and its BPF objects occupy, and what stands beside the agent.

Beside it stand a workload, in turns with the agent and without, and node_exporter.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Final

import psutil

from bench.record import ROOT
from collectors.bpf.bpf_maps import bpf_descriptor, object_info
from collectors.ebpf.ebpf_tables import PROGRAMS
from edge_agent.local.history_read import HistoryReader

MIB: Final = 1 << 20
_COST: Final = "bpf_cost."
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
PACKAGE: Final = "prometheus-node-exporter"
_START_S: Final = 15.0
_UNPACKED: Final = ROOT / ".tools" / "node-exporter"


class _ById(ctypes.Structure):
    """bpf_attr of the commands that open an object by its number."""

    _fields_ = (("number", ctypes.c_uint32), ("next", ctypes.c_uint32), ("flags", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class Usage:
    """One look at a process and its children, those that ended included.

    user_s, system_s   on a CPU
    sleeps             voluntary context switches: each is followed by a wake-up
    rss_mib            resident memory of the process itself
    family_mib         of all of them, a page that several share counted once
    """

    at_s: float
    user_s: float
    system_s: float
    sleeps: int
    rss_mib: float
    family_mib: float


def look(pid: int) -> Usage:
    """Look at a process and its children."""
    agent = psutil.Process(pid)
    user = system = kib = 0.0
    sleeps = 0
    for one in (agent, *agent.children(recursive=True)):
        try:
            sleeps += _sleeps(one.pid)
            kib += _proportional_kib(one.pid)
            times = one.cpu_times()
        except (psutil.NoSuchProcess, OSError):
            if one is agent:
                raise
            continue  # it ended while we looked: the agent has its time
        user += times.user + times.children_user
        system += times.system + times.children_system
    rss = agent.memory_info().rss / MIB
    return Usage(time.monotonic(), user, system, sleeps, rss, kib / 1024)


def core_percent(before: Usage, after: Usage) -> tuple[float, float]:
    """Give (user, system) percent of one core between two looks."""
    span = after.at_s - before.at_s
    return (
        100 * (after.user_s - before.user_s) / span,
        100 * (after.system_s - before.system_s) / span,
    )


def _sleeps(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        total += int(_field(status, "voluntary_ctxt_switches"))
    return total


def _proportional_kib(pid: int) -> int:
    return int(_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss").split()[0])


def _field(path: Path, name: str) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        found, _, value = line.partition(":")
        if found == name:
            return value.strip()
    raise LookupError(f"{path}: expected {name}")


def bpf_bytes(pid: int) -> int:
    """Give the bytes of BPF maps and programs of the 100 Hz sampler in a process. Needs root."""
    held: dict[tuple[str, int], int] = {}
    for fields in _fdinfo(pid):
        for kind in ("map_id", "prog_id"):
            if kind in fields and "memlock" in fields:
                held[kind, int(fields[kind])] = int(fields["memlock"])
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


def bpf_runs(pid: int) -> dict[int, tuple[int, int]]:
    """Give (runs, nanoseconds) of each BPF program by the kernel's statistics, where enabled."""
    return {
        int(fields["prog_id"]): (int(fields["run_cnt"]), int(fields["run_time_ns"]))
        for fields in _fdinfo(pid)
        if "prog_id" in fields and "run_cnt" in fields
    }


def _fdinfo(pid: int) -> Iterator[dict[str, str]]:
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            lines = info.read_text().splitlines()
        except OSError:
            continue
        yield {k: v.strip() for k, _, v in (line.partition(":") for line in lines)}


def switches_now() -> int:
    """Give the machine's context switches since it started."""
    lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("ctxt ")))


def bpf_cost(history: Path, since_ns: int, until_ns: int) -> tuple[float, float]:
    """Read the agent's own account from its local history; Unix time in nanoseconds.

    One hit in 256 is timed and stands for all.
    Returns     percent of one core of all programs and the timer; page faults a second
    """
    sums: dict[tuple[str, str], float] = {}
    with HistoryReader(history) as reader:
        for row in reader.rows("metric", since_ns, until_ns, f"{_COST}*"):
            place = row["name"].removeprefix(_COST), row["key"]
            sums[place] = sums.get(place, 0) + row["value"]
    span_s, total_ns = (until_ns - since_ns) / 1e9, 0.0
    for program in (*PROGRAMS, "on_tick"):
        timed, timed_ns = (sums.get((f"timed_{k}", program), 0.0) for k in ("hits", "ns"))
        if timed:
            total_ns += sums.get(("hits", program), 0.0) * timed_ns / timed
    return total_ns / span_s / 1e7, sums.get(("hits", "on_page_fault"), 0.0) / span_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload: seconds of wall and CPU time, and context switches."""

    wall_s: float
    cpu_s: float
    switches: int


def run(*arguments: object) -> Sample:
    """Run one workload in processes of their own."""
    done = subprocess.run(
        [sys.executable, "-S", str(LOAD), *map(str, arguments)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall_ns, cpu_ns, switches = map(int, done.stdout.split())
    return Sample(wall_ns / 1e9, cpu_ns / 1e9, switches)


@dataclass(frozen=True, slots=True)
class Workload:
    """Arguments of the workload with network traffic, fitted to this machine."""

    trips: int
    hashed_bytes: int

    def run(self) -> Sample:
        """Run it once."""
        return run("network", self.trips, self.hashed_bytes)


def fitted() -> Workload:
    """Choose the bytes to hash so that a trip takes 1/4000 s."""
    trips = 4_000
    bare = min(run("network", trips, 128).wall_s for _ in range(3)) / trips
    size = 1 << 17
    full = min(run("network", trips, size).wall_s for _ in range(3)) / trips
    wanted = max(1.0 / TRIPS_PER_S - bare, 0.0)
    return Workload(round(SAMPLE_S * TRIPS_PER_S), max(128, round(size * wanted / (full - bare))))


def pingpong() -> Sample:
    """Run the worst case once."""
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


def program() -> str | None:
    """Find the exporter, unpacked from its Debian package where it is not installed.

    Unpacked and not installed: the package would start a service of its own.
    """
    if found := shutil.which(PACKAGE) or shutil.which(PACKAGE, path=str(_UNPACKED / "usr/bin")):
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    _UNPACKED.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        download = ["apt-get", "download", "-qq", PACKAGE]
        if not _done(download, folder) and os.geteuid() == 0 and _done(["apt-get", "update"], "/"):
            _done(download, folder)
        for package in Path(folder).glob("*.deb"):
            _done(["dpkg", "-x", str(package), str(_UNPACKED)], folder)
    return shutil.which(PACKAGE, path=str(_UNPACKED / "usr/bin"))


def _done(command: Sequence[str], folder: str) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@dataclass(slots=True)
class Exporter:
    """One running exporter."""

    pid: int
    port: int
    every_s: float

    def scrape(self) -> None:
        """Read /metrics once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()


@contextmanager
def exporter(path: str, every_s: float) -> Iterator[Exporter]:
    """Run an exporter on a free loopback port, scraped every so often."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [path, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    one, stop = Exporter(child.pid, port, every_s), Event()
    thread = Thread(target=_scrape, args=(one, stop), daemon=True)
    try:
        _wait(one)
        thread.start()
        yield one
    finally:
        stop.set()
        child.terminate()
        child.wait(10)


def _wait(one: Exporter) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            one.scrape()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _scrape(one: Exporter, stop: Event) -> None:
    while not stop.wait(one.every_s):
        one.scrape()
