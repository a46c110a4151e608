"""The BCC loader counts the same known calls of stub libraries as the libbpf loader does."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.binaries.elf_file import EntryClass
from collectors.gpu_calls import programs_bcc
from collectors.gpu_calls.probe_plan import Attachment
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs_bcc import SENTINEL, at_place
from collectors.gpu_calls.readout import ProbeDrain, ProbeLimits
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup
from tests.probes_kit import Probed, Stubs, attachments, now_ns, run, start_ns, staying

pytestmark = pytest.mark.release

FULL = 4
# A perf event takes a tenth of a second to detach: only what these tests call is attached.
ROWS = frozenset(
    {"cudart.launch", "cuda.launch", "cudart.malloc", "cudart.memset", "nccl.all_reduce"}
)


def chosen(path: Path, table: ProbeTable) -> list[Attachment]:
    """Plan a file, by the rows under test alone."""
    kept = []
    for one in attachments(path, table):
        places = [at for at, row in enumerate(one.rows) if table.rows[row].id in ROWS]
        if places:
            kept.append(
                replace(
                    one,
                    offsets=tuple(one.offsets[at] for at in places),
                    rows=tuple(one.rows[at] for at in places),
                    semaphores=tuple(one.semaphores[at] for at in places),
                    classes=tuple(one.classes[at] for at in places),
                )
            )
    return kept


@pytest.fixture(scope="module")
def bcc(stubs: Stubs) -> Iterator[Probed]:
    """Programs attached to three libraries, for all tests: attaching is quick, detaching is not."""
    table = ProbeTable.load()
    programs = programs_bcc.GpuPrograms(table, ProbeLimits())
    probed = Probed(programs, table)  # type: ignore[arg-type] # the other loader, of the same port
    for file, name in enumerate(("libcudart", "libcuda.so", "libnccl"), 1):
        path = stubs.library(name)
        programs.attach(file, str(path), chosen(path, table))
    yield probed
    programs.close()


@pytest.fixture
def fresh(bcc: Probed) -> Probed:
    """Nothing counted yet."""
    bcc.drain()
    bcc.drains.clear()
    return bcc


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_launches_of_several_threads_are_counted_exactly(fresh: Probed, stubs: Stubs) -> None:
    with staying(stubs.caller("libcudart"), "threads", 4, 1009) as child:
        drain = fresh.drain()
        assert {row.process for row in drain.launches} == {
            ProcessKey(child.pid, start_ns(child.pid))
        }
    of_kernel = {0x10000: 4 * 337, 0x10100: 4 * 336, 0x10200: 4 * 336}
    wanted = {(child.pid, "cudart.launch", kernel): n for kernel, n in of_kernel.items()}
    assert fresh.launches() == wanted
    assert fresh.calls() == fresh.calls("returned") == {"cudart.launch": 4036}
    assert fresh.hits() == {ProbeGroup.LAUNCH: 4036, ProbeGroup.LAUNCH_RESULT: 4036}
    assert not drain.lost
    assert set(drain.duty) >= {
        FileGroup(1, ProbeGroup.LAUNCH),
        FileGroup(2, ProbeGroup.LAUNCH_RESULT),
    }
    assert fresh.programs.attached == set(drain.duty)


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_driver_launch_within_a_runtime_launch_counts_once(fresh: Probed, stubs: Stubs) -> None:
    run(stubs.caller("libcudart", "libcuda.so"), "nested", 997)
    fresh.drain()
    assert fresh.calls() == {"cudart.launch": 997, "cuda.launch": 997}
    assert fresh.calls("nested") == {"cuda.launch": 997}
    assert fresh.calls("returned") == fresh.calls()
    assert fresh.hits()[ProbeGroup.LAUNCH] == fresh.hits()[ProbeGroup.LAUNCH_RESULT] == 3 * 997


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_failures_are_counted_by_error(fresh: Probed, stubs: Stubs) -> None:
    pid = run(stubs.caller("libcudart"), "failures")
    drain = fresh.drain()
    assert {(e.process.pid, e.call, e.code, e.failures) for e in drain.errors} == {
        (pid, "cudart.launch", 1, 3),
        (pid, "cudart.launch", 9, 5),
    }
    assert fresh.calls("failures") == {"cudart.launch": 8}


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_bytes_are_those_that_the_calls_say(fresh: Probed, stubs: Stubs) -> None:
    run(stubs.caller("libcudart"), "memory")
    run(stubs.caller("libcudart"), "copies")
    run(stubs.caller("libnccl"), "collectives")
    fresh.drain()
    sizes = fresh.calls("bytes")
    assert sizes["cudart.memset"] == 4099
    assert sizes["nccl.all_reduce"] == 2000 + 8000 + 40
    assert fresh.calls()["cudart.malloc"] == fresh.calls("returned")["cudart.malloc"]
    assert fresh.calls("failures") == {"cudart.malloc": 1}


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_rows_without_room_are_added_to_other_and_counted(stubs: Stubs) -> None:
    table = ProbeTable.load()
    limits = ProbeLimits(launches=0, calls=FULL, errors=FULL)
    programs = programs_bcc.GpuPrograms(table, limits)
    path = stubs.library("libcudart")
    entries = [one for one in chosen(path, table) if one.group is ProbeGroup.LAUNCH]
    try:
        programs.attach(1, str(path), entries)
        run(stubs.caller("libcudart"), "many", 103)
        drain: ProbeDrain = programs.drain(now_ns())
    finally:
        programs.close()
        programs.close()
    found: Counter[bool] = Counter()
    for row in drain.launches:
        found[row.process == ProcessKey(0, 0)] += row.launches
    assert sum(found.values()) == sum(c.calls for c in drain.calls if c.call == "cudart.launch")
    assert found[True] == drain.lost["call_rows"] > 0


@pytest.mark.root
@pytest.mark.kernel
def test_bcc_refuses_a_file_that_is_not_there() -> None:
    programs = programs_bcc.GpuPrograms(ProbeTable.load())
    one = Attachment(ProbeGroup.LAUNCH, False, (64,), (0,), (0,), (EntryClass.EMULATED,))
    try:
        with pytest.raises(SourceUnavailable, match="/nonexistent"):
            programs.attach(1, "/nonexistent", [one])
        assert not programs.attached
    finally:
        programs.close()


def test_bcc_code_gets_the_number_of_its_place() -> None:
    low, high = SENTINEL & 0xFFFFFFFF, SENTINEL >> 32
    load = struct.pack("<BBhI", 0x18, 1, 0, low) + struct.pack("<BBhI", 0, 0, 0, high)
    other = struct.pack("<BBhI", 0x18, 1, 0, low) + struct.pack("<BBhI", 0, 0, 0, 0)
    end = struct.pack("<BBhI", 0x95, 0, 0, 0)
    changed = at_place(other + load + end, 7 << 32 | 9)
    assert changed == other + struct.pack("<BBhIBBhI", 0x18, 1, 0, 9, 0, 0, 0, 7) + end
    for code in (end, load + load + end):
        with pytest.raises(ValueError, match="expected one place"):
            at_place(code, 1)
