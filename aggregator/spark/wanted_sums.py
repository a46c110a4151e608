"""The sums of exactly the hosts that the Leader asks for, made of partial sums.

A set of hosts that is no union of partial sums is made by taking the others off: their reports are
read again from the log, and go through the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from aggregator.leader.window_sums import LOCAL_WORD, MASKED_WORD
from aggregator.protocol.answers import HOST_ID_BYTES, BatchKey
from transport.port import Record
from wire.fields import Scheme

from .epoch_keys import EpochKeyCache
from .messages import NAME_BYTES, UPDATE_BYTES, PartitionSum, Place, SumWanted
from .partial_sums import Gatherer, PartialSum, report_id
from .sum_store import SumStore

LeftOut = list[tuple[PartialSum, dict[bytes, int]]]
"""Partial sums with hosts that are not asked for, and where the reports of these lie."""


class WantedSums:
    """What was asked for and is not answered yet."""

    def __init__(self, store: SumStore) -> None:
        """Begin with nothing."""
        self._store = store
        self._wanted: dict[Place, SumWanted] = {}
        self._read_again: dict[Place, list[Record]] = {}

    def want(self, wanted: SumWanted) -> None:
        """Take a question; a later one of the same window and partition is in its place."""
        place = wanted.key, wanted.partition
        self._drop(place)
        self._wanted[place] = wanted

    def drop(self, key: BatchKey) -> None:
        """Forget the questions about a window."""
        for place in [place for place in self._wanted if place[0] == key]:
            self._drop(place)

    def _drop(self, place: Place) -> None:
        self._wanted.pop(place, None)
        self._read_again.pop(place, None)

    def to_read_again(self) -> dict[Place, list[int]]:
        """Offsets of the reports that sums which are asked for are without."""
        found = {}
        for place, wanted in self._wanted.items():
            out = self._left_out(place, wanted)
            offsets = sorted(at for _part, named in out for at in named.values())
            if offsets and place not in self._read_again:
                found[place] = offsets
        return found

    def give_again(self, place: Place, records: Sequence[Record]) -> None:
        """Take reports that were read again."""
        self._read_again[place] = list(records)

    def _touched(self, place: Place, wanted: SumWanted) -> list[PartialSum]:
        """Sums with any of the hosts that are asked for."""
        hosts = _hosts_of(wanted)
        return [part for part in self._store.sums.get(place, []) if hosts & part.hosts.keys()]

    def _left_out(self, place: Place, wanted: SumWanted) -> LeftOut:
        """Of each of these sums, where the reports of the hosts lie that are not asked for."""
        hosts, found = _hosts_of(wanted), []
        for part in self._touched(place, wanted):
            placed = dict(zip(part.hosts, part.offsets, strict=True))
            out = {host: at for host, at in placed.items() if host not in hosts}
            if out:
                found.append((part, out))
        return found

    def sums(self, gatherer: Gatherer, epochs: EpochKeyCache) -> list[PartitionSum]:
        """Answers, as far as every host was read and an update takes.

        gatherer    opens reports that were read again
        epochs      is asked for those that this takes
        Raises      ValueError where the log gave other reports than before
        """
        found, size = [], 0
        for place, wanted in list(self._wanted.items()):
            if size >= UPDATE_BYTES:
                break
            hosts, touched = _hosts_of(wanted), self._touched(place, wanted)
            if not hosts <= {host for part in touched for host in part.hosts}:
                continue  # not all of them were read
            out = self._left_out(place, wanted)
            if not _knows_epochs(out, epochs) or (out and place not in self._read_again):
                continue
            word = _word_of(place[0], gatherer)
            total = sum(
                (np.frombuffer(part.vector, dtype=word) for part in touched),
                start=np.zeros((), dtype=word),
            )
            for part, gone in out:
                total = total - np.frombuffer(
                    self._vector_of(place, part, gone, gatherer), dtype=word
                )
            vector = np.asarray(total, dtype=word).tobytes()
            found.append(PartitionSum(*place, len(hosts), vector))
            size += len(vector)
            self._drop(place)
        return found

    def _vector_of(
        self, place: Place, part: PartialSum, gone: Mapping[bytes, int], gatherer: Gatherer
    ) -> bytes:
        """The sum of some hosts of a partial sum, made again of their reports."""
        offsets = set(gone.values())
        records = [record for record in self._read_again[place] if record.offset in offsets]
        only = {
            row[:HOST_ID_BYTES]: report_id(row) for row in part.rows if row[:HOST_ID_BYTES] in gone
        }
        again = gatherer.gather(place[1], records, {}, part.received_s, only)
        found = [made for made in again.sums if made.hosts.keys() == gone.keys()]
        if len(found) != 1:
            raise ValueError(f"reports read again: expected {len(gone)} as before, got others")
        return found[0].vector


def _knows_epochs(out: LeftOut, epochs: EpochKeyCache) -> bool:
    """Whether the boxes of these hosts can be opened again; what lacks is asked for."""
    names = [
        row[:NAME_BYTES] for part, gone in out for row in part.rows if row[:HOST_ID_BYTES] in gone
    ]
    for name in names:
        epochs.need(name)
    return all(epochs.find(name[:HOST_ID_BYTES], name[HOST_ID_BYTES:]) for name in names)


def _word_of(key: BatchKey, gatherer: Gatherer) -> np.dtype[np.uint32] | np.dtype[np.int64]:
    known = gatherer.directory.tasks[key.task_id]
    return LOCAL_WORD if known.task.scheme is Scheme.LOCAL else MASKED_WORD


def _hosts_of(wanted: SumWanted) -> set[bytes]:
    names = wanted.hosts
    return {names[at : at + HOST_ID_BYTES] for at in range(0, len(names), HOST_ID_BYTES)}
