"""Processes that die in a call, pids used again, maps without room: nothing stays or is silent."""

from __future__ import annotations

import signal
import struct
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from collectors.bpf.bpf_maps import PerCpuMap
from collectors.gpu_calls.readout import THREAD_FIELDS, ProbeLimits
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup
from tests.probes_kit import Probed, Stubs, attachments, probing, run, start_ns, staying

pytestmark = [pytest.mark.root, pytest.mark.kernel]


def threads_in_calls(probed: Probed) -> dict[int, int]:
    """Depth of every thread that is known, by thread id."""
    source = PerCpuMap(probed.programs._object.map_fd("threads"), 4, THREAD_FIELDS, 1)
    found = {}
    for keys, values in source.batches():
        for key, depth in zip(keys, values[:, 0, 1] >> 32, strict=True):
            found[struct.unpack("<I", key.tobytes())[0]] = int(depth)
    return found


def wait_until_in_call(probed: Probed, pid: int) -> None:
    for _ in range(200):
        if threads_in_calls(probed).get(pid):
            return
        time.sleep(0.01)
    raise AssertionError("the child never entered its call")


def test_process_killed_inside_a_call_leaves_nothing(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    child = subprocess.Popen([stubs.caller("libcudart"), "hang"])
    wait_until_in_call(probed, child.pid)
    child.send_signal(signal.SIGKILL)
    child.wait()
    first = probed.drain()
    assert [(c.call, c.calls, c.returned) for c in first.calls] == [
        ("cudart.stream_synchronize", 1, 0)
    ]
    probed.drain()
    assert child.pid not in threads_in_calls(probed)
    programs = probed.programs
    known = programs._readout.processes() | programs._memory.processes()
    assert child.pid not in {pid for pid, _ in known}


def test_process_that_ends_takes_its_memory_along(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    with staying(stubs.caller("libcudart"), "memory") as child:
        assert probed.drain().memory[0].state.live_bytes == 1000
    probed.drain()
    assert child.pid not in {row.process.pid for row in probed.drain().memory}
    allocations = PerCpuMap(probed.programs._object.map_fd("allocations"), 24, 3, 1)
    assert sum(len(keys) for keys, _ in allocations.batches()) == 0


def _one_pid_twice(stubs: Stubs) -> tuple[int, int, int] | None:
    """Give a pid and the starts of two processes that had it; None where another took it."""
    program = stubs.caller("libcudart")
    with staying(program, "threads", 1, 41) as first:
        first_start = start_ns(first.pid)
    time.sleep(0.03)  # /proc's start times are whole ticks of 10 ms
    for _ in range(5):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1), encoding="utf-8")
        with staying(program, "threads", 1, 43) as second:
            if second.pid == first.pid:
                return first.pid, first_start, start_ns(second.pid)
    return None


def test_pid_used_again_is_another_process(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    pid, first_start, second_start = next(filter(None, (_one_pid_twice(stubs) for _ in range(20))))
    probed.drain()
    counts: Counter[ProcessKey] = Counter()
    for row in probed.drains[0].launches:
        counts[row.process] += row.launches
    assert counts[ProcessKey(pid, first_start)] == 41
    assert counts[ProcessKey(pid, second_start)] == 43


def test_launches_without_room_are_in_other_and_counted_as_lost(stubs: Stubs) -> None:
    with probing(limits=ProbeLimits(launches=16)) as probed:
        probed.attach(stubs.library("libcudart"))
        pid = run(stubs.caller("libcudart"), "many", 103)
        drain = probed.drain()
        own = {row.kernel for row in drain.launches if row.process.pid == pid}
        (other,) = [row for row in drain.launches if not row.process.pid]
        assert other.kernel == 0
        assert other.call == "cudart.launch"
        assert len(own) == 16
        assert len(own) + other.launches == 103
        assert drain.lost["launch_rows"] == other.launches
        assert sum(c.calls for c in drain.calls if c.call == "cudart.launch") == 103
        # The process has ended: its rows make room.
        probed.drain()
        run(stubs.caller("libcudart"), "many", 7)
        assert not probed.drain().lost


def test_allocations_without_room_are_counted_untracked(stubs: Stubs) -> None:
    with probing(limits=ProbeLimits(allocations=8)) as probed:
        probed.attach(stubs.library("libcudart"))
        with staying(stubs.caller("libcudart"), "many", 0, 31):
            drain = probed.drain()
            (memory,) = drain.memory
            assert memory.state.allocations == 31
            assert memory.state.live_bytes == 10 * (31 - memory.state.untracked)
            assert memory.state.untracked == drain.lost["allocations"] > 0
            assert probed.drain().memory[0].state.untracked == 0


@pytest.mark.parametrize(
    ("limits", "scenario", "lost"),
    [
        (ProbeLimits(calls=4), "waits", "call_rows"),
        (ProbeLimits(copies=1), "copies", "copy_rows"),
        (ProbeLimits(collectives=3), "collectives", "collective_rows"),
        (ProbeLimits(memory=1), "memory", "memory_rows"),
        (ProbeLimits(names_bytes=4096), "look up", "names"),
    ],
)
def test_every_full_map_says_what_it_lost(
    stubs: Stubs, limits: ProbeLimits, scenario: str, lost: str
) -> None:
    libraries = ("libcudart", "libcuda.so", "libnccl")
    with probing(limits=limits) as probed:
        for library in libraries:
            probed.attach(stubs.library(library))
        for _ in range(2):
            run(stubs.caller(*libraries), scenario)
        drain = probed.drain()
        assert drain.lost[lost] > 0
        if lost == "copy_rows":
            # Every copy of both processes is counted, most of them as nobody's.
            assert sum(row.copies for row in drain.copies) == 2 * 21
        if lost == "collective_rows":
            assert sum(row.calls for row in drain.collectives) == 2 * 7


def test_memory_of_a_program_ends_where_the_process_runs_another(
    probed: Probed, stubs: Stubs
) -> None:
    probed.attach(stubs.library("libcudart"))
    program = str(stubs.caller("libcudart"))
    with staying(stubs.caller("libcudart"), "exec", program) as child:
        (memory,) = probed.drain().memory
        assert memory.process.pid == child.pid
        # 1000 bytes that the first program never freed, and 1000 of the second.
        assert memory.state.live_bytes == 1000
        assert memory.state.allocations == 8


def as_pid(pid: int, *command: str | Path) -> None:
    """Run a command under a pid that was another's."""
    for _ in range(20):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), encoding="utf-8")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
            assert child.wait(timeout=30) == 0
        if child.pid == pid:
            return
    raise AssertionError(f"the kernel never gave pid {pid} again")


def test_call_of_a_killed_thread_is_not_its_successors(probed: Probed, stubs: Stubs) -> None:
    probed.attach(stubs.library("libcudart"))
    # Addresses without chance: the dead call's frame lies above those of the new thread's calls.
    program = ("setarch", "-R", stubs.caller("libcudart"))
    child = subprocess.Popen([*program, "hang"])
    wait_until_in_call(probed, child.pid)
    child.kill()
    child.wait()
    as_pid(child.pid, *program, "waits")
    probed.drain()
    assert probed.calls()["cudart.stream_synchronize"] == 1 + 5
    assert not probed.calls("nested")


def test_groups_switched_from_another_thread_disturb_no_count(probed: Probed, stubs: Stubs) -> None:
    path = stubs.library("libcudart")
    file = probed.attach(path, ProbeGroup.LAUNCH_RESULT)
    results = [
        one for one in attachments(path, probed.table) if one.group is ProbeGroup.LAUNCH_RESULT
    ]

    over = Event()

    def switch() -> None:
        while not over.is_set():
            probed.programs.attach(file, str(path), results)
            over.wait(0.02)
            probed.programs.detach_all([FileGroup(file, ProbeGroup.LAUNCH_RESULT)])

    rounds = 8
    with ThreadPoolExecutor(1) as pool:
        switching = pool.submit(switch)
        for _ in range(rounds):
            run(stubs.caller("libcudart"), "threads", 2, 20_011)
            probed.drain()
        over.set()
        switching.result()
    probed.drain()
    assert probed.calls() == {"cudart.launch": rounds * 40_022}
    assert not probed.calls("nested")
    assert 0 < probed.calls("returned")["cudart.launch"] < rounds * 40_022
    assert all(not drain.lost for drain in probed.drains)
