"""One run of the plain kind: play a scenario's windows and score them against the truth."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any, Final

from simulator.engine.engine_port import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.outcome import truth_cells
from wire.bounds import Scheme
from wire.catalogue import Catalogue
from wire.report import report_length

from .experiment_runs import ExperimentRun
from .scores import DAY_S, Scores, SectionMean

Row = dict[str, Any]


def play_windows(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Play every window of a run in this process; a run that was cut off goes on in `folder`.

    The noise is seeded, so that the row repeats; its distribution is the production one.
    Raises  ParameterError where the plan's bounds do not hold for this fleet
    """
    settings = EngineSettings(noise=Noise.SEEDED, processes=1)
    simulation = Simulation(run.scenario, run.plan, catalogue, settings, folder)
    scores = Scores(SectionMean(run.section), run.scenario.hosts)
    recorded: list[float] = []
    for step in simulation.steps():
        cells = truth_cells(step.outcome, catalogue)
        scores.add(step, cells)
        if not recorded:
            recorded.append(simulation.model.recorded_share(step.state))
    row = scores.row() | {
        "gpus": simulation.model.inventory.total_gpus,
        "fidelity": simulation.fidelity,
        "recorded_share": recorded[0] if recorded else None,
        "peak_memory_bytes": peak_bytes(),
    }
    spec_task = next(
        (t for t in simulation.tasks if any(s.name == run.section for s in t.sections)), None
    )
    if spec_task is not None:
        windows_a_day = DAY_S / spec_task.window_s
        row |= {
            "section_window_s": spec_task.window_s,
            "section_d": spec_task.d,
            "report_bytes": report_length(spec_task.d, Scheme.MASKED),
            "bytes_host_day": report_length(spec_task.d, Scheme.MASKED) * windows_a_day,
        }
        if "standard_error_points" in row and spec_task.window_s <= DAY_S:
            # The noise of windows is independent: the error of a mean falls with their root.
            row["standard_error_points_day"] = row["standard_error_points"] / windows_a_day**0.5
    return row


_RSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024


def peak_bytes() -> int:
    """Most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_BYTES
