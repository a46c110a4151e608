"""Everything that is told of one folder of recordings, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from diagnosis.detect.findings import Cause
from diagnosis.detect.model import Model

from .comparison import (
    Ablated,
    MethodScores,
    ablation,
    all_methods,
    choose_open_set,
    compare,
    judged_by,
)
from .learning import KINDS
from .method_port import Method, Prepared
from .methods.learned import Blinded, HandRules, Learned, Shipped
from .outcomes import Judged
from .prepare import prepare
from .recorded_runs import Facts, RecordedRun, RunKind
from .splits import Split, split

OPEN_SETS: Final = ("knn", "mahalanobis", "gmm")
LOGISTIC: Final = "logistic"
SHIPPED: Final = "shipped"
Tell = Callable[[str], None]


class TaughtByHeldOut(ValueError):
    """A model that learned from runs which are to judge it: names them, and what to do."""


@dataclass(frozen=True, slots=True)
class MethodEvaluation:
    """What was found.

    shipped       the packaged model or, where there is none, the hand rules: judged held-out runs
    shipped_all   the same on every run, training included
    rhythm        the same method, held-out runs, steps from the rhythm alone
    compared      every method on the held-out runs
    """

    facts: tuple[Facts, ...]
    divided: Split
    name: str
    shipped: tuple[Judged, ...]
    shipped_all: tuple[Judged, ...]
    rhythm: tuple[Judged, ...]
    compared: tuple[MethodScores, ...]
    open_set: str
    ablated_kind: str
    ablated: tuple[Ablated, ...] = field(default=())


def refuse_taught(model: Model, divided: Split) -> None:
    """Let no model be judged by what it learned from. Raises TaughtByHeldOut."""
    taught = sorted(model.runs & divided.held_out.keys())
    if taught:
        raise TaughtByHeldOut(
            f"expected a model that no held-out run taught; {model.title} learned from "
            f"{len(taught)} of the {len(divided.held_out)} that judge it, as {taught[0]}: "
            "train without --all, or judge it on other recordings"
        )


def shipped_method(model: Model | None) -> Method:
    """What an agent with this model says; without one, by its hand rules."""
    return HandRules() if model is None else Shipped(model, f"shipped: {model.title}")


def evaluate(
    runs: Iterable[RecordedRun], model: Model | None, tell: Tell, ablate: str = SHIPPED
) -> MethodEvaluation:
    """Compare all methods on runs, held-out ones only.

    model       the packaged one; None: hand rules speak
    Raises      TaughtByHeldOut
    tell        told what is under way
    ablate      what loses each group of signals in turn: what is shipped, which then finds it
                missing, or a kind of model that is taught anew; any other word for none
    """
    prepared, rhythm = both_ways(runs, tell)
    facts = tuple(run.run.facts for run in prepared)
    divided = split(facts)
    if model is not None:
        refuse_taught(model, divided)
    train = [run for run in prepared if run.name in set(divided.train)]
    held_out = [run for run in prepared if run.name in divided.held_out]
    open_set = choose_open_set(LOGISTIC, OPEN_SETS, train)
    tell(f"{len(train)} runs teach, {len(held_out)} judge; open set by {open_set}")
    ours = shipped_method(model)
    shipped_all = {run.run: run for run in judged_by(ours, prepared)}
    compared = []
    for method in [*all_methods(open_set), *([] if model is None else [ours])]:
        tell(method.name)
        compared += compare([method], prepared, divided, rhythm)
    return MethodEvaluation(
        facts=facts,
        divided=divided,
        name=ours.name,
        shipped=tuple(shipped_all[run.name] for run in held_out),
        shipped_all=tuple(shipped_all.values()),
        rhythm=tuple(judged_by(ours, [r for r in rhythm if r.name in divided.held_out])),
        compared=tuple(compared),
        open_set=open_set,
        ablated_kind=ablate,
        ablated=tuple(_ablated(ablate, model, open_set, prepared, divided)),
    )


def _ablated(
    ablate: str, model: Model | None, open_set: str, runs: Sequence[Prepared], divided: Split
) -> list[Ablated]:
    if ablate == SHIPPED:
        return ablation(lambda keep: Blinded(model, keep), runs, divided)
    if ablate in KINDS:
        return ablation(lambda keep: Learned(ablate, open_set, keep), runs, divided)
    return []


def both_ways(runs: Iterable[RecordedRun], tell: Tell) -> tuple[list[Prepared], list[Prepared]]:
    """Prepare runs with their measured steps, and with their rhythm alone."""
    measured: list[Prepared] = []
    rhythm: list[Prepared] = []
    for run in runs:
        tell(f"{run.facts.name}: {len(run.frames)} s recorded")
        measured.append(prepare(run))
        rhythm.append(prepare(run, rhythm=True))
    return measured, rhythm


def recorded_causes(facts: Sequence[Facts]) -> list[Cause]:
    """Causes of which there is a run with that fault alone."""
    there = {run.faults[0].cause for run in facts if run.kind is RunKind.FAULT}
    return [cause for cause in Cause if cause in there]
