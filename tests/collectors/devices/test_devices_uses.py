"""Who uses a device: processes, containers, MIG instances, and what is not told, in words."""

from __future__ import annotations

import pytest

from collectors.devices.device_port import DeviceReading, Field, Measured, Partition, ProcessUse
from collectors.devices.devices_source import by_container, container_of, document, limits, uses
from collectors.devices.otel import points
from collectors.records.basics import FailureKind, ReadFailure

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
NONE = ReadFailure(FailureKind.UNSUPPORTED, "Not Supported")


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"/docker/{ID}", ID),
        (f"/system.slice/docker-{ID}.scope", ID),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", ID),
        (f"/kubepods/burstable/pod77/{ID}", ID),
        (f"/machine.slice/libpod-{ID}.scope/container", ID),
        (f"/docker/{OTHER}/docker/{ID}", ID),
        ("/lxc.payload.train/init.scope", "train"),
        ("/lxc/train", "train"),
        ("/machine.slice/machine-train.scope", "train"),
        ("/user.slice/user-1000.slice/session-2.scope", ""),
        (f"/x/{ID}0", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_uses_container_is_read_from_the_control_group(cgroup: str, container: str) -> None:
    assert container_of(cgroup) == container


def _process(
    pid: int, memory: int | ReadFailure, share: int | ReadFailure, container: str = ""
) -> ProcessUse:
    return ProcessUse(pid, memory, share, f"/docker/{container}", f"p{pid}")


def _reading(
    processes: tuple[ProcessUse, ...] | ReadFailure | None,
    partitions: tuple[Partition, ...] | ReadFailure | None = (),
) -> DeviceReading:
    return DeviceReading(0, "GPU-a", "H100", 1, 2, {Field.MIG: 1}, processes, partitions)


def test_uses_of_a_shared_gpu_are_by_process_and_container() -> None:
    reading = _reading(
        (_process(1, 100, 30, ID), _process(2, 50, 20, ID), _process(3, 7, 50, OTHER))
    )
    assert [(one.pid, one.unit, one.container) for one in uses(reading)] == [
        (1, "GPU-a", ID), (2, "GPU-a", ID), (3, "GPU-a", OTHER),
    ]  # fmt: skip
    sums = {
        one.container: (one.memory_bytes, one.sm_percent) for one in by_container(uses(reading))
    }
    assert sums == {ID: (150, 50), OTHER: (7, 50)}
    (said,) = limits(reading)
    assert said.startswith("time-slicing: 3 processes take turns")


def test_uses_of_one_process_alone_need_no_words() -> None:
    assert limits(_reading((_process(1, 100, 30),))) == []
    assert limits(_reading(())) == []
    assert limits(_reading(None)) == []


def test_uses_under_mig_are_by_instance_and_say_that_shares_are_not_told() -> None:
    inside = (_process(1, 100, NONE, ID), _process(2, 50, NONE, ID))
    parts = (
        Partition("MIG-a", 150, 1000, inside),
        Partition("MIG-b", NONE, NONE, ReadFailure(FailureKind.NO_PERMISSION, "not allowed")),
    )
    # NVML lists the processes of the instances for the whole GPU too: each counts once.
    reading = _reading(inside, parts)
    assert [(one.unit, one.pid) for one in uses(reading)] == [("MIG-a", 1), ("MIG-a", 2)]
    (summed,) = by_container(uses(reading))
    assert (summed.unit, summed.memory_bytes, summed.sm_percent) == ("MIG-a", 150, NONE)
    first, second = limits(reading)
    assert first.endswith("the SM share by neither")
    shared = Partition("MIG-a", 150, 1000, (), 40)
    not_yet = Partition("MIG-a", 150, 1000, (), ReadFailure(FailureKind.NOT_YET, "first"))
    for part in (shared, not_yet):
        assert limits(_reading((), (part,)))[0].endswith("the SM share by instance")
    assert second == "MIG-b: no processes: not allowed"


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (_reading(NONE), "no processes: Not Supported"),
        (_reading((_process(1, 9, NONE),)), "the driver gives no SM share by process here"),
        (_reading((_process(1, NONE, 9),)), "the driver gives no memory by process here"),
        (_reading((), NONE), "MIG instances: Not Supported"),
        (
            _reading((ProcessUse(4, 9, 9),)),
            "1 processes are not visible from here (another PID namespace)",
        ),
    ],
)
def test_uses_that_are_not_told_are_said(reading: DeviceReading, said: str) -> None:
    assert limits(reading) == [said]


def test_uses_document_has_words_for_gaps_and_numbers_for_the_rest() -> None:
    found = document(_reading((_process(1, 100, NONE, ID),)))
    assert found["processes"] == [
        {"on": "GPU-a", "pid": 1, "name": "p1", "container": ID, "memory_bytes": 100,
         "sm_percent": "unsupported: Not Supported"}
    ]  # fmt: skip
    assert found["containers"][0]["memory_bytes"] == 100
    assert found["not_told"] == ["the driver gives no SM share by process here"]


def test_otel_points_have_its_units_and_dcgms_id_and_no_gap() -> None:
    fields: dict[Field, Measured] = {
        Field.POWER: 312_500, Field.UTILISATION: 40, Field.TEMPERATURE: NONE,
        Field.ECC_VOLATILE_UNCORRECTED: 2, Field.NVLINK_TX: 7, Field.SM_CLOCK: 1980,
    }  # fmt: skip
    found = points(DeviceReading(0, "GPU-a", "H100", 1, 2, fields))
    assert {(one["name"], one["value"], one["unit"]) for one in found} == {
        ("hw.power", 312.5, "W"), ("hw.gpu.utilization", 0.4, "1"),
        ("hw.errors", 2, "{error}"), ("hw.gpu.io", 7, "By"),
    }  # fmt: skip
    assert {one["attributes"]["hw.id"] for one in found} == {"GPU-a"}
    (errors,) = [one for one in found if one["name"] == "hw.errors"]
    assert errors["attributes"]["error.type"] == "uncorrected"


def test_uses_have_names_that_a_terminal_only_shows() -> None:
    """A process chooses its name, and who may make a control group its path."""
    hostile = ProcessUse(7, 1, 2, "/lxc/a\x1b[2Jb\x9b", "\x1b]0;x\x07py\u202e")
    found = uses(DeviceReading(0, "GPU-1", "", 0, 0, {}, (hostile,)))
    assert found[0].name == r"\x1b]0;x\x07py\u202e"
    assert found[0].container == r"a\x1b[2Jb\x9b"
