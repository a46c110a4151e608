"""The shipped diagnosis, judged on a dataset: by measured steps, and by the rhythm alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from diagnosis.detect.diagnoser import Diagnoser

from .outcomes import Judged, judge, spells_of
from .runs import Facts, RecordedRun, episodes
from .splits import Split, split


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was found of a dataset.

    held_out   judged runs that nothing was set on, by measured steps; `rhythm`: by the rhythm alone
    """

    facts: tuple[Facts, ...]
    divided: Split
    held_out: tuple[Judged, ...]
    all_runs: tuple[Judged, ...]
    rhythm: tuple[Judged, ...]


def judged_run(run: RecordedRun, rhythm: bool = False) -> Judged:
    """Play a run through the diagnoser as an agent would; the truth stays what probes measured."""
    diagnoser = Diagnoser(source="rhythm" if rhythm else "measured")
    said = spells_of(found for frame in run.frames for found in diagnoser.handle(frame))
    return judge(run, episodes(run), said)


def evaluate(dataset: Iterable[RecordedRun], tell: Callable[[str], None]) -> Evaluation:
    facts: list[Facts] = []
    measured: list[Judged] = []
    rhythm: list[Judged] = []
    for run in dataset:
        tell(f"{run.facts.name}: {len(run.frames)} s recorded")
        facts.append(run.facts)
        measured.append(judged_run(run))
        rhythm.append(judged_run(run, rhythm=True))
    divided = split(facts)
    return Evaluation(
        tuple(facts),
        divided,
        tuple(run for run in measured if run.run in divided.held_out),
        tuple(measured),
        tuple(run for run in rhythm if run.run in divided.held_out),
    )
