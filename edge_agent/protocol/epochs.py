"""Epochs of a batch of hosts: fresh keys for an hour, sealed to both aggregators, then erased."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from privacy.masks import EpochTaskKeys, derive_box_key, derive_epoch_task_keys
from privacy.sealing import SealError, check_public_key, seal
from privacy.signing import SigningKey, verify
from wire import labels
from wire.epoch import Epoch, EpochHeader, KeyAnnouncement
from wire.fields import MAX_EPOCH_S, NO_KEY, EpochId, HostId, TaskId
from wire.rejection import Reason, ReportRejected

from .task_check import Pins

EPOCH_PERIOD_S: Final = 3600
EPOCH_LIFE_S: Final = MAX_EPOCH_S
"""The longest the protocol allows: 300 s over the period, so that two epochs overlap."""
EPOCHS_PER_HOUR: Final = 12
CLOCK_BACK_S: Final = 60
"""A clock set back no further goes on with its epoch, as the aggregators bear it too."""
RETRY_S: Final = 30
"""After a commit that failed (a full disk), so that an agent does not try at every step."""


class PartyKeys(NamedTuple):
    """The two aggregators an epoch is sealed to; helper_pk is empty in scheme `local`."""

    leader_pk: bytes
    helper_pk: bytes


@dataclass(frozen=True, slots=True)
class Host:
    signing_key: SigningKey = field(repr=False)
    host_id: HostId


@dataclass(slots=True)
class HostEpoch:
    """One epoch of one host with its secrets and what was derived from them."""

    header: EpochHeader
    epoch_hash: bytes
    k_h: bytes = field(repr=False)
    k_l: bytes = field(repr=False)
    derived: dict[TaskId, EpochTaskKeys] = field(default_factory=dict, repr=False)

    def keys(self, task_id: TaskId) -> EpochTaskKeys:
        """Derive a task's keys once per epoch; without a Helper only the box key exists."""
        keys = self.derived.get(task_id)
        if keys is None:
            if self.k_h:
                keys = derive_epoch_task_keys(self.k_h, self.k_l, self.epoch_hash, task_id)
            else:
                box = derive_box_key(self.k_l, self.epoch_hash, task_id)
                keys = EpochTaskKeys(b"", b"", box)
            self.derived[task_id] = keys
        return keys

    def covers(self, end_s: int, lateness_s: int) -> bool:
        """Say whether a report of a window that ended at end_s may be sealed under it."""
        return self.header.not_before <= end_s + lateness_s and self.header.not_after > end_s

    def erase(self) -> None:
        """Drop every reference to the secrets; CPython frees their memory at once."""
        self.k_h = self.k_l = b""
        self.derived.clear()


@dataclass(frozen=True, slots=True)
class SealingKeys:
    """The announced keys of the day; `helper` is None in scheme `local`."""

    leader: KeyAnnouncement
    helper: KeyAnnouncement | None


def open_epoch(
    host: Host,
    keys: SealingKeys,
    roster_ver: int,
    ledger_ctr: int,
    begins_s: int,
    random_bytes: Callable[[int], bytes],
) -> tuple[HostEpoch, bytes]:
    """Draw the keys of one epoch, seal them, and give the state and the signed epoch's bytes."""
    secrets = random_bytes(80)
    k_h = secrets[16:48] if keys.helper else b""
    k_l = secrets[48:80]
    header = EpochHeader(
        host.host_id,
        EpochId(secrets[:16]),
        begins_s,
        begins_s + EPOCH_LIFE_S,
        keys.helper.key_id if keys.helper else NO_KEY,
        keys.leader.key_id,
        roster_ver,
        ledger_ctr,
    )
    context = header.encode()
    seal_h = seal(keys.helper.hpke_pk, k_h, labels.SEAL_H + context) if keys.helper else b""
    seal_l = seal(keys.leader.hpke_pk, k_l, labels.SEAL_L + context)
    unsigned = Epoch(header, seal_h, seal_l)
    epoch = Epoch(header, seal_h, seal_l, host.signing_key.sign(unsigned.unsigned()))
    return HostEpoch(header, epoch.hash(), k_h, k_l), epoch.encode()


@dataclass(slots=True)
class EpochBook:
    """The epochs in force of every host, per pair of aggregators, and how many each host opened."""

    hosts: int
    counters: list[int]
    opened: list[list[int]]
    in_force: dict[PartyKeys, list[HostEpoch | None]] = field(default_factory=dict)
    pending: dict[PartyKeys, int] = field(default_factory=dict)
    not_before: dict[PartyKeys, int] = field(default_factory=dict)

    def epoch(self, parties: PartyKeys, host: int) -> HostEpoch | None:
        row = self.in_force.get(parties)
        return row[host] if row else None

    def due(self, parties: PartyKeys, now_s: int) -> list[int]:
        """List hosts with no epoch, one an hour old, or of a clock ahead; none while one pends."""
        if parties in self.pending or 0 < self.not_before.get(parties, 0) - now_s <= RETRY_S:
            return []
        row = self.in_force.get(parties)
        if row is None:
            return list(range(self.hosts))
        return [
            host
            for host, epoch in enumerate(row)
            if epoch is None
            or not -CLOCK_BACK_S <= now_s - epoch.header.not_before < EPOCH_PERIOD_S
        ]

    def begins_s(self, parties: PartyKeys, host: int, now_s: int) -> int:
        """Give when an epoch that is opened now begins: whole periods after the one before.

        The log shows it in clear, and how late a busy host's step came must not move it.
        """
        before = self.epoch(parties, host)
        if before is None or now_s < before.header.not_before:
            return now_s
        return now_s - (now_s - before.header.not_before) % EPOCH_PERIOD_S

    def may_open(self, host: int, begins_s: int) -> bool:
        """Hold a host to 12 epochs an hour; those of a clock ahead count in their hour."""
        self.opened[host] = [t for t in self.opened[host] if t > begins_s - 3600]
        return sum(t < begins_s + 3600 for t in self.opened[host]) < EPOCHS_PER_HOUR

    def count(self, host: int, begins_s: int) -> int:
        self.counters[host] += 1
        self.opened[host].append(begins_s)
        return self.counters[host]

    def take_back(
        self, parties: PartyKeys, epochs: Sequence[tuple[int, HostEpoch]], now_s: int
    ) -> None:
        """Undo a rolled-back commit: its counters are free. The next try waits 30 s."""
        self.pending.pop(parties, None)
        self.not_before[parties] = now_s + RETRY_S
        for host, epoch in epochs:
            epoch.erase()
            if self.counters[host] == epoch.header.ledger_ctr:
                self.counters[host] -= 1
            if epoch.header.not_before in self.opened[host]:
                self.opened[host].remove(epoch.header.not_before)

    def install(self, parties: PartyKeys, epochs: Sequence[tuple[int, HostEpoch]]) -> None:
        """Put durable epochs in force, and erase those before them."""
        self.pending.pop(parties, None)
        row = self.in_force.setdefault(parties, [None] * self.hosts)
        for host, epoch in epochs:
            if (old := row[host]) is not None:
                old.erase()
            row[host] = epoch

    def erase_ended(self, now_s: int) -> None:
        for row in self.in_force.values():
            for host, epoch in enumerate(row):
                if epoch is not None and epoch.header.not_after <= now_s:
                    epoch.erase()
                    row[host] = None


_KEPT: Final = 8


@dataclass(slots=True)
class HpkeDirectory:
    """The announced keys of pinned parties; a few per party, so that memory is bounded."""

    pins: Pins
    _keys: dict[bytes, list[KeyAnnouncement]] = field(default_factory=dict)

    def add(self, key: KeyAnnouncement) -> bool:
        """Take an announcement; False: known. Raises ReportRejected: not pinned, signed, usable."""
        if key.party_pk not in self.pins.leaders | self.pins.helpers:
            raise ReportRejected(Reason.KEY_PARTY, "a pinned party", key.party_pk.hex()[:16])
        kept = self._keys.setdefault(key.party_pk, [])
        if key in kept:
            return False
        if not verify(key.party_pk, key.unsigned(), key.signature):
            raise ReportRejected(Reason.KEY_SIGNATURE, "the party's signature", "another")
        try:
            check_public_key(key.hpke_pk)
        except SealError as error:
            raise ReportRejected(Reason.FIELD, "a key that can be sealed to", error) from error
        kept.append(key)
        kept.sort(key=lambda k: k.not_before)
        del kept[:-_KEPT]
        return True

    def sealing_keys(self, parties: PartyKeys, now_s: int) -> SealingKeys | None:
        """Give the newest key in force of each party, or None while one is missing."""
        leader = self._in_force(parties.leader_pk, now_s)
        if leader is None:
            return None
        if not parties.helper_pk:
            return SealingKeys(leader, None)
        helper = self._in_force(parties.helper_pk, now_s)
        return None if helper is None else SealingKeys(leader, helper)

    def _in_force(self, party_pk: bytes, now_s: int) -> KeyAnnouncement | None:
        good = [k for k in self._keys.get(party_pk, ()) if k.not_before <= now_s < k.not_after]
        return good[-1] if good else None
