"""Memory, copies, waits, collectives and names of stub libraries, counted exactly."""

from __future__ import annotations

import pytest

from collectors.records.gpu_calls import Direction
from tests.probes_kit import Probed, Stubs, now_ns, run, staying

pytestmark = [pytest.mark.root, pytest.mark.kernel]


def test_memory_live_and_peak_follow_each_allocation(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    before = now_ns()
    with staying(stubs.caller("libcudart"), "memory") as child:
        (memory,) = probed.drain().memory
        assert memory.process.pid == child.pid
    assert memory.state.live_bytes == 1000
    # 1000 + 500 + 3 lines of 1024, after 7000 had gone: but the peak was before.
    assert memory.state.peak_bytes == 8000
    assert (memory.state.allocations, memory.state.frees, memory.state.untracked) == (4, 3, 0)
    assert before < memory.oldest_ns < now_ns()
    assert probed.calls("bytes")["cudart.malloc"] == 8500
    assert probed.calls("bytes")["cudart.malloc_pitch"] == 3072
    assert probed.calls("bytes")["cudart.malloc_host"] == 123
    assert probed.calls("failures") == {"cudart.malloc": 1}
    assert [(e.call, e.code) for e in probed.drains[0].errors] == [("cudart.malloc", 2)]


def test_memory_through_runtime_and_driver_counts_once(probed: Probed, stubs: Stubs) -> None:
    for name in ("libcudart", "libcuda.so"):
        probed.attach(stubs.library(name))
    with staying(stubs.caller("libcudart", "libcuda.so"), "memory"):
        (memory,) = probed.drain().memory
    assert (memory.state.live_bytes, memory.state.peak_bytes) == (1000, 8000)
    assert (memory.state.allocations, memory.state.frees) == (4, 3)
    assert probed.calls("nested") == {"cuda.alloc": 2}


def test_copies_are_counted_by_direction_and_size(probed: Probed, stubs: Stubs) -> None:
    for name in ("libcudart", "libcuda.so"):
        probed.attach(stubs.library(name))
    run(stubs.caller("libcudart", "libcuda.so"), "copies")
    drain = probed.drain()
    seen = {(c.file, c.direction): (c.copies, c.bytes, dict(c.log2_bins)) for c in drain.copies}
    assert seen == {
        (1, Direction.HOST_TO_HOST): (1, 1000, {9: 1}),
        (1, Direction.HOST_TO_DEVICE): (4, 4001, {10: 2, 0: 2}),
        (1, Direction.DEVICE_TO_HOST): (4, 12_700, {11: 3, 9: 1}),
        (1, Direction.DEVICE_TO_DEVICE): (5, 32_384, {12: 4, 8: 1}),
        (1, Direction.DEFAULT): (5, 80_000, {13: 5}),
        (2, Direction.HOST_TO_DEVICE): (1, 65_536, {16: 1}),
        (2, Direction.DEVICE_TO_HOST): (1, 65_537, {16: 1}),
    }
    assert probed.calls("bytes")["cudart.memset"] == 4099
    assert probed.calls("bytes")["cuda.memset_32"] == 44


def test_synchronisations_say_how_long_they_waited(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    run(stubs.caller("libcudart"), "waits")
    probed.drain()
    assert probed.calls() == {
        "cudart.device_synchronize": 3,
        "cudart.stream_synchronize": 5,
        "cudart.stream_wait_event": 1,
    }
    assert probed.calls("returned") == probed.calls()
    # The stub sleeps at least 200 and 100 us.
    assert probed.calls("wait_ns")["cudart.device_synchronize"] >= 3 * 200_000
    assert probed.calls("wait_ns")["cudart.stream_synchronize"] >= 5 * 100_000


@pytest.mark.parametrize(("library", "table"), [("libnccl", "nccl"), ("librccl", "rccl")])
def test_collectives_count_true_bytes_by_communicator(
    probed: Probed, stubs: Stubs, library: str, table: str
) -> None:
    probed.attach(stubs.library(library))
    run(stubs.caller(library), "collectives")
    drain = probed.drain()
    seen = {
        (c.call.removeprefix(f"{table}."), c.communicator): (c.calls, c.bytes)
        for c in drain.collectives
    }
    assert seen == {
        ("all_reduce", 0xC0100): (2, 2000 + 8000),
        ("all_reduce", 0xC0200): (1, 40),
        ("reduce", 0xC0100): (1, 34),
        ("bcast", 0xC0200): (1, 19),
        ("send", 0xC0200): (2, 23 * 8),
    }
    assert probed.calls("nested") == {f"{table}.broadcast": 1}
    durations = {c.call: c.duration_ns for c in drain.collectives if c.communicator == 0xC0100}
    assert durations[f"{table}.all_reduce"] >= 2 * 50_000


def test_names_tell_which_handle_they_belong_to(probed: Probed, stubs: Stubs) -> None:
    for name in ("libcudart", "libcuda.so"):
        probed.attach(stubs.library(name))
    pid = run(stubs.caller("libcudart", "libcuda.so"), "names")
    drain = probed.drain()
    assert {n.process.pid for n in drain.names} == {pid}
    assert [(n.call, n.handle, n.name, n.host_function) for n in drain.names] == [
        ("cudart.get_kernel", 0x101234, "", 0x1234),
        ("cuda.module_function", 0xAB0000 + ord("s"), "softmax_kernel", 0),
        ("cuda.kernel_name", 0xAB0000 + ord("s"), "_Z4toldPf", 0),
    ]
    assert probed.calls("failures") == {"cuda.module_function": 1, "cuda.kernel_name": 1}
    assert probed.calls()["cuda.module_load"] == 1
