"""Chooses the cgroups whose processes' rhythm is marked where nobody names them."""

from __future__ import annotations

from typing import Final

import numpy as np

from collectors.records.activity import HostTable

CHOSEN: Final = 16
_LEAVES_BELOW: Final = 32
"""One that is watched stays while it is among so many: a rhythm takes time to learn."""
_LEAST_PER_S: Final = 5
"""Stays on a CPU in a second: below there is no rhythm to speak of."""
_MOST_PER_S: Final = 20_000
"""Above, a rhythm is beyond the marks' bound, and 120 ns a switch would no longer be little."""
_MOST_ALL_PER_S: Final = 40_000
"""All that are watched: 0.5 % of a core."""

NOTHING: Final = HostTable("cgroup", (), ("switches",), np.zeros((0, 1), np.int64), 0, 0)
"""A table without rows."""


class BusiestCgroups:
    """The busiest by how often their tasks come to a CPU; pure."""

    def __init__(self) -> None:
        self._chosen: tuple[str, ...] = ()

    def choose(self, table: HostTable) -> frozenset[str]:
        """Choose from what grew since the last drain, in the table `cgroup`."""
        span_s = max(table.span_ns / 1e9, 1e-3)
        rates = {name: count / span_s for name, count in table.column("switches").items()}
        ranked = sorted(
            (name for name, rate in rates.items() if _LEAST_PER_S <= rate <= _MOST_PER_S),
            key=lambda name: -rates[name],
        )
        stay = [name for name in self._chosen if name in set(ranked[:_LEAVES_BELOW])]
        chosen: list[str] = []
        room = float(_MOST_ALL_PER_S)
        for name in [*stay, *(name for name in ranked if name not in stay)]:
            if len(chosen) < CHOSEN and rates[name] <= room:
                chosen.append(name)
                room -= rates[name]
        self._chosen = tuple(chosen)
        return frozenset(chosen)
