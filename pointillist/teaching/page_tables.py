"""Tables of the evaluation's page: few columns each, so that a verdict is never cut off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

Rows = Sequence[Mapping[str, Any]]
Cells = Sequence[object]

WORDS: Final[Mapping[str, str]] = {
    "macro_f1_heldout": "Macro-F1 of causes, faults with impact",
    "macro_f1_heldout_ungated": "Macro-F1, faults without impact too",
    "macro_f1_heldout_with_quiet_hours": "Macro-F1, with the alarms of quiet hours as answers",
    "macro_f1_heldout_rhythm_only": "Macro-F1, steps from the rhythm alone",
    "macro_f1_heldout_by_second": "Macro-F1, every second judged on its own",
    "accuracy_heldout": "Share of faults named rightly",
    "accuracy_heldout_rhythm_only": "Share named rightly, steps from the rhythm alone",
    "heldout_faults_with_impact": "Faults with impact",
    "heldout_faults": "Faults, with impact or not",
    "open_set_auroc": "Unknown told from known, area under the curve",
    "open_set_unknown_faults": "Unknown faults that were detected",
    "open_set_known_faults": "Known faults that were detected",
    "detected_share": "Share of faults with impact that were found",
    "detect_p50_s": "Impact to first word, s, median of those found",
    "detect_p95_s": "Impact to first word, s, 95th percentile of those found",
    "cause_p50_s": "Impact to right cause, s, median of those where it then stood",
    "cause_p95_s": "Impact to right cause, s, 95th percentile of those where it then stood",
    "detected_before_impact_share": "Share found before the impact, counted as 0 s",
    "early_warning_lead_s": "Lead of early warnings, s, median of the faults warned of",
    "early_warning_lead_p10_s": "Lead of early warnings, s, 10th percentile of these",
    "early_warning_precision": "Share of early warnings given in a fault, before its impact",
    "early_warnings": "Early warnings",
    "early_warned_share": "Share of growing faults that were warned of",
    "false_alarms_per_host_day": "False alarms a host-day",
    "false_alarms_per_host_day_upper": "False alarms a host-day, largest rate not excluded (95 %)",
    "false_alarm_worker_hours": "Worker-hours without a fault",
    "false_alarms": "False alarms in these hours",
    "false_alarms_while_stolen": "False alarms while the hypervisor took CPU time",
    "false_incidents_per_host_week": "False incidents a host-week",
    "false_incidents_per_host_week_upper": (
        "False incidents a host-week, largest rate not excluded (95 %)"
    ),
    "false_alarms_all_runs": "False alarms, teaching runs included",
    "false_alarm_worker_hours_all_runs": "Worker-hours without a fault, teaching runs included",
    "gpu_fault_f1": "Macro-F1 of made GPU faults",
    "gpu_fault_f1_ungated": "Macro-F1 of made GPU faults, without impact too",
    "gpu_fault_f1_taught": "Macro-F1 of made GPU faults that the rules were made with",
    "agent_core_percent_100hz": "The agent's own CPU at 100 Hz, % of a core",
    "bpf_core_percent_100hz": "Its BPF programs' CPU at 100 Hz, % of a core",
}
_LESS_IS_BETTER: Final = ("detect_", "cause_", "false_alarms", "false_incidents", "agent_")
_HARDLY: Final = "nothing is recorded"


def figures(rows: Rows) -> str:
    """What the design asks for, with a verdict; then the rest, a figure a row."""
    values = {row["name"]: row["value"] for row in rows}
    told = [row for row in rows if not _is_end(values, row["name"])]
    asked = [figure for figure in told if figure["goal"] is not None]
    goals = [
        (*_figure(figure, values), number(figure["goal"]), verdict(figure, values))
        for figure in asked
    ]
    rest = [_figure(figure, values) for figure in told if figure["goal"] is None]
    first = table(("against the goals", "value", "95 %", "goal", "verdict"), goals)
    second = table(("beside them", "value", "95 %"), rest)
    return f"{first}\n{_NOT_PROVEN}\n{second}"


_NOT_PROVEN: Final = (
    "*Not proven*: what was counted meets the goal, the other end of what that allows does not.\n"
)


def _figure(figure: Mapping[str, Any], values: Mapping[str, Any]) -> Cells:
    words = WORDS.get(figure["name"], figure["name"].replace("_", " "))
    return words, f"**{number(figure['value'])}**", _ends(values, figure["name"])


def verdict(row: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """Say whether a goal is met, and whether also at the far end of the interval.

    values      all figures by name: an interval's ends, or a rate's largest value
    """
    name, goal = str(row["name"]), float(row["goal"])
    less = name.startswith(_LESS_IS_BETTER)
    ends = (f"{name}_high", f"{name}_upper") if less else (f"{name}_low",)
    far = next((values[end] for end in ends if end in values), row["value"])

    def meets(value: float) -> bool:
        return bool(value <= goal if less else value >= goal)

    if not meets(row["value"]):
        return "**missed**"
    return "met" if meets(far) else "met, not proven"


def _is_end(values: Mapping[str, Any], name: str) -> bool:
    stem, _, end = name.rpartition("_")
    return end in {"low", "high"} and stem in values


def _ends(values: Mapping[str, Any], name: str) -> str:
    if f"{name}_low" not in values:
        return ""
    return f"{number(values[f'{name}_low'])} to {number(values[f'{name}_high'])}"


def methods(rows: Rows, shipped: str) -> tuple[str, str]:
    """The comparison as two tables, the best first: how right, and the rest."""
    told = sorted(rows, key=lambda row: -float(row.get("macro_f1") or 0))
    first: list[Cells] = []
    second: list[Cells] = []
    for method in told:
        name = f"**{method['method']}**" if method["method"] == shipped else method["method"]
        if "skipped" in method:
            first.append((name, f"not run: {method['skipped']}", "", "", "", ""))
            continue
        first.append((
            name, number(method["macro_f1"]), interval(method["macro_f1_interval"]),
            number(method["accuracy"]), number(method["detected"]), method["false_alarms"],
        ))  # fmt: skip
        second.append((
            name, number(method["macro_f1_ungated"]), number(method["macro_f1_by_second"]),
            number(method["detect_p95_s"]), number(method["cause_p95_s"]),
            number(method["open_set_auroc"]),
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
            f"`{row['cause']}`", row["faults"], f"**{number(row['f1'])}**",
            number(row["precision"]), interval(row["precision_interval"]),
            number(row["recall"]), interval(row["recall_interval"]),
        )
        for row in rows
    ]  # fmt: skip
    return table(("cause", "faults", "F1", "precision", "95 %", "recall", "95 %"), body)


def breakdown(by: str, rows: Rows) -> str:
    """Faults of one division: right ones of those with impact, and macro-F1."""
    of_cause = any(row["cause"] for row in rows)
    head = [by, *(["cause"] if of_cause else []), "right", "95 %", "macro-F1", "found",
            "cause p95, s", "without impact"]  # fmt: skip
    body = []
    for row in rows:
        cells: list[object] = [f"`{row[by]}`", *([f"`{row['cause']}`"] if of_cause else [])]
        cells += [
            f"{row['right']} of {row['faults']}",
            interval(row["right_interval"]) if row["faults"] else "-",
            number(row["macro_f1"]), f"{row['detected']} of {row['faults']}",
            number(row["cause_p95_s"]), row["without_impact"],
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
    for row in rows:
        alike[row["cause"], row["injector"], row["answer"]].append(row)
    body = [
        (
            f"`{cause}`", f"`{injector}`", answer if answer == "nothing" else f"`{answer}`",
            f"{len(group)} of {of_injector.get(injector, len(group))}",
            _counted(row["intensity"] or "not said" for row in group), _range(group),
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
    rises = sorted(row["rise"] for row in rows if row["rise"] is not None)
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
