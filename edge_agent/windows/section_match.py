"""A task's section and the catalogue's must mean the same thing."""

from __future__ import annotations

from typing import Final

from wire.catalogue import Catalogue, Section
from wire.task import SectionKind, SectionSpec

UNMEASURABLE: Final = (SectionKind.MEAN, SectionKind.INDICATORS)
_ALWAYS_MILLIONTHS: Final = 1_000_000


def match_section(catalogue: Catalogue, spec: SectionSpec) -> Section:
    """Find a task's section in the catalogue.

    Raises      ValueError when it is not there, or not the same
    """
    try:
        section = catalogue.section(spec.name)
    except KeyError:
        raise ValueError(f"section {spec.name}: expected one of the catalogue, got none") from None
    asked = (spec.section_id, spec.kind, spec.length)
    here = (section.id, section.kind, section.length)
    if asked != here:
        raise ValueError(f"section {spec.name}: expected (id, kind, length) {here}, got {asked}")
    if spec.kind in UNMEASURABLE and spec.rate_millionths != _ALWAYS_MILLIONTHS:
        raise ValueError(f"task section {spec.name}: {spec.kind} has no unmeasured time to sample")
    return section
