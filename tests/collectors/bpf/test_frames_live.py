"""Frames of this host from real sources: who waits for a CPU is seen waiting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from diagnosis.frames.signals import FINE, SIGNALS, Scope, of_scope
from tests.bpf_kit import Load, cgroup

# Loads BPF programs and makes cgroups; compares two clocks of what the machine gave.
pytestmark = [pytest.mark.root, pytest.mark.kernel, pytest.mark.live]


def test_live_frames_show_a_busy_cgroup_waiting_for_its_cpu(tmp_path: Path) -> None:
    with cgroup("cpu") as group, LiveFrames(host_registry(), host_framer([group.name])) as live:
        busy = [Load("spin", 0.7, (group,), cwd=tmp_path) for _ in range(2)]
        frames = live.frames()
        for load in busy:
            load.go()
        found = [next(frames) for _ in range(2)]
        for load in busy:
            load.wait()
            load.end()
        assert not live.failing
    signals = max((f.subjects[group.name].signals for f in found), key=lambda s: s["cpu_ms_per_s"])
    # Two on one CPU: while one runs the other waits, whatever else the machine does.
    assert signals["cpu_ms_per_s"] > 100
    assert signals["run_delay_ms_per_s"] > 0.7 * signals["cpu_ms_per_s"]
    assert signals["throttled_delay_ms_per_s"] == 0
    last = found[-1]
    assert last.host["run_delay_ms_per_s"] > 0
    assert last.host.keys() <= set(of_scope(SIGNALS, Scope.HOST))
    assert group.name in last.cgroups
    fine = last.fine[FINE.index("cpu_ms_per_s")]
    assert np.isfinite(fine).all()
    assert fine.mean() == pytest.approx(last.host["cpu_ms_per_s"], rel=0.25)
