"""The framer of this host, the same for agents, live looks and recordings."""

from __future__ import annotations

from collections.abc import Sequence

from .cgroup_pressure import CgroupPressure
from .framer import Framer
from .link_rates import LinkRate


def host_framer(watch: Sequence[str] = (), *, faults: bool = False) -> Framer:
    """Make a framer that also asks this host for link rates and the pressure of cgroups.

    watch    patterns of cgroups that are subjects whatever they do
    faults   a source of hardware faults runs
    """
    pressure = CgroupPressure.of_host()
    return Framer(watch=watch, extras=(LinkRate(),), faults=faults, pressure=pressure)
