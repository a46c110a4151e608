"""Which HPKE keys and rosters of the pinned parties are in force at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from privacy.signing import verify
from wire import labels
from wire.ids import HostId
from wire.keys import KeyAnnouncement
from wire.rejection import Reason, ReportRejected
from wire.roster import PlanMembership, Roster
from wire.signed import Signed

from .epochs import Parties, SealingKeys
from .task_check import Pins

_KEPT: Final = 8


@dataclass(slots=True)
class HpkeDirectory:
    """The announced keys of pinned parties; a few per party, so that memory is bounded."""

    pins: Pins
    _keys: dict[bytes, list[KeyAnnouncement]] = field(default_factory=dict)

    def add(self, key: KeyAnnouncement) -> bool:
        """Take one announcement; False when it was known.

        Raises      ReportRejected when the party is not pinned or has not signed it
        """
        if key.party_pk not in self.pins.leaders | self.pins.helpers:
            raise ReportRejected(Reason.KEY_PARTY, "a pinned party", key.party_pk.hex()[:16])
        kept = self._keys.setdefault(key.party_pk, [])
        if key in kept:
            return False
        if not verify(key.party_pk, key.unsigned(), key.signature):
            raise ReportRejected(Reason.KEY_SIGNATURE, "the party's signature", "another")
        kept.append(key)
        kept.sort(key=lambda k: k.not_before)
        del kept[:-_KEPT]
        return True

    def sealing_keys(self, parties: Parties, now_s: int) -> SealingKeys | None:
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


@dataclass(frozen=True, slots=True)
class RosterView:
    """What a roster says about the hosts of this process; None for a host that is not on it."""

    version: int
    effective_from: int
    memberships: tuple[dict[str, PlanMembership] | None, ...]


@dataclass(slots=True)
class RosterBook:
    """The newest rosters of each pair of aggregators, as far as they speak of these hosts."""

    pins: Pins
    hosts: tuple[HostId, ...]
    _rosters: dict[Parties, list[RosterView]] = field(default_factory=dict)

    def add(self, signed: bytes) -> RosterView:
        """Verify a roster against the pinned parties and keep what concerns these hosts.

        Raises      ReportRejected
        """
        envelope = Signed.decode(signed, labels.ROSTER)
        parties = self._signers(envelope)
        roster = Roster.decode_body(envelope.body)
        kept = self._rosters.setdefault(parties, [])
        if any(view.version == roster.version for view in kept):
            return next(view for view in kept if view.version == roster.version)
        if kept and roster.version < kept[-1].version:
            raise ReportRejected(
                Reason.ROSTER_VERSION, f"version {kept[-1].version} or later", roster.version
            )
        view = self._view(roster)
        kept.append(view)
        del kept[:-_KEPT]
        return view

    def _signers(self, envelope: Signed) -> Parties:
        message = envelope.unsigned()
        leader = _signer(self.pins.leaders, message, envelope.sig_leader)
        helper = _signer(self.pins.helpers, message, envelope.sig_helper)
        if leader is not None and helper is not None and leader != helper:
            return Parties(leader, helper)
        if leader in self.pins.allow_local and not any(envelope.sig_helper):
            return Parties(leader or b"", b"")
        raise ReportRejected(Reason.ROSTER_SIGNATURE, "a pinned Leader and Helper", "others")

    def _view(self, roster: Roster) -> RosterView:
        mine = set(self.hosts)
        plans = [{m.series: m for m in plan} for plan in roster.plans]
        found = {e.host_id: plans[e.plan] for e in roster.entries if e.host_id in mine}
        memberships = tuple(found.get(host) for host in self.hosts)
        return RosterView(roster.version, roster.effective_from, memberships)

    def in_force(self, parties: Parties, at_s: int) -> RosterView | None:
        """Give the newest roster that is effective at a time."""
        views = [v for v in self._rosters.get(parties, ()) if v.effective_from <= at_s]
        return views[-1] if views else None


def _signer(candidates: frozenset[bytes], message: bytes, signature: bytes) -> bytes | None:
    return next((pk for pk in candidates if verify(pk, message, signature)), None)
