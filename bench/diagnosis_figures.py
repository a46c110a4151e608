"""The diagnosis on what is recorded: `make bench-diagnosis`, without recording anything.

Reads bench/recordings, writes bench/results/diagnosis.json, the picture of the page
docs/diagnosis-figures.md and aggregator/statistics/incident_rates.json.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import pyplot as plt

from bench.record import ROOT, Figure, commit, write_result
from pointillist.judging.figures import alarm_rate, host_part
from pointillist.judging.results import (
    Evaluation,
    Results,
    evaluate,
    incident_rates,
    results_of,
    write_rates,
)
from pointillist.judging.runs import runs_in
from simulator.experiments.figure_frame import INK, STYLE

NAME: Final = "diagnosis"
COMMAND: Final = "make bench-diagnosis"
RECORDINGS: Final = ROOT / "bench" / "recordings"
PICTURE: Final = ROOT / "docs" / "images" / "diagnosis" / "confusion.svg"
RATES: Final = ROOT / "aggregator" / "statistics" / "incident_rates.json"
_DARK: Final = 0.6
"""Share from which a cell is so blue that its count is written in white."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the figures, write everything that is told of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    chosen = parser.parse_args(arguments)
    found = evaluate(runs_in(chosen.recordings), print)
    results = results_of(found)
    write(results)
    write_incident_rates(found)
    for line in results.lines:
        print(f"{line.name:40} {line.value:g} {line.unit}")
    return 0


def write(results: Results) -> None:
    figures = [Figure(one.name, one.value, one.unit, one.goal) for one in results.lines]
    told = {"absent": results.absent, "tables": results.tables}
    path = write_result(NAME, COMMAND, figures, tables=told)
    if drawn := confusion_picture(results.tables):
        PICTURE.write_text(drawn, encoding="utf-8")
    print(path.relative_to(ROOT))


def confusion_picture(tables: Mapping[str, Any]) -> str:
    """Draw who is taken for whom as SVG; "" where no fault was judged."""
    counts = np.array(tables["confusion"]["diagnoses"])
    counts[-1, -1] = tables["calm"]["silent"]
    names = [*tables["confusion"]["causes"], "nothing"]
    rows, columns = counts.sum(axis=1) > 0, (counts.sum(axis=0) > 0) | (counts.sum(axis=1) > 0)
    if not rows[:-1].any():
        return ""
    shown = counts[np.ix_(rows, columns)]
    shares = shown / np.maximum(1, shown.sum(axis=1, keepdims=True))
    size = 3.2 + 0.55 * shown.shape[1], 2.4 + 0.42 * shown.shape[0]
    with plt.rc_context(fname=STYLE):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
    axes.pcolormesh(shares[::-1], cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    for (i, j), count in np.ndenumerate(shown[::-1]):
        if count:
            colour = "white" if shares[::-1][i, j] > _DARK else INK
            axes.text(j + 0.5, i + 0.5, str(count), ha="center", va="center", color=colour)
    faults = int(counts[:-1].sum())
    told = [
        f"{'no fault' if name == 'nothing' else name} ({total})"
        for name, there, total in zip(names, rows, counts.sum(axis=1), strict=True)
        if there
    ]
    axes.set_yticks(np.arange(len(told)) + 0.5, told[::-1])
    said = [name for name, there in zip(names, columns, strict=True) if there]
    axes.set_xticks(np.arange(len(said)) + 0.5, said, rotation=35, ha="right")
    axes.set_xlabel("answer")
    axes.set_ylabel("truth (how many)")
    axes.set_title(
        f"{faults} held-out faults with impact, {tables['calm']['runs']} runs without a fault;\n"
        "no fault: alarms anywhere, and runs that passed in silence",
        fontsize=9.5, loc="right",
    )  # fmt: skip
    axes.grid(visible=False)
    svg = io.StringIO()
    with plt.rc_context(fname=STYLE):
        # White: its ink is dark, and readers of the dark site see it too.
        figure.savefig(svg, format="svg", facecolor="white", metadata={"Date": None})
    plt.close(figure)
    return svg.getvalue()[svg.getvalue().index("<svg") :]


def write_incident_rates(found: Evaluation) -> None:
    """Write the counts that the aggregator corrects the weekly section by."""
    hours = alarm_rate(found.held_out).worker_hours
    about = (
        f"{len(found.divided.held_out)} held-out runs of bench/recordings, "
        f"{hours:.2f} worker-hours without a fault, commit {commit()[:12]}"
    )
    write_rates(RATES, incident_rates(host_part(found.held_out), about))


if __name__ == "__main__":
    sys.exit(main())
