"""The agent's own source on live loops: its estimates beside what was launched."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil

from collectors.boot_clock import boottime_ns
from collectors.devices.uses import GpuUsers
from collectors.gpu_time.gpu_time_source import GpuTimeSource
from collectors.gpu_time.settings import GpuTimeSection
from collectors.records.activity import KernelActivity
from scripts.gpu_probes import Loop

from .listening import OFF, ON, Listening, injected

RUN_S: Final = 8.0
BURST_LAUNCHES: Final = 600_000
AFTER_S: Final = 7.0
"""Longer than a period of the budget's."""
PER_STEP: Final = {"training": 35, "inference": 150}
"""Launches of a step, copies and memsets included."""
MEMORY_LAUNCHES: Final = 10_000_000


class Followed:
    """Drains the source once a second."""

    def __init__(self, socket: Path) -> None:
        section = GpuTimeSection(enabled=True, socket=socket)
        self.source = GpuTimeSource(section, 1, GpuUsers())
        self.source.start()
        self.records: list[KernelActivity] = []

    def drain(self) -> None:
        """Take what came."""
        drained = self.source.drain(boottime_ns())
        self.records += [record for record in drained if isinstance(record, KernelActivity)]

    def follow(self, seconds: float) -> None:
        """Drain for a while."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(1)
            self.drain()


def governed(name: str, command: list[str], asked: str) -> dict[str, Any]:
    """Let a loop work for a while under the default budget, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "gpu-time.sock"
        followed = Followed(socket)
        loop = Loop(name, command, injected(socket))
        try:
            followed.follow(2)
            followed.records.clear()
            launched = _work(loop, followed, asked)
            launched += _afterwards(loop, followed)
        finally:
            loop.close()
            followed.source.stop()
    records = followed.records
    estimate = sum(work.count * 1e6 / work.sampling_rate_millionths for work in records)
    recorded = sum(work.count for work in records)
    timed = sum(work.gpu_time_ns or 0 for work in records)
    found = {
        "launched": launched, "estimated": estimate, "recorded": recorded, "recorded_ns": timed,
        "drains": len(records), "records": [asdict(work) for work in records[:40]],
    }  # fmt: skip
    error = 100 * (estimate / launched - 1) if launched else 0.0
    print(
        f"gpu-time: {name}, {asked}: {launched} launches, {estimate:.0f} estimated ({error:+.3f} %)"
        f" from {recorded} recorded"
    )
    return found


def _afterwards(loop: Loop, followed: Followed) -> int:
    """Go on a little, as programs do: the next window tells how many launches came before it."""
    steps = 0
    end_s = time.monotonic() + AFTER_S
    while time.monotonic() < end_s:
        loop.steps(20)
        steps += 20
        time.sleep(0.005)
        if steps % 1_000 == 0:
            followed.drain()
    followed.follow(1)
    return steps * PER_STEP.get(loop.name, 1)


def _work(loop: Loop, followed: Followed, asked: str) -> int:
    """Have launches made, draining meanwhile; give their number."""
    steps = BURST_LAUNCHES
    if asked == "steps":
        steps = max(1, round(RUN_S / (loop.steps(200) / 200)))
        followed.follow(3)
    followed.records.clear()
    loop.ask_for(f"{asked} {steps}")
    while not loop.answered():
        time.sleep(1)
        followed.drain()
    return steps * PER_STEP.get(loop.name, 1)


def memory(command: list[str], agent: Listening, launches: int = MEMORY_LAUNCHES) -> dict[str, Any]:
    """Launch millions with everything recorded; give the growth of host and device memory."""
    loop = Loop("launches", command, agent.environment)
    try:
        agent.plan(ON)
        agent.wait(loop.pid)
        loop.steps(200_000)
        process = psutil.Process(loop.pid)
        before = process.memory_info().rss, _device_bytes()
        begun_s = time.monotonic()
        loop.steps(launches)
        seconds = time.monotonic() - begun_s
        after = process.memory_info().rss, _device_bytes()
        header = agent.settled(loop.pid).header
    finally:
        loop.close()
        agent.plan(OFF)
    found = {
        "launches": launches, "seconds": seconds, "host_mib": (after[0] - before[0]) / 2**20,
        "device_mib": (after[1] - before[1]) / 2**20, "header": dict(header),
    }  # fmt: skip
    print(
        f"gpu-time: {launches} launches in {seconds:.1f} s, all recorded: host memory grew by "
        f"{found['host_mib']:.2f} MiB, the device's by {found['device_mib']:.2f} MiB; "
        f"{header['records']} records, {header['records_lost_cupti']} lost by CUPTI, "
        f"{header['buffers_refused']} buffers refused, {header['bad_times']} bad times"
    )
    return found


def _device_bytes() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    ran = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
    return int(ran.stdout.split()[0]) << 20
