"""Live agents in processes of their own, whose records a socket takes and stamps as they arrive."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.records.activity import KernelActivity, Record
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.open_agent import open_agent
from edge_agent.protocol import eligibility
from edge_agent.protocol.eligibility import draw_offsets_ms
from kernels.families import FamilyRules
from privacy.noise_table import LiveSampler
from tests.agent_live import surroundings
from tests.agent_world import T0, counting_bytes
from transport.embedded.embedded import EmbeddedLog
from transport.interface import TransportUnavailable
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS

SPAWN: Final = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["tests.timing_kit"])
_FRAME: Final = struct.Struct(">?I")
_START_MS: Final = 3000
"""Hosts take so long at most to begin; then the first window starts."""


class SocketProducer:
    """Sends each record as it is flushed, and waits until the other end has all of them."""

    def __init__(self, address: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(address))
        self._pending: list[tuple[bool, bytes]] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._pending.append((topic == REPORTS, value))

    def flush(self) -> None:
        for report, value in self._pending:
            self._socket.sendall(_FRAME.pack(report, len(value)) + value)
        if self._pending and not self._socket.recv(1):
            raise TransportUnavailable("the other end is gone")
        self._pending.clear()

    def close(self) -> None:
        self._socket.close()


class SocketLog(EmbeddedLog):
    """Control topics from the embedded log; records go to a socket."""

    def __init__(self, folder: Path, address: Path) -> None:
        super().__init__(folder)
        self._address = address

    def producer(self) -> SocketProducer:  # type: ignore[override]
        return SocketProducer(self._address)


class ShiftedClock:
    """The machine's own clock, shifted by whole windows to the time that the tasks are for."""

    def __init__(self, shift_ms: int) -> None:
        self._shift_ms = shift_ms

    def unix_ms(self) -> int:
        return time.time_ns() // 10**6 + self._shift_ms

    def boottime_ns(self) -> int:
        return self.unix_ms() * 10**6

    def sleep_ms(self, span_ms: int) -> None:
        time.sleep(span_ms / 1000)


class SaturatedGpus:
    """Launches of ever other kernels on all GPUs, for as long as a drain is to take."""

    name = "saturated"

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._rules = FamilyRules.load()
        self._numbers = itertools.count()

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        return

    def drain(self, now_boottime_ns: int) -> Sequence[Record]:
        until = time.perf_counter() + self._drain_s
        found: list[Record] = []
        while self._drain_s and time.perf_counter() < until:
            kernel = f"void gemm_kernel_{next(self._numbers)}<float>(float*, int)"
            family, _ = self._rules.classify(kernel)
            times = (now_boottime_ns - 10**9, 10**9)
            activity = (family, "unknown", 1, 10**6, ((20, 1),), 10**6)
            found.append(KernelActivity(len(found) % 2, kernel, *activity, *times))
        return found

    def stop(self) -> None:
        return


@dataclass(frozen=True)
class HostRun:
    """How one host runs.

    drain_s     what a drain takes
    offset_ms   when its reports are due after a window's end; None: as drawn, the same of each host
    """

    drain_s: float
    offset_ms: int | None = None


def run_host(
    folder: Path, address: Path, how: HostRun, window_s: int, shift_ms: int, until_ms: int
) -> None:
    """What runs in a host's process: the production agent's loop, with noise of a live one."""
    stream = counting_bytes(7)

    def draw(window_s: int, count: int, random_bytes: Callable[[int], bytes]) -> list[int]:
        del random_bytes
        drawn = draw_offsets_ms(window_s, count, stream)
        return drawn if how.offset_ms is None else [how.offset_ms] * count

    eligibility.draw_offsets_ms = draw
    made, clock = surroundings(folder, window_s=window_s), ShiftedClock(shift_ms)
    log = SocketLog(folder / "log", address)
    runtime, _ = open_agent(
        made.config, domain="demo", sampler=LiveSampler(os.urandom), clock=clock, transport=log
    )
    runtime.replace_sources((SaturatedGpus(how.drain_s),))
    _loop(runtime, clock, until_ms)
    runtime.close()
    log.close()


def _loop(runtime: AgentRuntime, clock: ShiftedClock, until_ms: int) -> None:
    runtime.start()
    while clock.unix_ms() < until_ms:
        runtime.step()
        clock.sleep_ms(runtime.pause_ms())


class Receiver:
    """The other end: one socket a host."""

    def __init__(self, address: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(4)
        self.arrived: list[tuple[int, bytes]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as stream:
            while header := stream.read(_FRAME.size):
                at_ns = time.time_ns()
                report, length = _FRAME.unpack(header)
                value = stream.read(length)
                if report:
                    self.arrived.append((at_ns, value))
                connection.sendall(b"\1")

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()


def run_hosts(
    folder: Path, hosts: dict[str, HostRun], window_s: int, windows: int
) -> dict[str, dict[int, float]]:
    """Run hosts side by side for so many windows.

    Returns     of each host, by the start of its window, when the first byte of the report came,
                milliseconds after the window's end
    """
    now_ms = time.time_ns() // 10**6
    window_ms = window_s * 1000
    first_ms = (now_ms + _START_MS) // window_ms * window_ms + window_ms
    shift_ms = T0 * 1000 - first_ms
    until_ms = (T0 + windows * window_s) * 1000 + window_ms // 2
    receivers, processes = {}, []
    for name, how in hosts.items():
        (folder / name).mkdir()
        address = folder / f"{name}.sock"
        receivers[name] = Receiver(address)
        given = (folder / name, address, how, window_s, shift_ms, until_ms)
        processes.append(SPAWN.Process(target=run_host, args=given))
    for process in processes:
        process.start()
    for process in processes:
        process.join((windows + 1) * window_s + 60)
        process.kill()
    for receiver in receivers.values():
        receiver.close()
    found: dict[str, dict[int, float]] = {}
    for name, receiver in receivers.items():
        found[name] = {}
        for at_ns, value in receiver.arrived:
            window = Report.decode(unwrap(value, 1 << 22)[1]).header.window
            found[name][window] = at_ns / 10**6 + shift_ms - (window + window_s) * 1000
    return found
