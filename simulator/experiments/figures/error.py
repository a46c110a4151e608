"""Standard error and measured error along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from .figure_frame import DAY_NOTE, DrawnFigure, Rows, decimal, mean_at, points, sweep_of, told


def draw(rows: Rows) -> DrawnFigure | None:
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
