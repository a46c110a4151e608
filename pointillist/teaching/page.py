"""The evaluation as a page: the same tables as the result file, with their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .figures import worded
from .page_tables import breakdown, classes, figures, methods, misses, number, table
from .result_tables import BY

Document = Mapping[str, Any]

_CAPTIONS: Final[Mapping[str, str]] = {
    "methods": "Every method on the same held-out runs, beside the goal.",
    "confusion": "What was answered, by what was true; held-out faults with impact.",
    "open-set": "Unknown faults told from known ones by how unlike everything learned they are.",
    "ablation": "What is lost without a group of signals, and what it can do alone.",
}

_STOLEN: Final = "*stolen*: the hypervisor took 2 % of the CPU time or more about then"
_REST: Final = (
    "The same methods, the rest of what was measured (*found p95* of those found, *cause p95* of "
    "those whose right cause then stood, so that the second may be the smaller):\n"
)


def page(document: Document, pictures: Iterable[str], folder: str) -> str:
    """Write a result document as Markdown.

    document    as the result file holds it: date, commit, device, figures, tables, absent
    pictures    names of those that were drawn, into `folder` beside the page
    """
    tables, shown = document["tables"], set(pictures)
    right, rest = methods(tables["methods"], tables["shipped"])
    parts = [
        "# Diagnosis, measured\n",
        _head(document),
        "## Figures\n",
        figures(document["figures"]),
        _absent(document),
        "## Methods compared\n",
        _picture("methods", shown, folder),
        _compared(tables),
        right,
        _REST,
        rest,
        "## Causes\n",
        _picture("confusion", shown, folder),
        classes(tables["classes"]),
        "With steps from the rhythm alone:\n",
        classes(tables["classes_rhythm_only"]),
        *_breakdowns(tables["by"]),
        "### By what held them out\n",
        "A run may be held out by several rules.\n",
        _held_out(tables["held_out_by"]),
        _overlaps(tables["overlaps"]),
        "### Wrong answers\n",
        misses(tables["misses"], {row["injector"]: row["faults"] for row in _injectors(tables)}),
        "## The unknown\n",
        _picture("open-set", shown, folder),
        _unknown(tables["open_set"]),
        "## Running without a fault\n",
        _silent(tables["calm"]),
        _alarms(tables["alarms_by_negative"]),
        "## Groups of signals\n",
        _picture("ablation", shown, folder),
        _ablation(tables["ablation"]),
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _head(document: Document) -> str:
    tables = document["tables"]
    split = tables["split"]
    runs = ", ".join(f"{count} {worded(kind)}" for kind, count in tables["runs"].items() if count)
    return (
        f"Written by `{document['command']}` on {document['date'][:10]} ({document['device']}); "
        "not edited by hand. "
        f"Recorded: {runs or 'nothing yet'}. {len(split['train'])} runs taught, "
        f"{len(split['held_out'])} judged; split by run, by the rules in "
        "[Retraining](retraining.md#how-runs-are-divided). "
        f"Seed of all draws: {split['seed']}. What speaks: **{tables['shipped']}**.\n\n"
        "A fault counts when the p99 of steps in it is at least 1.3 times that before; *ungated* "
        "figures count all. Its answer is what was said last before it ended; nothing said is a "
        "miss; said before the impact, it took 0 s. No second is counted right because another "
        "one was. Runs without a fault were recorded on a machine at rest; alarms of those in "
        "which nothing was done are in the picture of causes and in rates, and cost no precision. "
        "Intervals: 95 %, by resampling whole runs, or Wilson's for shares.\n"
    )


def _absent(document: Document) -> str:
    absent = document.get("absent") or {}
    if not absent:
        return ""
    lines = [f"- `{name}`: {why}" for name, why in absent.items()]
    return "Absent, and why:\n\n" + "\n".join(lines) + "\n"


def _injectors(tables: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = tables["by"]["injector"]
    return rows


def _compared(tables: Mapping[str, Any]) -> str:
    return (
        f"The best first; in bold what speaks. On {_faults(tables)} held-out faults with impact "
        f"and {tables['calm']['runs']} held-out runs without a fault.\n"
    )


def _faults(tables: Mapping[str, Any]) -> int:
    return sum(int(row["faults"]) for row in _injectors(tables))


def _breakdowns(by: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A part each: heading and table."""
    return [part for name in BY for part in (f"### By {name}\n", breakdown(name, by[name]))]


def _held_out(rows: Sequence[Mapping[str, Any]]) -> str:
    body = [
        (worded(row["held_out_by"]), row["runs"], row["faults_with_impact"], row["right"])
        for row in rows
        if row["runs"]
    ]
    return table(("held out by", "runs", "faults with impact", "right"), body)


def _overlaps(row: Mapping[str, Any]) -> str:
    if not row["pairs"]:
        return "No overlapping pair with impact is recorded.\n"
    return (
        f"Of {row['pairs']} overlapping pairs with impact, {row['first_is_one_of_them']} were "
        f"answered by one of the two, and {row['first_two_are_both']} by both in the first two "
        "places.\n"
    )


def _unknown(scores: Sequence[Mapping[str, Any]]) -> str:
    strange = sum(bool(score["unknown"]) for score in scores)
    return (
        f"{strange} unknown and {len(scores) - strange} known faults that were detected have a "
        "score.\n"
    )


def _silent(calm: Mapping[str, Any]) -> str:
    return f"Of {calm['runs']} held-out runs without a fault, {calm['silent']} passed in silence.\n"


def _alarms(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "None is recorded.\n"
    body = [
        (
            worded(row["what"]),
            number(row["worker_hours"]),
            row["alarms"],
            row["stolen"],
            row["incidents"],
        )
        for row in rows
    ]
    heads = ("what happened", "worker-hours", "alarms", "of them, stolen", "incidents")
    return f"All runs, teaching ones included ({_STOLEN}):\n\n" + table(heads, body)


def _ablation(found: Mapping[str, Any]) -> str:
    body = [
        (worded(group["group"]), number(group["without"]), number(group["alone"]))
        for group in found["groups"]
    ]
    if not body:
        return ""
    how = (
        "What is shipped, as if the group were not measured"
        if found["kind"] == "shipped"
        else f"Model: {found['kind']}, taught anew each time"
    )
    return f"{how}.\n\n" + table(("group", "macro-F1 without it", "with it alone"), body)


def _picture(name: str, shown: set[str], folder: str) -> str:
    return f"![{_CAPTIONS[name]}]({folder}/{name}.svg)\n" if name in shown else ""
