"""The epochs that the driver was given by the Leader, and those that it asks for."""

from __future__ import annotations

from collections.abc import Callable

from aggregator.protocol.epochs import KnownEpoch, KnownEpochs


class EpochKeyCache:
    """The epochs that the Leader gave, with their keys, and which names it was asked for.

    A name is asked for before the first report of it is taken: what the Leader knows already
    must never fill the places of parked reports. Anybody may write names, so one that has not come
    is kept for as long as a report waits for it.
    """

    def __init__(self) -> None:
        self._known = KnownEpochs()
        self._asked: set[bytes] = set()
        self._unknown: set[bytes] = set()
        self._new: list[bytes] = []
        self._to_ask: list[bytes] = []

    @property
    def waiting(self) -> bool:
        return bool(self._asked)

    def find(self, host_id: bytes, epoch_id: bytes) -> KnownEpoch | None:
        return self._known.find(host_id, epoch_id)

    def need(self, name: bytes) -> None:
        """Ask for an epoch, host_id || epoch_id, unless it was given or has not come."""
        if name in self._unknown or name in self._asked or self.find(name[:16], name[16:]):
            return
        self._asked.add(name)
        self._to_ask.append(name)

    def take_questions(self) -> list[bytes]:
        names, self._to_ask = self._to_ask, []
        return names

    def put(self, epoch: KnownEpoch) -> None:
        """Take an epoch; given again it is dead."""
        self._known.put(epoch)
        for names in (self._asked, self._unknown):
            names.discard(epoch.host_id + epoch.epoch_id)

    def put_unknown(self, name: bytes) -> None:
        self._asked.discard(name)
        self._unknown.add(name)
        self._new.append(name)

    def drop_new(self, waits: Callable[[bytes], bool]) -> list[bytes]:
        """Forget what has not come, of the names that were answered since the last call.

        waits       whether a report waits for a name
        Returns     the names that are no longer waited for
        """
        new, self._new = self._new, []
        dropped = [name for name in new if name in self._unknown and not waits(name)]
        self._unknown.difference_update(dropped)
        return dropped

    def forget(self, ended_s: float, now_s: float, needed: set[bytes]) -> list[bytes]:
        """Forget the epochs that ended by `ended_s`, and unknown ones that no report needs.

        Returns     as `drop_new`
        """
        self._known.forget(ended_s, now_s)
        dropped = self._unknown - needed
        self._unknown -= dropped
        return sorted(dropped)
