"""Figures of an experiment's rows, each with one sentence that says what it shows."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator

from aggregator.statistics.discoveries import is_significant

from .figure_frame import (
    AXIS_NAMES,
    COLOURS,
    DAY_NOTE,
    INK,
    STYLE,
    Z95,
    DrawnFigure,
    Row,
    Rows,
    decimal,
    label_axis,
    mean_at,
    new_figure,
    points,
    sweep_of,
    told,
)


def draw_seen(rows: Rows) -> DrawnFigure | None:
    rows = sorted((r for r in rows if r.get("curves")), key=lambda row: row["applications"])
    if not rows:
        return None
    figure, (over, against) = new_figure(columns=2)
    for colour, row in zip(COLOURS, rows, strict=False):
        curves = sorted(row["curves"], key=lambda curve: curve["rate"])
        full = next(c for c in reversed(curves) if c["sampling"] == "windows")
        name = f"{row['applications']} applications"
        share = [100 * part for part in full["share"]]
        over.step(full["hours"], share, where="post", color=colour, label=name)
        for sampling, mark in (("windows", "o-"), ("hosts", "s:")):
            reached = [
                (c["rate"], c["hours_to_99"])
                for c in curves
                if c["sampling"] == sampling and c["hours_to_99"] is not None
            ]
            label = f"{row['applications']}, of {sampling}"
            against.plot(*np.array(reached).reshape(-1, 2).T, mark, color=colour, label=label)
    over.axhline(99, color=INK, linewidth=0.8, linestyle=":")
    over.set_ylim(0, 105)
    over.axvline(24, color=INK, linewidth=0.8, linestyle=":")
    over.set_xscale("log")
    days = max(row["days"] for row in rows)
    ticks = [hours for hours in (1, 6, 24, 72, 240, 720) if hours <= 24 * days]
    named = [f"{h} h" if h <= 24 else f"{h // 24} d" for h in ticks]
    over.set_xticks(ticks, named)
    over.set_xlabel("time")
    over.set_ylabel("applications seen, %")
    over.legend(loc="center left")
    against.axhline(24, color=INK, linewidth=0.8, linestyle=":")
    rates = sorted({curve["rate"] for row in rows for curve in row["curves"]})
    against.set_xlabel("sampling rate, of windows or of hosts")
    against.set_xscale("log")
    against.set_xlim(rates[0] / 1.3, 1.3)
    against.set_xticks(rates, [f"{100 * rate:g} %" for rate in rates])
    against.set_yscale("log")
    against.set_ylim(0.7 * min(ticks), 24 * days * 1.2)
    against.set_yticks(ticks, named)
    for axis in (over.xaxis, against.xaxis, against.yaxis):
        axis.set_minor_locator(NullLocator())
    against.set_ylabel("until 99 % are seen")
    if not any(curve["hours_to_99"] is not None for row in rows for curve in row["curves"]):
        against.annotate(f"not within {days} days at any rate", (0.5, 0.5), ha="center",
                         xycoords="axes fraction")  # fmt: skip
    against.legend(fontsize=7.5, loc="lower left", ncols=3)
    return DrawnFigure(figure, _seen_sentence(rows))


def _seen_sentence(rows: Rows) -> str:
    parts = []
    for row in rows:
        hours = row["hours_to_99"]
        when = f"after {hours:g} hours" if hours is not None else f"not within {row['days']} days"
        parts.append(f"{row['applications']} applications {when}")
    load = rows[-1]["busy_share"]
    return (
        f"With {100 * load:.0f} % of the GPUs busy, {rows[-1]['gpus']:,} in all, 99 % of "
        f"{', of '.join(parts)}; the published anchor, which promises no privacy, is one day "
        "(dotted)."
    )


def draw_attribution(rows: Rows) -> DrawnFigure | None:
    sweep = sweep_of(rows, "on_hosts")
    if sweep is None:
        return None
    x, plot = sweep.axis, sweep.plot
    for colour, (name, own) in zip(COLOURS, sweep.groups, strict=False):
        at, hosts = mean_at(own, x, "on_hosts")
        label = f"{name}, on the hosts" if name else "as the hosts say"
        plot.plot(at, [100 * v for v in hosts], "--", color=colour, linewidth=1.2, label=label)
        at, released = mean_at(own, x, "released")
        label = f"{name}, released" if name else "as released, with noise"
        plot.plot(at, [100 * v for v in released], "o-", color=colour, label=label)
    plot.set_ylim(0, 105)
    sweep.finish("GPU time given to the right class, %", log=x in {"epsilon", "cohort", "job_gpus"})
    shown = [
        f"{_span(mean_at(own, x, 'released')[1])}{f' among {name}' if name else ''}"
        for name, own in sweep.groups
    ]
    at, hosts = mean_at(sweep.groups[-1][1], x, "on_hosts")
    hours = sweep.rows[0]["period_s"] / 3600
    return DrawnFigure(
        sweep.figure,
        f"{_along(x, at)} the hosts put {_span(hosts)} of the GPU time under the right class; a "
        f"release of {hours:g} hours still shows {', '.join(shown)}.",
    )


def _along(axis: str, at: Sequence[float]) -> str:
    between = f"{told(axis, at[0])} to {told(axis, at[-1])}"
    return {
        "candidates": f"With {between} tables trained on",
        "job_gpus": f"In jobs of {between} GPUs",
        "epsilon": f"At epsilon {between}",
        "unknown": f"With {between} of the programs outside the training set",
    }.get(axis, f"With {AXIS_NAMES.get(axis, axis)} from {between}")


def _span(values: Sequence[float]) -> str:
    low, high = 100 * min(values), 100 * max(values)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"


def draw_host_attacks(rows: Rows) -> DrawnFigure | None:
    rows = [row for row in rows if row.get("lies") and row["liars"]]
    if not rows:
        return None
    row = max(rows, key=lambda candidate: candidate["liars"])
    lies = list(reversed(row["lies"]))
    figure, (plot,) = new_figure(height=3.7)
    for place, lie in enumerate(lies):
        moved = abs(lie["moved"]) / lie["bound"]
        plot.barh(place, moved, color=COLOURS[0 if lie["bounded"] else 1])
        told = f"refused: {lie['refused']}" if lie["refused"] else f"moved by {moved:.1f} bounds"
        told = f"suppressed: {lie['reason']}" if lie.get("reason") else told
        beside = (max(moved, 1.0), place)
        plot.annotate(told, beside, (5, 0), textcoords="offset points", va="center",
                      fontsize=8.5)  # fmt: skip
    plot.axvline(1, color=INK, linewidth=0.9, linestyle=":")
    plot.set_yticks(range(len(lies)), [lie["lie"].replace("_", " ") for lie in lies])
    most = max(abs(lie["moved"]) / lie["bound"] for lie in lies)
    plot.set_xlim(0, max(2.0, 1.4 * most))
    plot.set_xlabel("moved, as a multiple of what the liars may add (dotted: 1)")
    plot.grid(visible=False, axis="y")
    bounded = max(abs(lie["moved"]) / lie["bound"] for lie in lies if lie["bounded"])
    free = [lie for lie in lies if not lie["bounded"]]
    open_lie = (
        f"; one lie has no bound, that of a replaced agent which adds what it likes under its own "
        f"mask (here {abs(free[0]['moved']) / free[0]['bound']:.0f} bounds)"
        if free
        else ""
    )
    noise = row["lies"][0]["standard_error"] / row["lies"][0]["bound"]
    return DrawnFigure(
        figure,
        f"{row['liars']} of {row['cohort']} hosts that lie move a statistic by at most "
        f"{bounded:.2f} times their bound, which is {1 / noise:.2f} standard errors of the release"
        f"{open_lie}.",
    )


def draw_faults(rows: Rows) -> DrawnFigure | None:
    row = next((row for row in rows if row.get("faults")), None)
    if row is None:
        return None
    faults = list(reversed(row["faults"]))
    figure, (plot,) = new_figure(height=3.9)
    for place, fault in enumerate(faults):
        plot.barh(place, fault["released_percent"], color=COLOURS[0], alpha=0.85)
        parts = [fault["refused"] and f"refused: {fault['refused']}",
                 fault["reasons"] and f"kept back: {fault['reasons']}"]  # fmt: skip
        plot.annotate("; ".join(part for part in parts if part), (2, place), va="center",
                      fontsize=8,
                      color="white" if fault["released_percent"] > 60 else INK)  # fmt: skip
    plot.set_yticks(range(len(faults)), [fault["fault"].replace("_", " ") for fault in faults])
    plot.set_xlim(0, 100)
    plot.set_xlabel("reports in a release, of those that hosts sent, %")
    plot.grid(visible=False, axis="y")
    true = all(fault["true_sums"] for fault in row["faults"])
    kept = [t["trick"].replace("_", " ") for t in row["tricks"] if t["sums"] > 1]
    return DrawnFigure(
        figure,
        f"With {100 * row['struck_share']:.0f} % of the reports, hosts or windows struck"
        f"{' every release is' if true else ' NOT every release is'} exactly the sum of the "
        f"accepted hosts; a Leader that tries {len(row['tricks'])} attacks "
        f"{'gets a second sum by ' + ', '.join(kept) if kept else 'never gets a second sum'} of "
        "the same window.",
    )


def draw_inference(rows: Rows) -> DrawnFigure | None:
    row = next((row for row in rows if row.get("guesses")), None)
    if row is None:
        return None
    guesses = list(reversed(row["guesses"]))
    figure, (plot,) = new_figure(height=2.9)
    for place, guess in enumerate(guesses):
        middle = guess["advantage"]
        reach = [[max(middle - guess["low"], 0)], [max(guess["high"] - middle, 0)]]
        plot.errorbar(middle, place, xerr=reach, fmt="o", color=COLOURS[0], capsize=3,
                      label="measured, 99 % interval" if not place else None)  # fmt: skip
        bounds = (("tight_bound", 2, "bound of the noise"), ("bound", 1, "bound of epsilon, delta"))
        for column, colour, name in bounds:
            plot.plot(guess[column], place, "|", color=COLOURS[colour], markersize=16,
                      markeredgewidth=2.2, label=None if place else name)  # fmt: skip
    plot.set_yticks(range(len(guesses)), [guess["attack"] for guess in guesses])
    plot.set_xlim(-0.1, 1.05)
    plot.margins(y=0.2)
    plot.set_xlabel("advantage over a blind guess (0: none, 1: certain)")
    plot.legend(loc="lower right")
    plot.grid(visible=False, axis="y")
    holds = all(guess["holds"] for guess in row["guesses"])
    most = max(row["guesses"], key=lambda guess: guess["advantage"])
    return DrawnFigure(
        figure,
        f"An attacker with every byte of the broker, one aggregator's view and t hosts, who takes "
        f"a week of releases about a host at every bound, has an advantage of "
        f"{most['advantage']:.2f}; epsilon {row['epsilon']:g} allows {most['bound']:.2f}, and "
        f"{'no attack exceeds' if holds else 'AN ATTACK EXCEEDS'} its bound.",
    )


def draw_error(rows: Rows) -> DrawnFigure | None:
    sweep = sweep_of(rows, "standard_error_points")
    if sweep is None:
        return None
    x, plot = sweep.axis, sweep.plot
    off = []
    for colour, (name, own) in zip(COLOURS, sweep.groups, strict=False):
        at, error = mean_at(own, x, "standard_error_points")
        plot.plot(at, error, "-", color=colour, label=name or "standard error, one window")
        at_measured, measured = mean_at(own, x, "error_points")
        label = "" if name else "measured error, one window"
        plot.plot(at_measured, measured, "o", color=colour, label=label or None)
        at_day, day = mean_at(own, x, "standard_error_points_day")
        label = "" if name else f"standard error, {DAY_NOTE}"
        plot.plot(at_day, day, "--", color=colour, linewidth=1.2, label=label or None)
        off += [m / e for m, e in zip(measured, error, strict=True)]
    plot.set_yscale("log")
    decimal(plot.yaxis)
    sweep.finish("error of a share, points", log=x not in {"dropout", "load"})
    name, own = sweep.groups[-1]
    at, day = mean_at(own, x, "standard_error_points_day")
    at, window = mean_at(own, x, "standard_error_points")
    ratio = max(window[0], window[-1]) / min(window[0], window[-1])
    way = "falls" if window[-1] < window[0] else "rises"
    who = f" ({name})" if name else ""
    low, high = f"{min(off):.2f}", f"{max(off):.2f}"
    span = low if low == high else f"{low} to {high}"
    daily = f" ({points(day[0])} and {points(day[-1])} as the mean of a day)" if day else ""
    return DrawnFigure(
        sweep.figure,
        f"From {told(x, at[0])} to {told(x, at[-1])} {_COUNTED.get(x, x)}{who} the standard error "
        f"of one window {way} {ratio:.1f}-fold, from {points(window[0])} to "
        f"{points(window[-1])}{daily}; what was measured is {span} times what was predicted.",
    )


_COUNTED: Final = {
    "window": "seconds of window", "cohort": "hosts", "d": "coordinates",
    "dropout": "silent hosts", "sampling_rate": "of the windows",
}  # fmt: skip


def draw_dropout(rows: Rows) -> DrawnFigure | None:
    rows = [row for row in rows if "axis_dropout" in row and row.get("windows")]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: row["axis_dropout"])
    at = [row["axis_dropout"] for row in rows]
    released = [100 * row["reports_released"] / (row["hosts"] * row["windows"]) for row in rows]
    came = [100 * row["reports"] / (row["hosts"] * row["windows"]) for row in rows]
    figure, (plot,) = new_figure()
    plot.plot(at, came, "--", color=COLOURS[-1], label="reports that came in time")
    plot.plot(at, released, "o-", color=COLOURS[0], label="reports inside a release")
    plot.set_ylim(0, 105)
    plot.set_ylabel("of all hosts, %")
    label_axis(plot, "dropout", rows, log=False)
    plot.legend(loc="lower left")
    whole = [row["axis_dropout"] for row in rows if row["windows_released"] == row["windows"]]
    none = [row["axis_dropout"] for row in rows if not row["windows_released"]]
    told_whole = f"Up to {100 * max(whole):g} % of silent hosts every window is released"
    told_none = (
        f"; from {100 * min(none):g} % on none is, because fewer than n_min hosts reported: a "
        "window is whole or it is not there"
        if none
        else ""
    )
    return DrawnFigure(figure, (told_whole if whole else "No window is released") + told_none + ".")


def draw_cost(rows: Rows) -> DrawnFigure | None:
    rows = sorted((r for r in rows if r.get("stages")), key=lambda row: row["hosts"])
    if not rows:
        return None
    figure, (plot,) = new_figure()
    stages = sorted(
        {lap["stage"] for row in rows for lap in row["stages"]},
        key=lambda name: -max(_stage_us(row, name) for row in rows),
    )
    shown, rest = stages[:6], stages[6:]
    at = range(len(rows))
    floor = [0.0] * len(rows)
    for colour, name in zip(COLOURS, shown, strict=False):
        height = [_stage_us(row, name) for row in rows]
        plot.bar(at, height, 0.62, floor, color=colour, label=name.replace("_", " "))
        floor = [a + b for a, b in zip(floor, height, strict=True)]
    others = [sum(_stage_us(row, name) for name in rest) for row in rows]
    if any(others):
        plot.bar(at, others, 0.62, floor, color=COLOURS[-1], label="the rest")
    plot.set_xticks(list(at), [f"{row['hosts']:,}\nhosts" for row in rows])
    plot.set_ylabel("CPU time a host and window, us")
    plot.grid(visible=False, axis="x")
    plot.margins(y=0.32)
    plot.legend(ncols=3, loc="upper center")
    first, last = rows[0], rows[-1]
    growth = last["cpu_us_host_window"] / first["cpu_us_host_window"]
    memory = max(row["peak_memory_bytes"] for row in rows) / 2**30
    return DrawnFigure(
        figure,
        f"One host's window costs {first['cpu_us_host_window']:,.0f} us of this machine's CPU "
        f"among {first['hosts']:,} hosts and {last['cpu_us_host_window']:,.0f} us among "
        f"{last['hosts']:,}: {growth:.2f} times as much, in at most {memory:.1f} GiB of memory.",
    )


def _stage_us(row: Row, stage: str) -> float:
    """CPU microseconds of a stage for one host and window; the median window, not the first."""
    whole = sum(lap["cpu_s"] for lap in row["stages"])
    part = sum(lap["cpu_s"] for lap in row["stages"] if lap["stage"] == stage)
    return float(row["cpu_us_host_window"] * part / whole) if whole else 0.0


def draw_mix(rows: Rows) -> DrawnFigure | None:
    row = next((row for row in rows if row.get("cells")), None)
    if row is None:
        return None
    known = [c for c in row["cells"] if c["truth"] > 0 and c["cell"] != "unmeasured"]
    cells = known[:12]
    figure, (plot,) = new_figure(height=0.9 + 0.27 * len(cells))
    for place, cell in enumerate(reversed(cells)):
        reach = 100 * Z95 * cell["standard_error"]
        if not is_significant(cell.get("q_value", 1.0)):
            most = max(100 * cell["share"], 0.0) + reach
            plot.barh(place, most, color="#eceff1", hatch="////",
                      edgecolor="#cfd6db", linewidth=0)  # fmt: skip
        else:
            plot.barh(place, 100 * cell["share"], xerr=reach, color=COLOURS[0], alpha=0.8,
                      ecolor=INK, capsize=2)  # fmt: skip
        plot.plot(100 * cell["truth"], place, "D", color=COLOURS[1], markersize=4.5)
    names = [c["cell"].removeprefix("gpu_time/").replace("_", " ") for c in reversed(cells)]
    plot.set_yticks(range(len(cells)), names)
    plot.set_xlabel("share of GPU time, % (diamond: truth, hatched: less than)")
    plot.set_xlim(left=0)
    plot.grid(visible=False, axis="y")
    seen, true = row["classes_seen"], row["classes_true"]
    error = row["standard_error_points_mean"]
    windows = round(row["hours"] * 3600 / row["section_window_s"])
    return DrawnFigure(
        figure,
        f"{row['hosts']:,} hosts see {seen} of {true} classes told from zero in the mean of "
        f"{windows} windows ({row['hours']:g} h), each within "
        f"{points(Z95 * error)} at 95 %; a single window has a standard error of "
        f"{points(row['standard_error_points'])}.",
    )


@dataclass(frozen=True, slots=True)
class PlotFolder:
    svg: str
    png: bytes
    sentence: str


def draw(figure: str, rows: Rows) -> PlotFolder | None:
    with plt.rc_context(fname=STYLE):
        made = FIGURES[figure](rows)
        if made is None:
            return None
        svg, png = io.StringIO(), io.BytesIO()
        made.figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        made.figure.savefig(png, format="png", dpi=130, facecolor="white")
        plt.close(made.figure)
    text = svg.getvalue()
    return PlotFolder(text[text.index("<svg") :], png.getvalue(), made.sentence)


FIGURES: Final[Mapping[str, Callable[[Rows], DrawnFigure | None]]] = {
    "error": draw_error,
    "cost": draw_cost,
    "dropout": draw_dropout,
    "mix": draw_mix,
    "seen": draw_seen,
    "attribution": draw_attribution,
    "lies": draw_host_attacks,
    "faults": draw_faults,
    "guess": draw_inference,
}
OF_KIND: Final = {name: name for name in FIGURES} | {"windows": "error"}
"""Figure of a part that names none."""
