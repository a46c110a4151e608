"""Why was it slow: what diagnosis makes of drains once a second, for the journal and host's views.
An incident becomes one observation of the weekly section, which is all that a report may carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.boot_clock import read_point
from collectors.interface import UnavailableSource, broken
from collectors.records.activity import Observation, Record
from collectors.rounds import Drained
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding, WeeklyIncidents
from diagnosis.detect.journal import JournalLineError, Series, SignalHistory, encode
from diagnosis.frames.framer import host_framer, take_drain
from diagnosis.frames.signals import lacking

from .config import AgentConfig, DiagnosisSection
from .journal import Journal

NAME: Final = "diagnosis"
"""Its name beside those of the sources."""


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """What diagnosis is made from: a journal or none, and whether a source of faults runs."""

    section: DiagnosisSection
    journal: Path | None
    faults: bool

    def start(self) -> HostDiagnosis | UnavailableSource:
        """Begin to learn what is usual, or say why it cannot."""
        try:
            return HostDiagnosis(self)
        except OSError as error:
            return UnavailableSource(NAME, f"{NAME}: {error}")


def diagnosis_settings(config: AgentConfig, *, keep: bool = True) -> DiagnosisSettings | None:
    """Take them from the configuration; None: nothing is diagnosed. `keep`: a journal is kept."""
    if not (config.diagnosis.enabled and config.sources.ebpf):
        return None
    journal = config.journal_file if keep else None
    return DiagnosisSettings(config.diagnosis, journal, config.sources.faults)


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """What diagnosis made of one round: findings, which never leave the host, incidents for the
    week's window, and what did not work; what was found is given all the same.
    """

    findings: Sequence[Finding] = ()
    incidents: Sequence[Observation] = ()
    failure: str | None = None

    @property
    def records(self) -> list[Record | Finding]:
        return [*self.findings, *self.incidents]


class HostDiagnosis:
    def __init__(self, settings: DiagnosisSettings) -> None:
        """Open the journal. Raises OSError."""
        section, self._path = settings.section, settings.journal
        self._diagnoser = Diagnoser()
        self._framer = host_framer(section.watch, faults=settings.faults)
        self._weekly, self._pictures = WeeklyIncidents(), SignalHistory()
        self._failure: str | None = None
        self._journal = None
        if self._path is not None:
            self._journal = Journal(self._path, section.journal_bytes)

    def lack(self, absent: Iterable[UnavailableSource]) -> None:
        """Leave out what running sources lack the parts for."""
        self._framer.lack(lacking(absent))

    def take(self, drained: Drained) -> None:
        """Take one drain; what breaks on it is told with the next findings."""
        try:
            take_drain(self._framer, drained)
        except Exception as error:  # noqa: BLE001 (names in records are users'; the agent goes on)
            self._failure = broken(NAME, error)

    def look(self, now_boottime_ns: int) -> Diagnosed:
        """Give findings of the second that ended, and incidents that count."""
        failure, self._failure = self._failure, None
        findings: Sequence[Finding] = ()
        incidents: Sequence[Observation] = ()
        try:
            frame = self._framer.frame(now_boottime_ns)
            if frame is not None:
                findings = self._diagnoser.handle(frame)
                incidents = list(self._weekly.take(findings, now_boottime_ns))
                lines = [*findings, *self._pictures.take(frame, findings)]
                failure = self._write(lines) or failure
        except Exception as error:  # noqa: BLE001 (as in `take`)
            failure = broken(NAME, error)
        return Diagnosed(findings, incidents, failure)

    def flush(self) -> Sequence[Observation]:
        """Give the incidents of spikes that stand: a stopped agent may not be back this week."""
        try:
            return list(self._weekly.flush())
        except Exception:  # noqa: BLE001 (as in `take`; the agent is stopping)
            return []

    def close(self) -> None:
        """Close the journal; a second call does nothing."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _write(self, lines: Iterable[Finding | Series]) -> str | None:
        """Keep what can be kept of what was found, and say what cannot."""
        if self._journal is None:
            return None
        offset_ns = read_point().offset_ns
        unfit: JournalLineError | None = None
        try:
            for finding in lines:
                try:
                    line = encode(finding, offset_ns)
                except JournalLineError as error:
                    unfit = error
                    continue
                self._journal.append(line)
        except OSError as error:
            return f"{NAME}: {self._path}: {error.strerror}"
        return None if unfit is None else f"{NAME}: a finding does not fit a line: {unfit}"
