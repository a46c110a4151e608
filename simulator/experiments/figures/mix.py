"""The largest cells of a section, released beside true."""

from __future__ import annotations

from aggregator.ratios import BELOW_NOISE_ERRORS

from .figure_frame import COLOURS, INK, Z95, DrawnFigure, Rows, new_figure, points


def draw(rows: Rows) -> DrawnFigure | None:
    """The largest cells of a section, released beside true."""
    row = next((row for row in rows if row.get("cells")), None)
    if row is None:
        return None
    cells = [one for one in row["cells"] if one["truth"] > 0 and one["cell"] != "unmeasured"][:12]
    figure, (plot,) = new_figure(height=0.9 + 0.27 * len(cells))
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
    return DrawnFigure(
        figure,
        f"{row['hosts']:,} hosts see {seen} of {true} classes above noise in the mean of "
        f"{windows} windows ({row['hours']:g} h), each within "
        f"{points(Z95 * error)} at 95 %; a single window has a standard error of "
        f"{points(row['standard_error_points'])}.",
    )


def _readable(cell: str) -> str:
    return cell.removeprefix("gpu_time/").replace("_", " ")
