"""How well the family rules do: `make bench-families`.

GPU time in a right family over labelled traces, GPU time in the family "other" over recorded ones,
and the share of names that are classed right among those the rules were never written from. It
needs `kernel-labels` and `kineto` in `shared/data` beside the checkout, or in the folder that
POINTILLIST_SHARED_DATA names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from bench.kernel_table import (
    LABELS,
    SPENT,
    NamedKernel,
    accuracy_by_time,
    read_labels,
    read_table,
    stem,
)
from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from kernels.families import FamilyRules
from kernels.launches.kineto import gpu_events
from kernels.wilson import wilson_interval
from wire.catalogue import Catalogue

OTHER: Final = "other"


def measure(_kept: Parts) -> Measured:
    """Classify labelled and recorded traces, and the names of the table."""
    folder = data_folder()
    traces = sorted((folder / "kineto").glob("*.json.gz"))
    if not traces or not (folder / LABELS).exists():
        raise SystemExit(
            f"no kineto/*.json.gz and {LABELS} in {folder}: name the folder that holds both in "
            "POINTILLIST_SHARED_DATA"
        )
    rules = FamilyRules.load(families=Catalogue.load().classes("family"))
    others = {trace.name: other_percent(trace, rules) for trace in traces}
    for name, percent in sorted(others.items(), key=lambda row: -row[1]):
        print(f"{percent:8.3f} % other  {name}")
    rows = read_table()
    unseen = unseen_rows(rows, rules)
    seen = [row for row in rows if row not in unseen]
    figures = [
        *_by_time(folder / LABELS, rules),
        Figure("other_percent_median", median(list(others.values())), "percent of GPU time", 1),
        Figure("other_percent_worst", max(others.values()), "percent of GPU time", 5),
        Figure("other_traces", len(others), "traces"),
        *_accuracy("seen", seen, rules),
        *_accuracy("heldout", unseen, rules),
        Figure("names", len(rows), "names of the table"),
    ]
    sources = [
        {"source": source, "right": right(chosen, rules), "names": len(chosen)}
        for source in sorted({row.source for row in unseen})
        if (chosen := [row for row in unseen if row.source == source])
    ]
    for one in sources:
        print(f"{one['right']:4d} of {one['names']:3d} right, held out  {one['source']}")
    return Measured(figures, {"heldout_sources": sources, "other_percent": others})


def data_folder() -> Path:
    """Where the recorded traces and the labelled names lie."""
    named = os.environ.get("POINTILLIST_SHARED_DATA")
    return Path(named) if named else ROOT.parent / "shared" / "data"


def other_percent(trace: Path, rules: FamilyRules) -> float:
    """Percent of a trace's GPU time in the family `other`."""
    whole = other = 0
    for event in gpu_events(trace):
        whole += event.duration_ns
        other += event.duration_ns * (rules.classify(event.name)[0] == OTHER)
    return 100 * other / max(whole, 1)


def unseen_rows(rows: Sequence[NamedKernel], rules: FamilyRules) -> list[NamedKernel]:
    """Held-out rows that no rule can have been written from.

    The traces were known when the first rules were written, so their names count as seen, and so
    does any name that shares its stem with one of them or with an example of a rule.
    """
    known = {stem(name) for rule in rules.rules for name in rule.match}
    known |= {stem(row.name) for row in rows if row.source == "trace"} | SPENT
    return [
        row
        for row in rows
        if row.held_out and row.source != "trace" and stem(row.name) not in known
    ]


def right(rows: Sequence[NamedKernel], rules: FamilyRules) -> int:
    """Count the rows whose family the rules find."""
    return sum(rules.classify(row.name)[0] == row.family for row in rows)


def median(values: Sequence[float]) -> float:
    """Middle value; the upper of two."""
    return sorted(values)[len(values) // 2]


def _by_time(labels: Path, rules: FamilyRules) -> list[Figure]:
    """Give how right the rules are by GPU time: all traces, and those that were first judged."""
    kernels = read_labels(labels)
    found = accuracy_by_time(kernels, rules)
    unseen = accuracy_by_time([one for one in kernels if one.held_out], rules)
    for trace, percent in sorted(found.items(), key=lambda row: row[1]):
        print(f"{percent:8.3f} % of GPU time right  {trace}")
    unit = "percent of GPU time"
    return [
        Figure("accuracy_by_time_worst_percent", min(found.values()), unit, 80),
        Figure("accuracy_by_time_mean_percent", mean(found.values()), unit, 95),
        Figure("accuracy_by_time_traces", len(found), "traces"),
        Figure("accuracy_by_time_heldout_worst_percent", min(unseen.values()), unit, 80),
        Figure("accuracy_by_time_heldout_traces", len(unseen), "traces"),
    ]


def _accuracy(part: str, rows: Sequence[NamedKernel], rules: FamilyRules) -> Iterator[Figure]:
    good, name = right(rows, rules), f"{part}_name_accuracy_percent"
    yield Figure(f"{part}_names", len(rows), "names")
    yield Figure(name, 100 * good / len(rows), "percent of names")
    if part == "heldout":
        low, high = wilson_interval(good, len(rows))
        wrong = sum(rules.classify(row.name)[0] not in {row.family, OTHER} for row in rows)
        yield Figure(f"{name}_low", 100 * low, "percent, 95 % interval")
        yield Figure(f"{name}_high", 100 * high, "percent, 95 % interval")
        yield Figure(f"{part}_name_wrong_family_percent", 100 * wrong / len(rows), "percent")
