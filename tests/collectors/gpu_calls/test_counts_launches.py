"""Launches of stub libraries, counted exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import Direction, FileGroup, ProbeGroup
from tests.probes_kit import Probed, Stubs, attachments, run, staying

pytestmark = [pytest.mark.root, pytest.mark.kernel]


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


def test_launches_of_every_variant_and_graphs_are_told_apart(probed: Probed, stubs: Stubs) -> None:
    for name in ("libcudart", "libcuda.so"):
        probed.attach(stubs.library(name))
    run(stubs.caller("libcudart"), "launches")
    drain = probed.drain()
    seen = {
        (r.call, r.kernel): (r.launches, r.blocks, r.threads, r.shared_bytes)
        for r in drain.launches
    }
    blocks, threads = 2 * 3 * 5, 2 * 3 * 5 * 32 * 4
    assert seen == {
        ("cudart.launch", 0x10100): (1, blocks, threads, 1),
        ("cudart.launch", 0x10200): (1, blocks, threads, 2),
        ("cudart.launch_ex", 0x10300): (3, 21, 3 * 7 * 11, 96),
        ("cudart.graph_launch", 0x6A): (5, 0, 0, 0),
    }


def test_launches_through_the_driver_read_arguments_from_the_stack(
    probed: Probed, stubs: Stubs
) -> None:
    probed.attach(stubs.library("libcuda.so"))
    run(stubs.caller("libcudart", "libcuda.so"), "launches")
    seen = {
        (r.call, r.kernel): (r.launches, r.blocks, r.threads, r.shared_bytes)
        for r in probed.drain().launches
    }
    assert seen["cuda.launch", 0x10400] == (1, 30, 30 * 128, 77)
    assert seen["cuda.launch_ex", 0x10500] == (1, 7, 77, 96)


@pytest.mark.parametrize("with_returns", [True, False])
def test_driver_launch_within_a_runtime_launch_counts_once(
    probed: Probed, stubs: Stubs, with_returns: bool
) -> None:
    left_out = () if with_returns else (ProbeGroup.LAUNCH_RESULT,)
    for name in ("libcudart", "libcuda.so"):
        probed.attach(stubs.library(name), *left_out)
    run(stubs.caller("libcudart", "libcuda.so"), "nested", 997)
    probed.drain()
    # Each round: one through the runtime, and one straight to the driver, deeper in the stack.
    assert probed.calls() == {"cudart.launch": 997, "cuda.launch": 997}
    assert probed.calls("nested") == {"cuda.launch": 997}
    assert probed.hits()[ProbeGroup.LAUNCH] == 3 * 997
    assert probed.hits()[ProbeGroup.LAUNCH_RESULT] == (3 * 997 if with_returns else 0)


def test_failed_launches_are_counted_by_error(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    pid = run(stubs.caller("libcudart"), "failures")
    drain = probed.drain()
    assert {(e.process.pid, e.call, e.code, e.failures) for e in drain.errors} == {
        (pid, "cudart.launch", 1, 3),
        (pid, "cudart.launch", 9, 5),
    }
    assert probed.calls() == {"cudart.launch": 15}
    assert probed.calls("failures") == {"cudart.launch": 8}


def test_static_runtime_is_counted_in_the_executable(probed: Probed, stubs: Stubs) -> None:
    program = stubs.caller(static=True)
    probed.attach(program)
    pid = run(program, "threads", 3, 503)
    probed.drain()
    assert sum(probed.launches().values()) == 1509
    assert {key[0] for key in probed.launches()} == {pid}


def test_functions_that_begin_with_endbr64_are_counted_too(
    probed: Probed, endbr_stubs: Stubs
) -> None:
    path = endbr_stubs.library("libcudart")
    probed.attach(path)
    run(endbr_stubs.caller("libcudart"), "threads", 2, 211)
    probed.drain()
    assert probed.calls() == {"cudart.launch": 422}
    assert probed.calls("returned") == {"cudart.launch": 422}


def test_fork_and_exec_are_counted_by_the_process_that_calls(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    parent = run(stubs.caller("libcudart"), "fork", 101, 53, 29)
    probed.drain()
    by_process: Counter[int] = Counter()
    for (pid, _, _), launches in probed.launches().items():
        by_process[pid] += launches
    assert by_process.pop(parent) == 101
    assert list(by_process.values()) == [53 + 29]


def test_a_library_loaded_again_and_again_is_counted_each_time(
    probed: Probed, stubs: Stubs
) -> None:
    path = stubs.library("libcudart")
    probed.attach(path)
    run(stubs.caller(), "load", 7, 13, path)
    probed.drain()
    assert sum(probed.launches().values()) == 91


def test_hip_and_its_runtime_are_another_table(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libamdhip64"))
    run(stubs.caller("libamdhip64"), "hip")
    drain = probed.drain()
    assert probed.calls() == {
        "hip.launch": 13, "hip.malloc": 1, "hip.copy_on_stream": 1, "hip.device_synchronize": 1,
    }  # fmt: skip
    assert drain.memory[0].state.live_bytes == 4000
    assert [(c.direction, c.bytes) for c in drain.copies] == [(Direction.DEVICE_TO_HOST, 2048)]


def test_processes_started_before_and_after_share_the_probes(probed: Probed, stubs: Stubs) -> None:
    path, program = stubs.library("libcudart"), stubs.caller("libcudart")
    with staying(program, "threads", 1, 17) as early:
        probed.attach(path)
        pids = [run(program, "threads", 1, n) for n in (19, 23)]
        probed.drain()
    assert early.pid not in {pid for pid, _, _ in probed.launches()}
    totals = Counter(dict(zip(pids, (19, 23), strict=True)))
    seen: Counter[int] = Counter()
    for (pid, _, _), launches in probed.launches().items():
        seen[pid] += launches
    assert seen == totals


def test_detached_groups_count_nothing_and_duty_says_so(probed: Probed, stubs: Stubs) -> None:
    file = probed.attach(stubs.library("libcudart"))
    program = stubs.caller("libcudart")
    run(program, "threads", 1, 31)
    probed.programs.detach_all([FileGroup(file, ProbeGroup.LAUNCH)])
    probed.programs.detach_all([FileGroup(file, ProbeGroup.LAUNCH_RESULT)])
    run(program, "threads", 1, 37)
    drain = probed.drain()
    assert sum(probed.launches().values()) == 31
    assert 0 < drain.duty[FileGroup(file, ProbeGroup.LAUNCH)] < 1
    assert (
        drain.duty[FileGroup(file, ProbeGroup.COPY)]
        > drain.duty[FileGroup(file, ProbeGroup.LAUNCH)]
    )
    assert FileGroup(file, ProbeGroup.LAUNCH) not in probed.drain().duty


def test_file_indices_grow_without_end_and_still_nest(probed: Probed, stubs: Stubs) -> None:
    plans = [attachments(stubs.library(name), probed.table) for name in ("libcudart", "libcuda.so")]
    paths = [str(stubs.library(name)) for name in ("libcudart", "libcuda.so")]
    for file, path, plan in zip((70_001, 1_000_000_001), paths, plans, strict=True):
        probed.programs.attach(file, path, plan)
    run(stubs.caller("libcudart", "libcuda.so"), "nested", 11)
    drain = probed.drain()
    assert {row.file for row in drain.launches} == {70_001, 1_000_000_001}
    assert probed.calls() == {"cudart.launch": 11, "cuda.launch": 11}
    assert probed.calls("nested") == {"cuda.launch": 11}


def test_attaching_twice_or_to_nothing_leaves_what_was(probed: Probed, stubs: Stubs) -> None:
    path = stubs.library("libcudart")
    plan = attachments(path, probed.table)
    probed.programs.attach(1, str(path), plan[:1])
    with pytest.raises(ValueError, match="not attached yet"):
        probed.programs.attach(1, str(path), plan)
    with pytest.raises(SourceUnavailable, match="No such file"):
        probed.programs.attach(2, f"{path}.none", plan)
    assert probed.programs.attached == {FileGroup(1, plan[0].group)}
    run(stubs.caller("libcudart"), "threads", 1, 3)
    probed.drain()
    assert sum(probed.launches().values()) == 3


def test_no_launch_is_lost_while_threads_fight_for_the_processors(
    probed: Probed, stubs: Stubs
) -> None:
    """More threads than processors, flat out: tasks are preempted inside the programs."""
    probed.attach(stubs.library("libcudart"), ProbeGroup.LAUNCH_RESULT)
    run(stubs.caller("libcudart"), "threads", 8, 50_021)
    drain = probed.drain()
    assert sum(probed.launches().values()) == 400_168
    assert sum(row.blocks for row in drain.launches) == 30 * 400_168
    assert not drain.lost
