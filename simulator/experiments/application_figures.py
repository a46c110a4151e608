"""Figures of experiments, each with its sentence: applications seen, and what is attributed."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.ticker import NullLocator

from .figure_frame import (
    AXIS_NAMES,
    COLOURS,
    INK,
    DrawnFigure,
    Rows,
    mean_at,
    new_figure,
    sweep_of,
    told,
)


def draw_seen(rows: Rows) -> DrawnFigure | None:
    """When applications have been seen, and how that depends on the sampling rate."""
    rows = sorted((r for r in rows if r.get("curves")), key=lambda row: row["applications"])
    if not rows:
        return None
    figure, (over, against) = new_figure(columns=2)
    for colour, row in zip(COLOURS, rows, strict=False):
        curves = sorted(row["curves"], key=lambda curve: curve["rate"])
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
    """GPU time given to the right class, on the hosts and after the release."""
    sweep = sweep_of(rows, "on_hosts")
    if sweep is None:
        return None
    x, plot = sweep.axis, sweep.plot
    for colour, name, own in sweep.coloured():
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
        "candidates": f"With {between} tables taught",
        "job_gpus": f"In jobs of {between} GPUs",
        "epsilon": f"At epsilon {between}",
        "unknown": f"With {between} of the programs taught to nobody",
    }.get(axis, f"With {AXIS_NAMES.get(axis, axis)} from {between}")


def _span(values: Sequence[float]) -> str:
    low, high = 100 * min(values), 100 * max(values)
    return f"{low:.0f} %" if round(low) == round(high) else f"{low:.0f} to {high:.0f} %"
