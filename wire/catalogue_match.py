"""What a task's sections are by the catalogue: the same check for agents and for the Helper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .catalogue import OF_HOSTS, Catalogue, CatalogueError, Section, need
from .fields import MILLION
from .task import SectionKind, SectionSpec, Task


@dataclass(frozen=True, slots=True)
class Matched:
    """A task's catalogue, and its sections in the task's order.

    gpus    of the largest host, for which its bounds are; None where no section depends on them
    """

    catalogue: Catalogue
    sections: tuple[Section, ...]
    gpus: int | None


def match_task(catalogue: Catalogue, task: Task) -> Matched:
    """Find each section of a task, and hold it to what it is in its catalogue, bounds and step too.

    catalogue   this process's; the task's hash chooses between it and the one shipped before
    Raises      CatalogueError where the hash is of neither, a section is not there or is another,
                or no one count of GPUs gives the bounds of all
    """
    known = catalogue.named(task.catalogue_hash)
    if known is None:
        hashes = [one.hash.hex()[:16] for one in (catalogue, catalogue.former) if one]
        got = task.catalogue_hash.hex()[:16]
        raise CatalogueError(f"expected a task of catalogue {' or '.join(hashes)}, got {got}")
    pairs = [(_same_section(known, spec), spec) for spec in task.sections]
    counts = [section.gpu_counts(spec, task.window_s) for section, spec in pairs]
    bounded = [count for count in counts if count is not None]
    gpus = max((count.start for count in bounded), default=1)
    for section, spec in pairs:
        asked = (spec.coordinate_cap, spec.l1_bound, spec.q)
        here = section.resolve(gpus, task.window_s)
        what = f"section {spec.name}: (cap, bound, step) {here}, as of hosts of {gpus} GPUs"
        need(asked == here, what, asked)
    return Matched(known, tuple(section for section, _ in pairs), gpus if bounded else None)


def _same_section(catalogue: Catalogue, spec: SectionSpec) -> Section:
    where = f"section {spec.name}"
    section = next((known for known in catalogue.sections if known.name == spec.name), None)
    if section is None:
        raise CatalogueError(f"{where}: expected one of the catalogue, got none")
    asked = (spec.section_id, spec.kind.value, spec.length, spec.m)
    here = (section.id, section.kind.value, section.length, section.m)
    need(asked == here, f"{where}: (id, kind, length, m) {here}", asked)
    always = spec.kind not in OF_HOSTS or spec.rate_millionths == MILLION
    need(always, f"{where}: {spec.kind} of every window", f"{spec.rate_millionths} millionths")
    return section


_WINDOWS: Final = {60: "minute", 3600: "hour", 86_400: "day", 604_800: "week"}


def describe(
    spec: SectionSpec, unit: str, window_s: int, gpus: int | None, known: Section | None
) -> str:
    """Say in a section's unit what one host may add to it, and in which steps."""
    window = _WINDOWS.get(window_s, f"window of {window_s:,} s")
    if spec.kind is SectionKind.INDICATORS:
        answers = spec.length - 1 if known is None else known.axis_cells
        return f"at most {spec.m} of {answers} answers a host and {window}"
    cell = f", {spec.coordinate_cap:,} a cell" if spec.coordinate_cap < spec.l1_bound else ""
    host = f" ({gpus} GPU{'s' * (gpus != 1)})" if unit in _OF_GPUS and gpus else ""
    return f"{spec.l1_bound:,} {unit} a host and {window}{host}{cell}, in steps of {spec.q:,}"


_OF_GPUS: Final = frozenset({"GPU-ms", "samples"})
