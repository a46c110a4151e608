"""Figures of an experiment's rows, each with one sentence that says what it shows.

A figure is made from the rows of one part; which one, the part says, or its kind does. Colours tell
apart on paper, on a dark screen and for the colour-blind (Okabe and Ito 2008).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from aggregator.ratios import BELOW_NOISE_ERRORS, normal_quantile

Row = Mapping[str, Any]
Rows = Sequence[Row]

INK: Final = "#27313b"
GRID: Final = "#dfe4e8"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b7680")
SIZE: Final = (5.6, 3.5)
Z95: Final = normal_quantile()

STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text: a fifth of the bytes, and it can be searched
    "svg.hashsalt": "pointillist",  # the same rows give the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}

AXIS_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "epsilon": "epsilon a host and week",
        "window": "window, s",
        "cohort": "hosts in the cohort",
        "dropout": "hosts that are silent in a window",
        "d": "coordinates of a report",
        "sampling_rate": "share of windows that a host measures",
        "load": "busy GPUs, of all",
        "applications": "applications",
        "lying": "hosts that lie",
        "candidates": "tables that were taught",
        "job_gpus": "GPUs of a job",
        "unknown": "GPU time of programs nobody taught",
    }
)
SHARES: Final = {"dropout", "sampling_rate", "load", "lying", "unknown"}
DAY_NOTE: Final = "mean of a day"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure and its sentence."""

    figure: Figure
    sentence: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """A drawn figure as files: SVG text and PNG bytes."""

    svg: str
    png: bytes
    sentence: str


def draw(figure: str, rows: Rows) -> Pictures | None:
    """Draw one figure by name; None where no row has anything to show."""
    with plt.rc_context(STYLE):
        made = FIGURES[figure](rows)
        if made is None:
            return None
        svg, png = io.StringIO(), io.BytesIO()
        made.figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        made.figure.savefig(png, format="png", dpi=130, facecolor="white")
        plt.close(made.figure)
    text = svg.getvalue()
    return Pictures(text[text.index("<svg") :], png.getvalue(), made.sentence)


def swept(rows: Rows) -> list[str]:
    """Name the axes that take more than one value, in the order of the file."""
    names = [key.removeprefix("axis_") for key in rows[0] if key.startswith("axis_")]
    return [name for name in names if len({row[f"axis_{name}"] for row in rows}) > 1]


def told(axis: str, value: float) -> str:
    """Write an axis' value as people do."""
    return f"{100 * value:g} %" if axis in SHARES else f"{value:,g}"


def points(value: float) -> str:
    """Write hundredths of the whole with as many digits as mean something."""
    if value >= 10:
        return f"{value:,.0f} points"
    return f"{value:.2g} points"


def _new(columns: int = 1, height: float = SIZE[1]) -> tuple[Figure, list[Axes]]:
    width = SIZE[0] * (1 if columns == 1 else 0.82 * columns)
    figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    return figure, [axes] if columns == 1 else list(axes)


def _groups(rows: Rows, axes: Sequence[str]) -> list[tuple[str, list[Row]]]:
    """Split rows by the second axis, each sorted along the first; one group without a second."""
    x = f"axis_{axes[0]}"
    if len(axes) < 2:
        return [("", sorted(rows, key=lambda row: row[x]))]
    hue = f"axis_{axes[1]}"
    found = []
    for value in sorted({row[hue] for row in rows}):
        own = sorted((row for row in rows if row[hue] == value), key=lambda row: row[x])
        found.append((f"{told(axes[1], value)} {_short(axes[1])}", own))
    return found


def _short(axis: str) -> str:
    return {"cohort": "hosts", "job_gpus": "GPUs", "candidates": "tables"}.get(axis, axis)


def _mean_at(rows: Rows, axis: str, column: str) -> tuple[list[float], list[float]]:
    """Average a column over the seeds of each value of an axis; rows without it are left out."""
    by: dict[float, list[float]] = {}
    for row in rows:
        if row.get(column) is not None:
            by.setdefault(row[f"axis_{axis}"], []).append(float(row[column]))
    return list(by), [sum(values) / len(values) for values in by.values()]


def _decimal(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, x: str, rows: Rows, *, log: bool) -> None:
    """Name the axis along which rows were swept, with a tick at each of its values."""
    axes.set_xlabel(AXIS_NAMES.get(x, x))
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
    values = sorted({row[f"axis_{x}"] for row in rows})
    if log or len(values) <= 8:
        axes.set_xticks(values, [told(x, value) for value in values])
    elif x in SHARES:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))


def _error(rows: Rows) -> Drawn | None:
    """Standard error and measured error along an axis."""
    rows = [row for row in rows if row.get("standard_error_points") is not None]
    axes = swept(rows) if rows else []
    if not axes:
        return None
    x = axes[0]
    figure, (plot,) = _new()
    groups = _groups(rows, axes)
    off = []
    for colour, (name, own) in zip(COLOURS, groups, strict=False):
        at, error = _mean_at(own, x, "standard_error_points")
        plot.plot(at, error, "-", color=colour, label=name or "standard error, one window")
        at_measured, measured = _mean_at(own, x, "error_points")
        label = "" if name else "measured error, one window"
        plot.plot(at_measured, measured, "o", color=colour, label=label or None)
        at_day, day = _mean_at(own, x, "standard_error_points_day")
        label = "" if name else f"standard error, {DAY_NOTE}"
        plot.plot(at_day, day, "--", color=colour, linewidth=1.2, label=label or None)
        off += [m / e for m, e in zip(measured, error, strict=True)]
    plot.set_yscale("log")
    _decimal(plot.yaxis)
    plot.set_ylabel("error of a share, points")
    _label(plot, x, rows, log=x not in {"dropout", "load"})
    plot.legend()
    name, own = groups[-1]
    at, day = _mean_at(own, x, "standard_error_points_day")
    at, window = _mean_at(own, x, "standard_error_points")
    ratio = max(window[0], window[-1]) / min(window[0], window[-1])
    way = "falls" if window[-1] < window[0] else "rises"
    who = f" ({name})" if name else ""
    daily = f" ({points(day[0])} and {points(day[-1])} as the mean of a day)" if day else ""
    return Drawn(
        figure,
        f"From {told(x, at[0])} to {told(x, at[-1])} {_of(x)}{who} the standard error of one "
        f"window {way} {ratio:.1f}-fold, from {points(window[0])} to {points(window[-1])}{daily}; "
        f"what was measured is {_range(off)} times what was predicted.",
    )


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _of(axis: str) -> str:
    return {
        "epsilon": "epsilon",
        "window": "seconds of window",
        "cohort": "hosts",
        "d": "coordinates",
        "dropout": "silent hosts",
        "sampling_rate": "of the windows",
    }.get(axis, axis)


def _cost(rows: Rows) -> Drawn | None:
    """CPU time of a host's window by stage, along the size of the fleet."""
    rows = sorted((r for r in rows if r.get("stages")), key=lambda row: row["hosts"])
    if not rows:
        return None
    figure, (plot,) = _new()
    stages = sorted(
        {one["stage"] for row in rows for one in row["stages"]},
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
    return Drawn(
        figure,
        f"One host's window costs {first['cpu_us_host_window']:,.0f} us of this machine's CPU "
        f"among {first['hosts']:,} hosts and {last['cpu_us_host_window']:,.0f} us among "
        f"{last['hosts']:,}: {growth:.2f} times as much, in at most {memory:.1f} GiB of memory.",
    )


def _stage_us(row: Row, stage: str) -> float:
    """CPU microseconds of a stage for one host and window; the median window, not the first."""
    whole = sum(one["cpu_s"] for one in row["stages"])
    part = sum(one["cpu_s"] for one in row["stages"] if one["stage"] == stage)
    return float(row["cpu_us_host_window"] * part / whole) if whole else 0.0


def _dropout(rows: Rows) -> Drawn | None:
    """What is released as hosts fall silent."""
    rows = [row for row in rows if "axis_dropout" in row and row.get("windows")]
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: row["axis_dropout"])
    at = [row["axis_dropout"] for row in rows]
    released = [100 * row["reports_released"] / (row["hosts"] * row["windows"]) for row in rows]
    came = [100 * row["reports"] / (row["hosts"] * row["windows"]) for row in rows]
    figure, (plot,) = _new()
    plot.plot(at, came, "--", color=COLOURS[-1], label="reports that came in time")
    plot.plot(at, released, "o-", color=COLOURS[0], label="reports inside a release")
    plot.set_ylim(0, 105)
    plot.set_ylabel("of all hosts, %")
    _label(plot, "dropout", rows, log=False)
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
    return Drawn(figure, (told_whole if whole else "No window is released") + told_none + ".")


def _mix(rows: Rows) -> Drawn | None:
    """The largest cells of a section, released beside true."""
    row = next((row for row in rows if row.get("cells")), None)
    if row is None:
        return None
    cells = [one for one in row["cells"] if one["truth"] > 0 and one["cell"] != "unmeasured"][:12]
    figure, (plot,) = _new(height=0.9 + 0.27 * len(cells))
    for place, one in enumerate(reversed(cells)):
        below = one["share"] < BELOW_NOISE_ERRORS * one["standard_error"]
        reach = 100 * Z95 * one["standard_error"]
        if below:
            plot.barh(place, 2 * 100 * one["standard_error"], color="#eceff1", hatch="////",
                      edgecolor="#cfd6db", linewidth=0)  # fmt: skip
        else:
            plot.barh(place, 100 * one["share"], xerr=reach, color=COLOURS[0], alpha=0.8,
                      ecolor=INK, capsize=2)  # fmt: skip
        plot.plot(100 * one["truth"], place, "D", color=COLOURS[1], markersize=4.5)
    names = [_readable(one["cell"]) for one in reversed(cells)]
    plot.set_yticks(range(len(cells)), names)
    plot.set_xlabel("share of GPU time, % (diamond: truth, hatched: noise)")
    plot.set_xlim(left=0)
    plot.grid(visible=False, axis="y")
    seen, true = row["classes_seen"], row["classes_true"]
    error = row["standard_error_points_mean"]
    windows = round(row["hours"] * 3600 / row["section_window_s"])
    return Drawn(
        figure,
        f"{row['hosts']:,} hosts see {seen} of {true} classes above noise in the mean of "
        f"{windows} windows ({row['hours']:g} h), each within "
        f"{points(Z95 * error)} at 95 %; a single window has a standard error of "
        f"{points(row['standard_error_points'])}.",
    )


def _readable(cell: str) -> str:
    return cell.removeprefix("gpu_time/").replace("_", " ")


def _seen(rows: Rows) -> Drawn | None:
    """When applications have been seen, and how that depends on the sampling rate."""
    rows = sorted((r for r in rows if r.get("curves")), key=lambda row: row["applications"])
    if not rows:
        return None
    figure, (over, against) = _new(columns=2)
    for colour, row in zip(COLOURS, rows, strict=False):
        curves = sorted(row["curves"], key=lambda one: one["rate"])
        full = next(c for c in reversed(curves) if c["sampling"] == "windows")
        name = f"{row['applications']} applications"
        over.step(
            full["hours"],
            [100 * share for share in full["share"]],
            where="post",
            color=colour,
            label=name,
        )
        for sampling, mark in (("windows", "o-"), ("hosts", "s:")):
            own = [c for c in curves if c["sampling"] == sampling]
            reached = [c for c in own if c["hours_to_99"] is not None]
            against.plot(
                [c["rate"] for c in reached],
                [c["hours_to_99"] for c in reached],
                mark,
                color=colour,
                label=f"{row['applications']}, of {sampling}",
            )
    over.axhline(99, color=INK, linewidth=0.8, linestyle=":")
    over.set_ylim(0, 105)
    over.axvline(24, color=INK, linewidth=0.8, linestyle=":")
    over.set_xscale("log")
    days = max(row["days"] for row in rows)
    ticks = [hours for hours in (1, 6, 24, 72, 240, 720) if hours <= 24 * days]
    over.set_xticks(ticks, [f"{h} h" if h <= 24 else f"{h // 24} d" for h in ticks])
    over.xaxis.set_minor_locator(NullLocator())
    over.set_xlabel("time")
    over.set_ylabel("applications seen, %")
    over.legend(loc="center left")
    against.axhline(24, color=INK, linewidth=0.8, linestyle=":")
    rates = sorted({curve["rate"] for row in rows for curve in row["curves"]})
    against.set_xlabel("sampling rate, of windows or of hosts")
    against.set_xscale("log")
    against.set_xlim(rates[0] / 1.3, 1.3)
    against.set_xticks(rates, [f"{100 * rate:g} %" for rate in rates])
    against.xaxis.set_minor_locator(NullLocator())
    against.set_yscale("log")
    against.set_ylim(0.7 * min(ticks), 24 * days * 1.2)
    against.set_yticks(ticks, [f"{h} h" if h <= 24 else f"{h // 24} d" for h in ticks])
    against.yaxis.set_minor_locator(NullLocator())
    against.set_ylabel("until 99 % are seen")
    if not any(curve["hours_to_99"] is not None for row in rows for curve in row["curves"]):
        against.annotate(f"not within {days} days at any rate", (0.5, 0.5), ha="center",
                         xycoords="axes fraction")  # fmt: skip
    against.legend(fontsize=7.5, loc="lower left", ncols=3)
    return Drawn(figure, _seen_sentence(rows))


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


def _attribution(rows: Rows) -> Drawn | None:
    """GPU time given to the right class, on the hosts and after the release."""
    rows = [row for row in rows if row.get("on_hosts") is not None]
    axes = swept(rows) if rows else []
    if not axes:
        return None
    x = axes[0]
    figure, (plot,) = _new()
    groups = _groups(rows, axes)
    for colour, (name, own) in zip(COLOURS, groups, strict=False):
        at, hosts = _mean_at(own, x, "on_hosts")
        label = f"{name}, on the hosts" if name else "as the hosts say"
        plot.plot(at, [100 * v for v in hosts], "--", color=colour, linewidth=1.2, label=label)
        at, released = _mean_at(own, x, "released")
        label = f"{name}, released" if name else "as released, with noise"
        plot.plot(at, [100 * v for v in released], "o-", color=colour, label=label)
    plot.set_ylim(0, 105)
    plot.set_ylabel("GPU time given to the right class, %")
    _label(plot, x, rows, log=x in {"epsilon", "cohort", "job_gpus"})
    plot.legend()
    shown = [
        f"{_span(_mean_at(own, x, 'released')[1])}{f' among {name}' if name else ''}"
        for name, own in groups
    ]
    at, hosts = _mean_at(groups[-1][1], x, "on_hosts")
    hours = rows[0]["period_s"] / 3600
    return Drawn(
        figure,
        f"{_along(x, at)} the hosts put {_span(hosts)} of the GPU time under the right class; a "
        f"release of {hours:g} hours still shows {', '.join(shown)}.",
    )


def _along(axis: str, at: Sequence[float]) -> str:
    between = f"{told(axis, at[0])} to {told(axis, at[-1])}"
    return {
        "candidates": f"With {between} tables taught",
        "job_gpus": f"In jobs of {between} GPUs",
        "epsilon": f"At epsilon {between}",
        "unknown": f"With {between} of the programs taught to nobody",
    }.get(axis, f"With {AXIS_NAMES.get(axis, axis)} from {between}")


def _span(values: Sequence[float]) -> str:
    low, high = 100 * min(values), 100 * max(values)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"


def _lies(rows: Rows) -> Drawn | None:
    """How far lies move a statistic, against what the protocol allows."""
    rows = [row for row in rows if row.get("lies") and row["liars"]]
    if not rows:
        return None
    row = max(rows, key=lambda one: one["liars"])
    lies = list(reversed(row["lies"]))
    figure, (plot,) = _new(height=3.7)
    for place, lie in enumerate(lies):
        moved = abs(lie["moved"]) / lie["bound"]
        plot.barh(place, moved, color=COLOURS[0 if lie["bounded"] else 1])
        told = f"refused: {lie['refused']}" if lie["refused"] else f"moved by {moved:.1f} bounds"
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
    return Drawn(
        figure,
        f"{row['liars']} of {row['cohort']} hosts that lie move a statistic by at most "
        f"{bounded:.2f} times their bound, which is {1 / noise:.2f} standard errors of the release"
        f"{open_lie}.",
    )


def _faults(rows: Rows) -> Drawn | None:
    """What failing parts cost: reports in a release, of those that were sent."""
    row = next((row for row in rows if row.get("faults")), None)
    if row is None:
        return None
    faults = list(reversed(row["faults"]))
    figure, (plot,) = _new(height=3.9)
    for place, one in enumerate(faults):
        plot.barh(place, one["released_percent"], color=COLOURS[0], alpha=0.85)
        parts = [one["refused"] and f"refused: {one['refused']}",
                 one["reasons"] and f"kept back: {one['reasons']}"]  # fmt: skip
        plot.annotate("; ".join(part for part in parts if part), (2, place), va="center",
                      fontsize=8,
                      color="white" if one["released_percent"] > 60 else INK)  # fmt: skip
    plot.set_yticks(range(len(faults)), [one["fault"].replace("_", " ") for one in faults])
    plot.set_xlim(0, 100)
    plot.set_xlabel("reports in a release, of those that hosts sent, %")
    plot.grid(visible=False, axis="y")
    true = all(one["true_sums"] for one in row["faults"])
    kept = [t["trick"].replace("_", " ") for t in row["tricks"] if t["sums"] > 1]
    return Drawn(
        figure,
        f"With {100 * row['struck_share']:.0f} % of the reports, hosts or windows struck"
        f"{' every release is' if true else ' NOT every release is'} exactly the sum of the "
        f"accepted hosts; a Leader that tries {len(row['tricks'])} tricks "
        f"{'gets a second sum by ' + ', '.join(kept) if kept else 'never gets a second sum'} of "
        "the same window.",
    )


def _guess(rows: Rows) -> Drawn | None:
    """An attacker's advantage beside the bound that epsilon gives."""
    row = next((row for row in rows if row.get("guesses")), None)
    if row is None:
        return None
    guesses = list(reversed(row["guesses"]))
    figure, (plot,) = _new(height=2.9)
    for place, one in enumerate(guesses):
        middle = one["advantage"]
        reach = [[max(middle - one["low"], 0)], [max(one["high"] - middle, 0)]]
        plot.errorbar(middle, place, xerr=reach, fmt="o", color=COLOURS[0], capsize=3,
                      label="measured, 99 % interval" if not place else None)  # fmt: skip
        bounds = (("tight_bound", 2, "bound of the noise"), ("bound", 1, "bound of epsilon, delta"))
        for column, colour, name in bounds:
            plot.plot(one[column], place, "|", color=COLOURS[colour], markersize=16,
                      markeredgewidth=2.2, label=None if place else name)  # fmt: skip
    plot.set_yticks(range(len(guesses)), [one["attack"] for one in guesses])
    plot.set_xlim(-0.1, 1.05)
    plot.margins(y=0.2)
    plot.set_xlabel("advantage over a blind guess (0: none, 1: certain)")
    plot.legend(loc="lower right")
    plot.grid(visible=False, axis="y")
    holds = all(one["holds"] for one in row["guesses"])
    most = max(row["guesses"], key=lambda one: one["advantage"])
    return Drawn(
        figure,
        f"An attacker with every byte of the broker, one aggregator's view and t hosts, who takes "
        f"a week of releases about a host at every bound, has an advantage of "
        f"{most['advantage']:.2f}; epsilon {row['epsilon']:g} allows {most['bound']:.2f}, and "
        f"{'no attack exceeds' if holds else 'AN ATTACK EXCEEDS'} its bound.",
    )


FIGURES: Final[Mapping[str, Callable[[Rows], Drawn | None]]] = MappingProxyType(
    {
        "error": _error,
        "cost": _cost,
        "dropout": _dropout,
        "mix": _mix,
        "seen": _seen,
        "attribution": _attribution,
        "lies": _lies,
        "faults": _faults,
        "guess": _guess,
    }
)

OF_KIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        name: "error" if name == "windows" else name
        for name in ("windows", "seen", "attribution", "lies", "faults", "guess")
    }
)
"""Figure of a part that names none."""
