"""The diagnosis on what is recorded: `make bench-diagnosis`, without recording anything.

Reads bench/recordings, writes bench/results/diagnosis.json, the page docs/diagnosis-figures.md with
its picture, and aggregator/statistics/incident_rates.json. What another command measured of
diagnosis stays: the agent's own cost in the result file, GPU faults in one of their own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.record import RESULTS, ROOT, Figure, commit, write_result
from pointillist.judging.evaluation import Evaluation, evaluate
from pointillist.judging.figures import alarm_rate, host_part
from pointillist.judging.page import confusion_picture, page
from pointillist.judging.results import Results, incident_rates, results_of, write_rates
from pointillist.judging.runs import runs_in

NAME: Final = "diagnosis"
COMMAND: Final = "make bench-diagnosis"
RECORDINGS: Final = ROOT / "bench" / "recordings"
PAGE: Final = ROOT / "docs" / "diagnosis-figures.md"
PICTURE: Final = "images/diagnosis/confusion.svg"
RATES: Final = ROOT / "aggregator" / "statistics" / "incident_rates.json"
AGENT: Final = ("agent_core_percent_100hz", "bpf_core_percent_100hz")
"""Measured by the agent's bench, with detection on, and told here too."""
GPU: Final = "gpu_fault_f1"


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
    """Write the result file, the page and its picture."""
    figures = [Figure(one.name, one.value, one.unit, one.goal) for one in results.lines]
    absent = dict(results.absent)
    kept = [one for one in _written("agent") if one.name in AGENT]
    gpu = [one for one in _written(f"{NAME}_gpu") if one.name.startswith(GPU)]
    if gpu:
        figures = [one for one in figures if not one.name.startswith(GPU)] + gpu
        absent.pop(GPU, None)
    if not kept:
        absent["agent_core_percent_100hz"] = "measured by make bench-agent, not run yet"
    path = write_result(
        NAME, COMMAND, [*figures, *kept], tables={"absent": absent, "tables": results.tables}
    )
    drawn = confusion_picture(results.tables)
    if drawn:
        (PAGE.parent / PICTURE).write_text(drawn, encoding="utf-8")
    document = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(page(document, PICTURE if drawn else ""), encoding="utf-8")
    print(path.relative_to(ROOT))


def _written(name: str) -> list[Figure]:
    """Figures of a result file; none where it was not written yet."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return [Figure(**row) for row in rows]


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
