"""Figures of experiments, each with its sentence: lies, failing parts and an attacker's guesses."""

from __future__ import annotations

from .figure_frame import COLOURS, INK, DrawnFigure, Rows, new_figure


def draw_lies(rows: Rows) -> DrawnFigure | None:
    """How far lies move a statistic, against what the protocol allows."""
    rows = [row for row in rows if row.get("lies") and row["liars"]]
    if not rows:
        return None
    row = max(rows, key=lambda candidate: candidate["liars"])
    lies = list(reversed(row["lies"]))
    figure, (plot,) = new_figure(height=3.7)
    for place, lie in enumerate(lies):
        moved = abs(lie["moved"]) / lie["bound"]
        plot.barh(place, moved, color=COLOURS[0 if lie["bounded"] else 1])
        told = f"refused: {lie['refused']}" if lie["refused"] else f"moved by {moved:.1f} bounds"
        told = f"suppressed: {lie['reason']}" if lie.get("reason") else told
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


def draw_faults(rows: Rows) -> DrawnFigure | None:
    """What failing parts cost: reports in a release, of those that were sent."""
    row = next((row for row in rows if row.get("faults")), None)
    if row is None:
        return None
    faults = list(reversed(row["faults"]))
    figure, (plot,) = new_figure(height=3.9)
    for place, fault in enumerate(faults):
        plot.barh(place, fault["released_percent"], color=COLOURS[0], alpha=0.85)
        parts = [fault["refused"] and f"refused: {fault['refused']}",
                 fault["reasons"] and f"kept back: {fault['reasons']}"]  # fmt: skip
        plot.annotate("; ".join(part for part in parts if part), (2, place), va="center",
                      fontsize=8,
                      color="white" if fault["released_percent"] > 60 else INK)  # fmt: skip
    plot.set_yticks(range(len(faults)), [fault["fault"].replace("_", " ") for fault in faults])
    plot.set_xlim(0, 100)
    plot.set_xlabel("reports in a release, of those that hosts sent, %")
    plot.grid(visible=False, axis="y")
    true = all(fault["true_sums"] for fault in row["faults"])
    kept = [t["trick"].replace("_", " ") for t in row["tricks"] if t["sums"] > 1]
    return DrawnFigure(
        figure,
        f"With {100 * row['struck_share']:.0f} % of the reports, hosts or windows struck"
        f"{' every release is' if true else ' NOT every release is'} exactly the sum of the "
        f"accepted hosts; a Leader that tries {len(row['tricks'])} tricks "
        f"{'gets a second sum by ' + ', '.join(kept) if kept else 'never gets a second sum'} of "
        "the same window.",
    )


def draw_guess(rows: Rows) -> DrawnFigure | None:
    """An attacker's advantage beside the bound that epsilon gives."""
    row = next((row for row in rows if row.get("guesses")), None)
    if row is None:
        return None
    guesses = list(reversed(row["guesses"]))
    figure, (plot,) = new_figure(height=2.9)
    for place, guess in enumerate(guesses):
        middle = guess["advantage"]
        reach = [[max(middle - guess["low"], 0)], [max(guess["high"] - middle, 0)]]
        plot.errorbar(middle, place, xerr=reach, fmt="o", color=COLOURS[0], capsize=3,
                      label="measured, 99 % interval" if not place else None)  # fmt: skip
        bounds = (("tight_bound", 2, "bound of the noise"), ("bound", 1, "bound of epsilon, delta"))
        for column, colour, name in bounds:
            plot.plot(guess[column], place, "|", color=COLOURS[colour], markersize=16,
                      markeredgewidth=2.2, label=None if place else name)  # fmt: skip
    plot.set_yticks(range(len(guesses)), [guess["attack"] for guess in guesses])
    plot.set_xlim(-0.1, 1.05)
    plot.margins(y=0.2)
    plot.set_xlabel("advantage over a blind guess (0: none, 1: certain)")
    plot.legend(loc="lower right")
    plot.grid(visible=False, axis="y")
    holds = all(guess["holds"] for guess in row["guesses"])
    most = max(row["guesses"], key=lambda guess: guess["advantage"])
    return DrawnFigure(
        figure,
        f"An attacker with every byte of the broker, one aggregator's view and t hosts, who takes "
        f"a week of releases about a host at every bound, has an advantage of "
        f"{most['advantage']:.2f}; epsilon {row['epsilon']:g} allows {most['bound']:.2f}, and "
        f"{'no attack exceeds' if holds else 'AN ATTACK EXCEEDS'} its bound.",
    )
