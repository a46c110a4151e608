"""What `agent diagnose` was asked for, apart from where its findings come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Finding
from diagnosis.detect.journal import Series, SpikeTrails
from pointillist.diagnose.finding_layout import BoottimeReader

from .output import usage_error

if TYPE_CHECKING:
    from collectors.steps.steps_source import StepProbe
    from diagnosis.frames.frame import HostSample
    from edge_agent.config import DiagnosisSection
    from pointillist.diagnose.finding_printer import Watching

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
        """Take from a configuration what the command line does not say."""
        if section is None:
            return self
        return replace(
            self,
            watch=self.watch or section.watch,
            probes=() if self.steps else section.steps,
        )

    def only(self, tell: Told) -> Told:
        """Let the findings of the subjects that are asked for pass."""

        def passed(found: Finding | Series, clock: BoottimeReader) -> None:
            if self.wants(found.subject):
                tell(found, clock)

        return passed

    def wants(self, subject: str) -> bool:
        """Whether a subject is asked for."""
        return self.subject is None or fnmatchcase(subject, self.subject)

    def diagnoser(self) -> Diagnoser:
        """Make a diagnoser that has seen nothing yet."""
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
    """Give the findings of frames, and the picture of each spike."""
    pictures = SpikeTrails()
    for frame in frames:
        findings = diagnoser.handle(frame)
        watching.take(frame, diagnoser)
        yield from findings
        yield from pictures.take(frame, findings)
    yield from pictures.rest()
