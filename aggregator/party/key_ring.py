"""A party's keys on disk: its identity, and daily HPKE keys, made, announced and destroyed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.files.keyfiles import (
    HpkeKeyFile,
    destroy_key,
    load_hpke_key,
    load_signing_key,
    sweep_leftovers,
    write_hpke_key,
)
from wire.epoch import KeyAnnouncement
from wire.fields import KEY_ANNOUNCED_AHEAD_S, MAX_EPOCH_S, key_id

DAY_S: Final = 86_400
OVERLAP_S: Final = 3900
"""Hosts that have not got the next day's key go on with the last one for so long."""

AHEAD_S: Final = KEY_ANNOUNCED_AHEAD_S
"""Tomorrow's key is announced this early: hosts cut off from the log over midnight have it."""


class KeyRing:
    """Keys by id. `rotate` makes today's and tomorrow's, and destroys what no report can need."""

    def __init__(self, folder: Path) -> None:
        """Load every key of the folder; wipe what a crash left half written or half destroyed.

        Raises      KeyFileRefused when a file is not the party's own, 0600
        """
        self._folder = folder
        sweep_leftovers(folder)
        self.identity: SigningKey = load_signing_key(folder / "identity.key")
        self._files: dict[Path, HpkeKeyFile] = {}
        self._pairs: dict[bytes, HpkeKeyPair] = {}
        for path in sorted(folder.glob("*.hpke")):
            self._hold(path, load_hpke_key(path))

    def _hold(self, path: Path, key: HpkeKeyFile) -> None:
        self._files[path] = key
        self._pairs[key_id(key.pair.public_bytes)] = key.pair

    def pair(self, kid: bytes) -> HpkeKeyPair | None:
        return self._pairs.get(kid)

    def rotate(self, now_s: float, retention_s: int, *, destroy: bool = True) -> bool:
        """Make the keys of today and, late in the day, of tomorrow; destroy past ones.

        now_s         of a clock that is never ahead for a moment: what is destroyed is gone
        destroy       whether past keys are destroyed now: not by a clock that has only begun
        retention_s   how long after an epoch's end a report under it may still be answered
        Returns       whether the announcements changed

        An epoch is sealed to a key in force as it is opened, so it ends at most MAX_EPOCH_S after
        the key does; until its retention is over, a party that restarts opens the seal again.
        """
        days = {int(now_s) // DAY_S, (int(now_s) + AHEAD_S) // DAY_S}
        made = [self._make(day * DAY_S) for day in sorted(days)]
        needed_s = MAX_EPOCH_S + retention_s
        gone = [p for p, key in self._files.items() if destroy and key.not_after + needed_s < now_s]
        for path in gone:
            del self._pairs[key_id(self._files.pop(path).pair.public_bytes)]
            destroy_key(path)
            path.with_suffix(".announcement").unlink(missing_ok=True)
        return any(made) or bool(gone)

    def _make(self, start_s: int) -> bool:
        path = self._folder / f"{time.strftime('%Y-%m-%d', time.gmtime(start_s))}.hpke"
        if path in self._files:
            return False
        if not path.exists():
            until_s = start_s + DAY_S + OVERLAP_S
            write_hpke_key(path, HpkeKeyFile(HpkeKeyPair.generate(), start_s, until_s))
        self._hold(path, load_hpke_key(path))
        return True

    def announcements(self, now_s: float) -> Sequence[bytes]:
        live = [key for key in self._files.values() if key.not_after > now_s]
        return [self._announce(key) for key in sorted(live, key=lambda key: key.not_before)]

    def _announce(self, key: HpkeKeyFile) -> bytes:
        public = self.identity.public_bytes
        draft = KeyAnnouncement(public, key.pair.public_bytes, key.not_before, key.not_after)
        return replace(draft, signature=self.identity.sign(draft.unsigned())).encode()
