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
