"""What failing parts cost: reports in a release, of those that were sent."""

from __future__ import annotations

from .figure_frame import COLOURS, INK, DrawnFigure, Rows, new_figure


def draw(rows: Rows) -> DrawnFigure | None:
    """What failing parts cost: reports in a release, of those that were sent."""
    row = next((row for row in rows if row.get("faults")), None)
    if row is None:
        return None
    faults = list(reversed(row["faults"]))
    figure, (plot,) = new_figure(height=3.9)
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
    return DrawnFigure(
        figure,
        f"With {100 * row['struck_share']:.0f} % of the reports, hosts or windows struck"
        f"{' every release is' if true else ' NOT every release is'} exactly the sum of the "
        f"accepted hosts; a Leader that tries {len(row['tricks'])} tricks "
        f"{'gets a second sum by ' + ', '.join(kept) if kept else 'never gets a second sum'} of "
        "the same window.",
    )
