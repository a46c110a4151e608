"""Tables of the evaluation's page: few columns each, so that a verdict is never cut off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

Rows = Sequence[Mapping[str, Any]]
Cells = Sequence[object]

WORDS: Final[Mapping[str, str]] = {
    "macro_f1_heldout": "Macro-F1 of causes, held-out faults with impact",
    "macro_f1_heldout_ungated": "The same, faults without impact too",
    "macro_f1_heldout_rhythm_only": "The same, steps from the rhythm alone",
    "macro_f1_heldout_by_second": "The same, every second judged on its own",
    "accuracy_heldout": "Share of those faults named rightly",
    "accuracy_heldout_rhythm_only": "The same, steps from the rhythm alone",
    "heldout_faults_with_impact": "Held-out faults with impact",
    "heldout_faults": "Held-out faults",
    "open_set_auroc": "Unknown told from known: area under the curve",
    "open_set_unknown_faults": "Unknown faults in it",
    "open_set_known_faults": "Known faults in it",
    "detected_share": "Share of faults with impact that were found",
    "detect_p50_s": "From impact to the first word, of those found, median, s",
    "detect_p95_s": "The same, 95th percentile, s",
    "cause_p50_s": "From impact to the right cause, of those where it then stood, median, s",
    "cause_p95_s": "The same, 95th percentile, s",
    "early_warning_lead_s": "Early warning: lead, median, s",
    "early_warning_lead_p10_s": "Its 10th percentile, s",
    "early_warning_precision": "Share of warnings that an impact followed",
    "early_warnings": "Warnings",
    "false_alarms_per_host_day": "False alarms a host-day",
    "false_alarms_per_host_day_upper": "Largest rate not yet excluded (95 %, one-sided)",
    "false_alarm_worker_hours": "Worker-hours without a fault, held out",
    "false_alarms": "False alarms in them",
    "false_incidents_per_host_week": "False incidents a host-week",
    "false_incidents_per_host_week_upper": "Largest rate not yet excluded (95 %, one-sided)",
    "false_alarms_all_runs": "False alarms, teaching runs included",
    "false_alarm_worker_hours_all_runs": "Worker-hours of that",
    "gpu_fault_f1": "Macro-F1 of made GPU faults, held out",
    "gpu_fault_f1_ungated": "The same, faults without impact too",
    "gpu_fault_f1_taught": "The same, on what the rules were made with",
}
_LESS_IS_BETTER: Final = ("detect_", "cause_", "false_alarms", "false_incidents", "agent_")
_HARDLY: Final = "nothing is recorded"


def figures(rows: Rows) -> str:
    """A figure a row: value, interval and goal side by side."""
    values = {one["name"]: one["value"] for one in rows}
    body = [
        (
            f"{WORDS.get(one['name'], one['name'].replace('_', ' '))}",
            f"**{number(one['value'])}**",
            _ends(values, one["name"]),
            number(one["goal"]),
            verdict(one),
            f"`{one['name']}`",
        )
        for one in rows
        if not _is_end(values, one["name"])
    ]
    return table(("figure", "value", "95 %", "goal", "verdict", "name in the file"), body)


def verdict(row: Mapping[str, Any]) -> str:
    """Say whether a goal is met."""
    if row["goal"] is None:
        return ""
    if row["name"].startswith(_LESS_IS_BETTER):
        return "met" if row["value"] <= row["goal"] else "**missed**"
    return "met" if row["value"] >= row["goal"] else "**missed**"


def _is_end(values: Mapping[str, Any], name: str) -> bool:
    stem, _, end = name.rpartition("_")
    return end in {"low", "high"} and stem in values


def _ends(values: Mapping[str, Any], name: str) -> str:
    if f"{name}_low" not in values:
        return ""
    return f"{number(values[f'{name}_low'])} to {number(values[f'{name}_high'])}"


def methods(rows: Rows, shipped: str) -> tuple[str, str]:
    """The comparison as two tables, the best first: how right, and the rest."""
    told = sorted(rows, key=lambda one: -float(one.get("macro_f1") or 0))
    first: list[Cells] = []
    second: list[Cells] = []
    for one in told:
        name = f"**{one['method']}**" if one["method"] == shipped else one["method"]
        if "skipped" in one:
            first.append((name, f"not run: {one['skipped']}", "", "", "", ""))
            continue
        first.append((
            name, number(one["macro_f1"]), interval(one["macro_f1_interval"]),
            number(one["accuracy"]), number(one["detected"]), one["false_alarms"],
        ))  # fmt: skip
        second.append((
            name, number(one["macro_f1_ungated"]), number(one["macro_f1_by_second"]),
            number(one["detect_p95_s"]), number(one["cause_p95_s"]), number(one["open_set_auroc"]),
        ))  # fmt: skip
    return (
        table(("method", "macro-F1", "95 %", "named rightly", "found", "false alarms"), first),
        table(
            ("method", "F1 ungated", "F1 by second", "found p95, s", "cause p95, s", "AUROC"),
            second,
        ),
    )


def classes(rows: Rows) -> str:
    """Precision and recall by cause."""
    body = [
        (
            f"`{one['cause']}`", one["faults"], f"**{number(one['f1'])}**",
            number(one["precision"]), interval(one["precision_interval"]),
            number(one["recall"]), interval(one["recall_interval"]),
        )
        for one in rows
    ]  # fmt: skip
    return table(("cause", "faults", "F1", "precision", "95 %", "recall", "95 %"), body)


def breakdown(by: str, rows: Rows) -> str:
    """Faults of one division: right ones of those with impact, and macro-F1."""
    of_cause = any(one["cause"] for one in rows)
    head = [by, *(["cause"] if of_cause else []), "right", "95 %", "macro-F1", "found",
            "cause p95, s", "without impact"]  # fmt: skip
    body = []
    for one in rows:
        cells: list[object] = [f"`{one[by]}`", *([f"`{one['cause']}`"] if of_cause else [])]
        cells += [
            f"{one['right']} of {one['faults']}",
            interval(one["right_interval"]) if one["faults"] else "-",
            number(one["macro_f1"]), f"{one['detected']} of {one['faults']}",
            number(one["cause_p95_s"]), one["without_impact"],
        ]  # fmt: skip
        body.append(cells)
    return table(head, body)


def misses(rows: Rows, of_injector: Mapping[str, int]) -> str:
    """Wrong answers, alike ones together.

    of_injector     faults with impact of each injector
    """
    if not rows:
        return "None.\n"
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for one in rows:
        alike[one["cause"], one["injector"], one["answer"]].append(one)
    body = [
        (
            f"`{cause}`", f"`{injector}`", answer if answer == "nothing" else f"`{answer}`",
            f"{len(group)} of {of_injector.get(injector, len(group))}",
            _counted(one["intensity"] or "not said" for one in group), _range(group),
        )
        for (cause, injector, answer), group in sorted(
            alike.items(), key=lambda item: (-len(item[1]), item[0])
        )
    ]  # fmt: skip
    head = ("truth", "injector", "answer", "of its faults", "intensity", "p99 over before")
    return f"{len(rows)} in all. Each one is in the result file, under `misses`.\n\n" + table(
        head, body
    )


def _counted(names: Any) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def _range(rows: Rows) -> str:
    rises = sorted(one["rise"] for one in rows if one["rise"] is not None)
    if not rises:
        return "-"
    ends = [f"{value:.1f}" for value in (rises[0], rises[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def interval(ends: Sequence[float | None]) -> str:
    """Two ends of an interval."""
    low, high = ends
    return f"{number(low)} to {number(high)}"


def number(value: object) -> str:
    """A figure as people read it: two digits behind the point, whole above a hundred."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if value == round(value):
            return f"{value:,.0f}"
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


def table(head: Sequence[str], rows: Sequence[Cells]) -> str:
    """Markdown of a table; a sentence where there is nothing."""
    if not rows:
        return f"{_HARDLY.capitalize()}.\n"
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
