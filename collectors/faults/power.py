"""Power supplies, fans and sensors: the power_supply class and what hwmon chips call a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.records.gap import Gap

from .port import Finding, Miss, State
from .sysfs import Tree, offered

SUPPLIES: Final = "sys/class/power_supply"
CHIPS: Final = "sys/class/hwmon"
_HEALTHY: Final = frozenset({"Good", "Unknown", "Cold", "Cool", "Warm", "Calibration required"})
_FAULT: Final = re.compile(r"(?:fan|temp|in|curr|power)\d{1,3}_fault")
_ALARM: Final = re.compile(r"(?:in|curr|power)\d{1,3}(?:_(?:l?crit|min|max|input))?_alarm")
_PSU_CHIPS: Final = re.compile(
    r"cffps\d?|crps|fsg032|pfe[13]\d{3}|d[13]u\w*|dps920ab|dps800|ipsps\d?|y[hm]\d{4}e"
)
"""Names that PMBus drivers of power supplies give their chips: there an alarm is a fault, on a
board's own monitor it is often an input that nobody connected."""
_CELLS: Final = {
    "nvme": "ssd", "drivetemp": "ssd", "coretemp": "cpu", "k10temp": "cpu", "zenpower": "cpu",
    "jc42": "system_memory", "spd5118": "system_memory",
    "amdgpu": "gpu_thermal_interface_and_sensor", "nouveau": "gpu_thermal_interface_and_sensor",
    "xe": "gpu_thermal_interface_and_sensor", "i915": "gpu_thermal_interface_and_sensor",
}  # fmt: skip
_BOARD: Final = "server_chassis"


def power(tree: Tree) -> Iterator[Finding]:
    """Give the state of each power supply, fan and sensor that can report a fault."""
    names = tree.entries(SUPPLIES)
    kinds = {name: tree.text(f"{SUPPLIES}/{name}/type") for name in names}
    portable = "Battery" in kinds.values()
    for name, kind in kinds.items():
        folder = f"{SUPPLIES}/{name}"
        yield from _read(tree, f"{folder}/health", "power_supply_health", name)
        if kind == "Mains" and not portable:  # who unplugs a laptop has no fault
            yield from _read(tree, f"{folder}/online", "power_supply_offline", name)
    for chip in tree.entries(CHIPS):
        yield from _chip(tree, chip)


def _read(tree: Tree, path: str, name: str, subject: str) -> Iterator[Finding]:
    found = tree.text(path)
    if isinstance(found, Gap):
        if offered(found):
            yield Miss(name, subject, found)
        return
    if name == "power_supply_offline":
        yield State(name, subject, "power_supply", found == "0", "offline", from_start=False)
    else:
        yield State(name, subject, "power_supply", found not in _HEALTHY, found[:40])


def _chip(tree: Tree, chip: str) -> Iterator[Finding]:
    named = tree.text(f"{CHIPS}/{chip}/name")
    label = chip if isinstance(named, Gap) else named[:40]
    supply = _PSU_CHIPS.fullmatch(label) is not None
    for file in tree.entries(f"{CHIPS}/{chip}"):
        is_fault = _FAULT.fullmatch(file) is not None
        if not is_fault and not (supply and _ALARM.fullmatch(file)):
            continue
        subject = f"{chip}/{label}/{file}"
        bad = tree.number(f"{CHIPS}/{chip}/{file}")
        if isinstance(bad, Gap):
            yield Miss("sensor_fault", subject, bad)
            continue
        cell = "power_supply" if supply else _CELLS.get(label, _BOARD)
        # A header without a fan or diode reports a fault for ever: it must have been seen good.
        yield State("sensor_fault", subject, cell, bad != 0, file, from_start=supply)
