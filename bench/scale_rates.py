"""Reports a second through both roles on one machine, by number of workers.

A broker, a Leader, a Helper and their workers share the machine's cores. Windows of a fleet come at
once to parties that wait for them; a rate counts a minute's part of the epochs of an hour, cold,
and all that both roles do until the last release. Beside it a bare consumer reads the same records,
and NumPy makes and adds as many vectors. What a report costs each of them gives the sizes of larger
fleets; a third width says how far the model is off.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.tasks import build_task, task_plan, windows_from
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from bench.round_fleet import GPUS, HELPER, LEADER, T0, WINDOW_S
from bench.round_work import floor
from bench.scale_hour import HOSTS, hour_of_reports
from bench.scale_roles import run_roles
from bench.sizing_model import SIZE_UNITS, Costs, fit, size_of
from pointillist.broker.local import BrokerOptions, LocalBroker
from pointillist.plan_file import default_plan
from wire.catalogue import Catalogue

D: Final = 1000
CHECK_D: Final = 500
FULL: Final = {"d1000": "d1000", "shipped": "shipped_plan"}
"""Widths that are measured with every number of workers, and what figures call them."""
FLEETS: Final = {"100k_gpus": 100_000 // GPUS, "1m_gpus": 1_000_000 // GPUS}
WORKERS: Final = (0, 1, 2, 4)
UNIT: Final = "reports/s, both roles and the broker, epochs included"
ROLES: Final = ("leader", "helper", "broker")


def shipped_d() -> int:
    """Words of the shipped plan's minute task."""
    plan = default_plan()
    minute = next(task for task in plan.tasks if task.window_s == WINDOW_S)
    keys = LEADER.public_bytes, HELPER.public_bytes
    return build_task(
        Catalogue.load(), task_plan(plan, minute, windows_from(minute, T0, 1), keys)
    ).d


def sizes(parts: Mapping[str, Part], shipped: int) -> list[Figure]:
    """What fleets need by the model, and how far it is off at a width that it was not fitted to."""
    check, found = parts[f"d{CHECK_D}_workers_0"], []
    one = fitted([parts[f"{width}_workers_0"] for width in ("d1000", "shipped")])
    several = fitted([parts[f"{width}_workers_{WORKERS[-1]}"] for width in ("d1000", "shipped")])
    for role in ROLES:
        measured = check[f"{role}_us"]
        error = (getattr(one, role).of(CHECK_D) / measured - 1) * 100
        found.append(Figure(f"sizing_error_percent_{role}", error, f"%, d = {CHECK_D}"))
    for name, hosts in FLEETS.items():
        size = size_of(hosts, shipped, one, several)
        found += [Figure(f"sizing_{name}_{k}", v, SIZE_UNITS[k]) for k, v in asdict(size).items()]
    return found


def fitted(parts: Sequence[Part]) -> Costs:
    """The costs of a report, from runs at several widths."""
    slopes = {role: fit([(part["d"], part[f"{role}_us"]) for part in parts]) for role in ROLES}
    return Costs(**slopes, epoch_us=statistics.mean(part["epoch_us"] for part in parts))


def figures(parts: Mapping[str, Part], floors: Mapping[str, float]) -> list[Figure]:
    """Name what the parts say.

    floors      reports a second of NumPy alone, by width
    """
    found = []
    for width, named in FULL.items():
        group = [part for name, part in parts.items() if name.startswith(width)]
        best = max(group, key=lambda part: part["rate"])
        bare = statistics.median(part["bare"] for part in group)
        rate, ratio = best["rate"], best["rate"] / bare
        name = f"reports_per_second_2cores_both_roles_{named}"
        found.append(Figure(name, rate, UNIT, floor=floors[width]))
        if width == "d1000":
            found.append(Figure("ratio_to_plain_reader", ratio, "ratio", 0.5))
        else:
            found.append(Figure("reports_of_the_shipped_plan_in_60_s", rate * 60, "reports", 1e5))
            found.append(Figure("ratio_to_plain_reader_shipped_plan", ratio, "ratio"))
        found.append(Figure(f"plain_reader_reports_per_second_{named}", bare, "reports/s"))
        found.append(Figure(f"workers_of_the_best_{named}", best["workers"], "of each role"))
    for name, part in parts.items():
        found.append(Figure(f"reports_per_second_{name}", part["rate"], UNIT))
        found += [
            Figure(f"{role}_us_{name}", part[f"{role}_us"], "core-us a report") for role in ROLES
        ]
    return found


def measure(kept: Parts) -> Measured:
    """Run every number of workers at both widths on one broker."""
    found: dict[str, Part] = {}
    widths = {"d1000": D, "shipped": shipped_d(), f"d{CHECK_D}": CHECK_D}
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        running = broker.start(print)
        for width, d in widths.items():
            for workers in WORKERS if width in FULL else WORKERS[:1]:
                name = f"{width}_workers_{workers}"
                found[name] = kept.get(name, partial(run_roles, running, d, workers))
            hour_of_reports.cache_clear()
    floors = {width: HOSTS / floor(HOSTS, widths[width]) for width in FULL}
    return Measured([*figures(found, floors), *sizes(found, widths["shipped"])])
