"""Which sources measure a section, and whether a host measured it in a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wire.catalogue import Section
from wire.task import SectionKind

from .window_rows import GpuWindow
from .window_state import WindowState

_KERNELS: Final = ("probes", "gpu_time", "replay")
MEASURED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel_mix": _KERNELS,
    "kernel_mix_by_model": _KERNELS,
    "application_mix": _KERNELS,
    "kernel_duration": ("gpu_time", "replay"),
    "copy_size": _KERNELS,
    "gpu_utilisation": ("devices",),
    "gpu_memory": ("devices",),
    "gpu_power": ("devices",),
    "gpu_temperature": ("devices",),
    "host_cpu": ("host",),
    "host_memory": ("host",),
    "host_disk": ("host",),
    "host_network": ("host",),
    "applications_seen": _KERNELS,
    "incidents": ("diagnosis",),
    "hardware_faults": ("faults",),
    "copies": ("probes",),
    "collectives": ("probes",),
    "synchronisation_waits": ("probes",),
}
"""Sections of the catalogue, and the sources of which one is enough."""
_OF_GPUS: Final = frozenset({*_KERNELS, "devices"})
_NS_PER_S: Final = 1_000_000_000


def measured(
    section: Section, state: WindowState, gpus: Sequence[GpuWindow], window_s: int
) -> bool:
    """Say whether a mean or the indicators of a host are numbers: else its zeros would be none.

    Without a GPU that is named nothing of GPUs is measured: `probes` samples zeros there. A mean is
    one from its first sample on. That nothing happened is known of a window of which at
    least half was watched; of `applications_seen` on the GPUs, whose work it is.
    """
    wanted = MEASURED_BY.get(section.name)
    if wanted is not None and not gpus and _OF_GPUS.issuperset(wanted):
        return False
    if section.kind is SectionKind.MEAN:
        return bool(state.cells.get(section.name))
    if wanted is None:  # of another catalogue
        return True
    if wanted == _KERNELS:
        watched, wall = sum(gpu.measured_ms for gpu in gpus), sum(gpu.wall_ms for gpu in gpus)
        return wall > 0 and 2 * watched >= wall
    longest_ns = max(state.sources.get(source, 0) for source in wanted)
    return 2 * longest_ns >= window_s * _NS_PER_S
