"""AMD devices by sysfs: the amdgpu driver's files and its hwmon folder; no library, no root."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from collectors.boot_clock import boottime_ns
from collectors.kernel_files import Tree
from collectors.records.basics import FailureKind, ReadFailure

from .device_port import (
    AMD,
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
    Measured,
    plausible,
)

MOST_DEVICES: Final = 64
_UW_PER_MW: Final = 1_000
_MILLI: Final = 1_000
_HZ_PER_MHZ: Final = 1_000_000
_VENDOR: Final = "0x1002"

_FILES: Final[dict[Field, tuple[str, int]]] = {
    Field.UTILISATION: ("gpu_busy_percent", 1),
    Field.MEMORY_BUSY: ("mem_busy_percent", 1),
    Field.MEMORY_USED: ("mem_info_vram_used", 1),
    Field.MEMORY_TOTAL: ("mem_info_vram_total", 1),
    Field.PCIE_WIDTH: ("current_link_width", 1),
    Field.PCIE_WIDTH_MAX: ("max_link_width", 1),
    Field.SM_CLOCK: ("hwmon/freq=sclk|hwmon/freq1_input", _HZ_PER_MHZ),
    Field.MEMORY_CLOCK: ("hwmon/freq=mclk|hwmon/freq2_input", _HZ_PER_MHZ),
    Field.POWER: ("hwmon/power1_average|hwmon/power1_input", _UW_PER_MW),
    Field.POWER_LIMIT: ("hwmon/power1_cap", _UW_PER_MW),
    Field.TEMPERATURE: ("hwmon/temp=edge|hwmon/temp=junction|hwmon/temp1_input", _MILLI),
}
"""Field -> (file, or several of which the first that is there counts; its units per ours).

`temp=edge` is the sensor so labelled: which has which number differs, and MI300 has no first one.
"""

_NO_FILE: Final = ReadFailure(FailureKind.UNSUPPORTED, "amdgpu has no file for it")


class AmdgpuReader:
    def __init__(self, folder: Path = Path("/sys/class/drm")) -> None:
        self._folder = folder
        self._cards: list[Path] = []

    def open(self) -> Inventory:
        cards = self._folder.glob("card[0-9]*") if self._folder.is_dir() else ()
        devices = [card / "device" for card in cards if card.name[4:].isdigit()]
        found = [device for device in devices if _text(device / "vendor") == _VENDOR]
        # By PCI address where it shows: the numbers of cards change from start to start.
        self._cards = sorted(found, key=lambda device: device.resolve().name)[:MOST_DEVICES]
        if not self._cards:
            raise DevicesUnavailable(f"amdgpu: no AMD device in {self._folder}")
        version = _text(self._folder.parent.parent / "module" / "amdgpu" / "version")
        return Inventory(len(self._cards), version)

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        begin_ns = boottime_ns()
        device = self._cards[index]
        gone = not device.is_dir()
        unplugged = ReadFailure(FailureKind.UNPLUGGED, "its folder is gone")
        measured = {name: unplugged if gone else _field(device, name) for name in fields}
        unique = _text(device / "unique_id")
        model = _text(device / "product_name")
        untold = ReadFailure(FailureKind.UNSUPPORTED, "amdgpu's files do not list processes")
        return DeviceReading(
            index,
            f"index-{index}" if isinstance(unique, ReadFailure) or not unique else f"GPU-{unique}",
            "" if isinstance(model, ReadFailure) else model,
            begin_ns,
            boottime_ns(),
            plausible(measured),
            untold if processes else None,
            () if processes else None,
            AMD,
        )

    def close(self) -> None:
        self._cards = []


def _field(device: Path, name: Field) -> Measured:
    ecc = _ECC.get(name)
    if ecc is not None:
        return _ecc(device, ecc)
    names, per_unit = _FILES.get(name, ("", 1))
    gap = _NO_FILE
    for file in _candidates(device, names):
        text = _text(file)
        if isinstance(text, ReadFailure):
            gap = text if gap is _NO_FILE or text.kind is not FailureKind.UNSUPPORTED else gap
            continue
        try:
            return int(text) // per_unit
        except ValueError:
            said = f"{file.name}: expected a number, got {text[:40]!r}"
            gap = ReadFailure(FailureKind.FAILED, said)
    return gap


def _candidates(device: Path, names: str) -> Iterator[Path]:
    for name in filter(None, names.split("|")):
        if not name.startswith("hwmon/"):
            yield device / name
            continue
        sensor, _, label = name[6:].partition("=")
        for folder in sorted((device / "hwmon").glob("hwmon*")):
            if label:
                labels = sorted(folder.glob(f"{sensor}[0-9]*_label"))
                found = (one.name for one in labels if _text(one) == label)
                yield from (folder / one.replace("_label", "_input") for one in found)
            else:
                yield folder / sensor


_ECC: Final = {Field.ECC_VOLATILE_CORRECTED: "ce:", Field.ECC_VOLATILE_UNCORRECTED: "ue:"}


def _ecc(device: Path, kind: str) -> Measured:
    """Sum the blocks' counts since the driver was loaded: lines `ue: N` and `ce: N`."""
    blocks = sorted((device / "ras").glob("*_err_count"))
    total = 0
    for block in blocks:
        text = _text(block)
        if isinstance(text, ReadFailure):
            return text
        counts = [line.split()[1] for line in text.splitlines() if line.startswith(f"{kind} ")]
        if len(counts) != 1 or not counts[0].isdecimal():
            return ReadFailure(FailureKind.FAILED, f"{block.name}: expected one line {kind!r}")
        total += int(counts[0])
    if blocks:
        return total
    return ReadFailure(FailureKind.UNSUPPORTED, "this device has no RAS counters")


def _text(file: Path) -> str | ReadFailure:
    return Tree(file.parent).text(file.name)
