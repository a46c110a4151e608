"""The evaluation as a page: the same tables as the result file, with a picture.

Tables have few columns each, so that a verdict is never cut off.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from simulator.experiments.figure_frame import INK, STYLE

from .figures import worded
from .results import BY

Document = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Cells = Sequence[object]

_STOLEN: Final = "*stolen*: the hypervisor took 2 % of the CPU time or more about then"


def page(document: Document, picture: str) -> str:
    """Write a result document as Markdown.

    document    as the result file holds it: date, commit, device, figures, tables, absent
    picture     path of the drawn confusion from the page on; "" where there was nothing to draw
    """
    tables = document["tables"]
    shown = "What was answered, by what was true; held-out faults with impact."
    parts = [
        "# Diagnosis, measured\n",
        _head(document),
        "## Figures\n",
        figures(document["figures"]),
        _absent(document),
        "## Causes\n",
        f"![{shown}]({picture})\n" if picture else "",
        classes(tables["classes"]),
        "With steps from the rhythm alone:\n",
        classes(tables["classes_rhythm_only"]),
        *(part for by in BY for part in (f"### By {by}\n", breakdown(by, tables["by"][by]))),
        "### By what held them out\n",
        "A run may be held out by several rules.\n",
        _held_out(tables["held_out_by"]),
        _overlaps(tables["overlaps"]),
        "### Wrong answers\n",
        misses(tables["misses"], _faults_of(tables["by"])),
        "## Running without a fault\n",
        _silent(tables["calm"]),
        _alarms(tables["alarms_by_negative"]),
    ]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _head(document: Document) -> str:
    tables = document["tables"]
    split = tables["split"]
    runs = ", ".join(f"{count} {worded(kind)}" for kind, count in tables["runs"].items() if count)
    return (
        f"Written by `{document['command']}` on {document['date'][:10]} ({document['device']}); "
        "not edited by hand. "
        f"Recorded: {runs or 'nothing yet'}. {len(split['train'])} runs are for training, "
        f"{len(split['held_out'])} judge; split by run, by "
        "[these rules](judging.md#how-runs-are-divided). "
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


def _faults_of(by: Mapping[str, Rows]) -> dict[str, int]:
    return {row["injector"]: row["faults"] for row in by["injector"]}


def _held_out(rows: Rows) -> str:
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


def _silent(calm: Mapping[str, Any]) -> str:
    return f"Of {calm['runs']} held-out runs without a fault, {calm['silent']} passed in silence.\n"


def _alarms(rows: Rows) -> str:
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
    return f"All runs, those for training too ({_STOLEN}):\n\n" + table(heads, body)


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
    "detected_share": "Share of faults with impact that were found",
    "detect_p50_s": "Impact to first word, s, median of those found",
    "detect_p95_s": "Impact to first word, s, 95th percentile of those found",
    "cause_p50_s": "Impact to right cause, s, median of those where it then stood",
    "cause_p95_s": "Impact to right cause, s, 95th percentile of those where it then stood",
    "detected_before_impact_share": "Share found before the impact, counted as 0 s",
    "false_alarms_per_host_day": "False alarms a host-day",
    "false_alarms_per_host_day_upper": "False alarms a host-day, largest rate not excluded (95 %)",
    "false_alarm_worker_hours": "Worker-hours without a fault",
    "false_alarms": "False alarms in these hours",
    "false_alarms_while_stolen": "False alarms while the hypervisor took CPU time",
    "false_incidents_per_host_week": "False incidents a host-week",
    "false_incidents_per_host_week_upper": (
        "False incidents a host-week, largest rate not excluded (95 %)"
    ),
    "false_alarms_all_runs": "False alarms, training runs included",
    "false_alarm_worker_hours_all_runs": "Worker-hours without a fault, training runs included",
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


_DARK: Final = 0.6
"""Share from which a cell is so blue that its count is written in white."""


def confusion_picture(tables: Mapping[str, Any]) -> str:
    """Draw who is taken for whom as SVG; "" where no fault was judged."""
    counts = np.array(tables["confusion"]["diagnoses"])
    counts[-1, -1] = tables["calm"]["silent"]
    names = [*tables["confusion"]["causes"], "nothing"]
    rows, columns = counts.sum(axis=1) > 0, (counts.sum(axis=0) > 0) | (counts.sum(axis=1) > 0)
    if not rows[:-1].any():
        return ""
    shown = counts[np.ix_(rows, columns)]
    shares = shown / np.maximum(1, shown.sum(axis=1, keepdims=True))
    size = 3.2 + 0.55 * shown.shape[1], 2.4 + 0.42 * shown.shape[0]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.pcolormesh(shares[::-1], cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    for (i, j), count in np.ndenumerate(shown[::-1]):
        if count:
            colour = "white" if shares[::-1][i, j] > _DARK else INK
            axes.text(j + 0.5, i + 0.5, str(count), ha="center", va="center", color=colour)
    faults = int(counts[:-1].sum())
    told = [
        f"{'no fault' if name == 'nothing' else name} ({total})"
        for name, there, total in zip(names, rows, counts.sum(axis=1), strict=True)
        if there
    ]
    axes.set_yticks(np.arange(len(told)) + 0.5, told[::-1])
    said = [name for name, there in zip(names, columns, strict=True) if there]
    axes.set_xticks(np.arange(len(said)) + 0.5, said, rotation=35, ha="right")
    axes.set_xlabel("answer")
    axes.set_ylabel("truth (how many)")
    axes.set_title(
        f"{faults} held-out faults with impact, {tables['calm']['runs']} runs without a fault;\n"
        "no fault: alarms anywhere, and runs that passed in silence",
        fontsize=9.5, loc="right",
    )  # fmt: skip
    axes.grid(visible=False)
    svg = io.StringIO()
    with plt.rc_context(STYLE):
        # White: its ink is dark, and readers of the dark site see it too.
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
    plt.close(figure)
    return svg.getvalue()[svg.getvalue().index("<svg") :]
