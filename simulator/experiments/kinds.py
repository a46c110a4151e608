"""What a part can do with a point: each kind is one function from a run to its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from simulator.adversaries.attacks import (
    HOST_ATTACKS,
    LEADER_ATTACKS,
    move_statistic,
    play_leader_attack,
)
from simulator.adversaries.cohort import CohortPlan
from simulator.adversaries.lossy_network import FAULTS, face
from simulator.adversaries.membership_inference import (
    infer_application,
    infer_without_mask,
    infer_working,
)
from simulator.applications import Application, load_applications
from simulator.cell_view import listed
from simulator.engine.exact import ExactParties
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.engine.task_rules import fleet_tasks
from simulator.engine.worker_pool import peak_bytes
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.hosts import make_inventory
from simulator.outcome.attribution import attribute_released, live_days
from simulator.outcome.seen import Design, Sampling, seen_curve
from simulator.outcome.truth import truth_cells
from wire.catalogue import Catalogue
from wire.fields import Scheme
from wire.report import report_length

from .experiment_file import ExperimentRun
from .scores import DAY_S, Scores, SectionMean

Row = dict[str, Any]

MOST_HOSTS: Final = 200
"""Of a cohort in which every report is sealed and every message is a production one."""

FAULT_SHARE: Final = 0.15
SKEW_S: Final = 60.0


def play_host_attacks(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let a share of a small cohort lie in every way, one after the other."""
    del folder, catalogue
    plan = _cohort(run)
    liars = round(run.scenario.adversaries.lying_share * plan.hosts)
    found = [move_statistic(lie, liars, plan) for lie in HOST_ATTACKS]
    lies = [asdict(moved) | {"refused": listed(moved.refused)} for moved in found]
    return {"cohort": plan.hosts, "liars": liars, "lies": lies, "fidelity": "exact"}


def play_faults(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let every fault of the network strike, and the Leader try every attack.

    options     share: of the reports, hosts or windows that a fault strikes, 0.15
    """
    del folder, catalogue
    plan = _cohort(run)
    share = float(run.options.get("share", FAULT_SHARE))
    faults = []
    for fault in FAULTS:
        result = face(fault, SKEW_S if fault == "clock_skew" else share, 4, plan)
        told = {"refused": listed(result.refused), "reasons": listed(result.reasons)}
        faults.append(asdict(result) | told | {"released_percent": result.reports_released_percent})
    attacks = [play_leader_attack(name, plan) for name in LEADER_ATTACKS]
    return {
        "cohort": plan.hosts,
        "struck_share": share,
        "faults": faults,
        "tricks": [asdict(found) | {"cleared": listed(found.cleared)} for found in attacks],
        "fidelity": "exact",
    }


def play_inference(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let an attacker infer what one host did, a few thousand times over.

    options     trials, 4000; applications it chooses among, 25
    """
    del folder
    trials = int(run.options.get("trials", 4000))
    scenario = run.scenario
    inventory = make_inventory(scenario, catalogue)
    span = (scenario.start_s, scenario.end_s)
    tasks = fleet_tasks(run.plan, catalogue, inventory, span, ExactParties().public_keys)
    inferred = [
        infer_working(tasks, trials),
        infer_working(tasks, trials, windows=1),
        infer_application(tasks, int(run.options.get("applications", 25)), trials),
        infer_without_mask(tasks[0], min(trials, 1000), scenario.seed),
    ]
    return {
        "guesses": [
            {
                "attack": found.attack,
                "choices": found.choices,
                "trials": found.trials,
                "right": found.right.rate,
                "advantage": found.advantage,
                "low": (found.right.low - 1 / found.choices) / (1 - 1 / found.choices),
                "high": (found.right.high - 1 / found.choices) / (1 - 1 / found.choices),
                "bound": found.bound,
                "tight_bound": found.tight_bound,
                "holds": found.holds,
            }
            for found in inferred
        ]
    }


def _cohort(run: ExperimentRun) -> CohortPlan:
    return CohortPlan(
        hosts=min(run.scenario.hosts, MOST_HOSTS),
        epsilon_millionths=run.plan.epsilon_millionths,
        seed=run.scenario.seed,
    )


FULL_RATE = (1.0,)


def play_seen(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Let a fleet live whole days, and release them again and again at each sampling rate.

    options     rates: of measuring, [1.0]; draws: releases of each, 40; hosts_too: sample hosts as
                well as windows, true; longest_days: the lived days repeat up to here, for what
                takes longer
    """
    del folder  # one run is a minute: nothing to go on from
    options = run.options
    days = max(1, -(-run.scenario.duration_s // DAY_S))
    scenario = run.scenario.with_(duration_s=days * DAY_S)
    model = FleetModel(scenario, catalogue)
    span = (scenario.start_s, scenario.end_s)
    tasks = fleet_tasks(run.plan, catalogue, model.inventory, span, ExactParties().public_keys)
    lived = list(live_days(model, catalogue, days))
    longest = max(days, int(options.get("longest_days", days)))
    played = [lived[day % days] for day in range(longest)]
    ways = [Sampling.WINDOWS, *([Sampling.HOSTS] if options.get("hosts_too", True) else [])]
    design, draws = Design.of(tasks), int(options.get("draws", 40))
    curves = [
        asdict(seen_curve(played, design, float(rate), way, draws, scenario.seed))
        for way in ways
        for rate in options.get("rates", FULL_RATE)
    ]
    full = next(curve for curve in curves if curve["rate"] == max(c["rate"] for c in curves))
    return {
        "gpus": model.inventory.total_gpus,
        "days": longest,
        "lived_days": days,
        "busy_share": lived[0].busy_share,
        "variants": sum(not application.is_recording for application in model.applications),
        "tables": len(model.applications),
        "applications": full["applications"],
        "hours_to_99": full["hours_to_99"],
        "within_a_day": full["within_a_day"],
        "curves": curves,
    }


def play_attribution(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Classify one job of each application of a mix, and release the shares with noise.

    point       candidates (training tables, recordings first), job_gpus, unknown (share of the
                mix outside the training set), epsilon, cohort
    options     period_hours, 24; weight of the section, 0.10; draws, 50
    """
    del folder, catalogue
    everything = load_applications()
    point, options = run.point, run.options
    training = everything[: int(point.get("candidates", len(everything)))]
    met = _mixed(training, everything[len(training) :], float(point.get("unknown", 0.0)))
    found = attribute_released(
        training,
        met,
        int(point.get("job_gpus", 8)),
        epsilon=run.plan.epsilon_millionths / 1e6,
        hosts=run.scenario.hosts,
        weight=float(options.get("weight", 0.10)),
        period_s=round(float(options.get("period_hours", 24.0)) * 3600),
        busy_share=run.scenario.load.busy_share,
        draws=int(options.get("draws", 50)),
        seed=run.scenario.seed,
    )
    return asdict(found) | {
        "tables_taught": len(training),
        "tables_met": len(met),
        "variants": sum(not application.is_recording for application in met),
        "recordings": sum(application.is_recording for application in met),
    }


def _mixed(
    training: Sequence[Application], others: Sequence[Application], unknown: float
) -> list[Application]:
    """Give a mix in which this share is not in the training set, as far as there are others."""
    known = {application.workload.application for application in training}
    strangers = [other for other in others if other.workload.application not in known]
    many = round(unknown / (1 - unknown) * len(training)) if unknown < 1 else len(strangers)
    return [*training, *strangers[:many]]


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


Kind = Callable[[ExperimentRun, Path, Catalogue], Row]

KINDS: Final[Mapping[str, Kind]] = {
    "windows": play_windows,
    "seen": play_seen,
    "attribution": play_attribution,
    "lies": play_host_attacks,
    "faults": play_faults,
    "guess": play_inference,
}
"""`windows` plays a scenario's windows and scores them against the truth; `seen` asks when every
application has been seen; `attribution`, how much GPU time the right one is given; `lies`, `faults`
and `guess` play those who do not follow the protocol."""
