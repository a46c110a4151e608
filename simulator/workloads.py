"""Workload tables: which kernels a real program runs, how long and how often, from traces."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAX_KERNELS: Final = 512
_TOP = {
    "format": int,
    "name": str,
    "application": str,
    "gpu_model": str,
    "source": str,
    "source_file": str,
    "licence": str,
    "steps": int,
    "step_ns": int,
    "busy_millionths": int,
    "kernel": list,
}
_KERNEL = {
    "name": str,
    "family": str,
    "launches_per_1000_steps": int,
    "time_ns_per_step": int,
    "duration_ns": list,
}


class WorkloadError(ValueError):
    """A workload table breaks a rule: names the file, the entry, what was expected and came."""


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel of a workload, or what is left of a family ("(everything else)").

    duration_ns   10th, 50th, 90th and 99th percentile of its launches
    copy_bytes    median bytes of a copy, 0 for all else
    """

    name: str
    family: str
    launches_per_1000_steps: int
    time_ns_per_step: int
    duration_ns: tuple[int, int, int, int]
    copy_bytes: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One program on one GPU model.

    step_ns           wall time of a step
    busy_millionths   share of a step in which the GPU was busy
    source, licence   where the trace was published
    """

    name: str
    application: str
    gpu_model: str
    source: str
    source_file: str
    licence: str
    step_ns: int
    busy_millionths: int
    kernels: tuple[KernelRow, ...]


def shipped_folder() -> Path:
    """Give the folder of the tables that came with this installation."""
    return Path(__file__).with_name("workloads")


def load_workloads(folder: Path | None = None) -> tuple[Workload, ...]:
    """Read every table of a folder (None: the shipped one), by file name. Raises WorkloadError."""
    folder = folder or shipped_folder()
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise WorkloadError(f"expected workload tables (*.toml) in {folder}, found none")
    return tuple(load_workload(path) for path in paths)


def load_workload(path: Path) -> Workload:
    """Read and check one table. Raises WorkloadError."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkloadError(f"{path}: {error}") from None
    _need_keys(raw, _TOP, set(), str(path))
    _need(raw["format"] == 1, f"{path}: format = 1", raw["format"])
    _need(0 < raw["step_ns"] < 1 << 53, f"{path}: step_ns above 0", raw["step_ns"])
    busy = raw["busy_millionths"]
    _need(0 <= busy <= 1_000_000, f"{path}: busy_millionths 0 .. 1000000", busy)
    kernels = raw["kernel"]
    _need(0 < len(kernels) <= MAX_KERNELS, f"{path}: 1 .. {MAX_KERNELS} kernels", len(kernels))
    rows = tuple(_kernel(row, f"{path}: kernel {i}") for i, row in enumerate(kernels, start=1))
    _need(sum(row.time_ns_per_step for row in rows) > 0, f"{path}: some GPU time", 0)
    named = {key: raw[key] for key in _TOP if key not in {"format", "steps", "kernel"}}
    return Workload(kernels=rows, **named)


def check_classes(
    workloads: Collection[Workload],
    families: Collection[str],
    applications: Collection[str],
    gpu_models: Collection[str],
) -> None:
    """Raise WorkloadError when a table names a class that the catalogue does not have."""
    for workload in workloads:
        wanted = [("application", workload.application, applications)]
        wanted.append(("GPU model", workload.gpu_model, gpu_models))
        wanted += [("family", row.family, families) for row in workload.kernels]
        for what, name, known in wanted:
            _need(name in known, f"workload {workload.name}: a {what} of the catalogue", name)


def _kernel(raw: Any, where: str) -> KernelRow:
    _need(isinstance(raw, dict), f"{where}: a table", type(raw).__name__)
    _need_keys(raw, _KERNEL, {"copy_bytes"}, where)
    places = raw["duration_ns"]
    whole = all(isinstance(place, int) for place in places)
    _need(whole and len(places) == 4, f"{where}: duration_ns of 4 integers", places)
    ordered = places == sorted(places) and places[0] >= 0
    _need(ordered, f"{where}: duration_ns that do not fall", places)
    for key in ("launches_per_1000_steps", "time_ns_per_step"):
        _need(0 <= raw[key] < 1 << 53, f"{where}: {key} of at least 0", raw[key])
    copied = raw.get("copy_bytes", 0)
    _need(isinstance(copied, int) and copied >= 0, f"{where}: copy_bytes of at least 0", copied)
    return KernelRow(
        name=raw["name"],
        family=raw["family"],
        launches_per_1000_steps=raw["launches_per_1000_steps"],
        time_ns_per_step=raw["time_ns_per_step"],
        duration_ns=(places[0], places[1], places[2], places[3]),
        copy_bytes=copied,
    )


def _need_keys(
    raw: dict[str, Any], required: dict[str, type], optional: set[str], where: str
) -> None:
    unknown = sorted(raw.keys() - required.keys() - optional)
    _need(not unknown, f"{where}: known keys", f"{unknown}")
    for key, kind in required.items():
        _need(isinstance(raw.get(key), kind), f"{where}: {key} ({kind.__name__})", raw.get(key))


def _need(holds: object, expected: str, got: object) -> None:
    if not holds:
        raise WorkloadError(f"{expected} expected, got {got}")
