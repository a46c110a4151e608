"""A Helper that came back from a backup signs no second release of a window."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggregator.protocol.interfaces import BatchReply, HelperPort, HelperStatus, ReleaseReply
from tests.protocol_kit import (
    Fleet,
    build_world,
    honest_reports,
    open_epochs,
    start_helper,
    true_sum,
)
from wire.batch import SignedRelease, vector_hash

CELL = 4


class BackedUpHelper:
    """Its state is backed up when it has answered a batch and signed no release of it yet."""

    def __init__(self, inner: HelperPort, folder: Path) -> None:
        self._inner, self._folder = inner, folder

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        return self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        with (
            closing(sqlite3.connect(self._folder / "helper.sqlite")) as state,
            closing(sqlite3.connect(self._folder / "backup.sqlite")) as backup,
        ):
            state.backup(backup)
        return self._inner.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._inner.status()


def test_restored_helper_signs_no_other_release_of_a_window(tmp_path: Path) -> None:
    world = build_world(10)
    fleet = Fleet(world, tmp_path)
    fleet.port = BackedUpHelper(fleet.port, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    ((_, entry),) = fleet.helper_state.chain(world.task.series, 0)
    words = true_sum(world, world.hosts).astype(np.uint32)
    fleet.helper_state.close()

    shutil.copy(tmp_path / "backup.sqlite", tmp_path / "helper.sqlite")
    _, state, runner = start_helper(world, tmp_path, fleet.clock)
    words[CELL] += 1
    lie = replace(SignedRelease.decode(entry).release, vector_hash=vector_hash(words))
    signed = SignedRelease(lie, world.leader_key.sign(lie.unsigned())).encode()
    again = runner.submit_release(signed, words.astype("<u4").tobytes())
    assert again.refusal == "closed_before_restore"
    assert state.chain(world.task.series, 0) == []
    state.close()
