"""What an export says of this host: fresh fields, whose GPUs and kernels they are, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.devices.device_port import (
    DeviceReading,
    DeviceSample,
    Field,
    Measured,
    Partition,
    ProcessUse,
)
from collectors.gpu_calls.process_identity import parse_identity
from collectors.records.basics import FailureKind, ProcessKey, ReadFailure
from collectors.records.gpu_calls import CountedCalls
from collectors.records.gpu_time import EstimatedTime
from collectors.rounds import Drained
from edge_agent.export.host_numbers import (
    FRESH_NS,
    KEPT_NS,
    MOST_USERS,
    MOST_WORKLOADS,
    OTHER,
    HostNumbers,
    HostSnapshot,
    HostWorkload,
    WorkTotals,
)
from tests.calls_kit import gpu_calls, sampled_calls
from tests.export_kit import CONTAINER, IN_JOB, IN_POD, JOB, POD, MadeProc, S
from tests.gpu_times_kit import gpu_times

POWER = {Field.POWER: 300_000}
UNTOLD = ReadFailure(FailureKind.UNSUPPORTED, "not told")
BATCH, PODDED = HostWorkload(JOB), HostWorkload("", POD, CONTAINER)


@pytest.fixture
def proc(tmp_path: Path) -> MadeProc:
    made = MadeProc(tmp_path / "proc")
    made.add(7, IN_JOB)
    made.add(8, IN_POD)
    made.add(9, "0::/user.slice/user-1000.slice/session-1.scope")
    return made


@pytest.fixture
def numbers(proc: MadeProc) -> HostNumbers:
    return HostNumbers(str(proc.path))


def look(
    at_s: int,
    fields: Mapping[Field, Measured],
    processes: tuple[ProcessUse, ...] | ReadFailure | None = None,
    partitions: tuple[Partition, ...] | None = None,
) -> Drained:
    reading = DeviceReading(
        0, "GPU-1", "H100", at_s * S - 10, at_s * S, fields, processes, partitions
    )
    return Drained("devices", (), DeviceSample((reading,)))


def use(pid: int, memory: Measured = 1 << 30) -> ProcessUse:
    return ProcessUse(pid, memory, UNTOLD)


def after(numbers: HostNumbers, *drains: tuple[int, Drained]) -> HostSnapshot:
    for at_s, drained in drains:
        numbers.take(drained, at_s * S)
    return numbers.snapshot(1, drains[-1][0] * S)


def test_fields_read_seldom_stay_between_their_looks_and_go_when_they_are_stale(
    numbers: HostNumbers,
) -> None:
    numbers.take(look(100, {**POWER, Field.PCIE_REPLAYS: 3}), 100 * S)
    (gpu,) = after(numbers, (104, look(104, {Field.POWER: 310_000}))).gpus
    assert gpu.reading.values == {Field.POWER: 310_000, Field.PCIE_REPLAYS: 3}
    (gpu,) = after(numbers, (116, look(116, {Field.POWER: 320_000}))).gpus
    assert gpu.reading.values == {Field.POWER: 320_000}
    assert numbers.snapshot(1, 116 * S + FRESH_NS + 1).gpus == ()


def test_a_field_that_fails_is_gone_at_once(numbers: HostNumbers) -> None:
    lost = ReadFailure(FailureKind.UNPLUGGED, "lost")
    gone: dict[Field, Measured] = {Field.POWER: lost, Field.XID_LAST: 79}
    (gpu,) = after(numbers, (1, look(1, {**POWER, Field.XID_LAST: 0})), (2, look(2, gone))).gpus
    assert gpu.reading.values == {Field.XID_LAST: 79}
    assert gpu.reading.model == "H100"


def test_another_gpu_at_its_place_inherits_nothing(numbers: HostNumbers) -> None:
    other = look(2, {Field.FAN: 30})
    assert other.look is not None
    swapped = replace(other.look.devices[0], id="GPU-2")
    drained = Drained("devices", (), DeviceSample((swapped,)))
    (gpu,) = after(numbers, (1, look(1, POWER)), (2, drained)).gpus
    assert (gpu.reading.id, gpu.reading.values) == ("GPU-2", {Field.FAN: 30})


def test_a_gpu_is_labelled_by_the_one_workload_that_is_on_it(numbers: HostNumbers) -> None:
    (gpu,) = after(numbers, (1, look(1, POWER, (use(7), use(7, 1 << 20))))).gpus
    assert gpu.workload == BATCH
    assert gpu.memory == ((BATCH, (1 << 30) + (1 << 20)),)
    (gpu,) = after(numbers, (6, look(6, POWER, (use(7), use(8))))).gpus
    assert gpu.workload == HostWorkload(), "what two share is neither's"
    assert dict(gpu.memory) == {BATCH: 1 << 30, PODDED: 1 << 30}
    (gpu,) = after(numbers, (11, look(11, POWER, (use(7), use(9))))).gpus
    assert gpu.workload == HostWorkload()
    (gpu,) = after(numbers, (16, look(16, POWER, ()))).gpus
    assert (gpu.workload, gpu.memory) == (HostWorkload(), ())


def test_whose_a_gpu_was_is_forgotten_when_nobody_tells(numbers: HostNumbers) -> None:
    numbers.take(look(1, POWER, (use(7),)), S)
    (gpu,) = after(numbers, (2, look(2, POWER, ReadFailure(FailureKind.TIMED_OUT, "late")))).gpus
    assert gpu.workload == HostWorkload()
    numbers.take(look(3, POWER, (use(7),)), 3 * S)
    (gpu,) = after(numbers, (30, look(30, POWER))).gpus
    assert gpu.workload == HostWorkload()


def test_memory_that_is_not_told_leaves_its_workload_out(numbers: HostNumbers) -> None:
    (gpu,) = after(numbers, (1, look(1, POWER, (use(7), use(7, UNTOLD), use(8))))).gpus
    assert dict(gpu.memory) == {PODDED: 1 << 30}


def test_instances_tell_whose_their_processes_are(numbers: HostNumbers) -> None:
    parts = tuple(Partition(f"MIG-{pid}", 1, 2, (use(pid),)) for pid in (7, 8))
    (gpu,) = after(numbers, (1, look(1, POWER, (), parts))).gpus
    assert dict(gpu.memory) == {BATCH: 1 << 30, PODDED: 1 << 30}


def test_slurm_without_control_groups_is_told_by_its_variable_alone(
    numbers: HostNumbers, proc: MadeProc
) -> None:
    proc.add(10, "0::/", b"SECRET=hunter2\0SLURM_JOB_ID=991\0")
    (gpu,) = after(numbers, (1, look(1, POWER, (use(10),)))).gpus
    assert gpu.workload == HostWorkload("991")
    assert "hunter2" not in repr(vars(numbers)) + repr(gpu)


def test_processes_of_a_gpu_are_looked_at_up_to_a_bound(
    numbers: HostNumbers, proc: MadeProc
) -> None:
    for pid in range(100, 100 + 2 * MOST_USERS):
        proc.add(pid, f"0::/slurm/job_{pid}")
    many = tuple(use(pid) for pid in range(100, 100 + 2 * MOST_USERS))
    (gpu,) = after(numbers, (1, look(1, POWER, many))).gpus
    assert len(gpu.memory) == MOST_USERS


@given(name=st.text(st.characters(blacklist_characters="/\n\0"), max_size=300))
def test_a_hostile_control_group_is_no_label(name: str) -> None:
    said = parse_identity(f"0::/slurm/{name}/kubepods/{name}")
    assert len(said.slurm_job) <= 10
    assert len(said.pod) <= 36
    assert len(said.container) in {0, 64}


def test_launches_and_time_add_up_by_workload_and_family(
    numbers: HostNumbers, proc: MadeProc
) -> None:
    times = gpu_times()
    moved = times.processes[0]._replace(process=ProcessKey(7, 70_000_000 + 5))
    drained = Drained("gpu_time", (replace(times, processes=(moved,)),))
    calls = Drained("probes", (gpu_calls(), sampled_calls()))
    found = after(numbers, (1, calls), (2, calls), (3, drained), (4, drained)).families
    rows = {(row.workload, row.family): row for row in found}
    trainer = HostWorkload("77", "0f0f0f0f-0000", "c" * 64)
    assert rows[trainer, "gemm"].launches == 2_000
    assert rows[trainer, "gemm"].launches_variance == 0
    assert (rows[trainer, "gemm"].launches_below, rows[trainer, "gemm"].launches_above) == (0, 0)
    assert rows[trainer, "gemm"].time_s is None
    assert rows[HostWorkload(), "attention"].launches == 4_000
    assert rows[HostWorkload(), "attention"].launches_variance == 20_000
    assert rows[BATCH, "gemm"].time_s == pytest.approx(1.8)
    assert rows[BATCH, "gemm"].time_variance_s2 == pytest.approx(2 * 0.006**2)
    assert rows[BATCH, "memcpy"].time_s == pytest.approx(0.2)
    assert rows[BATCH, "memcpy"].time_variance_s2 is None, "no window told how sure it is"
    assert rows[BATCH, "gemm"].launches is None


def test_a_counter_of_estimates_never_falls() -> None:
    totals = WorkTotals()
    shown = []
    for value in (5e9, -3e9, 1e9, 4e9):
        totals.add_time(BATCH, "gemm", EstimatedTime(value, 1e18, 8, S), 1)
        (row,) = totals.rows(1)
        shown.append(row.time_s)
    assert shown == [5.0, 5.0, 5.0, 7.0]


def test_workloads_beyond_the_bound_are_one_and_end_after_a_while() -> None:
    totals = WorkTotals()
    for number in range(3 * MOST_WORKLOADS):
        totals.add_launches(HostWorkload(str(number)), "gemm", CountedCalls.exactly(1), number)
    rows = list(totals.rows(3 * MOST_WORKLOADS))
    assert len(rows) == MOST_WORKLOADS + 1
    (other,) = [row for row in rows if row.workload == OTHER]
    assert other.launches == 2 * MOST_WORKLOADS
    late = KEPT_NS + MOST_WORKLOADS
    assert [row.workload for row in totals.rows(late)] == [OTHER]
    totals.add_launches(HostWorkload("new"), "gemm", CountedCalls.exactly(1), late)
    assert HostWorkload("new") in [row.workload for row in totals.rows(late)]
