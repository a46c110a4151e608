"""CPU time of a host's window by stage, along the size of the fleet."""

from __future__ import annotations

from .figure_frame import COLOURS, DrawnFigure, Row, Rows, new_figure


def draw(rows: Rows) -> DrawnFigure | None:
    """CPU time of a host's window by stage, along the size of the fleet."""
    rows = sorted((r for r in rows if r.get("stages")), key=lambda row: row["hosts"])
    if not rows:
        return None
    figure, (plot,) = new_figure()
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
    return DrawnFigure(
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
