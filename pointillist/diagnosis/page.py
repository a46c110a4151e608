"""The evaluation as a page: the same tables as the result file, with their pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .figures import worded

Document = Mapping[str, Any]

_CAPTIONS: Final[Mapping[str, str]] = {
    "methods": "Every method on the same held-out runs.",
    "confusion": "What was answered, by what was true; held-out faults with impact.",
    "open-set": "Unknown faults told from known ones by how unlike everything learned they are.",
    "ablation": "What is lost without a group of signals, and what it can do alone.",
}


def page(document: Document, pictures: Iterable[str], folder: str) -> str:
    """Write a result document as Markdown.

    document    as the result file holds it: date, commit, device, figures, tables, absent
    pictures    names of those that were drawn, into `folder` beside the page
    """
    tables, shown = document["tables"], set(pictures)
    parts = [
        "# Diagnosis, measured\n",
        _head(document),
        "## Figures\n",
        _table(("figure", "value", "unit", "goal"), _figure_rows(document)),
        _absent(document),
        "## Methods compared\n",
        _picture("methods", shown, folder),
        _methods(tables["methods"]),
        "## Causes\n",
        _picture("confusion", shown, folder),
        _classes(tables["classes"]),
        "With steps from the rhythm alone:\n",
        _classes(tables["classes_rhythm_only"]),
        "By what held them out (a run may be held out by several rules):\n",
        _held_out(tables["held_out_by"]),
        _overlaps(tables["overlaps"]),
        "### Wrong answers\n",
        _misses(tables["misses"]),
        "## The unknown\n",
        _picture("open-set", shown, folder),
        "## Running without a fault\n",
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
        "miss. No second is counted right because another one was. Intervals: 95 %, by "
        "resampling whole runs, or Wilson's for shares.\n"
    )


def _figure_rows(document: Document) -> list[Sequence[object]]:
    return [
        (f"`{one['name']}`", _number(one["value"]), one["unit"], _number(one["goal"]))
        for one in document["figures"]
    ]


def _absent(document: Document) -> str:
    absent = document.get("absent") or {}
    if not absent:
        return ""
    lines = [f"- `{name}`: {why}" for name, why in absent.items()]
    return "Absent, and why:\n\n" + "\n".join(lines) + "\n"


def _methods(rows: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "method", "macro-F1", "95 %", "ungated", "by second", "accuracy", "found",
        "found p95, s", "cause p95, s", "open set", "alarms without fault",
    )  # fmt: skip
    body: list[Sequence[object]] = []
    for one in rows:
        if "skipped" in one:
            body.append((one["method"], f"not run: {one['skipped']}", *[""] * (len(head) - 2)))
            continue
        low, high = one["macro_f1_interval"]
        body.append((
            one["method"], _number(one["macro_f1"]), f"{_number(low)} to {_number(high)}",
            _number(one["macro_f1_ungated"]), _number(one["macro_f1_by_second"]),
            _number(one["accuracy"]), _number(one["detected"]), _number(one["detect_p95_s"]),
            _number(one["cause_p95_s"]), _number(one["open_set_auroc"]), one["false_alarms"],
        ))  # fmt: skip
    return _table(head, body)


def _classes(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ("cause", "faults", "precision", "95 %", "recall", "95 %", "F1"),
        [
            (
                worded(one["cause"]), one["faults"], _number(one["precision"]),
                _interval(one["precision_interval"]), _number(one["recall"]),
                _interval(one["recall_interval"]), _number(one["f1"]),
            )
            for one in rows
        ],
    )  # fmt: skip


def _held_out(rows: Sequence[Mapping[str, Any]]) -> str:
    body = [
        (worded(one["held_out_by"]), one["runs"], one["faults_with_impact"], one["right"])
        for one in rows
        if one["runs"]
    ]
    return _table(("held out by", "runs", "faults with impact", "right"), body)


def _overlaps(row: Mapping[str, Any]) -> str:
    if not row["pairs"]:
        return "No overlapping pair with impact is recorded.\n"
    return (
        f"Of {row['pairs']} overlapping pairs with impact, {row['first_is_one_of_them']} were "
        f"answered by one of the two, and {row['first_two_are_both']} by both in the first two "
        "places.\n"
    )


def _misses(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "None.\n"
    body = [
        (f"`{one['run']}`", worded(one["cause"]), worded(one["answer"]), _number(one["rise"]))
        for one in rows
    ]
    return _table(("run", "truth", "answer", "p99 over before"), body)


def _alarms(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "None is recorded.\n"
    body = [
        (worded(one["what"]), _number(one["worker_hours"]), one["alarms"], one["incidents"])
        for one in rows
    ]
    return _table(("what happened", "worker-hours", "alarms", "incidents"), body)


def _ablation(found: Mapping[str, Any]) -> str:
    body = [
        (worded(one["group"]), _number(one["without"]), _number(one["alone"]))
        for one in found["groups"]
    ]
    if not body:
        return ""
    how = (
        "What is shipped, as if the group were not measured"
        if found["kind"] == "shipped"
        else f"Model: {found['kind']}, taught anew each time"
    )
    return f"{how}.\n\n" + _table(("group", "macro-F1 without it", "with it alone"), body)


def _picture(name: str, shown: set[str], folder: str) -> str:
    return f"![{_CAPTIONS[name]}]({folder}/{name}.svg)\n" if name in shown else ""


def _interval(ends: Sequence[float | None]) -> str:
    low, high = ends
    return f"{_number(low)} to {_number(high)}"


def _number(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return "Nothing is recorded.\n"
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
