"""Single calls of a process that is sampled, and of no other."""

from __future__ import annotations

import pytest

from collectors.gpu_calls.readout import ProbeLimits
from collectors.records.basics import ProcessKey
from tests.probes_kit import Probed, Stubs, begin, now_ns, probing, run, start_ns, waiting

pytestmark = [pytest.mark.root, pytest.mark.kernel]


def test_samples_show_each_call_with_its_stream_and_time(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    with waiting(stubs.caller("libcudart"), "waits") as child:
        process = ProcessKey(child.pid, start_ns(child.pid))
        probed.programs.sample(process, True, stacks=True)
        before = now_ns()
        begin(child)
        run(stubs.caller("libcudart"), "waits")
        samples = probed.drain().samples
        stacks = [probed.programs.stack(s.stack_id) for s in samples]
    assert {s.process for s in samples} == {process}
    assert [s.correlation for s in samples] == list(range(1, 10))
    assert [s.call for s in samples[2:4]] == [
        "cudart.device_synchronize", "cudart.stream_synchronize",
    ]  # fmt: skip
    assert [(s.stream, s.event) for s in samples[-2:]] == [(0x54, 0), (0x54, 0x55)]
    assert all(s.thread == child.pid for s in samples)
    assert all(s.duration_ns >= 100_000 for s in samples[:8])
    times = [s.boottime_ns for s in samples]
    assert before < times[0]
    assert times == sorted(times)
    assert all(len(stack) >= 2 for stack in stacks)


def test_samples_of_launches_carry_kernel_graph_and_stream(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    with waiting(stubs.caller("libcudart"), "launches") as child:
        process = ProcessKey(child.pid, start_ns(child.pid))
        probed.programs.sample(process, True)
        begin(child)
        samples = probed.drain().samples
        probed.programs.sample(process, False)
    seen = [(s.call, s.kernel, s.graph, s.stream, s.stack_id) for s in samples]
    assert seen == [
        ("cudart.launch", 0x10100, 0, 0x52, -1),
        ("cudart.launch", 0x10200, 0, 0x52, -1),
        *[("cudart.launch_ex", 0x10300, 0, 0x51, -1)] * 3,
        *[("cudart.graph_launch", 0, 0x6A, 0x52, -1)] * 5,
    ]
    assert sum(probed.launches().values()) == 10


def test_samples_without_room_are_counted_and_nothing_else_is_lost(stubs: Stubs) -> None:
    with probing(limits=ProbeLimits(samples_bytes=4096)) as probed:
        probed.attach(stubs.library("libcudart"))
        with waiting(stubs.caller("libcudart"), "threads", 2, 307) as child:
            probed.programs.sample(ProcessKey(child.pid, start_ns(child.pid)), True)
            begin(child)
            drain = probed.drain()
        assert 0 < len(drain.samples) < 614
        assert len(drain.samples) + drain.lost["samples"] == 614
        assert sum(probed.launches().values()) == 614
