"""What is released as hosts fall silent."""

from __future__ import annotations

from .figure_frame import COLOURS, DrawnFigure, Rows, label_axis, new_figure


def draw(rows: Rows) -> DrawnFigure | None:
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
