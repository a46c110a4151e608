"""What is not taken in or not recorded is counted, and the agent's counters show it."""

from __future__ import annotations

import socket
import time
import urllib.request
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from collectors.devices.devices_source import GpuUsers
from collectors.gpu_time.gpu_time_source import GpuTimeSection, GpuTimeSource, LeftOutReason
from collectors.gpu_time.listener import ConnectionRefusal
from collectors.gpu_time.segment import RecordingState
from edge_agent.config import MetricsSection
from edge_agent.open_agent import open_agent
from edge_agent.service.agent_service import AgentService
from tests.agent_live import surroundings
from tests.agent_world import NoNoise
from tests.gpu_time_kit import program
from tests.segment_kit import snapshot
from tests.wait_kit import until

PAGE = Path(__file__).parents[3] / "docs" / "gpu-time.md"


def test_growth_is_counted_by_reason_and_wild_numbers_are_not() -> None:
    source = GpuTimeSource(GpuTimeSection(), 1, GpuUsers())
    on, refused = int(RecordingState.ON), int(RecordingState.REFUSED)
    states = [
        snapshot(state=on, occupied=1, bad_times=5),
        snapshot(state=refused, occupied=3, bad_times=4, records_lost_cupti=9),
        snapshot(state=refused, occupied=3, bad_times=6, records_lost_cupti=1 << 63),
        snapshot(state=on, occupied=4, bad_times=6),
        snapshot(state=refused, occupied=4, bad_times=6),
    ]
    for before, after in pairwise(states):
        source._count_left_out(before.header, after.header)
    assert source.left_out == {
        LeftOutReason.OCCUPIED: 3, LeftOutReason.LOST: 9, LeftOutReason.BAD_TIMES: 2,
        LeftOutReason.CUPTI: 2,
    }  # fmt: skip


@pytest.mark.parametrize("reason", [*LeftOutReason, *ConnectionRefusal])
def test_every_reason_has_a_row_on_its_page(reason: str) -> None:
    assert f"| `{reason}` |" in PAGE.read_text()


def shows(source: GpuTimeSource, counts: dict[str, int]) -> bool:
    return source.left_out == counts


def test_counts_go_on_over_a_restart(tmp_path: Path) -> None:
    source = GpuTimeSource(GpuTimeSection(True, tmp_path / "s.sock"), 1, GpuUsers())
    for refused in range(1, 3):
        source.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            other.connect(str(tmp_path / "s.sock"))
            other.send(b"x")
            until(partial(shows, source, {"hello": refused}))
        source.stop()
        assert source.left_out == {"hello": refused}


@pytest.mark.slow
def test_a_refused_connection_and_another_profiler_show_in_a_live_agent_s_counters(
    tmp_path: Path,
) -> None:
    made = surroundings(tmp_path)
    path = tmp_path / "s.sock"
    sources = replace(made.config.sources, gpus=False, gpu_time=GpuTimeSection(True, path))
    config = replace(made.config, sources=sources, metrics=MetricsSection(port=0))
    runtime, absent = open_agent(config, domain="demo", sampler=NoNoise())
    assert absent == []
    service = AgentService(runtime, config)
    runtime.observe(service)

    def shown() -> bool:
        runtime._drain_sources()
        service.stepped(int(time.time() * 1000))
        assert service._server is not None
        url = f"http://127.0.0.1:{service._server.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = str(answer.read(), "utf-8")
        return all(
            f'source_left_out_total{{reason="{reason}",source="gpu_time"}} 1.0' in text
            for reason in ("occupied", "hello")
        )

    try:
        runtime.start()
        with (
            program(path) as profiled,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger,
        ):
            assert profiled.ask("occupy") == "subscribed 0"
            stranger.connect(str(path))
            stranger.send(b"x")
            until(shown)
    finally:
        runtime.close()
