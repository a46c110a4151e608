"""What signed tasks ask of a host and nothing on it measures: zeros are not numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from collectors.interface import UnavailableSource
from wire.catalogue import UNMEASURED, Catalogue
from wire.catalogue_match import match_task
from wire.task import Task

from .config import AgentConfig
from .host_diagnosis import NAME as DIAGNOSIS
from .windows.measured_by import MEASURED_BY

OF_ANY_HOST: Final = frozenset({"host", "faults", DIAGNOSIS})
"""Sources of sections that ask for no GPU."""
OFF_BY_DEFAULT: Final = frozenset({DIAGNOSIS, "gpu_time"})
"""What a generated agent.toml leaves off, and says why: what they alone measure is no fault."""


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A section that a task asks for, and no source of this host measures.

    reason      in a few words
    expected    nothing is wrong: the host has no such hardware, or the source is off by default
    reported    what goes into reports: "unmeasured" where the section has such a cell, else "zero"
    """

    section: str
    reason: str
    expected: bool
    reported: str

    @property
    def said(self) -> str:
        return f"reported as {self.reported}: {self.reason}"


def unmeasured(
    task: Task,
    config: AgentConfig,
    running: Collection[str],
    absent: Iterable[UnavailableSource] = (),
    *,
    has_gpus: bool,
    catalogue: Catalogue,
) -> list[Unmeasured]:
    """List the sections of a task that no running source measures, diagnosis among them.
    absent      sources that are configured and do not run, with their reasons
    has_gpus    whether this machine has any, named or not
    """
    sources = {name.partition("-")[0] for name in running}
    reasons = {absence.source.partition("-")[0]: absence.reason for absence in absent}
    found = []
    for spec in task.sections:
        wanted = MEASURED_BY.get(spec.name, ())
        no_gpu = not config.host.models and not OF_ANY_HOST & set(wanted)
        if not wanted or (sources & set(wanted) and not no_gpu):
            continue
        if no_gpu and not has_gpus:
            reason, expected = "this host has no GPU", True
        elif no_gpu:
            reason, expected = "host.gpus names none of this host's GPUs", False
        else:
            reason, expected = _why(wanted, config, reasons)
        section = catalogue.section_of(spec)
        as_cell = any(cell.rpartition("/")[2] == UNMEASURED for cell in section.cells)
        # Without a GPU that is named there is no wall time that could go into the cell of a mix.
        said = section.counts_unmeasured or (as_cell and config.host.models)
        reported = UNMEASURED if said else "zero"
        found.append(Unmeasured(spec.name, reason, expected, reported))
    return found


def clipped(task: Task, config: AgentConfig, catalogue: Catalogue) -> str | None:
    """Say of a host of more GPUs than a task's bounds are for that its GPU time is scaled down."""
    most, own = match_task(catalogue, task).gpus, len(config.host.models)
    if most is None or own <= most:
        return None
    return (
        f"for hosts of {most} GPUs at most: the time of this one's {own} is scaled down to {most}"
    )


def by_reason(found: Iterable[Unmeasured]) -> dict[str, list[Unmeasured]]:
    groups: dict[str, list[Unmeasured]] = {}
    for gap in found:
        groups.setdefault(gap.said, []).append(gap)
    return groups


def _why(
    wanted: Iterable[str], config: AgentConfig, reasons: Mapping[str, str]
) -> tuple[str, bool]:
    """Say why no wanted source runs, and whether that is as it should be."""
    on = {
        "host": config.sources.host,
        "devices": config.sources.gpus,
        "faults": config.sources.faults,
        "probes": config.sources.probes.enabled,
        "gpu_time": config.sources.gpu_time.enabled,
        DIAGNOSIS: config.diagnosis.enabled,
    }
    names = [name for name in wanted if name in on]
    failed = [name for name in names if on[name]]
    if failed:
        return "; ".join(f"{name}: {reasons.get(name, 'not running')}" for name in failed), False
    off = " and ".join(_KEYS.get(name, f"sources.{name}") for name in names)
    return f"{off} off", set(names) <= OFF_BY_DEFAULT


_KEYS: Final = {
    "devices": "sources.gpus", "probes": "sources.probes", DIAGNOSIS: "diagnosis",
}  # fmt: skip
