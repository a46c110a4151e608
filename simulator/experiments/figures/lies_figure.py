"""How far lies move a statistic, against what the protocol allows."""

from __future__ import annotations

from .figure_frame import COLOURS, INK, DrawnFigure, Rows, new_figure


def draw(rows: Rows) -> DrawnFigure | None:
    """How far lies move a statistic, against what the protocol allows."""
    rows = [row for row in rows if row.get("lies") and row["liars"]]
    if not rows:
        return None
    row = max(rows, key=lambda one: one["liars"])
    lies = list(reversed(row["lies"]))
    figure, (plot,) = new_figure(height=3.7)
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
    return DrawnFigure(
        figure,
        f"{row['liars']} of {row['cohort']} hosts that lie move a statistic by at most "
        f"{bounded:.2f} times their bound, which is {1 / noise:.2f} standard errors of the release"
        f"{open_lie}.",
    )
