"""Links between two ranks that are slower than links between the same stages; pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .peers import Compared, PeerRules, PeerVerdict, Times, compare
from .waits import Transfers


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries slower than its like, in steps of `compared`'s window.

    ranks   its two ends: times alone do not tell which end is slow
    """

    ranks: tuple[int, ...]
    compared: Compared


def slow_links(
    stages: NDArray[np.int32],
    busy: Times,
    transfers: Transfers,
    windows: list[slice],
    rules: PeerRules,
) -> tuple[SlowLink, ...]:
    """Compare links between the same two stages; `ranks` are indices.

    A link's time is set against a step's own work: a transfer of microseconds that takes twice as
    long slows nobody.
    """
    if not len(transfers.links):
        return ()
    ends = stages[transfers.links].astype(np.int64)
    _, kind = np.unique(ends[:, 0] << 32 | ends[:, 1], return_inverse=True)
    work = np.nanmedian(busy, axis=0)
    found = []
    for window in windows:
        time = transfers.time_s[:, window] + work[window]
        rows = compare(time, np.asarray(kind, dtype=np.int32).reshape(-1), rules)
        found += [
            SlowLink((int(low), int(high)), row)
            for (low, high), row in zip(transfers.links, rows, strict=True)
            if row.verdict is PeerVerdict.SLOW
        ]
    worst: dict[tuple[int, ...], SlowLink] = {}
    for one in found:
        if one.ranks not in worst or one.compared.excess > worst[one.ranks].compared.excess:
            worst[one.ranks] = one
    return tuple(worst.values())


def ranks_of_links(transfers: Transfers, slow: tuple[SlowLink, ...]) -> set[int]:
    """Ranks of which every one of several links is slow, while no neighbour's are: they are it."""
    links = [(int(low), int(high)) for low, high in transfers.links]
    slow_pairs = {one.ranks for one in slow}
    of_rank: dict[int, list[tuple[int, int]]] = {}
    for link in links:
        for rank in link:
            of_rank.setdefault(rank, []).append(link)
    whole = {
        rank
        for rank, own in of_rank.items()
        if len(own) > 1 and all(link in slow_pairs for link in own)
    }
    return {
        rank
        for rank in whole
        if not any(other in whole for link in of_rank[rank] for other in link if other != rank)
    }
