"""What the Leader holds per window: open ones, frozen ones in the order of their chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aggregator.protocol.answers import BatchKey
from aggregator.protocol.directory import KnownTask, VerifiedRoster
from wire.batch import Batch, Share, SignedBatch

from .leader_events import StoreFrozen
from .window_sums import OpenWindow

EARLY_CLOSE_PERCENT: Final = 99
RETRY_FIRST_S: Final = 0.5
RETRY_LAST_S: Final = 30.0

Chain = tuple[str, int]
"""(task_series, cohort): releases of one chain leave in window order."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A Helper's verified share of a batch, and how many bits it cleared, by reason."""

    share: Share
    share_bytes: bytes
    cleared: Mapping[str, int]


@dataclass(slots=True, eq=False)
class FrozenWindow:
    """A batch whose bytes are final, waiting for the Helper.

    answer      the Helper's, while the sum of the hosts that it accepted is still to come
    in_flight   a call is out; retry_at_s says when the next one may begin
    """

    key: BatchKey
    known: KnownTask
    roster: VerifiedRoster
    batch: Batch
    signed_batch: bytes
    window: OpenWindow
    closed_s: float
    answer: Answered | None = None
    in_flight: bool = False
    retry_at_s: float = 0.0
    retry_in_s: float = RETRY_FIRST_S

    @property
    def chain(self) -> Chain:
        """The chain that its release will extend."""
        return self.known.task.series, self.key.cohort

    @property
    def complete(self) -> bool:
        """Whether every host of the batch is at hand; after a restart the log brings them."""
        return self.window.n == self.batch.n

    @property
    def give_up_s(self) -> int:
        """The last second in which the Helper answers it."""
        return self.known.over_s(self.key.window)

    def put_off(self, now_s: float) -> None:
        """Try again later, each time after a longer pause."""
        self.in_flight = False
        self.retry_at_s = now_s + self.retry_in_s
        self.retry_in_s = min(self.retry_in_s * 2, RETRY_LAST_S)


@dataclass(slots=True)
class StoredRelease:
    """A release as the state has it.

    vector      empty once the Helper has signed
    in_flight   the Helper is asked for its signature now; retry_at_s: else when it will be
    """

    key: BatchKey
    chain: Chain
    entry: bytes
    vector: bytes
    in_flight: bool = False
    retry_at_s: float = 0.0


@dataclass(slots=True)
class ChainState:
    """One chain: hash of its last release, frozen windows and unsigned releases in order."""

    head: bytes
    frozen: list[FrozenWindow] = field(default_factory=list)
    unsigned: list[StoredRelease] = field(default_factory=list)
    last_hosts: tuple[int, frozenset[bytes]] = (-1, frozenset())

    def queue(self, frozen: FrozenWindow) -> None:
        """Keep window order, whatever closed first."""
        self.frozen.append(frozen)
        self.frozen.sort(key=lambda window: (window.key.window, window.known.task.version))


def freeze_early(window: OpenWindow, before: tuple[int, frozenset[bytes]], start_s: int) -> bool:
    """Whether 99 % of the hosts that reported in the window before have reported in this one."""
    last_start_s, hosts = before
    if last_start_s != start_s or not hosts:
        return False
    needed = len(hosts) * EARLY_CLOSE_PERCENT
    if window.n * 100 < needed:
        return False
    return len(hosts & window.hosts.keys()) * 100 >= needed


def resume_window(signed: SignedBatch, known: KnownTask, stored: StoreFrozen) -> OpenWindow:
    """An empty window that takes from the log exactly what the stored batch names."""
    entries = signed.batch.entries
    expected = dict(zip(entries["host_id"].tolist(), entries["report_id"].tolist(), strict=True))
    return OpenWindow(
        known.d,
        known.task.scheme.word_bytes != 4,
        expected=expected,
        rejections=dict(stored.rejections),
        resumed=True,
    )
