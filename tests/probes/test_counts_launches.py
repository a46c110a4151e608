"""Launches of stub libraries, counted exactly."""

from __future__ import annotations

import pytest

from tests.probes_kit import Probed, Stubs, run, staying

pytestmark = pytest.mark.root


def test_launches_of_several_threads_are_counted_exactly(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    pid = run(stubs.caller("libcudart"), "threads", 4, 1009)
    drain = probed.drain()
    of_kernel = {0x10000: 4 * 337, 0x10100: 4 * 336, 0x10200: 4 * 336}
    assert probed.launches() == {(pid, "cudart.launch", k): n for k, n in of_kernel.items()}
    for row in drain.launches:
        assert row.blocks == row.launches * 2 * 3 * 5
        assert row.threads == row.blocks * 32 * 4
        assert row.shared_bytes == 1024 + (row.kernel - 0x10000) // 0x100
    assert probed.calls() == {"cudart.launch": 4036}
    assert probed.calls("returned") == {"cudart.launch": 4036}
    assert not drain.lost
