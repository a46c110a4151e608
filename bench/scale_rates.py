"""Reports a second through both roles on one machine.

A broker, a Leader and a Helper share the machine's cores. Windows of a fleet come at
once to parties that wait for them; a rate counts a minute's part of the epochs of an hour, cold,
and all that both roles do until the last release. Beside it a bare consumer reads the same records,
and NumPy makes and adds as many vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from bench.round_work import floor
from bench.scale_hour import HOSTS, hour_of_reports
from bench.scale_roles import run_roles
from bench.scale_sizing import ROLES, shipped_d
from pointillist.broker.local import BrokerOptions, LocalBroker

D: Final = 1000
FULL: Final = {"d1000": "d1000", "shipped": "shipped_plan"}
"""Widths that are measured, and what figures call them."""
UNIT: Final = "reports/s, both roles and the broker, epochs included"


def figures(parts: Mapping[str, Part], floors: Mapping[str, float]) -> list[Figure]:
    """Name what the parts say.

    floors      reports a second of NumPy alone, by width
    """
    found = []
    for width, named in FULL.items():
        part = parts[width]
        rate, ratio = part["rate"], part["rate"] / part["bare"]
        name = f"reports_per_second_2cores_both_roles_{named}"
        found.append(Figure(name, rate, UNIT, floor=floors[width]))
        if width == "d1000":
            found.append(Figure("ratio_to_plain_reader", ratio, "ratio", 0.5))
        else:
            found.append(Figure("reports_of_the_shipped_plan_in_60_s", rate * 60, "reports", 1e5))
            found.append(Figure("ratio_to_plain_reader_shipped_plan", ratio, "ratio"))
        found.append(Figure(f"plain_reader_reports_per_second_{named}", part["bare"], "reports/s"))
        found += [
            Figure(f"{role}_us_{width}", part[f"{role}_us"], "core-us a report") for role in ROLES
        ]
    return found


def measure(kept: Parts) -> Measured:
    """Run both widths on one broker."""
    found: dict[str, Part] = {}
    widths = {"d1000": D, "shipped": shipped_d()}
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        running = broker.start(print)
        for width, d in widths.items():
            found[width] = kept.get(width, partial(run_roles, running, d))
            hour_of_reports.cache_clear()
    floors = {width: HOSTS / floor(HOSTS, widths[width]) for width in FULL}
    return Measured(figures(found, floors))
