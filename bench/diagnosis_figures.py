"""The diagnosis on what is recorded: `make bench-diagnosis`, without recording anything.

Reads bench/recordings, writes bench/results/diagnosis.json, the picture of the page that `make
figures` makes of it, and aggregator/statistics/incident_rates.json.
"""

from __future__ import annotations

from typing import Final

from bench.diagnosis.sitting import RECORDINGS
from bench.record import ROOT, Figure, commit, write_result
from pointillist.judging.evaluation import evaluate
from pointillist.judging.figures import alarm_rate, host_part
from pointillist.judging.page import confusion_picture
from pointillist.judging.results import incident_rates, results_of, write_rates
from pointillist.judging.runs import runs_in

PICTURE: Final = "images/diagnosis/confusion.svg"
RATES: Final = ROOT / "aggregator" / "statistics" / "incident_rates.json"


def main() -> None:
    """Evaluate, print the figures, write everything that is told of it."""
    found = evaluate(runs_in(RECORDINGS), print)
    results = results_of(found)
    figures = [Figure(one.name, one.value, one.unit, one.goal) for one in results.lines]
    told = {"absent": dict(results.absent), "tables": results.tables}
    write_result("diagnosis", "make bench-diagnosis", figures, tables=told)
    if drawn := confusion_picture(results.tables):
        (ROOT / "docs" / PICTURE).write_text(drawn, encoding="utf-8")
    # The counts that the aggregator corrects the weekly section by.
    about = (
        f"{len(found.divided.held_out)} held-out runs of bench/recordings, "
        f"{alarm_rate(found.held_out).worker_hours:.2f} worker-hours without a fault, "
        f"commit {commit()[:12]}"
    )
    write_rates(RATES, incident_rates(host_part(found.held_out), about))
    for line in results.lines:
        print(f"{line.name:40} {line.value:g} {line.unit}")


if __name__ == "__main__":
    main()
