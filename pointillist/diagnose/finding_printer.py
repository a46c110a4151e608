"""Findings printed as they come, each spike with its picture, and what was watched."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Diagnosis, Finding
from diagnosis.detect.journal import Series
from diagnosis.frames.frame import HostSample
from edge_agent.local.local_rows import clean_name
from edge_agent.local.words import counted, number, quantity

from .finding_layout import BoottimeReader, as_lines, as_object

MOST_OPEN: Final = 256
WIDTH: Final = 100
"""Columns where nothing says how wide the terminal is."""
_Spike = tuple[str, str, int]


class Teller:
    """Prints findings as they come, and draws each spike into a folder.

    show      takes one line; as_json: a JSON document a line
    plots     where pictures go; None: none is drawn
    verbose   raw names of signals and every one of them
    width     columns of the terminal
    """

    def __init__(
        self, show: Callable[[str], None], *, as_json: bool = False, plots: Path | None = None,
        verbose: bool = False, width: int = WIDTH,
    ) -> None:  # fmt: skip
        self._show = show
        self._as_json = as_json
        self._plots = plots
        self._verbose = verbose
        self._width = width
        self._standing: OrderedDict[_Spike, Diagnosis] = OrderedDict()
        self._told: dict[_Spike, Diagnosis] = {}
        self.drawn = 0
        self.diagnosed = 0
        """Spikes that got a diagnosis: each may have a picture."""

    def tell(self, finding: Finding | Series, clock: BoottimeReader) -> None:
        """Print one finding; a diagnosis that says the same as the one before it is passed over."""
        if isinstance(finding, Series):
            self._draw(finding, clock)
            return
        before: Diagnosis | None = None
        if isinstance(finding, Diagnosis):
            before = self._before(finding, clock)
            if before is not None and _same(before, finding):
                return
        if self._as_json:
            self._show(json.dumps(as_object(finding, clock)))
            return
        for line in as_lines(finding, clock, before, width=self._width, verbose=self._verbose):
            self._show(line)

    def _before(self, diagnosis: Diagnosis, clock: BoottimeReader) -> Diagnosis | None:
        """Give what was told of the same spike last, and keep this one."""
        place = (clock.name, diagnosis.subject, diagnosis.onset_ns)
        self.diagnosed += place not in self._standing
        self._standing[place] = diagnosis
        self._standing.move_to_end(place)
        while len(self._standing) > MOST_OPEN:
            gone, _ = self._standing.popitem(last=False)
            self._told.pop(gone, None)
        before = self._told.get(place)
        if before is None or not _same(before, diagnosis):
            self._told[place] = diagnosis
        return before

    def _draw(self, series: Series, clock: BoottimeReader) -> None:
        diagnosis = self._standing.get((clock.name, series.subject, series.onset_ns))
        if self._plots is None or diagnosis is None:
            return
        from .spike_plot import draw_spike, file_name

        self.drawn += 1
        draw_spike(self._plots / file_name(diagnosis, clock), series, diagnosis, clock)


def _same(before: Diagnosis, now: Diagnosis) -> bool:
    return (before.cause, before.incident) == (now.cause, now.incident)


_RATE_FRAMES: Final = 10
_SILENT_FRAMES: Final = 25
"""After so many seconds without anybody to watch, that is said."""


@dataclass(slots=True)
class _Seen:
    """One subject: its steps of the last seconds as (steps, seconds), and whether it is known."""

    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RATE_FRAMES))
    steps: int = 0
    span_s: float = 0.0
    known: bool = False


class Watching:
    """Counts subjects and steps of frames that a diagnoser takes.

    say       takes one line for a person; None: nothing is said as it comes
    pattern   of subjects that are asked for; None: all
    """

    def __init__(
        self, say: Callable[[str], None] | None = None, pattern: str | None = None
    ) -> None:
        self._say = say
        self._pattern = pattern
        self._seen: dict[str, _Seen] = {}
        self.others: set[str] = set()
        """Subjects that the pattern leaves out."""
        self.frames = 0
        self.span_s = 0.0

    def take(self, frame: HostSample, diagnoser: Diagnoser) -> None:
        self.frames += 1
        self.span_s += frame.span_ns / 1e9
        for key, subject in frame.subjects.items():
            if self._pattern is not None and not fnmatchcase(key, self._pattern):
                self.others.add(key)
                continue
            steps = diagnoser.steps_of(subject)
            if steps is None:
                continue
            if key not in self._seen:
                self._begin(key, subject.program, steps.source)
            self._count(key, int(steps.duration_ns.size), frame.span_ns / 1e9, diagnoser)
        if self.frames == _SILENT_FRAMES and not self._seen:
            self._tell(
                "nobody makes steps yet: a rhythm takes some 15 s to learn, and there may be none; "
                "--step names a function whose calls end a step"
            )

    @property
    def known(self) -> int:
        """How many subjects can be judged: what is usual of them is known."""
        return sum(subject.known for subject in self._seen.values())

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self._seen)

    def summary(self, spikes: int) -> str:
        """Say what was watched, and what was found; calm where that is nothing."""
        steps = sum(
            subject.steps / subject.span_s for subject in self._seen.values() if subject.span_s
        )
        known = self.known
        learnt = "" if known == len(self._seen) else f", {known} of them long enough to be judged"
        what = counted(spikes, "spike") if spikes else "calm"
        return (
            f"watched {counted(len(self._seen), 'subject')}{learnt} for {self.span_s:.0f} s, "
            f"{number(steps)} steps a second; {what}"
        )

    def _begin(self, key: str, program: str, source: StepSource) -> None:
        self._seen[key] = _Seen()
        guessed = "guessed from its rhythm" if source is StepSource.RHYTHM else f"by {source.value}"
        who = f"{clean_name(key)} ({clean_name(program)})" if program else clean_name(key)
        self._tell(f"watching {who}, steps {guessed}; learning what is usual")

    def _count(self, key: str, steps: int, span_s: float, diagnoser: Diagnoser) -> None:
        seen = self._seen[key]
        seen.recent.append((steps, span_s))
        seen.steps += steps
        seen.span_s += span_s
        usual = diagnoser.usual(key)
        if usual is None or seen.known:
            return
        seen.known = True
        rate = sum(count for count, _ in seen.recent) / sum(span for _, span in seen.recent)
        self._tell(
            f"{clean_name(key)}: what is usual is learnt: {number(rate)} steps a second, "
            f"p50 {quantity(usual.p50_ms, 'ms')}, p99 {quantity(usual.p99_ms, 'ms')}; "
            "from now on silence means calm"
        )

    def _tell(self, line: str) -> None:
        if self._say is not None:
            self._say(line)
