"""Snapshots from the kernel's rings: of the BPF timer, or of one perf event per CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from collectors.boot_clock import boottime_ns
from collectors.bpf.bpf_maps import ArrayView
from collectors.records.activity import HostTicks

from . import ebpf_layout as layout

_SLOTS: Final = layout.SNAPSHOT_SLOTS
_HEAD: Final = layout.SNAPSHOT_HEAD


@dataclass(frozen=True, slots=True)
class TickState:
    """What the ticks cost: callbacks and their nanoseconds, all of them timed."""

    ticks: int
    missed: int
    cost_ns: int
    failures: int


class Ticks(Protocol):
    """Snapshots of running programs."""

    def state(self) -> TickState:
        """Read the counters of the ticks themselves."""
        ...

    def read(self) -> HostTicks | None:
        """Copy the snapshots since the last call; None where there are none."""
        ...

    def close(self) -> None:
        """Unmap the rings."""
        ...


def fresh_slots(
    ring: NDArray[np.uint64], state: NDArray[np.uint64], read_to: int
) -> tuple[NDArray[np.uint64], int, int]:
    """Copy the slots from number `read_to` on, without those overwritten meanwhile.

    ring        uint64[SNAPSHOT_SLOTS, SNAPSHOT_FIELDS]
    state       uint64[TICK_STATE_FIELDS], of which the first counts published slots
    Returns     slots, the number to go on from, how many were lost
    """
    published = int(state[0])
    # The slot after the last published one may be half written at any time.
    oldest = max(read_to, published - _SLOTS + 1)
    numbers = np.arange(oldest, published, dtype=np.uint64)
    slots = ring[(numbers % _SLOTS).astype(np.intp)]
    now = int(state[0])
    whole = (slots[:, 0] == numbers) & (numbers + np.uint64(_SLOTS) > np.uint64(now))
    if not whole.all():
        slots = slots[whole]
    return slots, published, published - read_to - len(slots)


class TimerTicks:
    """One ring with the sums over all CPUs, written by the BPF timer."""

    def __init__(self, snapshots: ArrayView, state: ArrayView) -> None:
        self._snapshots, self._state = snapshots, state
        self._read_to, self._missed = 0, 0

    def state(self) -> TickState:
        """Read the timer's own counters."""
        ticks, missed, _, cost_ns, failures = self._state.rows[0, :5].tolist()
        return TickState(ticks, missed, cost_ns, failures)

    def read(self) -> HostTicks | None:
        """Copy the snapshots since the last call."""
        ring, state = self._snapshots.rows, self._state.rows[0]
        slots, self._read_to, lost = fresh_slots(ring, state, self._read_to)
        if not len(slots):
            return None
        # A snapshot knows how many deadlines had been missed before it.
        missed, self._missed = int(slots[-1, 2]) - self._missed, int(slots[-1, 2])
        times = slots[:, 1].astype(np.int64)
        return HostTicks(layout.TOTALS, times, slots[:, _HEAD:], missed, lost)

    def close(self) -> None:
        """Unmap the rings."""
        self._snapshots.close()
        self._state.close()


class PerCpuTicks:
    """A ring per CPU, written by perf events: added up here; an idle CPU keeps its last value."""

    def __init__(self, snapshots: ArrayView, state: ArrayView, cpus: int, period_ns: int) -> None:
        self._snapshots, self._state = snapshots, state
        self._cpus, self._period_ns = cpus, period_ns
        self._read_to = [0] * cpus
        self._last = np.zeros((cpus, len(layout.TOTALS)), np.uint64)
        self._place: int | None = None

    def state(self) -> TickState:
        """Sum the CPUs' counters; what was missed is known when snapshots are read."""
        head = self._state.rows[: self._cpus, :5].sum(axis=0).tolist()
        return TickState(head[0], 0, head[3], head[4])

    def read(self) -> HostTicks | None:
        """Add the CPUs up at each place of the grid at which any of them ticked."""
        offset = boottime_ns() - time.monotonic_ns()
        lost = 0
        per_cpu: list[NDArray[np.uint64]] = []
        for cpu in range(self._cpus):
            ring = self._snapshots.rows[cpu * _SLOTS : (cpu + 1) * _SLOTS]
            state = self._state.rows[cpu]
            slots, self._read_to[cpu], gone = fresh_slots(ring, state, self._read_to[cpu])
            per_cpu.append(slots)
            lost += gone
        times = np.sort(np.concatenate([slots[:, 1] for slots in per_cpu]).astype(np.int64))
        if not len(times):
            return None
        places = times // self._period_ns
        last_of_place = np.append(places[1:] != places[:-1], True)
        times, places = times[last_of_place], places[last_of_place]
        totals = sum(
            (self._at(cpu, slots, times) for cpu, slots in enumerate(per_cpu)),
            np.zeros((len(times), len(layout.TOTALS)), np.uint64),
        )
        begun = int(places[0]) - 1 if self._place is None else self._place
        self._place = int(places[-1])
        missed = max(0, self._place - begun - len(places))
        return HostTicks(layout.TOTALS, times + offset, totals, missed, lost)

    def close(self) -> None:
        """Unmap the rings."""
        self._snapshots.close()
        self._state.close()

    def _at(
        self, cpu: int, slots: NDArray[np.uint64], times: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        known = np.vstack([self._last[cpu], slots[:, _HEAD:]])
        self._last[cpu] = known[-1]
        return known[np.searchsorted(slots[:, 1].astype(np.int64), times, side="right")]
