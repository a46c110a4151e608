"""Workload tables: which kernels a real program runs, how long and how often, from traces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.settings.config import limited, read_tree

FORMAT: Final = 1
MAX_KERNELS: Final = 512
_MOST: Final = (1 << 53) - 1


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
    launches_per_1000_steps: int = limited(low=0, high=_MOST)
    time_ns_per_step: int = limited(low=0, high=_MOST)
    duration_ns: tuple[int, int, int, int] = limited(fewest=4, most=4)
    copy_bytes: int = limited(0, low=0)

    def __post_init__(self) -> None:
        places = self.duration_ns
        if list(places) != sorted(places) or places[0] < 0:
            raise ValueError(f"duration_ns: expected times that do not fall, got {places}")


@dataclass(frozen=True, slots=True)
class Workload:
    """One program on one GPU model.

    steps             that were recorded
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
    steps: int
    step_ns: int = limited(low=1, high=_MOST)
    busy_millionths: int = limited(low=0, high=1_000_000)
    kernels: tuple[KernelRow, ...] = limited(key="kernel", fewest=1, most=MAX_KERNELS)

    def __post_init__(self) -> None:
        if not any(row.time_ns_per_step for row in self.kernels):
            raise ValueError("kernel: expected some GPU time, got none")


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
    return read_tree(Workload, path, error=WorkloadError, file_format=FORMAT)


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
            if name not in known:
                raise WorkloadError(
                    f"workload {workload.name}: a {what} of the catalogue expected, got {name}"
                )
