"""Hosts that are left out of windows by chance: one that falsifies numbers shows, and is named.

Masks hide every vector, so nobody can hold one host to its bound. But what a host adds is missing
whenever it is left out, and it cannot know when. So nothing is opened and no budget is spent: each
window has one sum, of hosts enough. Kept in memory: a Leader that restarts begins anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import log
from random import Random, SystemRandom
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.released import ReleasedWindow
from wire.task import CHECK_WORDS, Task

from .held_windows import Chain

FALSELY_NAMED: Final = 1e-4
"""At most so often does a test name an honest host: of a chain's day, or of suppressed windows."""
LONGEST_WINDOW_S: Final = 3600
"""Of longer windows too few pass in a day, and what a host adds to them is lost for longer."""
DAY_S: Final = 86_400
_AROUND: Final = 15
"""Windows on either side whose mean is taken off: what the fleet does changes more slowly."""
_LEAST_TIMES: Final = 8
"""Windows that a host was left out of, for its test to be one of sums."""
_WORDS: Final = 256

Hosts = frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Shift:
    """A host that is named.

    section     what it shifts most, with the word's place; empty where its windows were suppressed
    percent     of full scale, by the day's mean
    """

    host_id: bytes
    section: str = ""
    percent: float = 0.0


@dataclass(slots=True)
class _Day:
    """Windows of a chain in one day and one version of its task.

    means       float32[d] each: what a host sent on average, steps
    places      host_id -> its place; left_out: the places of each window's
    suppressing windows are suppressed as impossible
    suspects    hosts that were left out of each window that was released since, and of none that
                was suppressed; None: none was released
    passed      windows that were released since
    """

    task: Task
    number: int
    means: list[NDArray[np.float32]] = field(default_factory=list)
    places: dict[bytes, int] = field(default_factory=dict)
    left_out: list[NDArray[np.int32]] = field(default_factory=list)
    suppressing: bool = False
    suspects: Hosts | None = None
    passed: int = 0


class LeftOut:
    """Draws who is left out, and compares what is released with and without."""

    def __init__(self, share: float = 0.0, draws: Random | None = None) -> None:
        """Take the share of a window's hosts; draws: None: of the operating system."""
        self.share, self.draws = share, draws or SystemRandom()
        self._days: dict[Chain, _Day] = {}
        self.named: dict[bytes, Shift] = {}

    def draw(self, task: Task, hosts: Collection[bytes]) -> Hosts:
        """Choose of a window's hosts; those that are named are left out of all, n_min allowing.

        At most half of those above n_min: the Helper may clear some, and asks for operators.
        """
        if not self.share or task.window_s > LONGEST_WINDOW_S:
            return frozenset()
        room = (len(hosts) - task.n_min) // 2
        named = [host for host in self.named if host in hosts][: max(room, 0)]
        others = sorted(set(hosts).difference(named))
        count = max(min(int(self.share * len(hosts)), room - len(named)), 0)
        return frozenset(named).union(self.draws.sample(others, count))

    def suppressed(self, chain: Chain, task: Task, window_start_s: int, left_out: Hosts) -> None:
        """Take a window whose sum no honest hosts have: whoever was left out is not its cause."""
        if not left_out:
            return
        day = self._day(chain, task, window_start_s)
        day.suppressing = True
        if day.suspects is not None:
            day.suspects -= left_out

    def released(self, chain: Chain, window: ReleasedWindow, left_out: Hosts) -> None:
        if not left_out:
            return
        day = self._day(chain, window.task, window.window_start_s)
        day.means.append((window.vector / window.n).astype(np.float32))
        places = [day.places.setdefault(host, len(day.places)) for host in left_out]
        day.left_out.append(np.array(places, np.int32))
        if day.suppressing:
            self._pass(day, left_out)

    def _pass(self, day: _Day, left_out: Hosts) -> None:
        """A window passed among those that do not: its hosts are cleared, if one host is at it."""
        day.suspects = left_out if day.suspects is None else day.suspects & left_out
        day.passed += 1
        if not day.suspects:
            day.suppressing, day.suspects, day.passed = False, None, 0
            return
        # So many windows leave no honest host out of each of them but by this chance.
        by_chance = day.passed * log(1 / self.share)
        if by_chance >= log(day.task.n_max / FALSELY_NAMED):
            self.named |= {host: Shift(host) for host in day.suspects}

    def _day(self, chain: Chain, task: Task, window_start_s: int) -> _Day:
        """Give the window's day; one that has ended is judged first."""
        day, number = self._days.get(chain), window_start_s // DAY_S
        if day is None or (day.number, day.task) != (number, task):
            if day is not None and day.means:
                found = shift_of(day.task, list(day.places), day.means, day.left_out)
                self.named |= {shift.host_id: shift for shift in found}
            day = self._days[chain] = _Day(task, number)
        return day


def shift_of(
    task: Task,
    hosts: list[bytes],
    means: list[NDArray[np.float32]],
    left_out: list[NDArray[np.int32]],
) -> list[Shift]:
    """Find the host without which a word moves most, if chance does not move one so far.

    Who is left out is drawn by itself: so it is a test whatever the fleet does meanwhile.

    means       float32[d] of each window, steps of a host
    left_out    places among the hosts, of each window
    Returns     one host, or none
    """
    out = np.zeros((len(hosts), len(means)), np.float32)
    for window, places in enumerate(left_out):
        out[places, window] = 1
    times = out.sum(axis=1)
    often = times >= _LEAST_TIMES
    if not often.any():
        return []
    rows = np.stack(means)[:, CHECK_WORDS:]
    rows = rows - _means_around(rows)
    deviation = np.maximum(rows.std(axis=0), 1e-9)
    tests = 2 * int(often.sum()) * rows.shape[1]
    most, at, word = NormalDist().inv_cdf(1 - FALSELY_NAMED / tests), -1, -1
    for first in range(0, rows.shape[1], _WORDS):
        moved = out @ rows[:, first : first + _WORDS] / np.sqrt(np.maximum(times, 1))[:, None]
        far = np.abs(moved / deviation[first : first + _WORDS]) * often[:, None]
        if far.max() > most:
            most = float(far.max())
            at, of = divmod(int(far.argmax()), far.shape[1])
            word = first + of
    if at < 0:
        return []
    moved_by = -float(out[at] @ rows[:, word] / times[at])
    word += CHECK_WORDS
    (found,) = (
        Shift(hosts[at], f"{spec.name}[{word - words.start}]", 100 * moved_by / spec.cap_steps)
        for spec, words in zip(task.sections, task.slices().values(), strict=True)
        if words.start <= word < words.stop
    )
    return [found]


def _means_around(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give each row's mean with its neighbours, float32[W, d]."""
    sums = np.vstack([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0, dtype=np.float64)])
    first = np.maximum(np.arange(len(rows)) - _AROUND, 0)
    last = np.minimum(np.arange(len(rows)) + _AROUND + 1, len(rows))
    means: NDArray[np.float64] = (sums[last] - sums[first]) / (last - first)[:, None]
    return means.astype(np.float32)
