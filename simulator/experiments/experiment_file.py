"""An experiment from its TOML file: parts, each a base scenario and the axes that it sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.scenario import FIDELITIES, NAME
from transport.settings.config import build, did_you_mean, limited, read_table

from .axes import AXES, Axis

FORMAT: Final = 1
MAX_PARTS: Final = 64
MAX_RUNS: Final = 10_000
MAX_VALUES: Final = 100


class ExperimentError(ValueError):
    """An experiment breaks a rule: names the file, the key, what was expected and what came."""


def _check_axes(axes: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ValueError for an axis that there is not, or values that it cannot have."""
    for name, values in axes.items():
        if name not in AXES:
            raise ValueError(
                f"axes.{name}: unknown key{did_you_mean(name, AXES)}; "
                f"expected one of {', '.join(AXES)}"
            )
        for value in values:
            _check_bounds(value, f"axes.{name}", AXES[name])
        if not 1 <= len(values) <= MAX_VALUES or len(set(values)) != len(values):
            raise ValueError(
                f"axes.{name}: expected an array of 1 to {MAX_VALUES}, each value once, "
                f"got {values!r:.80}"
            )


def _check_bounds(got: Any, where: str, axis: Axis) -> None:
    number = isinstance(got, int if axis.whole else int | float) and not isinstance(got, bool)
    if not number or not axis.low <= got <= axis.high:
        what = "an integer" if axis.whole else "a number"
        raise ValueError(
            f"{where}: expected {what} from {axis.low:g} to {axis.high:g}, got {got!r:.80}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPart:
    """One sweep: every combination of its axes' values, each with every seed.

    title       of its figure; chapter: under which heading; note: a sentence of the author's own
    figure      how it is drawn (simulator/experiments/experiment_plots.py), "" for that of its kind
    kind        what is done with a point (simulator/experiments/kinds.py)
    scenario    name of a shipped scenario, or a file
    plan        in place of the scenario's, "" to leave it
    section     whose error is reported
    hosts       in place of the scenario's, 0 to leave them
    hours       in place of the scenario's duration, 0 to leave it
    seeds       how many, counted from the scenario's own
    options     of the kind
    """

    name: str = limited(form=NAME)
    title: str = ""
    chapter: str = ""
    note: str = ""
    figure: str = ""
    kind: str = "windows"
    scenario: str
    plan: str = ""
    section: str = "kernel_mix"
    hosts: int = limited(0, low=1, high=1_000_000)
    hours: float = limited(0.0, low=0.001, high=8760)
    fidelity: str = limited("noise", choices=FIDELITIES)
    seeds: int = limited(1, low=1, high=1000)
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_axes(self.axes)

    @property
    def points(self) -> int:
        """How many runs it is."""
        return self.seeds * math.prod(len(values) for values in self.axes.values())


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that one file asks for.

    publish     report and table are written beside the file as well
    """

    name: str = limited(form=NAME)
    parts: tuple[ExperimentPart, ...] = limited(key="part", fewest=1, most=MAX_PARTS)
    title: str = ""
    about: str = ""
    publish: bool = False

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len(set(names)) != len(names):
            raise ValueError(f"part names: expected each once, got {', '.join(names)}")
        runs = sum(part.points for part in self.parts)
        if runs > MAX_RUNS:
            raise ValueError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}")


def load(path: Path, kinds: Iterable[str], figures: Iterable[str]) -> Experiment:
    """Read an experiment.

    kinds, figures  names that a part's `kind` and `figure` may have
    Raises  ExperimentError
    """
    try:
        content = read_table(path, error=ExperimentError)
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}") from None
    return parse(content, kinds, figures, f"{path}: ")


def parse(
    content: Mapping[str, Any], kinds: Iterable[str], figures: Iterable[str], where: str = ""
) -> Experiment:
    """Build an experiment from parsed TOML. Raises ExperimentError."""
    found = build(Experiment, content, where, error=ExperimentError, file_format=FORMAT)
    known = {"kind": tuple(kinds), "figure": ("", *figures)}
    for part in found.parts:
        for key, names in known.items():
            if getattr(part, key) not in names:
                raise ExperimentError(
                    f"{where}part[{part.name}].{key}: expected one of {', '.join(names)}, "
                    f"got {getattr(part, key)!r:.80}"
                )
    return found
