"""Which HPKE keys of the pinned parties are in force at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from privacy.sealing import SealError, check_public_key
from privacy.signing import verify
from wire.epoch import KeyAnnouncement
from wire.rejection import Reason, ReportRejected

from .epochs import PartyKeys, SealingKeys
from .task_check import Pins

_KEPT: Final = 8


@dataclass(slots=True)
class HpkeDirectory:
    """The announced keys of pinned parties; a few per party, so that memory is bounded."""

    pins: Pins
    _keys: dict[bytes, list[KeyAnnouncement]] = field(default_factory=dict)

    def add(self, key: KeyAnnouncement) -> bool:
        """Take one announcement; False when it was known.

        Raises      ReportRejected when the party is not pinned, has not signed it, or its key
                is none
        """
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
