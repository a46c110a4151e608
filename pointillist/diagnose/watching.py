"""What is watched, and whether what is usual is known: from then on silence means calm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.frames.frame import Frame
from edge_agent.local.local_rows import clean_name
from edge_agent.local.quantity import counted, number, quantity

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

    def take(self, frame: Frame, diagnoser: Diagnoser) -> None:
        """Take a frame that the diagnoser has handled."""
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
        return sum(one.known for one in self._seen.values())

    @property
    def subjects(self) -> tuple[str, ...]:
        """Who made steps."""
        return tuple(self._seen)

    def summary(self, spikes: int, warnings: int) -> str:
        """Say what was watched, and what was found; calm where that is nothing."""
        steps = sum(one.steps / one.span_s for one in self._seen.values() if one.span_s)
        known = self.known
        learnt = "" if known == len(self._seen) else f", {known} of them long enough to be judged"
        found = ((spikes, "spike"), (warnings, "early warning"))
        what = ", ".join(counted(*one) for one in found if one[0]) or "calm"
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
        one = self._seen[key]
        one.recent.append((steps, span_s))
        one.steps += steps
        one.span_s += span_s
        usual = diagnoser.usual(key)
        if usual is None or one.known:
            return
        one.known = True
        rate = sum(count for count, _ in one.recent) / sum(span for _, span in one.recent)
        self._tell(
            f"{clean_name(key)}: what is usual is learnt: {number(rate)} steps a second, "
            f"p50 {quantity(usual.p50_ms, 'ms')}, p99 {quantity(usual.p99_ms, 'ms')}; "
            "from now on silence means calm"
        )

    def _tell(self, line: str) -> None:
        if self._say is not None:
            self._say(line)
