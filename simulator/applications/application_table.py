"""The shipped applications: every recording, and the table of variants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from simulator.workloads import Workload, WorkloadError, load_workloads
from transport.config_tree import limited, read_tree

from .variant import Variant, derive

VARIANTS: Final = Path(__file__).with_name("variants.toml")


@dataclass(frozen=True, slots=True)
class Application:
    """One table of kernel activity that hosts may run.

    name         its own
    group        what a scenario calls it: ranks and stages of one program share a group
    workload     the table; its `application` is the class that a report counts it under
    recording    the recorded table it is or comes from
    variant      None for a recording
    stands_for   why this variant is taken for its class; "" for a recording
    """

    name: str
    group: str
    workload: Workload
    recording: str
    variant: Variant | None = None
    stands_for: str = ""

    @classmethod
    def recorded(cls, workload: Workload) -> Application:
        """A recording as it is."""
        return cls(workload.name, workload.application, workload, workload.name)

    @property
    def is_recording(self) -> bool:
        """Whether its numbers were recorded on a GPU."""
        return self.variant is None

    @property
    def origin(self) -> str:
        """What a result that rests on it must say."""
        if self.variant is None:
            return f"recorded: {self.workload.source} {self.workload.source_file}"
        return f"variant of {self.recording} by rule, not recorded: {self.variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow(Variant):
    """A variant as the file has it: how it differs from `recording`, and what it stands for."""

    name: str
    application: str
    recording: str
    stands_for: str


@dataclass(frozen=True, slots=True)
class VariantTable:
    """The file of variants."""

    rows: tuple[VariantRow, ...] = limited(key="variant")


@cache
def load_applications() -> tuple[Application, ...]:
    """Every recording by file name, then every variant in order. Raises WorkloadError."""
    recordings = {workload.name: workload for workload in load_workloads()}
    table = read_tree(VariantTable, VARIANTS, error=WorkloadError)
    variants = [_variant(row, recordings) for row in table.rows]
    return (*map(Application.recorded, recordings.values()), *variants)


def real_application_profiles(applications: Iterable[Application]) -> int:
    """How many of them are recordings."""
    return sum(one.is_recording for one in applications)


def _variant(row: VariantRow, recordings: Mapping[str, Workload]) -> Application:
    if row.recording not in recordings:
        raise WorkloadError(
            f"{VARIANTS.name}: variant[{row.name}].recording: expected one of "
            f"{', '.join(recordings)}, got {row.recording!r}"
        )
    workload = derive(recordings[row.recording], row, row.name, row.application)
    return Application(row.name, row.application, workload, row.recording, row, row.stands_for)
