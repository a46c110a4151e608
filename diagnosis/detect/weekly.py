"""From diagnoses to the fleet's weekly count: one observation an incident, and nothing else.

What may leave the host, under noise, is the name of a cause; evidence, names and times stay here. A
host that met more causes in a week than the section admits (m, in the signed task) leaves some out,
drawn at random when the week is sealed (`privacy.quantise.choose_indicators`): which ones says
nothing about their order or weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from collectors.records.activity import Observation

from .findings import Diagnosis, Finding, SpikeEnded

SECTION: Final = "incidents"

SETTLE_NS: Final = 60_000_000_000
"""A spike that lasts is counted this long after it became an incident: a host that goes down during
a fault would otherwise never have reported it, and causes are known within seconds."""

MAX_OPEN: Final = 256
"""Spikes that are followed at once; subjects of a host are far fewer."""


def incident_observation(diagnosis: Diagnosis) -> Observation | None:
    """Map a diagnosis to the weekly section's cell; None unless it is an incident."""
    if not diagnosis.incident:
        return None
    return Observation(SECTION, diagnosis.cause.value, 1, diagnosis.at_ns)


@dataclass(frozen=True, slots=True)
class _Open:
    """A spike that is an incident and not counted yet: since when, and what stands."""

    since_ns: int
    standing: Diagnosis


@dataclass(slots=True)
class WeeklyIncidents:
    """Counts each spike once, by the cause that stands when it ends or has lasted for a minute.

    A later diagnosis of a spike replaces the one before, so that one spike never fills two cells;
    one that is no incident any more takes it out again. Times are CLOCK_BOOTTIME, ns.
    """

    _open: dict[tuple[str, int], _Open] = field(default_factory=dict)
    _counted: dict[tuple[str, int], None] = field(default_factory=dict)

    def take(self, findings: Iterable[Finding], now_ns: int) -> list[Observation]:
        """Follow what was found, and give what counts now."""
        found: list[Observation] = []
        for finding in findings:
            if isinstance(finding, Diagnosis):
                self._stand(finding)
            elif isinstance(finding, SpikeEnded):
                found += self._end(finding)
        due = [
            key for key, incident in self._open.items() if now_ns - incident.since_ns >= SETTLE_NS
        ]
        return found + [observation for key in due for observation in self._count(key)]

    def flush(self) -> list[Observation]:
        """Count what stands: the agent stops, or the week is about to be sealed."""
        return [observation for key in list(self._open) for observation in self._count(key)]

    def _stand(self, diagnosis: Diagnosis) -> None:
        key = (diagnosis.subject, diagnosis.onset_ns)
        if key in self._counted:
            return
        known = self._open.pop(key, None)
        if diagnosis.incident and len(self._open) < MAX_OPEN:
            since_ns = diagnosis.at_ns if known is None else known.since_ns
            self._open[key] = _Open(since_ns, diagnosis)

    def _end(self, ended: SpikeEnded) -> list[Observation]:
        if ended.last is not None:
            self._stand(ended.last)
        key = (ended.subject, ended.onset_ns)
        counted = self._count(key)
        self._counted.pop(key, None)
        return counted

    def _count(self, key: tuple[str, int]) -> list[Observation]:
        incident = self._open.pop(key, None)
        if incident is None:
            return []
        self._counted[key] = None
        if len(self._counted) > MAX_OPEN:
            del self._counted[next(iter(self._counted))]
        observation = incident_observation(incident.standing)
        return [] if observation is None else [observation]
