"""`pointillist agent run` with the real eBPF source, as root starts it: what attends it works."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.agent_host import AgentHost, make_host, running
from collectors.ebpf.ebpf_source import EbpfSource
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.live_socket import LiveClient
from tests.wait_kit import until
from transport.process.privileges import AGENT_USER, CAPABILITIES

pytestmark = [pytest.mark.release, pytest.mark.root, pytest.mark.kernel]
PATIENCE_S = 60


@pytest.fixture
def host() -> Iterator[AgentHost]:
    if reason := EbpfSource("libbpf").probe():
        pytest.skip(reason)
    # The agent's user must get through every folder above: pytest's own are closed to it.
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield make_host(folder / "host", gpus=False)
    shutil.rmtree(folder)


def grown(view: dict[str, Any] | None) -> dict[str, Any] | None:
    """A view in which tables have grown: the first drain sets their base alone."""
    names = {one["name"] for one in view["levels"]} if view else set()
    return view if {"switches", "cpu.cpu_ns"} <= names else None


def counters_address(host: AgentHost) -> str:
    for line in host.log_file.read_text().splitlines():
        if '"event": "counters"' in line:
            return str(json.loads(line)["address"])
    raise AssertionError("expected the address of the counters in the log")


def ebpf_names(host: AgentHost) -> set[str]:
    with HistoryReader(host.history_file) as reader:
        return {row["name"] for row in reader.rows("metric") if row["source"] == "ebpf"}


def test_agent_with_ebpf_serves_history_live_view_and_counters(host: AgentHost) -> None:
    with running(host) as pid:
        client = LiveClient(host.folder / "state" / "live.sock")
        view = until(lambda: grown(client.poll()))
        with urllib.request.urlopen(f"http://{counters_address(host)}/metrics") as answer:
            counters = answer.read().decode()
        until(lambda: "bpf_cost.hits" in ebpf_names(host))
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        )
    assert "ebpf" in view["agent"]["sources"]
    assert view["agent"]["failing"] == {}
    assert 'pointillist_agent_source_up{source="ebpf"} 1.0' in counters
    kept = ("CAP_BPF", "CAP_PERFMON", "CAP_SYSLOG", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
    assert int(status["CapEff"], 16) == sum(1 << CAPABILITIES[name] for name in kept)
    assert host.history_file.owner() == AGENT_USER
    assert {"switches", "cgroup.cpu_ns", "cpu.softirq_count_timer"} <= ebpf_names(host)
    with HistoryReader(host.history_file) as reader:
        times = [row["boottime_ns"] for row in reader.rows("metric", name="switches")]
        events = [row["name"] for row in reader.rows("event")]
    # Snapshots are 10 ms apart: batches of several drains are one series without a seam.
    steps = [after - before for before, after in pairwise(times)]
    assert len(steps) > 100
    assert sorted(steps)[len(steps) // 2] == pytest.approx(10_000_000, rel=0.2)
    assert min(steps) > 0
    assert events[0] == "started"
    assert events[-1] == "stopping"
