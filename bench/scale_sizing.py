"""What a report costs each role and the broker, by its width: the slopes of `pointillist size`.

Core time is counted. What else the machine does only adds to it, by caches and threads of one core,
so of several runs the least counts. The shipped plan's width lies between the two that the line
goes through, and says how far it is off.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from aggregator.enrolment.tasks import build_task, task_plan, windows_from
from bench.parts import Measured, Part, Parts
from bench.record import Figure, commit, device
from bench.round_fleet import GPUS, HELPER, LEADER, T0, WINDOW_S
from bench.scale_hour import hour_of_reports
from bench.scale_roles import run_roles
from pointillist.broker.local import BrokerOptions, LocalBroker
from pointillist.plan_file import default_plan
from pointillist.sizing import COSTS_FILE, SIZE_UNITS, Costs, TaskLoad, fit, size_of
from wire.catalogue import Catalogue

WIDTHS: Final = (500, 4000)
"""Far apart: a thousand words cost less than what two runs of one width differ by."""
TURNS: Final = 3
"""Of all runs, one after the other, so that a busy minute does not meet one of them alone."""
FLEETS: Final = {"100k_gpus": 100_000 // GPUS, "1m_gpus": 1_000_000 // GPUS}
ROLES: Final = ("leader", "helper", "broker")
_COSTS: Final = tuple(f"{role}_us" for role in ROLES)
COMMAND: Final = "make bench-scale ARGS='--part sizing'"


def shipped_d() -> int:
    """Words of the shipped plan's minute task."""
    plan = default_plan()
    minute = next(task for task in plan.tasks if task.window_s == WINDOW_S)
    keys = LEADER.public_bytes, HELPER.public_bytes
    return build_task(
        Catalogue.load(), task_plan(plan, minute, windows_from(minute, T0, 1), keys)
    ).d


def least(turns: Sequence[Part]) -> Part:
    """The least core time of each role in several runs of one kind."""
    costs = {key: min(turn[key] for turn in turns) for key in (*_COSTS, "epoch_us")}
    return {"d": turns[0]["d"], **costs}


def spread_percent(turns: Sequence[Part]) -> float:
    """How far the Leader's dearest run is above its least, percent."""
    costs: list[float] = [turn["leader_us"] for turn in turns]
    return (max(costs) / min(costs) - 1) * 100


def fitted(parts: Sequence[Part]) -> Costs:
    """The costs of a report, from runs at several widths."""
    slopes = {role: fit([(part["d"], part[f"{role}_us"]) for part in parts]) for role in ROLES}
    return Costs(**slopes, epoch_us=statistics.mean(part["epoch_us"] for part in parts))


def errors(one: Costs, check: Part) -> dict[str, float]:
    """Role -> percent that a line is off at the width of a run that it was not fitted to."""
    return {
        role: (getattr(one, role).of(check["d"]) / check[f"{role}_us"] - 1) * 100 for role in ROLES
    }


def figures(
    one: Costs, off: Mapping[str, float], shipped: int, spreads: Sequence[float]
) -> list[Figure]:
    """Name slopes, errors, how far runs of one kind differed, and what fleets need by them."""
    found = [
        Figure("sizing_spread_percent", statistics.median(spreads), "%, dearest over least run"),
        Figure("sizing_spread_percent_worst", max(spreads), "%, dearest over least run"),
    ]
    for role in ROLES:
        cost = getattr(one, role)
        found += [
            Figure(f"sizing_{role}_report_us_one_process", cost.report_us, "core-us a report"),
            Figure(f"sizing_{role}_word_ns_one_process", cost.word_us * 1e3, "core-ns a word"),
        ]
    found.append(Figure("sizing_epoch_us_one_process", one.epoch_us, "core-us an epoch"))
    found += [
        Figure(f"sizing_error_percent_{role}", error, f"%, d = {shipped}")
        for role, error in off.items()
    ]
    for name, hosts in FLEETS.items():
        size = size_of(hosts, [TaskLoad(shipped, WINDOW_S)], one)
        found += [Figure(f"sizing_{name}_{k}", v, SIZE_UNITS[k]) for k, v in asdict(size).items()]
    return found


def costs_document(one: Costs, off: Mapping[str, float]) -> dict[str, Any]:
    """What `pointillist size` ships with."""
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    source = {"date": date, "commit": commit(), "device": device(), "command": COMMAND}
    return {
        "source": source,
        "one": asdict(one),
        "error_percent": dict(off),
    }


def measure(kept: Parts) -> Measured:
    """Run both roles at two widths, and at the shipped plan's."""
    shipped = shipped_d()
    runs = {"shipped": shipped} | {f"d{d}": d for d in WIDTHS}
    turns: dict[str, list[Part]] = {name: [] for name in runs}
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        running = broker.start(print)
        kept.get("sizing_warm", partial(run_roles, running, WIDTHS[0]))
        for turn in range(TURNS):
            for name, d in runs.items():
                part = partial(run_roles, running, d)
                turns[name].append(kept.get(f"sizing_{name}_turn_{turn}", part))
                hour_of_reports.cache_clear()
    found = {name: least(parts) for name, parts in turns.items()}
    one = fitted([found[f"d{d}"] for d in WIDTHS])
    off = errors(one, found["shipped"])
    if kept.writes:
        COSTS_FILE.write_text(json.dumps(costs_document(one, off), indent=2) + "\n")
    spreads = [spread_percent(parts) for parts in turns.values()]
    return Measured(figures(one, off, shipped, spreads))
