"""GPU time given to the right class, on the hosts and after the release."""

from __future__ import annotations

from collections.abc import Sequence

from .figure_frame import AXIS_NAMES, DrawnFigure, Rows, mean_at, sweep_of, told


def draw(rows: Rows) -> DrawnFigure | None:
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
