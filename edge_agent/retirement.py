"""The end of a host: its key and raw data are destroyed, its ledger is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transport.files.keyfiles import KeyFileAbsent, destroy_key, read_host_key
from wire.fields import HostId, host_id

from .config import AgentConfig
from .journal import older
from .ledger.ledger_db import connect, transaction
from .ledger.ledger_errors import LedgerRefused
from .ledger.ledger_loss import Fence


@dataclass(frozen=True, slots=True)
class Retired:
    """What was destroyed, and what stays.

    host        None where its key was gone already
    """

    host: HostId | None
    destroyed: tuple[Path, ...]
    kept: tuple[Path, ...]


def retire(config: AgentConfig) -> Retired:
    """Destroy a host's key and raw data, and the sealed reports that wait in its ledger.

    Raises      LedgerBusy while its agent runs; KeyFileRefused, OSError: call it again
    """
    with _agent_stopped(config):
        _drop_spool(config.ledger_file)
        host = _destroy_key(config.host.key_file)
        raw = (
            config.windows_file, config.history_file, config.journal_file,
            older(config.journal_file), config.kernel_names_file, config.gpus_file,
        )  # fmt: skip
        gone = [path for file in raw for path in _with_journal(file) if path.exists()]
        for path in gone:
            path.unlink()
    keys = (config.host.key_file,) if host is not None else ()
    kept = tuple(path for path in (config.ledger_file, config.fence_file) if path.exists())
    return Retired(host, (*keys, *gone), kept)


@contextlib.contextmanager
def _agent_stopped(config: AgentConfig) -> Iterator[None]:
    if not config.fence_file.exists():
        yield
        return
    fence = Fence.open(config.fence_file)
    try:
        yield
    finally:
        fence.close()


def _drop_spool(ledger: Path) -> None:
    """See that what was sealed and did not leave never does; a damaged ledger is sent by nobody."""
    with (
        contextlib.suppress(LedgerRefused),
        contextlib.closing(connect(ledger, create=False)) as db,
        transaction(db),
    ):
        db.execute("DELETE FROM spool")


def _destroy_key(path: Path) -> HostId | None:
    try:
        host = host_id(read_host_key(path).signing.public_bytes)
    except KeyFileAbsent:
        return None
    destroy_key(path)
    return host


def _with_journal(file: Path) -> tuple[Path, ...]:
    """A file and what SQLite keeps beside it."""
    return tuple(Path(f"{file}{suffix}") for suffix in ("", "-wal", "-shm", "-journal"))
