"""One look at everything that sysfs tells of this host's hardware."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from collectors.kernel_files import Tree, offered
from collectors.records.gap import Gap, GapKind

from .fault_findings import UNLISTED, Count, FailedReading, Finding, Probe, State
from .links import network, pcie
from .nvme import ReadSmart, read_smart, storage

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
            yield FailedReading(name, subject, found)
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
            yield FailedReading("sensor_fault", subject, bad)
            continue
        cell = "power_supply" if supply else _CELLS.get(label, _BOARD)
        # A header without a fan or diode reports a fault for ever: it must have been seen good.
        yield State("sensor_fault", subject, cell, bad != 0, file, from_start=supply)


INTERRUPTS: Final = "proc/interrupts"
_LINE: Final = re.compile(r"^ *MCE:((?: +\d+)+) +Machine check", re.ASCII)
_LONGEST_LINE: Final = 1 << 16


def processor(tree: Tree) -> Iterator[Finding]:
    """Give the exceptions of all CPUs.

    A count without a class: most that a machine survives are of memory, and which part it was only
    the log tells. A kernel without the line (no x86) gives nothing.
    """
    try:
        with (tree.root / INTERRUPTS).open(encoding="ascii", errors="replace") as stream:
            while line := stream.readline(_LONGEST_LINE):
                if found := _LINE.match(line):
                    value = sum(map(int, found[1].split()))
                    yield Count("machine_check_exceptions", "cpu", value, None)
                    return
    except OSError as error:
        gap = Gap(GapKind.FAILED, f"{INTERRUPTS}: {error.strerror}")
        yield FailedReading("machine_check_exceptions", "cpu", gap)


FOLDER: Final = "sys/devices/system/edac/mc"
CORRECTED_PER_DAY: Final = 100
"""Corrected errors of one controller in 24 hours that are no fault: mcelog's limit of a socket."""
_CONTROLLER: Final = re.compile(r"mc\d{1,4}")
_COUNTERS: Final = (
    ("memory_corrected", "ce_count", CORRECTED_PER_DAY),
    ("memory_uncorrected", "ue_count", 0),
)


def memory(tree: Tree) -> Iterator[Finding]:
    """Give both counters of each controller."""
    for controller in filter(_CONTROLLER.fullmatch, tree.entries(FOLDER)):
        for name, file, per_day in _COUNTERS:
            value = tree.number(f"{FOLDER}/{controller}/{file}")
            if not isinstance(value, Gap):
                yield Count(name, controller, value, "system_memory", per_day)
            elif offered(value):
                yield FailedReading(name, controller, value)


MOST_FINDINGS: Final = 16_384


def probes(smart: ReadSmart = read_smart) -> Mapping[str, Probe]:
    """Give every probe by the part of the host it looks at."""
    return {
        "memory": memory,
        "processor": processor,
        "pcie": pcie,
        "storage": storage(smart),
        "power": power,
        "network": network,
    }


def look(tree: Tree, smart: ReadSmart = read_smart) -> list[Finding]:
    """Ask every probe; a folder that could not be listed is a reading that failed."""
    tree.closed.clear()
    found = [finding for probe in probes(smart).values() for finding in probe(tree)]
    closed = [FailedReading(UNLISTED, folder, gap) for folder, gap in tree.closed.items()]
    return [*closed, *found][:MOST_FINDINGS]
