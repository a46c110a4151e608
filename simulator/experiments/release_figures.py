"""Figures of experiments, each with its sentence: error, dropout, cost and mix of releases."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.statistics.discoveries import told_from_zero

from .figure_frame import (
    COLOURS,
    DAY_NOTE,
    INK,
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


def draw_error(rows: Rows) -> DrawnFigure | None:
    """Standard error and measured error along an axis."""
    sweep = sweep_of(rows, "standard_error_points")
    if sweep is None:
        return None
    x, plot = sweep.axis, sweep.plot
    off = []
    for colour, name, own in sweep.coloured():
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
    daily = f" ({points(day[0])} and {points(day[-1])} as the mean of a day)" if day else ""
    return DrawnFigure(
        sweep.figure,
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


def draw_dropout(rows: Rows) -> DrawnFigure | None:
    """What is released as hosts fall silent."""
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
    """CPU time of a host's window by stage, along the size of the fleet."""
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
    """The largest cells of a section, released beside true."""
    row = next((row for row in rows if row.get("cells")), None)
    if row is None:
        return None
    cells = [cell for cell in row["cells"] if cell["truth"] > 0 and cell["cell"] != "unmeasured"][
        :12
    ]
    figure, (plot,) = new_figure(height=0.9 + 0.27 * len(cells))
    for place, cell in enumerate(reversed(cells)):
        reach = 100 * Z95 * cell["standard_error"]
        if not told_from_zero(cell.get("q_value", 1.0)):
            most = max(100 * cell["share"], 0.0) + reach
            plot.barh(place, most, color="#eceff1", hatch="////",
                      edgecolor="#cfd6db", linewidth=0)  # fmt: skip
        else:
            plot.barh(place, 100 * cell["share"], xerr=reach, color=COLOURS[0], alpha=0.8,
                      ecolor=INK, capsize=2)  # fmt: skip
        plot.plot(100 * cell["truth"], place, "D", color=COLOURS[1], markersize=4.5)
    names = [_readable(cell["cell"]) for cell in reversed(cells)]
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


def _readable(cell: str) -> str:
    return cell.removeprefix("gpu_time/").replace("_", " ")
