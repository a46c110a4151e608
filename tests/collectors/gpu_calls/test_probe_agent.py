"""A real agent with the probes: its closed window tells the launch shares, and nothing else."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from collectors.gpu_calls.gpu_probes import GpuProbesSource, ProbesSection
from collectors.records.activity import KernelActivity
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.config import MetricsSection, SourcesSection
from edge_agent.open_agent import open_agent
from edge_agent.service.agent_service import AgentService
from edge_agent.windows.window_accumulator import ClosedWindow, TaskWindows
from tests.agent_live import Surroundings, surroundings
from tests.agent_world import T0, NoNoise, open_report
from tests.probe_source_kit import ONLY_OURS, OURS, attached_files, own_caller
from tests.probes_kit import Stubs, begin, waiting
from tests.wait_kit import until
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.epoch import Epoch
from wire.report import Report
from wire.topics import EPOCHS, REPORTS

pytestmark = [pytest.mark.release, pytest.mark.root, pytest.mark.kernel]

LAUNCHES = {"gemm": 7010, "softmax": 2110, "attention": 890}
WINDOW_S = 3


class ShiftedClock:
    """The real clocks, but for the date: it is T0 when the test begins."""

    def __init__(self) -> None:
        self._shift_ms = T0 * 1000 - time.time_ns() // 1_000_000

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep_ms(self, span_ms: int) -> None:
        time.sleep(span_ms / 1000)


class NotedWindows:
    """The agent's windows, with what they closed."""

    def __init__(self, inner: TaskWindows) -> None:
        self._inner = inner
        self.closed: list[ClosedWindow] = []
        self.activity: list[KernelActivity] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add(self, record: Any) -> None:
        if isinstance(record, KernelActivity):
            self.activity.append(record)
        self._inner.add(record)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        for one in self._inner.close_ended(now_s):
            self.closed.append(one)
            yield one


def probing(made: Surroundings) -> Surroundings:
    """The same host, with the probes on and nothing else."""
    probes = ProbesSection(budget_percent=50.0, leave_out=ONLY_OURS)
    metrics = MetricsSection(port=0)
    sources = SourcesSection(host=False, gpus=False, faults=False, probes=probes)
    return replace(made, config=replace(made.config, sources=sources, metrics=metrics))


def opened(
    made: Surroundings, clock: ShiftedClock
) -> tuple[AgentRuntime, NotedWindows, GpuProbesSource]:
    runtime, absent = open_agent(made.config, domain="demo", sampler=NoNoise(), clock=clock)
    assert absent == []
    assert isinstance(runtime.windows, TaskWindows)
    noted = NotedWindows(runtime.windows)
    runtime._windows = runtime._effects._windows = noted
    (source,) = runtime.sources
    assert isinstance(source, GpuProbesSource)
    return runtime, noted, source


def step_until_reported(runtime: AgentRuntime, windows: int) -> None:
    while runtime.tally.published < windows + 1:  # the epoch is a record too
        runtime.step()
        time.sleep(min(runtime.pause_ms(), 100) / 1000)


def scrape(service: AgentService) -> str:
    assert service._server is not None
    url = f"http://127.0.0.1:{service._server.port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


def time_in_window_s(runtime: AgentRuntime) -> float:
    return runtime._clock.unix_ms() / 1000 % WINDOW_S


def mix_of(made: Surroundings, row: np.ndarray[Any, Any]) -> dict[str, int]:
    """Non-zero cells of the kernel mix in a row of the demo task."""
    section = Catalogue.load().section("kernel_mix")
    place = made.task.slices()["kernel_mix"]
    part = row[place.start - 2 : place.stop - 2]
    return {section.cells[i]: int(part[i]) for i in np.flatnonzero(part)}


def test_window_of_a_real_agent_has_the_launch_shares_of_a_program(
    stubs: Stubs, tmp_path: Path
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    made = probing(surroundings(tmp_path, window_s=WINDOW_S))
    with capture_logs() as logs:
        runtime, noted, source = opened(made, ShiftedClock())
        service = AgentService(runtime, made.config)
        runtime.observe(service)
        try:
            runtime.start()
            runtime.step()
            with waiting(program, "families", *LAUNCHES.values()) as child:
                until(lambda: bool(attached_files(source, child.pid)))
                until(lambda: time_in_window_s(runtime) < WINDOW_S / 2)
                runtime._drain_sources()
                begin(child)
                runtime._drain_sources()
                step_until_reported(runtime, 2)
                metrics = scrape(service)
        finally:
            runtime.close()
    busy = [one for one in noted.closed if len(mix_of(made, one.rows[0])) > 2]
    (window,) = busy
    mix = mix_of(made, window.rows[0])
    measured_ms = 2 * WINDOW_S * 1000 - mix.pop("unmeasured", 0)
    assert sum(mix.values()) == measured_ms
    assert mix.keys() == {f"launch_share/{family}" for family in LAUNCHES}
    for family, launches in LAUNCHES.items():
        share = mix[f"launch_share/{family}"] / measured_ms
        assert share == pytest.approx(launches / sum(LAUNCHES.values()), abs=2e-3)
    _check_report(made, window)
    # What is raw stays here: neither the log nor the records name a process or a kernel.
    said = repr(logs) + metrics + "".join(repr(r.value) for r in made.records())
    assert 'source="probes"' in metrics
    for name in (OURS, "sgemm", "flash_attention", f"pid={child.pid}", str(program)):
        assert name not in said


def _check_report(made: Surroundings, window: ClosedWindow) -> None:
    """The report is the row in steps, each rounded up or down."""
    records = made.records()
    epochs = {
        bytes(e.header.epoch_id): e
        for e in (Epoch.decode(unwrap(r.value, 1 << 16)[1]) for r in records if r.topic == EPOCHS)
    }
    reports = [Report.decode(unwrap(r.value, 1 << 22)[1]) for r in records if r.topic == REPORTS]
    (report,) = [one for one in reports if one.header.window == window.start_s]
    vector = open_report(made.world, epochs[bytes(report.epoch_id)], report)
    place = made.task.slices()["kernel_mix"]
    step = next(s.q for s in made.task.sections if s.name == "kernel_mix")
    row = window.rows[0][place.start - 2 : place.stop - 2]
    assert (abs(vector[place] - row / step) < 1).all()
    assert vector[place].sum() > 0


def test_agent_that_starts_again_counts_on_and_leaves_nothing_attached(
    stubs: Stubs, tmp_path: Path
) -> None:
    program = own_caller(stubs, tmp_path, "libcudart")
    made = probing(surroundings(tmp_path, window_s=60))
    with waiting(program, "steady", 1000, 60_000) as child:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        clock = ShiftedClock()
        for _ in range(2):
            runtime, noted, source = opened(made, clock)
            runtime.start()
            runtime.step()
            runtime._drain_sources()
            time.sleep(0.3)
            source_programs = source.running.programs
            runtime._drain_sources()
            runtime.close()
            assert {one.family for one in noted.activity} == {"gemm"}
            assert sum(one.count for one in noted.activity) > 100
            assert not source_programs.attached
            names = made.config.kernel_names_file
            assert names.stat().st_mode & 0o777 == 0o600
