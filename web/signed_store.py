"""The store beside the transcripts: which of its releases are those that both parties signed.

What is compared is that a window is in both, and of how many hosts. Both signed a hash of the whole
vector of sums; a store has its named cells alone, so the hash cannot be made again from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from .signed_chains import ChainName, SignedChain

Whole = npt.NDArray[np.int64]
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class StoredChain:
    """Released windows of one cohort in the store: int64[n] starts, unix seconds, and hosts."""

    starts: Whole
    hosts: Whole


@dataclass(frozen=True, slots=True)
class StoreMatch:
    """How many of a cohort's releases in the store both parties signed.

    signed    with the same hosts, where the transcripts still say how many
    waiting   that the Leader alone has signed so far
    newer     than the transcripts: nothing can be said of them
    absent    releases in the transcripts that the store has no more, or never had
    problems  what differs, in sentences
    """

    signed: int
    waiting: int
    newer: int
    absent: int
    problems: tuple[str, ...]


def stored_chains(windows: pd.DataFrame) -> dict[ChainName, StoredChain]:
    """Take the released windows of each cohort from rows of the view `windows`."""
    released = windows[windows["outcome"] == "released"]
    return {
        (str(rows["series"].iloc[0]), int(rows["cohort"].iloc[0])): StoredChain(
            rows["window_start"].to_numpy("datetime64[s]").astype(np.int64),
            rows["n_hosts"].to_numpy(np.int64),
        )
        for _, rows in released.groupby(["series", "cohort"])
    }


NOTHING: Final = StoredChain(np.zeros(0, np.int64), np.zeros(0, np.int64))


def compare(chain: SignedChain | None, stored: StoredChain) -> StoreMatch:
    """Compare one cohort's releases with its chain; None where the transcripts have none."""
    starts = stored.starts
    if chain is None:
        said = f"{len(starts):,} releases in the store, and the transcripts have no such chain"
        return StoreMatch(0, 0, 0, 0, (said,))
    windows, hosts = _sorted(chain)
    signed = np.isin(starts, windows)
    newer = starts > chain.last_s
    waiting = np.isin(starts, np.array(chain.waiting, np.int64)) & ~signed
    unsigned = starts[~(signed | newer | waiting)]
    other = starts[signed][_other_hosts(windows, hosts, starts[signed], stored.hosts[signed])]
    problems = [
        *_said(unsigned, "in the store, and not signed by both parties"),
        *_said(other, "of another number of hosts in the store than in the transcripts"),
    ]
    return StoreMatch(
        int(signed.sum()) - len(other),
        int(waiting.sum()),
        int(newer.sum()),
        int((~np.isin(windows, starts)).sum()),
        tuple(problems),
    )


def _sorted(chain: SignedChain) -> tuple[Whole, Whole]:
    windows = np.array(chain.windows, np.int64)
    hosts = np.array(chain.hosts, np.int64)
    order = np.argsort(windows, kind="stable")
    return windows[order], hosts[order]


def _other_hosts(
    windows: Whole, hosts: Whole, starts: Whole, found: Whole
) -> npt.NDArray[np.bool_]:
    """Say which windows have other hosts than the transcripts say; -1 says nothing."""
    said = hosts[np.searchsorted(windows, starts)] if len(windows) else hosts
    other: npt.NDArray[np.bool_] = (said >= 0) & (said != found)
    return other


def _said(starts: Whole, what: str) -> list[str]:
    if not len(starts):
        return []
    some = ", ".join(str(start) for start in starts[:_SHOWN].tolist())
    more = f" and {len(starts) - _SHOWN:,} more" if len(starts) > _SHOWN else ""
    return [f"window{'s' if len(starts) > 1 else ''} {some}{more}: {what}"]
