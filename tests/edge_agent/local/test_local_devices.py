"""Devices on the local views: users, instances, gaps; each look once, in top and in the history."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from collectors.devices.device_port import (
    DeviceReading,
    DeviceSample,
    Field,
    Measured,
    Partition,
    ProcessUse,
)
from collectors.records.basics import FailureKind, ReadFailure
from edge_agent.agent_runtime import AgentStatus
from edge_agent.local.gathering import MOST_USES, DeviceRows, read_use_key
from edge_agent.local.history import History
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.local_rows import EventRow, MetricRow, Row
from edge_agent.local.proc_view import HostSampler
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import document
from edge_agent.sending.effects import AgentTally
from edge_agent.service.reload import SelfStatus, StatusCollector
from pointillist.cli.agent_top import picture
from tests.local_kit import BOOT, POINT, S, at

ID = "0123456789abcdef" * 4
SHARED = (
    ProcessUse(7, 3 << 30, 60, f"/docker/{ID}", "train me"),
    ProcessUse(8, 1 << 30, 20, f"/docker/{ID}", "eval"),
)
GAPS = {"timed_out": 4, "unplugged": 2}
UNTOLD = ReadFailure(FailureKind.UNSUPPORTED, "Not Supported")
INSTANCES = (
    Partition("MIG-a", 2 << 30, 10 << 30, (ProcessUse(9, 1 << 20, UNTOLD, "/", "x"),), 55),
)


def _reading(
    at_s: int,
    fields: dict[Field, Measured] | None = None,
    processes: tuple[ProcessUse, ...] | None = None,
    partitions: tuple[Partition, ...] | None = None,
) -> DeviceReading:
    at_ns = BOOT + at_s * S
    measured: dict[Field, Measured] = {Field.ECC_VOLATILE_UNCORRECTED: 5, **(fields or {})}
    return DeviceReading(
        0, "GPU-1", "H100", at_ns - 10, at_ns, measured, processes, partitions
    )  # fmt: skip


def _values(rows: list[Row]) -> dict[str, float]:
    return {f"{r.name} {r.key}": r.value for r in rows if isinstance(r, MetricRow)}


def test_device_rows_name_process_container_and_instance() -> None:
    rows = DeviceRows()
    shared = list(rows.rows("devices", DeviceSample((_reading(0, None, SHARED, ()),))))
    found = _values(shared)
    assert found[f"gpu_process.memory_bytes GPU-1 7 {ID} train me"] == 3 << 30
    assert found[f"gpu_process.sm_percent GPU-1 8 {ID} eval"] == 20
    assert found[f"gpu_container.memory_bytes GPU-1 0 {ID} "] == 4 << 30
    assert found[f"gpu_container.sm_percent GPU-1 0 {ID} "] == 80
    (said,) = [row for row in shared if isinstance(row, EventRow)]
    assert (said.name, said.key) == ("gpu_use_not_told", "GPU-1")
    assert said.detail.startswith("time-slicing: 2 processes")
    mig = list(rows.rows("devices", DeviceSample((_reading(1, None, (), INSTANCES),))))
    found = _values(mig)
    assert found["gpu_instance.memory_used_bytes MIG-a GPU-1"] == 2 << 30
    assert found["gpu_process.memory_bytes MIG-a 9 - x"] == 1 << 20
    assert found["gpu_instance.sm_percent MIG-a GPU-1"] == 55
    assert not [name for name in found if name.startswith("gpu_process.sm_percent")]
    assert rows.not_told["GPU-1"][0].startswith("MIG:")


def test_device_rows_say_a_limit_once_and_again_when_it_comes_back() -> None:
    rows, said = DeviceRows(), []
    looks: tuple[tuple[ProcessUse, ...] | None, ...] = (SHARED, None, SHARED, (), SHARED)
    for at_s, processes in enumerate(looks):
        source = DeviceSample((_reading(at_s, None, processes, ()),))
        said.append(sum(isinstance(r, EventRow) for r in rows.rows("devices", source)))
    assert said == [1, 0, 0, 0, 1]


def test_device_rows_of_a_crowded_gpu_are_bounded_and_say_so() -> None:
    crowd = tuple(ProcessUse(pid, pid, 1, "/", "p") for pid in range(1, 101))
    rows = list(DeviceRows().rows("devices", DeviceSample((_reading(0, None, crowd, ()),))))
    found = _values(rows)
    assert found["gpu_process.not_shown GPU-1"] == 100 - MOST_USES
    assert sum(name.startswith("gpu_process.memory_bytes") for name in found) == MOST_USES
    assert "gpu_process.memory_bytes GPU-1 100 - p" in found


def test_device_rows_tell_a_gap_once_and_count_every_one() -> None:
    lost: dict[Field, Measured] = dict.fromkeys(
        (Field.POWER, Field.TEMPERATURE), ReadFailure(FailureKind.UNPLUGGED, "GPU is lost")
    )
    back: dict[Field, Measured] = {Field.POWER: 1}
    rows, told = DeviceRows(), []
    unplugged, unsupported = FailureKind.UNPLUGGED, FailureKind.UNSUPPORTED
    gaps = Counter({(Field.POWER, unplugged): 2, (Field.FAN, unsupported): 3})
    for at_s, fields in enumerate((lost, lost, back, lost)):
        source = DeviceSample((_reading(at_s, {**fields, Field.FAN: UNTOLD}),), gaps)
        events = [r for r in rows.rows("devices", source) if isinstance(r, EventRow)]
        told.append([f"{event.name}: {event.detail}" for event in events])
    line = "gpu_gap: 2 fields: unplugged, GPU is lost"
    assert told == [[line], [], [], [line]]
    assert rows.gap_counts == {"unplugged": 2, "unsupported": 3}


def test_view_takes_back_at_once_what_failed_and_who_ended() -> None:
    """Neither waits for the ten seconds after which any value is old."""
    lost: dict[Field, Measured] = {Field.POWER: ReadFailure(FailureKind.UNPLUGGED, "GPU is lost")}
    rows, recent, shown = DeviceRows(), Recent(), []
    looks = (
        _reading(0, {Field.POWER: 300_000}, SHARED, ()),
        _reading(1, lost, SHARED[:1], ()),
        _reading(2, {Field.POWER: 310_000}),
    )
    for reading in looks:
        recent.add(rows.rows("devices", DeviceSample((reading,))))
        recent.withdraw(rows.withdrawn())
        levels = recent.view(at(BOOT + 3 * S)).levels
        power = [level.last for level in levels if level.name == "gpu.power_mw"]
        users = sum(level.name == "gpu_process.memory_bytes" for level in levels)
        shown.append((power, users))
    assert shown == [([300_000], 2), ([], 1), ([310_000], 1)]


def test_device_use_key_is_read_back() -> None:
    assert read_use_key(f"GPU-1 7 {ID} train me") == ("GPU-1", "7", ID, "train me")
    assert read_use_key("odd") == ("odd", "", "", "")


def test_top_shows_who_uses_a_gpu_and_what_is_not_told() -> None:
    rows, recent = DeviceRows(), Recent()
    recent.add(rows.rows("devices", DeviceSample((_reading(0, None, SHARED, ()),))))
    recent.add(rows.rows("devices", DeviceSample((_reading(1, None, (), INSTANCES),))))
    live = recent.view(at(BOOT + S))
    view = document(replace(live, models=rows.models, gpu_use_not_told=rows.not_told))
    console = Console(width=240)
    with console.capture() as captured:
        console.print(picture(HostSampler().view(), view, "", 240))
    shown = captured.get()
    gpu = shown[shown.index("GPU ──") :]
    assert "train me" in gpu
    assert ID[:12] in gpu
    assert "3,072" in gpu
    assert "MIG-a" in gpu
    assert "no SM share by process" in gpu
    line = next(one for one in gpu.splitlines() if "H100" in one)
    assert " 5 " in line  # uncorrected ECC errors


def test_history_keeps_who_used_a_gpu(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite", boot=lambda: "boot-1")
    history.note_clock(POINT)
    source = DeviceSample((_reading(0, None, SHARED, ()),))
    history.add(DeviceRows().rows("devices", source))
    with HistoryReader(tmp_path / "history.sqlite") as reader:
        held = list(reader.rows("metric", name="gpu_process.memory_bytes"))
        said = list(reader.rows("event", name="gpu_use_not_told"))
    history.close()
    assert {row["key"].split(" ", 3)[3]: row["value"] for row in held} == {
        "train me": 3 << 30, "eval": 1 << 30,
    }  # fmt: skip
    assert len(said) == 1


def test_self_metrics_count_device_gaps_by_kind() -> None:
    status = SelfStatus(AgentStatus((), AgentTally(), 0, 0, 0, None, True), device_gaps=GAPS)
    families = {one.name: one for one in StatusCollector(lambda: status).collect()}
    samples = families["pointillist_agent_device_gaps"].samples
    assert {one.labels["kind"]: one.value for one in samples} == GAPS
