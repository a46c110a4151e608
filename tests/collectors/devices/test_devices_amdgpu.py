"""amdgpu on a fake tree of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.devices.amdgpu import AmdgpuReader
from collectors.devices.device_port import ALL, DevicesUnavailable, Field
from collectors.records.basics import FailureKind


def _card(drm: Path, number: int, **files: str) -> Path:
    device = drm / f"card{number}" / "device"
    tree = {
        "vendor": "0x1002",
        "unique_id": f"{number:016x}",
        "product_name": "AMD Instinct MI300X",
        "gpu_busy_percent": "37",
        "mem_info_vram_used": "1024",
        "mem_info_vram_total": "4096",
        "current_link_width": "16",
        "max_link_width": "16",
        "hwmon/hwmon7/power1_average": "251000000",
        "hwmon/hwmon7/power1_cap": "750000000",
        "hwmon/hwmon7/temp1_input": "48000",
        "hwmon/hwmon7/freq1_input": "2100000000",
        "ras/umc_err_count": "ue: 1\nce: 12",
        "ras/gfx_err_count": "ue: 0\nce: 3",
        **{name.replace("__", "/"): text for name, text in files.items()},
    }
    for name, text in tree.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(f"{text}\n", encoding="ascii")
    return device


@pytest.fixture
def drm(tmp_path: Path) -> Path:
    folder = tmp_path / "class" / "drm"
    folder.mkdir(parents=True)
    (folder / "card0-DP-1").mkdir()
    return folder


def test_amdgpu_reads_a_card_in_the_ports_units(drm: Path) -> None:
    _card(drm, 0)
    reader = AmdgpuReader(drm)
    assert reader.open().devices == 1
    reading = reader.read(0, ALL)
    assert (reading.id, reading.model) == ("GPU-0000000000000000", "AMD Instinct MI300X")
    assert reading.values == {
        Field.UTILISATION: 37,
        Field.MEMORY_USED: 1024,
        Field.MEMORY_TOTAL: 4096,
        Field.PCIE_WIDTH: 16,
        Field.PCIE_WIDTH_MAX: 16,
        Field.POWER: 251_000,
        Field.POWER_LIMIT: 750_000,
        Field.TEMPERATURE: 48,
        Field.SM_CLOCK: 2100,
        Field.ECC_VOLATILE_CORRECTED: 15,
        Field.ECC_VOLATILE_UNCORRECTED: 1,
    }
    assert {gap.kind for gap in reading.gaps.values()} == {FailureKind.UNSUPPORTED}


@pytest.mark.parametrize(
    ("labels", "celsius"),
    [
        ({"temp1": "edge", "temp2": "junction", "temp3": "mem"}, 31),
        ({"temp2": "junction", "temp3": "mem"}, 32),
        ({"temp1": "mem", "temp3": "junction"}, 33),
        ({}, 31),
    ],
)
def test_amdgpu_sensors_are_known_by_their_labels(
    drm: Path, labels: dict[str, str], celsius: int
) -> None:
    files = {f"hwmon__hwmon3__{name}_label": label for name, label in labels.items()}
    inputs = {f"hwmon__hwmon3__temp{n}_input": f"{30 + n}000" for n in (1, 2, 3)}
    device = _card(drm, 0, **files, **inputs, hwmon__hwmon3__freq2_label="sclk",
                   hwmon__hwmon3__freq2_input="1900000000")  # fmt: skip
    (device / "hwmon/hwmon7/temp1_input").unlink()
    reader = AmdgpuReader(drm)
    reader.open()
    values = reader.read(0, ALL).values
    assert values[Field.TEMPERATURE] == celsius
    assert values[Field.SM_CLOCK] == 1_900


@pytest.mark.parametrize(
    ("file", "text", "field"),
    [
        ("hwmon__hwmon7__temp1_input", "2112000", Field.TEMPERATURE),
        ("hwmon__hwmon7__temp1_input", "-273000", Field.TEMPERATURE),
        ("hwmon__hwmon7__power1_average", "3700000000000", Field.POWER),
        ("gpu_busy_percent", "101", Field.UTILISATION),
        ("gpu_busy_percent", "-1", Field.UTILISATION),
        ("current_link_width", "255", Field.PCIE_WIDTH),
        ("ras__umc_err_count", "ue: 18446744073709551615\nce: 0", Field.ECC_VOLATILE_UNCORRECTED),
    ],
)
def test_amdgpu_values_that_no_board_has_are_gaps(
    drm: Path, file: str, text: str, field: Field
) -> None:
    _card(drm, 0, **{file: text})
    reader = AmdgpuReader(drm)
    reader.open()
    gap = reader.read(0, ALL).gaps[field]
    assert gap.kind is FailureKind.IMPLAUSIBLE
    assert "expected" in gap.reason


def test_amdgpu_power_of_newer_drivers_is_found(drm: Path) -> None:
    device = _card(drm, 0, hwmon__hwmon7__power1_input="90000000")
    (device / "hwmon/hwmon7/power1_average").unlink()
    reader = AmdgpuReader(drm)
    reader.open()
    assert reader.read(0, ALL).values[Field.POWER] == 90_000


def test_amdgpu_damaged_file_is_a_gap(drm: Path) -> None:
    _card(drm, 0, gpu_busy_percent="busy", ras__umc_err_count="nonsense")
    reader = AmdgpuReader(drm)
    reader.open()
    gaps = reader.read(0, ALL).gaps
    assert gaps[Field.UTILISATION].kind is FailureKind.FAILED
    assert gaps[Field.ECC_VOLATILE_UNCORRECTED].kind is FailureKind.FAILED


def test_amdgpu_card_that_went_is_unplugged(drm: Path) -> None:
    device = _card(drm, 0)
    reader = AmdgpuReader(drm)
    reader.open()
    device.rename(device.with_name("gone"))
    reading = reader.read(0, ALL)
    assert not reading.values
    assert {gap.kind for gap in reading.gaps.values()} == {FailureKind.UNPLUGGED}


def test_amdgpu_other_vendors_cards_are_not_its_own(drm: Path) -> None:
    _card(drm, 0, vendor="0x10de")
    with pytest.raises(DevicesUnavailable, match="no AMD device"):
        AmdgpuReader(drm).open()
    _card(drm, 1)
    assert AmdgpuReader(drm).open().devices == 1
