"""Compare what the device port reads on a real GPU with nvidia-smi, within its resolution.

`python3 -m scripts.gpu_check` needs the standard library alone and `pynvml`, which comes from the
machine or from .tools/gpu, as `make gpu-kit` leaves it there or as a wheel (a zip that Python
imports from). It also measures the bandwidth to each GPU and back. Exit code 0: as nvidia-smi has
it; 1: not; 2: it could not be checked; 77: there is no GPU here. With GPU_CHECK_OUT=FOLDER
everything that was read is written to FOLDER/gpu_check.json.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

from bench.record import Figure
from collectors.devices.bandwidth import measure_all
from collectors.devices.bounded import BoundedReader, Spawner
from collectors.devices.device_port import (
    ALL,
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
)
from collectors.devices.node_health import check_node, machine_types
from collectors.kernel_log import gpu_signs
from collectors.records.basics import ReadFailure
from scripts import gpu_present
from scripts.gpu_present import AS_EXPECTED, DIFFERENT, KIT, NO_GPU, OUT, UNCHECKED

TRIES: Final = 10
"""Looks at a value that moves: nvidia-smi's must lie between two of ours in one of them."""

_MODES: Final = {"Enabled": 1, "Disabled": 0}


@dataclass(frozen=True, slots=True)
class Compared:
    """A field of the port and nvidia-smi's name for it.

    per_unit    units of ours in one of nvidia-smi's
    resolution  the last digit that nvidia-smi prints, in its unit
    """

    field: str
    smi: str
    per_unit: float = 1
    resolution: float = 0


_MIB: Final = 1 << 20
COMPARED: Final = (
    Compared("memory_total_bytes", "memory.total", _MIB, 1),
    Compared("memory_used_bytes", "memory.used", _MIB, 1),
    Compared("utilisation_percent", "utilization.gpu"),
    Compared("memory_busy_percent", "utilization.memory"),
    Compared("power_mw", "power.draw", 1_000, 0.01),
    Compared("power_limit_mw", "enforced.power.limit", 1_000, 0.01),
    Compared("temperature_celsius", "temperature.gpu"),
    Compared("fan_percent", "fan.speed"),
    Compared("sm_clock_mhz", "clocks.sm"),
    Compared("memory_clock_mhz", "clocks.mem"),
    Compared("sm_clock_max_mhz", "clocks.max.sm"),
    Compared("pcie_width", "pcie.link.width.current"),
    Compared("pcie_width_max", "pcie.link.width.max"),
    Compared("pcie_generation", "pcie.link.gen.current"),
    Compared("pcie_generation_max", "pcie.link.gen.max"),
    Compared("throttle_reasons", "clocks_throttle_reasons.active"),
    Compared("ecc_volatile_corrected", "ecc.errors.corrected.volatile.total"),
    Compared("ecc_volatile_uncorrected", "ecc.errors.uncorrected.volatile.total"),
    Compared("ecc_aggregate_corrected", "ecc.errors.corrected.aggregate.total"),
    Compared("ecc_aggregate_uncorrected", "ecc.errors.uncorrected.aggregate.total"),
    Compared("mig_enabled", "mig.mode.current"),
)
NAMES: Final = ("uuid", "name", "driver_version")


@dataclass
class Found:
    differences: list[str] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    health: list[dict[str, str]] = field(default_factory=list)
    driver: str = ""
    library: str = ""

    def differs(self, line: str) -> None:
        self.differences.append(line)
        print(f"gpu-check: {line}")


def main() -> int:
    """Compare, print one line per difference, and write what was found."""
    if not gpu_present.ready("gpu-check"):
        return NO_GPU
    if shutil.which("nvidia-smi") is None:
        print("gpu-check: this machine has no nvidia-smi")
        return NO_GPU
    try:
        found = check()
    except ModuleNotFoundError as error:
        print(f"gpu-check: expected {error.name}: `make gpu-kit` puts it into {KIT}")
        return UNCHECKED
    except (DevicesUnavailable, OSError, subprocess.SubprocessError) as error:
        print(f"gpu-check: not checked: {error}")
        return UNCHECKED
    write(found)
    bad = len(found.differences)
    print("gpu-check: " + (f"{bad} differences" if bad else "as nvidia-smi has it"))
    return DIFFERENT if bad else AS_EXPECTED


def check() -> Found:
    """Read every GPU, ask nvidia-smi, and measure the bandwidth."""
    from collectors.devices.nvml import NvmlReader

    spawner = Spawner()
    reader = BoundedReader(NvmlReader, spawner, deadline_s=20)
    try:
        inventory = reader.open()
        found = Found(driver=str(inventory.driver), library=str(inventory.library))
        print(f"gpu-check: {inventory.devices} GPUs, driver {inventory.driver}")
        readings = [
            _gpu(found, index, inventory, partial(reader.read, index, ALL))
            for index in range(inventory.devices)
        ]
        bandwidths = measure_all([reading.id for reading in readings], spawner)
        for reading, measured, gpu in zip(readings, bandwidths, found.gpus, strict=True):
            if isinstance(measured, ReadFailure):
                gpu["bandwidth"] = f"{measured.kind}: {measured.reason}"
                if not reading.values.get(Field("mig_enabled")):
                    found.differs(f"GPU {reading.index}: no bandwidth: {measured.reason}")
                continue
            gpu["bandwidth"] = asdict(measured)
            rates = (measured.to_device_bytes_per_s, measured.to_host_bytes_per_s)
            shown = " and ".join(f"{rate / 1e9:.1f}" for rate in rates)
            print(f"GPU {reading.index}: {shown} GB/s to it and back, node {measured.numa_node}")
        rows = check_node(inventory, readings, gpu_signs(), machine_types()["any"], bandwidths)
        for row in rows:
            verdict = {"check": row.check, "verdict": str(row.verdict), "reason": row.reason}
            found.health.append(verdict)
            print(f"{row.verdict:<8} {row.check:<24} {row.reason}")
    finally:
        reader.close()
        spawner.close()
    return found


def _gpu(
    found: Found, index: int, inventory: Inventory, read: Callable[[], DeviceReading]
) -> DeviceReading:
    begun_s = time.monotonic()
    reading = read()
    took_ms = 1_000 * (time.monotonic() - begun_s)
    smi = NvidiaSmi(index)
    peer = smi.ask((*NAMES, *(one.smi for one in COMPARED)))
    named = (reading.id, reading.model, inventory.driver)
    for name, ours in zip(NAMES, named, strict=True):
        if str(ours) != peer.get(name):
            found.differs(f"GPU {index}: {name} is {ours}, nvidia-smi has {peer.get(name)}")
    compared = _compare(found, index, reading, peer, read, smi)
    compared |= _links(found, reading, smi.links())
    values = {str(name): value for name, value in reading.values.items()}
    gaps = {str(name): f"{g.kind}: {g.reason}" for name, g in sorted(reading.gaps.items())}
    found.gpus.append(
        {
            "id": reading.id, "model": reading.model, "read_ms": round(took_ms, 1),
            "fields": values, "gaps": gaps, "compared": compared, "not_asked": smi.unknown,
        }
    )  # fmt: skip
    print(
        f"GPU {index}: {len(values)} fields in {took_ms:.0f} ms, {len(compared)} compared; "
        f"gaps: {', '.join(gaps) or 'none'}"
    )
    return reading


def _compare(
    found: Found,
    index: int,
    first: DeviceReading,
    peer: Mapping[str, str],
    read: Callable[[], DeviceReading],
    smi: NvidiaSmi,
) -> dict[str, str]:
    """Hold every field against nvidia-smi's; look again at what moved meanwhile."""
    open_ = {one.field: one for one in COMPARED if one.smi in peer}
    before, seen, agreed = first, dict(peer), dict[str, str]()
    for _ in range(TRIES):
        after = read()
        for name, one in list(open_.items()):
            looks = [look.values.get(Field(name)) for look in (before, after)]
            if agrees(one, looks, seen[one.smi]):
                agreed[name] = seen[one.smi]
                del open_[name]
        if not open_:
            break
        before, seen = read(), smi.ask(tuple(one.smi for one in open_.values()))
    for name, one in open_.items():
        ours = first.values.get(Field(name))
        found.differs(f"GPU {index}: {name} is {ours}, nvidia-smi has {seen.get(one.smi)}")
    return agreed


def agrees(one: Compared, looks: list[int | None], theirs: str) -> bool:
    """Tell whether nvidia-smi's value lies between two of ours, give or take its last digit."""
    number = _number(theirs)
    measured = [look / one.per_unit for look in looks if look is not None]
    if number is None or not measured:
        return number is None and not measured
    low, high = min(measured), max(measured)
    return low - one.resolution <= number + 1e-9 and number - 1e-9 <= high + one.resolution


def _number(text: str) -> float | None:
    """Read nvidia-smi's number; None for its words for what a GPU does not have."""
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(_MODES.get(text, text))
    except ValueError:
        return None


def _links(found: Found, reading: DeviceReading, active: int | None) -> dict[str, str]:
    ours = reading.values.get(Field("nvlinks_up"))
    if active is None and not ours:
        return {}
    if ours != active:
        found.differs(f"GPU {reading.index}: {ours} NVLinks up, nvidia-smi has {active}")
        return {}
    return {"nvlinks_up": str(active)}


class NvidiaSmi:
    """Asks nvidia-smi about one GPU; `unknown` are the names that this version does not have."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.unknown: list[str] = []

    def ask(self, names: tuple[str, ...]) -> dict[str, str]:
        """Give the values of these names; one that it does not know is left out."""
        ran = self._run(f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits")
        if ran.returncode == 0:
            values = [one.strip() for one in ran.stdout.strip().split(",")]
            return dict(zip(names, values, strict=True))
        wrong = re.search(r'Field "([^"]+)" is not a valid field', ran.stdout + ran.stderr)
        if wrong is None or wrong[1] not in names:
            raise OSError(f"nvidia-smi: {(ran.stdout + ran.stderr).strip()[:200]}")
        self.unknown.append(wrong[1])
        return self.ask(tuple(name for name in names if name != wrong[1]))

    def links(self) -> int | None:
        """Count the NVLinks that are up; None where it shows no link."""
        ran = self._run("nvlink", "--status")
        lines = re.findall(r"^\s*Link \d+: (.+)$", ran.stdout, re.MULTILINE)
        return None if ran.returncode or not lines else sum("GB/s" in one for one in lines)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        which = [f"--id={self._index}"]
        asked = ["nvidia-smi", *arguments[:1], *which, *arguments[1:]]
        return subprocess.run(asked, check=False, capture_output=True, text=True, timeout=60)


def write(found: Found) -> None:
    if OUT not in os.environ:
        print(f"gpu-check: {OUT}=FOLDER writes all of it to FOLDER/gpu_check.json")
    models = ", ".join(gpu["model"] for gpu in found.gpus)
    where = (
        f"{models}; {os.cpu_count()} CPUs, Linux {platform.release()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )
    more = {
        "as_nvidia_smi_has_it": not found.differences,
        "driver": found.driver,
        "nvml": found.library,
        "differences": found.differences,
        "health": found.health,
        "gpus": found.gpus,
    }
    gpu_present.write_found("gpu_check", list(_figures(found)), where, more)


def _figures(found: Found) -> Iterator[Figure]:
    yield Figure("differences", len(found.differences), "fields", 0)
    yield Figure("gpus", len(found.gpus), "GPUs")
    if found.gpus:
        yield Figure("longest_look_ms", max(gpu["read_ms"] for gpu in found.gpus), "ms")
    rates = [gpu["bandwidth"] for gpu in found.gpus if isinstance(gpu["bandwidth"], dict)]
    for way, key in (("host_to_device", "to_device"), ("device_to_host", "to_host")):
        if rates:
            slowest = min(rate[f"{key}_bytes_per_s"] / 1e9 for rate in rates)
            yield Figure(f"slowest_{way}_gb_per_s", slowest, "GB/s")


if __name__ == "__main__":
    sys.exit(main())
