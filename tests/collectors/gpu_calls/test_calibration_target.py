"""The machine code that probe costs are measured on: right classes, callable, refused elsewhere."""

import platform
from pathlib import Path

import pytest

from collectors.binaries import elf_file
from collectors.binaries.elf_file import EntryClass
from collectors.gpu_calls.costs import _CODE, CalibrationTarget, calibrate
from collectors.interface import SourceUnavailable


class Counter:
    """Counts what would be attached."""

    def __init__(self) -> None:
        self.attached: list[tuple[int, bool]] = []

    def __call__(self, path: str, offset: int, returns: bool) -> "Counter":
        assert Path(path).stat().st_size >= offset
        self.attached.append((offset, returns))
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("machine", sorted(_CODE))
def test_calibration_code_is_of_the_classes_it_names(machine: str) -> None:
    classify = {"x86_64": elf_file.x86_64_entry, "aarch64": elf_file.arm64_entry}[machine]
    for kind, code in _CODE[machine].items():
        if isinstance(kind, EntryClass):
            assert classify(bytes.fromhex(code)) is kind


def test_calibration_target_calls_each_function() -> None:
    target = CalibrationTarget()
    for kind in target.classes:
        assert 0.0 < target.call(kind, 1_000) < 1e6
    target.close()


def test_calibration_target_file_holds_the_code_at_the_offsets() -> None:
    target = CalibrationTarget()
    with Path(target.path).open("rb") as file:
        for kind in target.classes:
            file.seek(target.offset(kind))
            wanted = bytes.fromhex(_CODE[platform.machine()][kind])
            assert file.read(len(wanted)) == wanted
    target.close()


def test_calibrate_measures_entry_and_return_of_every_class() -> None:
    target, attach = CalibrationTarget(), Counter()
    costs = calibrate(target, attach, calls=50)
    assert set(costs) == set(target.classes)
    assert {offset for offset, _ in attach.attached} == {target.offset(k) for k in target.classes}
    assert all(cost.return_ns >= 0.0 for cost in costs.values())
    target.close()


def test_calibration_target_refuses_an_unknown_machine() -> None:
    with pytest.raises(SourceUnavailable, match="expected x86_64 or aarch64"):
        CalibrationTarget("riscv64")
