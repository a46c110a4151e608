"""Host metrics need CAP_BPF and CAP_PERFMON, and nothing more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.closed_kit import closed

pytestmark = [pytest.mark.root, pytest.mark.kernel]

SCRIPT = """
import sys, time
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.ebpf.host_ticks import Limits
from collectors.interface import SourceRegistry
from transport.process.privileges import AGENT_USER, drop_to, ensure_users
ensure_users()
drop_to(AGENT_USER, keep_caps=[name for name in sys.argv[1:] if name.startswith("CAP_")])
registry = SourceRegistry()
limits = Limits(timer="perf" not in sys.argv)
registry.register("ebpf", lambda: EbpfSource("libbpf", limits))
running, absent = registry.start_all()
for source in running:
    time.sleep(0.2)
    names = [getattr(r, "name", "ticks") for r in source.drain(time.clock_gettime_ns(7))]
    print("runs", [a.source for a in source.absent], *sorted(names))
    source.stop()
for one in absent:
    print("absent", one.reason)
"""


def as_agent(*capabilities: str) -> str:
    """Run the script as the agent's user with only these capabilities; give what it printed."""
    done = subprocess.run(
        closed([sys.executable, "-c", SCRIPT, *capabilities]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("tick", ["timer", "perf"])
def test_two_capabilities_suffice_for_every_metric(tick: str) -> None:
    said = as_agent("CAP_BPF", "CAP_PERFMON", tick)
    assert said.startswith("runs []"), said
    for table in ("ticks", "cpu", "bpf_cost"):
        assert table in said


@pytest.mark.parametrize("capabilities", [(), ("CAP_BPF",), ("CAP_PERFMON",)])
def test_without_them_one_line_says_what_is_lost(capabilities: tuple[str, ...]) -> None:
    said = as_agent(*capabilities)
    assert said.startswith("absent eBPF: ")
    assert said.count("\n") == 1
    assert "host source" in said
    missing = " and ".join(n for n in ("CAP_BPF", "CAP_PERFMON") if n not in capabilities)
    assert f"expected CAP_BPF and CAP_PERFMON; this process lacks {missing};" in said
