"""An attacker's advantage beside the bound that epsilon gives."""

from __future__ import annotations

from .figure_frame import COLOURS, DrawnFigure, Rows, new_figure


def draw(rows: Rows) -> DrawnFigure | None:
    """An attacker's advantage beside the bound that epsilon gives."""
    row = next((row for row in rows if row.get("guesses")), None)
    if row is None:
        return None
    guesses = list(reversed(row["guesses"]))
    figure, (plot,) = new_figure(height=2.9)
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
    return DrawnFigure(
        figure,
        f"An attacker with every byte of the broker, one aggregator's view and t hosts, who takes "
        f"a week of releases about a host at every bound, has an advantage of "
        f"{most['advantage']:.2f}; epsilon {row['epsilon']:g} allows {most['bound']:.2f}, and "
        f"{'no attack exceeds' if holds else 'AN ATTACK EXCEEDS'} its bound.",
    )
