"""`agent diagnose --replay`: recordings of frames, journals from elsewhere, folders of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Final

from collectors.steps.steps_source import StepProbe
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding, SpikeBegan
from diagnosis.detect.journal import JournalReader, Series, SignalHistory
from diagnosis.frames.frame import HostSample
from edge_agent.config import DiagnosisSection
from edge_agent.journal import read_lines
from edge_agent.local.words import counted
from pointillist.diagnose.finding_layout import BoottimeReader, recording_clock, unix_clock
from pointillist.diagnose.finding_printer import Watching

from .output import CommandError, ExitCode, reported, say, usage_error

Told = Callable[[Finding | Series, BoottimeReader], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that stand.

    steps     texts FILE:FUNCTION of the command line; `probes` those of a configuration
    """

    watch: tuple[str, ...]
    steps: tuple[str, ...]
    rhythm: bool
    subject: str | None
    seconds: float | None
    probes: tuple[StepProbe, ...] = ()

    @property
    def own(self) -> bool:
        """Whether something is asked for that a running agent may not do."""
        return bool(self.watch or self.steps or self.rhythm)

    def with_section(self, section: DiagnosisSection | None) -> Asked:
        if section is None:
            return self
        return replace(
            self,
            watch=self.watch or section.watch,
            probes=() if self.steps else section.steps,
        )

    def only(self, tell: Told) -> Told:
        def passed(found: Finding | Series, clock: BoottimeReader) -> None:
            if self.wants(found.subject):
                tell(found, clock)

        return passed

    def wants(self, subject: str) -> bool:
        return self.subject is None or fnmatchcase(subject, self.subject)

    def diagnoser(self) -> Diagnoser:
        return Diagnoser(source="rhythm" if self.rhythm else "measured")

    def refuse_strangers(self, known: Iterable[str]) -> None:
        """Say that no subject is asked for. Raises CommandError."""
        if self.subject is None:
            return
        there = ", ".join(sorted(known)[:5]) or "nobody"
        raise usage_error(f"--subject {self.subject}: no subject fits; there was {there}")


def found_in(
    diagnoser: Diagnoser, frames: Iterable[HostSample], watching: Watching
) -> Iterator[Finding | Series]:
    pictures = SignalHistory()
    for frame in frames:
        findings = diagnoser.handle(frame)
        watching.take(frame, diagnoser)
        yield from findings
        yield from pictures.take(frame, findings)
    yield from pictures.rest()


_JOURNAL: Final = ".jsonl"
_RECORDING: Final = ".parquet"
_WHAT: Final = "a recording (.parquet), a journal (.jsonl), or a folder of them"


def replay_all(path: Path, asked: Asked, tell: Told) -> None:
    """Replay a file, or those of a folder in the order of their names. Raises CommandError."""
    if not path.exists():
        raise usage_error(f"{path}: there is no such file", f"expected {_WHAT}")
    if not path.is_dir():
        _replay_one(path, asked, tell)
        return
    with reported(ExitCode.USAGE, OSError):
        files = sorted(file for file in path.iterdir() if file.suffix in (_JOURNAL, _RECORDING))
    if not files:
        raise usage_error(f"{path}: the folder holds none", f"expected {_WHAT}")
    failed: list[CommandError] = []
    for file in files:
        try:
            _replay_one(file, asked, tell)
        except CommandError as error:  # the others can be read all the same
            say(f"{file.name}: {error}")
            failed.append(error)
    if len(failed) == len(files):
        raise failed[0]


def _replay_one(path: Path, asked: Asked, tell: Told) -> None:
    if path.suffix == _JOURNAL:
        if asked.rhythm:
            raise usage_error(f"{path}: --rhythm: expected a recording of frames")
        say(f"{path.name}: a journal")
        if not read_journal(path, asked, tell, name=path.stem):
            say(f"{path.name}: no finding")
        return
    _replay_recording(path, asked, tell)


def read_journal(path: Path, asked: Asked, tell: Told, name: str = "") -> int:
    """Tell the findings of a journal; give how many there were. Raises CommandError."""
    reader = JournalReader()
    told = 0
    subjects: set[str] = set()
    for line in reader.read(_lines(path)):
        offset = unix_clock(line.offset_ns)
        tell(line.finding, BoottimeReader(offset.zero_ns, is_unix=True, name=name))
        subjects.add(line.finding.subject)
        told += 1
    if reader.damaged and not told:
        raise usage_error(f"{path}: expected the journal of an agent, got other lines")
    if reader.damaged:
        say(f"{counted(reader.damaged, 'damaged line')} left out")
    if told and not any(map(asked.wants, subjects)):
        asked.refuse_strangers(subjects)
    return told


def _lines(path: Path) -> Iterator[bytes]:
    with reported(ExitCode.USAGE, OSError):
        yield from read_lines(path)


def _replay_recording(path: Path, asked: Asked, tell: Told) -> None:
    # Recordings are Parquet: an agent's installation reads journals, and goes without PyArrow.
    from diagnosis.frames.recording import RecordingError, read_meta

    with reported(ExitCode.USAGE, RecordingError, OSError):
        facts = read_meta(path)
    say(f"{path.name}: {_header(facts)}")
    diagnoser, watching = asked.diagnoser(), Watching(pattern=asked.subject)
    frames = _frames(path)
    first = next(frames, None)
    if first is None:
        raise usage_error(f"{path}: the recording holds no frame")
    recorded = str(facts.get("recorded", ""))
    clock = recording_clock(first.boottime_ns - first.span_ns, path.stem, recorded)
    spikes = 0
    for found in found_in(diagnoser, chain([first], frames), watching):
        spikes += asked.wants(found.subject) and isinstance(found, SpikeBegan)
        tell(found, clock)
    if not watching.subjects and watching.others:
        asked.refuse_strangers(watching.others)
    if not watching.known and not spikes:
        raise usage_error(
            f"{path}: nothing could be judged: {counted(len(watching.subjects), 'subject')} made "
            f"steps in {watching.span_s:.0f} s",
            "what is usual is learnt in the first 10 to 15 s of steps",
        )
    say(watching.summary(spikes))


def _frames(path: Path) -> Iterator[HostSample]:
    from diagnosis.frames.recording import RecordingError, iterate

    with reported(ExitCode.USAGE, RecordingError, OSError):
        yield from iterate(path)


def _header(facts: Mapping[str, Any]) -> str:
    """Say what a recording's maker says was done to the machine: no part of the diagnosis."""
    parts = [str(facts["workload"])] if facts.get("workload") else []
    if facts.get("recorded"):
        parts.append(f"recorded {facts['recorded']}")
    cause = str(facts.get("cause") or facts.get("class") or "")
    if cause == "none" and not facts.get("injector"):
        parts.append("nothing was done to it")
    elif cause:
        by = f" by {facts['injector']}" if facts.get("injector") else ""
        level = f", {facts['intensity']}" if facts.get("intensity") else ""
        parts.append(f"made with {cause}{by}{level} (its maker's word, unknown to the diagnosis)")
    return "; ".join(parts) or "a recording"
