"""Held-out faults by how strong they were, in which workload, and by which injector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kernels.wilson import wilson_interval

from .figures import all_pairs, delays, known, macro_f1, single
from .outcomes import Judged
from .recorded_runs import INTENSITIES, Facts, RunKind

Row = dict[str, Any]

BY: Final = ("intensity", "workload", "injector")


def breakdowns(facts: Iterable[Facts], judged: Sequence[Judged]) -> dict[str, list[Row]]:
    """Divide judged runs of single faults three ways; in each, every run is in one part."""
    known = {one.name: one for one in facts if one.kind is RunKind.FAULT}
    runs = [run for run in judged if run.run in known]
    keys: dict[str, Callable[[Facts], tuple[str, str]]] = {
        "intensity": lambda one: ("", one.intensity or "not said"),
        "workload": lambda one: ("", one.workload),
        "injector": lambda one: (str(one.faults[0].cause), one.injectors[0]),
    }
    return {by: _rows(by, known, runs, keys[by]) for by in BY}


def _rows(
    by: str,
    facts: dict[str, Facts],
    judged: Sequence[Judged],
    key: Callable[[Facts], tuple[str, str]],
) -> list[Row]:
    parts: dict[tuple[str, str], list[Judged]] = {}
    for run in judged:
        parts.setdefault(key(facts[run.run]), []).append(run)
    return [_row(by, cause, name, parts[cause, name]) for cause, name in sorted(parts, key=_place)]


def _place(part: tuple[str, str]) -> tuple[int, str, str]:
    """Intensities from the weakest up, everything else by its name."""
    cause, name = part
    return (INTENSITIES.index(name) if name in INTENSITIES else len(INTENSITIES), cause, name)


def _row(by: str, cause: str, name: str, judged: Sequence[Judged]) -> Row:
    outcomes = single(judged)
    right = sum(one.right for one in outcomes)
    return {
        by: name,
        "cause": cause,
        "runs": len(judged),
        "faults": len(outcomes),
        "without_impact": len(single(judged, gated=False)) - len(outcomes),
        "right": right,
        "right_interval": [round(end, 4) for end in wilson_interval(right, len(outcomes))],
        "detected": sum(one.detect_s is not None for one in outcomes),
        "macro_f1": known(macro_f1(all_pairs(judged))),
        "cause_p95_s": known(delays(outcomes, 95, cause=True)),
    }
