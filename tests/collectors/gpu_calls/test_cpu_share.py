"""The discovery thread's share of a CPU: anyone may map new files without an end."""

from __future__ import annotations

import pytest

from collectors.binaries.proc_maps import BURST_S, SHARE, CpuShare


def test_cpu_share_of_a_flood_is_a_tenth_after_the_burst() -> None:
    share, now_s, cpu_s = CpuShare(0.0, 0.0), 0.0, 0.0
    while now_s < 1000:
        now_s, cpu_s = now_s + 0.05, cpu_s + 0.05  # all of the CPU, whenever it may
        now_s += share.pause_s(now_s, cpu_s)
    assert cpu_s == pytest.approx(BURST_S + 1000 * SHARE, rel=0.01)


def test_cpu_share_never_holds_up_who_spends_little() -> None:
    share = CpuShare(0.0, 0.0)
    assert not any(share.pause_s(at / 10, at / 200) for at in range(1, 10_000))


def test_cpu_share_forgives_no_more_than_the_burst() -> None:
    share = CpuShare(0.0, 0.0)
    assert share.pause_s(1e6, 0.0) == 0
    assert share.pause_s(1e6, BURST_S) == 0
    assert share.pause_s(1e6, BURST_S + 0.1) == pytest.approx(1.0)
