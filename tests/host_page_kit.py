"""A host whose pages have something to show: reports, a day of two GPUs, GPU calls, a spike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.testclient import TestClient

from collectors.boot_clock import ClockPoint
from collectors.records.activity import Observation
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding
from diagnosis.detect.journal import Series, SignalHistory, encode
from edge_agent.host_page.host_reading import HostReading
from edge_agent.host_page.page_server import page_application
from edge_agent.journal import Journal
from edge_agent.local.history import History
from edge_agent.local.local_rows import EventRow, MetricRow, Row
from tests.agent_world import T0
from tests.calls_kit import gpu_calls, sampled_calls
from tests.diagnosis_kit import CROWDED, USUAL, Host
from tests.local_kit import S, activity, flattener
from tests.sent_kit import WINDOW_S, SentFleet, sent_fleet

WINDOWS = 3
MINUTES = 60
GPUS = ("GPU-8a1f0c11-0001", "GPU-8a1f0c12-0002")
OWNER = 4711
KERNELS = (
    ("cutlass_80_tensorop_s16816gemm", "gemm", 0.42),
    ("flash_fwd_kernel", "attention", 0.21),
    ("ncclDevKernel_AllReduce_Sum", "collective", 0.08),
)


@dataclass(frozen=True)
class ShownHost:
    """The fleet around the host, and the moment at which its pages are looked at."""

    fleet: SentFleet
    now_s: int

    @property
    def reading(self) -> HostReading:
        return HostReading(self.fleet.made.config, lambda: float(self.now_s))


def shown_host(folder: Path, findings: Iterable[Finding | Series] = ()) -> ShownHost:
    """Have a host send a few reports; give it an hour of history and a journal of findings."""
    fleet = sent_fleet(folder)
    fleet.start()
    for number in range(WINDOWS):
        fleet.window(number)
    fleet.stop()
    host = ShownHost(fleet, T0 + WINDOWS * WINDOW_S + 30)
    fill_history(host)
    journal = Journal(fleet.made.config.journal_file, 1 << 20)
    for finding in findings:
        journal.append(encode(finding, (host.now_s - 600) * S))
    journal.close()
    return host


def slow_job(seconds: int = 45) -> list[Finding | Series]:
    """What the diagnoser says of a job that others take the CPU from, and the seconds around it."""
    host, diagnoser, history = Host(), Diagnoser(), SignalHistory()
    said: list[Finding | Series] = []
    for frame in [*host.frames(USUAL, 30), *host.frames(CROWDED, seconds), *host.frames(USUAL, 30)]:
        found = diagnoser.handle(frame)
        said += found
        said += history.take(frame, found)
    return said


def fill_history(host: ShownHost) -> None:
    """Write an hour that ends now: two GPUs in waves, the CPU, kernels, calls, one event."""
    config = host.fleet.made.config
    history = History(config.history_file, config.history)
    # The stepped clock of the agent that wrote before: its boot began in 1970.
    now_ns = host.now_s * S
    history.note_clock(ClockPoint(now_ns, now_ns, 100))
    for minute in range(MINUTES):
        history.add(_minute(now_ns - (MINUTES - minute) * 60 * S, minute))
    history.close()


def _minute(at_ns: int, minute: int) -> Iterator[Row]:
    rows = flattener().rows
    for place, gpu in enumerate(GPUS):
        busy = 60 + 35 * math.sin(minute / 6 + place * 2)
        yield MetricRow(at_ns, S, "devices", "gpu.utilisation_percent", gpu, "percent", busy)
        yield from rows("gpu_time", [
            replace(activity(at_ns, name, int(share * busy / 100 * 60 * S)), gpu=place,
                    family=family, count=600)
            for name, family, share in KERNELS
        ])  # fmt: skip
    for section, key, level in (
        ("host_cpu", "user", 0.31), ("host_cpu", "system", 0.06), ("host_memory", "used", 0.48),
    ):  # fmt: skip
        value = round((level + 0.1 * math.sin(minute / 9)) * 1_000_000)
        yield from rows("host", [Observation(section, key, max(value, 0), at_ns)])
    yield from rows("gpu_calls", [gpu_calls(at_ns, 10 * S, 40), sampled_calls(at_ns)])
    if minute == MINUTES - 5:
        yield EventRow("xid", GPUS[0], "XID 63: a row was remapped", at_ns, "faults")


def host_client(
    host: ShownHost, *, user: int | None = OWNER, name: str = "127.0.0.1"
) -> TestClient:
    app = page_application(host.reading, frozenset({OWNER}), lambda _client, _server: user)
    return TestClient(app, f"http://{name}", client=("127.0.0.1", 50_000))
