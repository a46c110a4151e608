"""All methods on what is recorded: `make bench-diagnosis`, without recording anything.

Reads bench/recordings, writes bench/results/diagnosis.json, the page docs/diagnosis-figures.md with
its pictures, and aggregator/statistics/incident_rates.json. What another command measured of
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
from diagnosis.detect.model import RULES_TITLE
from diagnosis.detect.model_file import load_model
from pointillist.teaching.evaluation import SHIPPED, MethodEvaluation, evaluate
from pointillist.teaching.figures import alarm_rate, host_part
from pointillist.teaching.page import page
from pointillist.teaching.recorded_runs import runs_in
from pointillist.teaching.result_plots import pictures
from pointillist.teaching.results import Results, incident_rates, results_of, write_rates

NAME: Final = "diagnosis"
COMMAND: Final = "make bench-diagnosis"
RECORDINGS: Final = ROOT / "bench" / "recordings"
PAGE: Final = ROOT / "docs" / "diagnosis-figures.md"
IMAGES: Final = ROOT / "docs" / "images" / "diagnosis"
RATES: Final = ROOT / "aggregator" / "statistics" / "incident_rates.json"
AGENT: Final = ("agent_core_percent_100hz", "bpf_core_percent_100hz")
"""Measured by the agent's bench, with detection on, and told here too."""
GPU: Final = "gpu_fault_f1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate, print the comparison, write everything that is told of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--ablate", default=SHIPPED, help="a kind of model, or none")
    chosen = parser.parse_args(arguments)
    model = load_model()
    found = evaluate(runs_in(chosen.recordings), model, print, chosen.ablate)
    results = results_of(found)
    write(results)
    write_incident_rates(found, RULES_TITLE if model is None else model.title)
    for row in results.tables["methods"]:
        print(f"{row['method']:28} macro-F1 {row.get('macro_f1')}  {row.get('skipped', '')}")
    return 0


def write(results: Results) -> None:
    """Write the result file, the page and its pictures."""
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
    IMAGES.mkdir(parents=True, exist_ok=True)
    drawn = pictures(results.tables)
    for name, (svg, png) in drawn.items():
        (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")
        (IMAGES / f"{name}.png").write_bytes(png)
    document = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(page(document, drawn, "images/diagnosis"), encoding="utf-8")
    print(path.relative_to(ROOT))


def _written(name: str) -> list[Figure]:
    """Figures of a result file; none where it was not written yet."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return [Figure(**row) for row in rows]


def write_incident_rates(found: MethodEvaluation, title: str) -> None:
    """Write the counts that the aggregator corrects the weekly section by."""
    hours = alarm_rate(found.shipped).worker_hours
    about = (
        f"{len(found.divided.held_out)} held-out runs of bench/recordings, "
        f"{hours:.2f} worker-hours without a fault, commit {commit()[:12]}"
    )
    write_rates(RATES, incident_rates(host_part(found.shipped), title, about))


if __name__ == "__main__":
    sys.exit(main())
