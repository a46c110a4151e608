"""Teaching a model from a folder of recordings, and what its file says of that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnosis.detect.findings import Cause
from diagnosis.detect.model_file import dump_model, parse_model
from diagnosis.frames.recording import read_recording

from .comparison import LeftOut, left_out
from .evaluation import both_ways
from .groups import SpikeGroup
from .learning import learn
from .method_port import Example, Prepared
from .methods.learned import training_examples
from .recorded_runs import labelled_paths, read_run, run_paths
from .splits import SEED, split
from .unknown_spikes import examples_of, kept_as_groups, spikes_of


@dataclass(frozen=True, slots=True)
class Taught:
    """A model file's bytes, and what it was taught with.

    runs_by_cause   teaching runs of each cause
    held_out        runs that taught nothing: `evaluate` judges by them
    judged          by teaching runs left out in turn; None where that was not asked for
    """

    content: bytes
    title: str
    examples: int
    causes: tuple[str, ...]
    runs: tuple[str, ...]
    runs_by_cause: Mapping[str, int]
    held_out: int
    judged: LeftOut | None


def teach(
    folder: Path,
    kind: str,
    open_set: str,
    version: str,
    everything: bool = False,
    groups: Sequence[SpikeGroup] = (),
    tell: Callable[[str], None] = lambda _: None,
    judge: bool = False,
) -> Taught:
    """Learn a model from a folder's labelled runs, and from groups that a person named.

    everything   teach with held-out runs as well: nothing is left then to judge it by
    judge        also judge that kind of model by teaching runs, each left out in turn
    Raises       RunRefused, learning.TooFewExamples, model_fields.ModelError
    """
    paths = labelled_paths(folder)
    runs = [read_run(path) for path in paths]
    divided = split(run.facts for run in runs)
    teaching = [run for run in runs if everything or run.facts.name in set(divided.train)]
    measured, rhythm = both_ways(teaching, tell)
    examples = training_examples([*measured, *rhythm])
    named = _named_examples(folder, groups)
    examples += [example for found in named.values() for example in found]
    about: dict[str, Any] = {
        "version": version,
        # A named group's spikes may come from any recording, of held-out runs too.
        "runs": sorted({run.facts.name for run in teaching} | named.keys()),
        "split_seed": None if everything else SEED,
        "examples": len(examples),
    }
    document = learn(examples, kind, open_set, about=about)
    kept = kept_as_groups(groups)
    document["groups"] = [group.for_model(document["features"]) for group in kept]
    content = dump_model(document)
    return Taught(
        content,
        parse_model(content).title,
        len(examples),
        tuple(document["classes"]),
        tuple(about["runs"]),
        _runs_by_cause(measured),
        len(runs) - len(teaching),
        left_out(measured, kind, open_set, tell) if judge else None,
    )


def _runs_by_cause(runs: Sequence[Prepared]) -> dict[str, int]:
    taught = Counter(cause for run in runs for cause in {example.cause for example in run.examples})
    return {str(cause): taught[cause] for cause in Cause if cause in taught}


def _named_examples(folder: Path, groups: Sequence[SpikeGroup]) -> dict[str, list[Example]]:
    """Give the examples of groups that a cause names, by recording."""
    wanted = {member.recording for group in groups if group.named for member in group.members}
    found: dict[str, list[Example]] = {}
    for path in run_paths(folder):
        if path.stem in wanted:
            spikes = spikes_of(path.stem, read_recording(path).frames, None)
            if examples := examples_of(groups, spikes):
                found[path.stem] = examples
    return found
