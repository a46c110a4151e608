"""The shipped applications: every recording, and the table of variants."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from simulator.workloads import Workload, WorkloadError, load_workloads

from .variant import Variant, derive

VARIANTS: Final = Path(__file__).with_name("variants.toml")
_KEYS: Final = {"name", "application", "recording", "stands_for", *(
    one.name for one in fields(Variant)
)}  # fmt: skip


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


@cache
def load_applications() -> tuple[Application, ...]:
    """Every recording by file name, then every variant in order. Raises WorkloadError."""
    recordings = {workload.name: workload for workload in load_workloads()}
    with VARIANTS.open("rb") as file:
        content = tomllib.load(file)
    variants = [_variant(entry, recordings) for entry in content["variant"]]
    return (*map(Application.recorded, recordings.values()), *variants)


def real_application_profiles(applications: Iterable[Application]) -> int:
    """How many of them are recordings."""
    return sum(one.is_recording for one in applications)


def _variant(entry: Mapping[str, Any], recordings: Mapping[str, Workload]) -> Application:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown or entry.get("recording") not in recordings:
        raise WorkloadError(
            f"{VARIANTS.name}: known keys and a recording expected, got {unknown} and "
            f"{entry.get('recording')!r}"
        )
    rules = {one.name: entry[one.name] for one in fields(Variant) if one.name in entry}
    variant = Variant(**rules)
    name, group = entry["name"], entry["application"]
    recording = recordings[entry["recording"]]
    workload = derive(recording, variant, name, group)
    return Application(name, group, workload, recording.name, variant, entry["stands_for"])
