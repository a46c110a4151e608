"""Why was it slow: hears every other source, and gives what diagnosis makes of it.

Findings go to the journal and to the host's own views; an incident becomes one observation of the
weekly section, which is all of it that a report may carry.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from collectors.boot_clock import read_point
from collectors.port import Source, SourceUnavailable
from collectors.records.activity import Observation, Record
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding, HostFinding
from diagnosis.detect.journal_lines import JournalLineError, encode
from diagnosis.detect.model_fields import ModelError
from diagnosis.detect.model_file import load_model
from diagnosis.detect.trail import Pictures, Series
from diagnosis.detect.weekly import WeeklyIncidents
from diagnosis.frames.hearing import hear
from diagnosis.frames.lacking import lacking
from diagnosis.frames.of_host import host_framer

from .journal import Journal

if TYPE_CHECKING:
    from .config import DiagnosisSection


class DiagnosisSource:
    """Frames, findings and their journal; listed after the sources that it hears."""

    name = "diagnosis"

    def __init__(self, section: DiagnosisSection, journal: Path | None, faults: bool) -> None:
        """Take the configuration.

        journal   file of the journal; None: nothing is kept, for who only looks
        faults    a source of hardware faults runs beside this one
        """
        self._section = section
        self._path = journal
        self._faults = faults
        self._journal: Journal | None = None
        self._started = False
        self._heard: WeakSet[Source] = WeakSet()
        """Sources that were heard: what they lack, no frame has."""

    def probe(self) -> str | None:
        """Say why it cannot start: a model file that is none."""
        try:
            load_model(self._section.model)
        except (ModelError, OSError) as error:
            return f"diagnosis: {error}"
        return None

    def start(self) -> None:
        """Begin to learn what is usual. Raises SourceUnavailable."""
        if self._started:
            return
        try:
            if self._path is not None:
                self._journal = Journal(self._path, self._section.journal_bytes)
            model = load_model(self._section.model)
        except (ModelError, OSError) as error:
            self.stop()
            raise SourceUnavailable(f"diagnosis: {error}") from None
        self._framer = host_framer(self._section.watch, faults=self._faults)
        self._diagnoser = Diagnoser(model=model)
        self._weekly, self._pictures = WeeklyIncidents(), Pictures()
        self._heard.clear()
        self._started = True

    def hear(self, source: Source, records: Sequence[Record], now_boottime_ns: int) -> None:
        """Take what another source handed out."""
        if not self._started:
            return
        if source not in self._heard:
            self._heard.add(source)
            self._framer.lack(lacking(self._heard))
        hear(self._framer, source, records, now_boottime_ns)

    def drain(self, now_boottime_ns: int) -> Iterable[HostFinding | Observation]:
        """Yield findings of the second that ended, and incidents that count."""
        if not self._started:
            raise SourceUnavailable("diagnosis: not started")
        frame = self._framer.frame(now_boottime_ns)
        if frame is None:
            return
        findings = self._diagnoser.handle(frame)
        yield from map(HostFinding, findings)
        yield from self._weekly.take(findings, now_boottime_ns)
        self._write([*findings, *self._pictures.take(frame, findings)])

    def rest(self) -> Iterable[Observation]:
        """Give the incidents of spikes that stand: who stops now may not be back this week."""
        return self._weekly.flush() if self._started else []

    def stop(self) -> None:
        """Close the journal; a second call does nothing."""
        if self._journal is not None:
            self._journal.close()
        self._journal, self._started = None, False

    def _write(self, lines: Iterable[Finding | Series]) -> None:
        """Keep what was found; what cannot be kept was handed out all the same."""
        journal = self._journal
        if journal is None:
            return
        offset_ns = read_point().offset_ns
        unfit: JournalLineError | None = None
        try:
            for one in lines:
                try:
                    line = encode(one, offset_ns)
                except JournalLineError as error:
                    unfit = error  # the others are written all the same
                    continue
                journal.append(line)
        except OSError as error:
            raise SourceUnavailable(f"diagnosis: {self._path}: {error.strerror}") from None
        if unfit is not None:
            raise SourceUnavailable(f"diagnosis: a finding does not fit a line: {unfit}")
