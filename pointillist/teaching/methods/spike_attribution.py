"""From scores of seconds to spikes, and from signals to a cause: the same for every simple method.

Statistical methods say which signal moved, not why. Published ones map signals to causes by hand;
so do these, by the names of the signals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.channels import CHANNEL_NAMES
from diagnosis.detect.findings import Cause
from pointillist.teaching.account import Said, Spell
from pointillist.teaching.method_port import NS, Track

_SPEAKS: Final[tuple[tuple[str, Cause], ...]] = (
    ("throttled_delay", Cause.CGROUP_THROTTLING),
    ("throttled_periods", Cause.CGROUP_THROTTLING),
    ("throttled_ms", Cause.CGROUP_THROTTLING),
    ("throttled_thermal", Cause.GPU_THERMAL_OR_POWER_LIMIT),
    ("throttled_power", Cause.GPU_THERMAL_OR_POWER_LIMIT),
    ("throttled_hardware", Cause.GPU_THERMAL_OR_POWER_LIMIT),
    ("run_delay", Cause.CPU_CONTENTION),
    ("involuntary", Cause.CPU_CONTENTION),
    ("preempted", Cause.CPU_CONTENTION),
    ("pressure_cpu", Cause.CPU_CONTENTION),
    ("steal", Cause.CPU_CONTENTION),
    ("reclaim", Cause.MEMORY_PRESSURE),
    ("page_faults", Cause.MEMORY_PRESSURE),
    ("pressure_memory", Cause.MEMORY_PRESSURE),
    ("block", Cause.DISK_IO),
    ("disk", Cause.DISK_IO),
    ("pressure_io", Cause.DISK_IO),
    ("iowait", Cause.DISK_IO),
    ("retransmits", Cause.NIC_LIMIT_OR_LOSS),
    ("send_queue", Cause.NIC_LIMIT_OR_LOSS),
    ("queue_drops", Cause.NIC_LIMIT_OR_LOSS),
    ("send_wait", Cause.NIC_LIMIT_OR_LOSS),
    ("srtt", Cause.NIC_LIMIT_OR_LOSS),
    ("round_trip", Cause.NIC_LIMIT_OR_LOSS),
    ("link", Cause.NIC_LIMIT_OR_LOSS),
    ("receive_wait", Cause.COMMUNICATION_WAIT),
    ("net_rx", Cause.NIC_CROSS_TRAFFIC),
    ("net_tx", Cause.NIC_CROSS_TRAFFIC),
    ("other.net_", Cause.NIC_CROSS_TRAFFIC),
    ("host.net_", Cause.NIC_CROSS_TRAFFIC),
    ("read_wait", Cause.INPUT_STARVATION),
    ("input_wait", Cause.INPUT_STARVATION),
    ("pipe", Cause.INPUT_STARVATION),
    ("pcie", Cause.PCIE_PRESSURE),
    ("copy", Cause.PCIE_PRESSURE),
    ("ecc", Cause.GPU_HARDWARE_FAULT),
    ("xid", Cause.GPU_HARDWARE_FAULT),
    ("nvlink", Cause.GPU_HARDWARE_FAULT),
    ("row_remap", Cause.GPU_HARDWARE_FAULT),
    ("rows_remapped", Cause.GPU_HARDWARE_FAULT),
)
"""Part of a channel's name to the cause that it speaks for; the first that fits."""


def cause_of(channel: str) -> Cause | None:
    """Return the cause that a channel speaks for; None of those that speak for none."""
    return next((cause for part, cause in _SPEAKS if part in channel), None)


CAUSES: Final[tuple[Cause | None, ...]] = tuple(cause_of(name) for name in CHANNEL_NAMES)


def ranked(
    strengths: Iterable[float], least: float, causes: Sequence[Cause | None] = CAUSES
) -> list[tuple[Cause, float]]:
    """Rank causes by their strongest channel, those below `least` left out."""
    strongest: dict[Cause, float] = defaultdict(float)
    for cause, strength in zip(causes, strengths, strict=True):
        if cause is not None and strength > max(least, strongest.get(cause, 0.0)):
            strongest[cause] = strength
    return sorted(strongest.items(), key=lambda entry: -entry[1])


OF_LAST: Final = (2, 3)
"""So many seconds above the limit, of so many: the shipped detector's persistence."""
CALM_S: Final = 5


def spells_of(track: Track, above: NDArray[np.bool_], say: Callable[[int], Said]) -> list[Spell]:
    """Join seconds above a limit to spikes; in a second below it the last word stands.

    above   bool[n]
    say     the cause as the method sees it in a second, by its number
    """
    needed, of = OF_LAST
    spells: list[Spell] = []
    said: list[Said] = []
    onset = known = quiet = 0
    for number in range(above.size):
        quiet = 0 if above[number] else quiet + 1
        recent = above[max(0, number - of + 1) : number + 1]
        if not said and recent.sum() >= needed:
            first = max(0, number - of + 1) + int(np.argmax(recent))
            onset, known = int(track.at_ns[first] - NS), int(track.at_ns[number])
        if above[number] and (said or recent.sum() >= needed):
            said.append(say(number))
        if said and quiet >= CALM_S:
            spells.append(Spell(track.subject, onset, known, int(track.at_ns[number]), tuple(said)))
            said = []
    if said:
        spells.append(Spell(track.subject, onset, known, None, tuple(said)))
    return spells
