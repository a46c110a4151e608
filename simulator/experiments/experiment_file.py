"""An experiment from its TOML file: parts, each a base scenario and the axes that it sweeps."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .axes import AXES, Axis

MAX_BYTES: Final = 1 << 20
MAX_PARTS: Final = 64
MAX_RUNS: Final = 10_000
FIDELITIES: Final = ("auto", "exact", "masked", "noise")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TOP: Final = {"format", "name", "title", "about", "publish", "part"}
_PART: Final = {
    "name", "title", "chapter", "note", "figure", "kind", "scenario", "plan", "section", "hosts",
    "hours", "fidelity", "seeds", "axes", "options",
}  # fmt: skip


class ExperimentError(ValueError):
    """An experiment breaks a rule: names the file, the key, what was expected and what came."""


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

    name: str
    title: str = ""
    chapter: str = ""
    note: str = ""
    figure: str = ""
    kind: str = "windows"
    scenario: str
    plan: str = ""
    section: str = "kernel_mix"
    hosts: int = 0
    hours: float = 0.0
    fidelity: str = "noise"
    seeds: int = 1
    axes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """How many runs it is."""
        return self.seeds * math.prod(len(values) for values in self.axes.values())


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that one file asks for.

    publish     report and table are written beside the file as well
    """

    name: str
    title: str
    about: str
    parts: tuple[ExperimentPart, ...]
    publish: bool = False


def load(path: Path, kinds: Iterable[str], figures: Iterable[str]) -> Experiment:
    """Read an experiment.

    kinds, figures  names that a part's `kind` and `figure` may have
    Raises  ExperimentError
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ExperimentError(f"{path}: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ExperimentError(f"{path}: expected at most {MAX_BYTES} bytes, got more")
    try:
        return parse(tomllib.loads(text.decode()), kinds, figures)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExperimentError(f"{path}: no TOML: {error}") from None
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from None


def parse(content: Mapping[str, Any], kinds: Iterable[str], figures: Iterable[str]) -> Experiment:
    """Build an experiment from parsed TOML. Raises ExperimentError."""
    _known(content, _TOP, "")
    if content.get("format") != 1:
        raise ExperimentError(f"format: expected 1, got {content.get('format')!r}")
    listed = content.get("part", [])
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_PARTS:
        raise ExperimentError(f"part: expected 1 to {MAX_PARTS} [[part]], got {listed!r:.80}")
    known = tuple(kinds), ("", *figures)
    parts = tuple(_part(one, f"[[part]] {n}", *known) for n, one in enumerate(listed, 1))
    names = [part.name for part in parts]
    if len(set(names)) != len(names):
        raise ExperimentError(f"part names: expected each once, got {', '.join(names)}")
    runs = sum(part.points for part in parts)
    if runs > MAX_RUNS:
        raise ExperimentError(f"expected at most {MAX_RUNS:,} runs, got {runs:,}")
    name = _name(content.get("name"), "name")
    title = _text(content, "title", "", name)
    publish = content.get("publish", False)
    if not isinstance(publish, bool):
        raise ExperimentError(f"publish: expected true or false, got {publish!r:.80}")
    return Experiment(name, title, _text(content, "about", "", ""), parts, publish)


def _part(
    content: Any, where: str, kinds: tuple[str, ...], figures: tuple[str, ...]
) -> ExperimentPart:
    _known(content, _PART, where)
    axes = content.get("axes", {})
    _known(axes, set(AXES), f"{where}, axes")
    options = content.get("options", {})
    if not isinstance(options, Mapping):
        raise ExperimentError(f"{where}, options: expected a table, got {options!r:.80}")
    return ExperimentPart(
        name=_name(content.get("name"), f"{where}, name"),
        title=_text(content, "title", where, ""),
        chapter=_text(content, "chapter", where, ""),
        note=_text(content, "note", where, ""),
        figure=_choice(content, "figure", where, figures, ""),
        kind=_choice(content, "kind", where, kinds, "windows"),
        scenario=_text(content, "scenario", where, None),
        plan=_text(content, "plan", where, ""),
        section=_text(content, "section", where, "kernel_mix"),
        hosts=int(_number(content, "hosts", where, Axis(1, 1_000_000, whole=True), 0)),
        hours=_number(content, "hours", where, Axis(1 / 3600, 8760), 0.0),
        fidelity=_choice(content, "fidelity", where, FIDELITIES, "noise"),
        seeds=int(_number(content, "seeds", where, Axis(1, 1000, whole=True), 1)),
        axes={name: _values(axes[name], f"{where}, axes, {name}", AXES[name]) for name in axes},
        options=dict(options),
    )


def _known(content: object, known: set[str], where: str) -> None:
    place = f"{where}: " if where else ""
    if not isinstance(content, Mapping):
        raise ExperimentError(f"{place}expected a table, got {content!r:.80}")
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            near = f" (did you mean {close[0]!r}?)" if close else ""
            raise ExperimentError(
                f"{place}unknown key {key!r}{near}; there are {', '.join(sorted(known))}"
            )


def _name(got: Any, where: str) -> str:
    if not isinstance(got, str) or not _NAME.fullmatch(got):
        raise ExperimentError(f"{where}: expected a-z, 0-9, _ and -, got {got!r:.80}")
    return got


def _got(content: Mapping[str, Any], key: str, default: object) -> object:
    return content.get(key, default)


def _text(content: Mapping[str, Any], key: str, where: str, default: str | None) -> str:
    got = _got(content, key, default)
    if not isinstance(got, str):
        raise ExperimentError(f"{where}, {key}: expected text, got {got!r:.80}")
    return got


def _choice(
    content: Mapping[str, Any], key: str, where: str, choices: tuple[str, ...], default: str
) -> str:
    got = _got(content, key, default)
    if not isinstance(got, str) or got not in choices:
        raise ExperimentError(
            f"{where}, {key}: expected one of {', '.join(choices)}, got {got!r:.80}"
        )
    return got


def _number(content: Mapping[str, Any], key: str, where: str, axis: Axis, default: float) -> float:
    return _bounded(content[key], f"{where}, {key}", axis) if key in content else default


def _values(got: Any, where: str, axis: Axis) -> tuple[float, ...]:
    if not isinstance(got, list) or not 1 <= len(got) <= 100:
        raise ExperimentError(f"{where}: expected a list of 1 to 100 numbers, got {got!r:.80}")
    values = tuple(_bounded(one, where, axis) for one in got)
    if len(set(values)) != len(values):
        raise ExperimentError(f"{where}: expected each value once, got {got!r:.80}")
    return values


def _bounded(got: Any, where: str, axis: Axis) -> float:
    number = isinstance(got, int if axis.whole else int | float) and not isinstance(got, bool)
    if not number or not axis.low <= got <= axis.high:
        what = "an integer" if axis.whole else "a number"
        raise ExperimentError(
            f"{where}: expected {what} from {axis.low:g} to {axis.high:g}, got {got!r:.80}"
        )
    return float(got) if isinstance(got, float) else int(got)
