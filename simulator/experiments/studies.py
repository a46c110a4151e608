"""Runs of other kinds than plain windows: when applications are seen, and what is attributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulator.applications import Application, load_applications
from simulator.engine.exact_parties import ExactParties
from simulator.engine.task_rules import fleet_tasks
from simulator.fleet import FleetModel
from simulator.outcome.attribution import attribute_released
from simulator.outcome.day_runs import DAY_S, live_days
from simulator.outcome.seen import Design, Sampling, seen_curve
from wire.catalogue import Catalogue

from .experiment_runs import ExperimentRun

Row = dict[str, Any]

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
    curves = [
        asdict(
            seen_curve(
                played,
                Design.of(tasks),
                float(rate),
                way,
                int(options.get("draws", 40)),
                scenario.seed,
            )
        )
        for way in ways
        for rate in options.get("rates", FULL_RATE)
    ]
    full = next(one for one in curves if one["rate"] == max(c["rate"] for c in curves))
    return {
        "gpus": model.inventory.total_gpus,
        "days": longest,
        "lived_days": days,
        "busy_share": lived[0].busy_share,
        "variants": sum(not one.is_recording for one in model.applications),
        "tables": len(model.applications),
        "applications": full["applications"],
        "hours_to_99": full["hours_to_99"],
        "within_a_day": full["within_a_day"],
        "curves": curves,
    }


def play_attribution(run: ExperimentRun, folder: Path, catalogue: Catalogue) -> Row:
    """Classify one job of each application of a mix, and release the shares with noise.

    point       candidates (tables taught, recordings first), job_gpus, unknown (share of the mix
                that nobody taught), epsilon, cohort
    options     period_hours, 24; weight of the section, 0.10; draws, 50
    """
    del folder, catalogue
    everything = load_applications()
    point, options = run.point, run.options
    taught = everything[: int(point.get("candidates", len(everything)))]
    met = _mixed(taught, everything[len(taught) :], float(point.get("unknown", 0.0)))
    found = attribute_released(
        taught,
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
        "tables_taught": len(taught),
        "tables_met": len(met),
        "variants": sum(not one.is_recording for one in met),
        "recordings": sum(one.is_recording for one in met),
    }


def _mixed(
    taught: Sequence[Application], others: Sequence[Application], unknown: float
) -> list[Application]:
    """Give a mix in which this share was never taught, as far as there are others."""
    known = {one.workload.application for one in taught}
    strangers = [one for one in others if one.workload.application not in known]
    many = round(unknown / (1 - unknown) * len(taught)) if unknown < 1 else len(strangers)
    return [*taught, *strangers[:many]]
