"""A new key for this host, on the same machine: its ledger first, then the key file.

Whatever crash comes between, the same call again ends it, and no state in between publishes: an
agent whose ledger is of another host than its key refuses to start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from transport.files.keyfiles import (
    HostKey,
    KeyFileAbsent,
    KeyFileRefused,
    destroy_key,
    load_host_key,
    read_host_key,
    supersede_host_key,
    sweep_leftovers,
    write_host_key,
)
from wire.fields import HostId, host_id

from .config import AgentConfig
from .ledger.ledger_carry import Identity, carry_over
from .ledger.ledger_errors import LedgerMissing


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """What was done.

    old         None where an earlier call had put the new key in place already
    carried     whether there was a ledger to go on with; none before an agent's first run
    """

    old: HostId | None
    new: HostId
    carried: bool


def with_key(config: AgentConfig, key_file: Path) -> AgentConfig:
    """Give the configuration of this host under another key."""
    return replace(config, host=replace(config.host, key_file=key_file.absolute()))


def rekey(config: AgentConfig, next_key: Path, binding: bytes, now_s: int) -> Rekeyed:
    """Put a new key in the old one's place, with its ledger; destroy both files that held it.

    next_key    a host key bound to this machine as it is now
    binding     of this machine, as `live.this_machine` gives it
    Raises      LedgerRefused, KeyFileRefused: nothing was changed, or what was is ended by the same
                call again
    """
    place = config.host.key_file
    if place.exists() and next_key.exists() and place.samefile(next_key):
        raise KeyFileRefused(f"{next_key}: is the key in use; make a new one in another folder")
    new, old = load_host_key(next_key, binding), _old_key(place)
    if old is not None and _id(old) == _id(new):  # an earlier call came as far as this
        before, carried = None, old.ledger_exists
    else:
        before, carried = old, _carry(config, old, new, now_s)
        # With a ledger or without: a place left empty could not be told from a host without a key.
        put = write_host_key if old is None else supersede_host_key
        put(place, replace(new, ledger_exists=carried))
    made = with_key(config, next_key).gpus_file
    if made.exists():  # which GPUs the new key is bound to, where host.gpus is "auto"
        made.replace(config.gpus_file)
    sweep_leftovers(place.parent)
    destroy_key(next_key, in_place=True)
    return Rekeyed(None if before is None else _id(before), _id(new), carried)


def end_of_earlier(config: AgentConfig, next_key: Path, binding: bytes) -> Rekeyed | None:
    """End a call that was cut off while it destroyed the new key's first file.

    Returns     None where that file is not zeroed: there is a call to make
    Raises      KeyFileRefused
    """
    content = next_key.read_bytes()
    if not content or any(content):
        return None
    key = load_host_key(config.host.key_file, binding)
    destroy_key(next_key, in_place=True)
    return Rekeyed(None, _id(key), key.ledger_exists)


def _old_key(path: Path) -> HostKey | None:
    try:
        return read_host_key(path)
    except KeyFileAbsent:
        return None


def _carry(config: AgentConfig, old: HostKey | None, new: HostKey, now_s: int) -> bool:
    ledger, fence = config.ledger_file, config.fence_file
    known = fence.exists() or (old is not None and old.ledger_exists)
    if not ledger.exists() and not known:
        if old is None:
            raise KeyFileAbsent(f"{config.host.key_file}: no such key file, and no ledger of one")
        return False
    if not ledger.exists():
        raise LedgerMissing(f"expected the ledger {ledger}, of which key or fence know")
    # Without the old key the ledger must be the new identity's: an earlier call was cut off.
    before = new if old is None else old
    carry_over(ledger, fence, _identity(before), _identity(new), now_s)
    return True


def _identity(key: HostKey) -> Identity:
    return Identity(_id(key), key.binding)


def _id(key: HostKey) -> HostId:
    return host_id(key.signing.public_bytes)
