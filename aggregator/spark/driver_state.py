"""What Spark's driver knows: it names the hosts in the store's sums, and adds them up."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from aggregator.leader.admission import Parked
from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.epochs import KnownEpoch
from aggregator.protocol.interfaces import HOST_ID_BYTES, BatchKey
from wire.rejection import Reason

from . import messages
from .messages import Command, SumWanted
from .partial_sums import EpochKeyCache, Gathered, Gatherer, KnownHosts, PartialSum, report_id
from .sum_store import Source, SumStore, WantedSums

_FORGET_EVERY_S: Final = 3600.0


Bounds = tuple[int, int]
"""The oldest and the next offset of a partition."""


@dataclass(frozen=True, slots=True)
class PassInput:
    """What a pass over a batch begins with.

    generation  grows whenever past things are forgotten
    commands    of this generation so far; a later pass has these and more
    before      partition -> hosts that are in a sum
    version     of the sums
    """

    generation: int
    commands: Sequence[Command]
    before: Mapping[int, KnownHosts]
    version: int


class DriverState:
    """The state of one driver; no clock, log or pipe inside."""

    def __init__(self, parties: PinnedParties, store: SumStore) -> None:
        self._parties, self._store = parties, store
        self._generation = self._version = 0
        self._forgot_s = 0.0
        self.rejected: Counter[str] = Counter()
        self.begun = False
        """Whether the Leader has said what there was before; nothing is named until then."""
        self._epochs = EpochKeyCache()
        self._rebuilt: dict[BatchKey, Mapping[bytes, bytes]] = {}
        self._closed: set[BatchKey] = set()
        self._settled: dict[BatchKey, int] = {}
        self._to_say: deque[PartialSum] = deque()
        self._appended_s: list[float] = []
        self.wanted = WantedSums(self._store)
        self._dropped: list[bytes] = []
        self._opened: set[bytes] = set()
        self._start_commands([])

    def _start_commands(self, commands: list[Command]) -> None:
        self._generation += 1
        self._commands = commands
        self._gatherer = Gatherer(self._parties)

    @property
    def asking(self) -> bool:
        """Whether an answer about epochs is due."""
        return self._epochs.waiting

    # What the Leader says

    def handle(self, commands: Iterable[Command], now_s: float) -> None:
        for command in commands:
            self.rejected.update(self._gatherer.handle([command], now_s))
            self._handle(command)
        if not self.begun:
            self.begun = True
            self._name_all()
        if not 0 <= now_s - self._forgot_s < _FORGET_EVERY_S:
            self._forget(now_s)

    def _handle(self, command: Command) -> None:
        if not isinstance(command, messages.EpochUnknown | SumWanted):
            self._commands.append(command)
        match command:
            case KnownEpoch():
                self._epochs.put(command)
                self._opened.add(command.host_id + command.epoch_id)
            case messages.EpochUnknown():
                self._epochs.put_unknown(command.name)
            case messages.Rebuild():
                self._rebuilt[command.key] = command.reports
            case messages.Closed():
                self._closed.add(command.key)
                self._refuse_parked({command.key})
            case SumWanted():
                self.wanted.want(command)
            case messages.WindowEnded():
                self._settled[command.key] = command.until_s
                self._closed.discard(command.key)
                self._rebuilt.pop(command.key, None)
                self._refuse_parked({command.key})
                self._store.end({command.key})
                self.wanted.drop(command.key)
            case _:
                pass

    def _refuse_parked(self, keys: set[BatchKey]) -> None:
        gone = [report for report in self._store.parked if report.key in keys]
        if not gone:
            return
        self.rejected[Reason.EPOCH_UNKNOWN.value] += len(gone)
        self._store.put([], unparked=gone)
        self._version += 1

    def _name_all(self) -> None:
        """Name what the store holds; of a closed window what its batch names alone."""
        for (key, _part), sums in self._store.sums.items():
            expected = self._rebuilt.get(key)
            self._to_say.extend(
                part if expected is None else _only(part, expected) for part in sums
            )
        for report in self._store.parked:
            self._epochs.need(report.name)

    def _forget(self, now_s: float) -> None:
        """Let go of what is past, and begin the commands anew without it."""
        self._forgot_s = now_s
        directory = self._gatherer.directory
        ended_s = now_s - directory.longest_retention_s()
        needed = {report.name for report in self._store.parked}
        self._dropped += self._epochs.forget(ended_s, now_s, needed)
        past = {key for (key, _part), sums in self._store.sums.items() if sums[0].until_s < now_s}
        if past:
            self._store.end(past - self._closed)
        self._settled = {key: until for key, until in self._settled.items() if until > now_s}
        self._start_commands([one for one in self._commands if self._is_current(one, ended_s)])
        self._gatherer.handle(self._commands, now_s)

    def _is_current(self, command: Command, ended_s: float) -> bool:
        match command:
            case KnownEpoch():
                return command.not_after > ended_s
            case messages.WindowEnded():
                return command.key in self._settled
            case messages.Closed():
                return command.key in self._closed
            case messages.Rebuild():
                return command.key in self._rebuilt
            case _:
                return True

    # Batches

    def pass_input(self) -> PassInput:
        parts = {part for _key, part in self._store.sums}
        before = {part: self._known_of(part) for part in parts}
        return PassInput(self._generation, tuple(self._commands), before, self._version)

    def _known_of(self, partition: int) -> KnownHosts:
        return {
            key: b"".join(found.records for found in sums)
            for (key, part), sums in self._store.sums.items()
            if part == partition
        }

    def need(self, gathered: Iterable[Gathered]) -> bool:
        for found in gathered:
            for report in found.parked:
                self._epochs.need(report.name)
        return self.asking

    def take(self, source: Source, gathered: Sequence[Gathered], told: PassInput) -> bool:
        """Keep what a pass over a batch made; False when it has to be made again.

        Raises      StorageUnavailable with nothing taken
        """
        if (told.generation, told.version) != (self._generation, self._version):
            return False
        parts = [found.partition for found in gathered]
        if len(set(parts)) != len(parts):
            raise ValueError(f"batch: expected each partition in one task, got {sorted(parts)}")
        late = Counter[str]()
        sums = [self._in_time(part, late) for found in gathered for part in found.sums]
        kept = [part for part in sums if part is not None]
        parked = [report for found in gathered for report in found.parked]
        over = self._closed.union(self._settled)
        waiting = [report for report in parked if report.key not in over]
        late[Reason.EPOCH_UNKNOWN.value] += len(parked) - len(waiting)
        positions = {found.partition: found.after for found in gathered}
        refused = self._store.put(kept, source=source, positions=positions, parked=waiting)
        for found in gathered:
            self.rejected.update(found.rejected)
            self._appended_s += found.appended_s
        self.rejected.update(+(late + refused))
        needed = {report.name for report in self._store.parked}
        self._dropped += self._epochs.drop_new(needed.__contains__)
        self._to_say.extend(kept)
        self._version += 1
        return True

    def _in_time(self, part: PartialSum, late: Counter[str]) -> PartialSum | None:
        """The sum as it counts now: its window may have closed, or ended, meanwhile."""
        hosts = len(part.offsets)
        if part.key in self._settled:
            reason = Reason.WINDOW_RELEASED if part.late_s is None else Reason.WINDOW_LATE
            late[reason.value] += hosts
            return None
        if part.key in self._closed and part.key not in self._rebuilt and hosts:
            late[Reason.WINDOW_LATE.value] += hosts
            reasons = Counter(part.reasons) + Counter({Reason.WINDOW_LATE.value: hosts})
            empty = replace(part, entries=b"", records=b"", offsets=(), vector=b"")
            return replace(empty, reasons=dict(reasons))
        return part

    def unpark(self) -> None:
        """Take the parked reports whose epochs have come.

        Raises      StorageUnavailable with nothing taken
        """
        opened = self._opened
        ready = [report for report in self._store.parked if report.name in opened]
        if not ready:
            self._opened = set()
            return
        for (partition, received_s), group in groupby(
            sorted(ready, key=_pass_of), key=lambda report: _pass_of(report)[:2]
        ):
            reports = list(group)
            records = [report.record for report in reports]
            before = self._known_of(partition)
            found = self._gatherer.gather(partition, records, before, received_s)
            self._store.put(found.sums, unparked=reports, parked=found.parked)
            self.rejected.update(found.rejected)
            self._to_say.extend(found.sums)
            self._version += 1
        self._opened = set()

    # What it says

    def update(
        self, bounds: Mapping[int, Bounds] | None, ends: Mapping[int, int] | None = None
    ) -> messages.ReaderUpdate:
        """Say what is new.

        ends        offsets behind the newest batch that Spark has done: what lies before them and
                    was no record is none
        bounds      of each partition, asked for before; None while the log is away
        """
        said, size = list[PartialSum](), 0
        while self._to_say and size < messages.UPDATE_BYTES and self.begun:
            said.append(self._to_say.popleft())
            size += len(said[-1].entries)
        rejected, self.rejected = dict(self.rejected), Counter()
        appended_s, self._appended_s = self._appended_s, []
        dropped, self._dropped = self._dropped, []
        return messages.ReaderUpdate(
            self._lag(bounds, ends or {}),
            len(bounds or ()),
            tuple(appended_s),
            tuple(messages.NamedHosts(p.key, p.partition, p.entries, p.late_s) for p in said),
            tuple(messages.Refusals(part.key, part.reasons) for part in said if part.reasons),
            rejected,
            tuple(self._epochs.take_questions()),
            tuple(dropped),
            tuple(self.wanted.sums(self._gatherer, self._epochs)) if self.begun else (),
        )

    def _lag(self, bounds: Mapping[int, Bounds] | None, ends: Mapping[int, int]) -> int | None:
        if bounds is None:
            return None
        positions = self._store.positions
        left = sum(
            max(0, next_ - max(oldest, positions.get(part, 0), ends.get(part, 0)))
            for part, (oldest, next_) in bounds.items()
        )
        waits = bool(self._to_say) or not self.begun or self.asking
        return max(left, int(waits))

    def offsets(self) -> dict[int, int]:
        """How far the group's commit may go: no window that has not ended needs the log again."""
        offsets = dict(self._store.positions)
        for (_key, partition), sums in self._store.sums.items():
            first = max(0, min(part.first for part in sums))  # below 0: of a log that is gone
            offsets[partition] = min(offsets.get(partition, first), first)
        return offsets


def _only(part: PartialSum, expected: Mapping[bytes, bytes]) -> PartialSum:
    """The hosts of a sum that a batch names, as they are said: the sum itself stays."""
    kept = (row for row in part.rows if expected.get(row[:HOST_ID_BYTES]) == report_id(row))
    return replace(part, entries=b"".join(kept))


def _pass_of(report: Parked) -> tuple[int, float, int]:
    return report.record.partition, report.received_s, report.record.offset
