"""Processes of a party: those that fall are replaced, and where they cannot be the party ends."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

import pytest

from aggregator.workers.children import Children, ForkServer, kept
from tests.process_kit import wait_for


def note_and_fall(_pipe: Connection, folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()


def test_child_that_the_machine_has_no_room_for_is_begun_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, calls = os.fork, list[int]()

    def full_at_first() -> int:
        calls.append(0)
        if len(calls) == 2:  # the first one made the fork server
            raise BlockingIOError
        return fork()

    monkeypatch.setattr(os, "fork", full_at_first)
    fork_server = ForkServer()
    with kept(Children(fork_server, 1, note_and_fall, (str(tmp_path),))):
        wait_for(lambda: any(tmp_path.iterdir()))
    fork_server.close()


def test_party_ends_when_nobody_can_begin_its_children(tmp_path: Path) -> None:
    told = Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        fork_server = ForkServer()
        children = Children(fork_server, 1, note_and_fall, (str(tmp_path),))
        wait_for(lambda: any(tmp_path.iterdir()))
        os.kill(fork_server._pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="it is gone"), kept(children):
            wait_for(told.is_set)
        fork_server.close()
    finally:
        signal.signal(signal.SIGTERM, before)
