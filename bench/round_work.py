"""One round through the production Leader and Helper, timed by stage, beside its floor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import (
    CallCountersign,
    CallHelper,
    EpochsArrived,
    ReportsArrived,
    Tick,
)
from aggregator.leader.leader_runner import LeaderRunner, call_helper
from aggregator.leader.leader_state import LeaderState
from bench.round_fleet import (
    HELPER,
    HELPER_BOX,
    LEADER,
    LEADER_BOX,
    T0,
    WINDOW_S,
    Fleet,
    directory,
    make_roster,
    make_task,
    sealed_chunks,
)
from privacy.masks import mask_into
from privacy.sealing import HpkeKeyPair
from privacy.signing import verify
from simulator.engine.interface import MemoryStore
from simulator.engine.worker_pool import Laps
from wire import labels
from wire.epoch import HEADER_BYTES, Epoch
from wire.fields import TaskId, key_id

ARITHMETIC: Final = ("helper.mask", "helper.sum", "leader.sum", "leader.unmask")
"""The Helper's mask generation and mask sum, the Leader's vector sum and subtraction."""

BLOCK_BYTES: Final = 1 << 20


class Pair:
    """A Leader and a Helper of one task, each with its durable state in a folder."""

    def __init__(self, fleet: Fleet, d: int, folder: Path) -> None:
        self.fleet = fleet
        self.task_id, self.task, signed = make_task(len(fleet.hosts), d)
        roster = make_roster(fleet, [d])
        self.stages: dict[str, float] = {}
        self.now_s = float(T0)
        self._leader_laps = Laps("leader.", self.stages)
        self._helper_laps = Laps("helper.", self.stages)
        self.store = MemoryStore()  # DuckDB and Parquet are not part of a round's cost
        self._calls: list[CallHelper] = []
        self.leader = Leader(
            directory(signed, roster),
            LEADER,
            _held(LEADER_BOX),
            stopwatch=self._leader_laps,
        )
        self._leader = LeaderRunner(
            self.leader,
            LeaderState(folder / "leader.db"),
            self.store,
            commit=lambda _: None,
            call=self._on_call,
        )
        state = HelperState(folder / "helper.db", folder / "helper.fence", T0)
        self.helper = Helper(
            directory(signed, roster),
            HELPER,
            _held(HELPER_BOX),
            state,
            mask_into=self._timed_mask,
            stopwatch=self._helper_laps,
        )
        self._helper = HelperRunner(self.helper, lambda: self.now_s, helper_pk=HELPER.public_bytes)

    def _on_call(self, effect: CallHelper | CallCountersign) -> None:
        if isinstance(effect, CallHelper):
            self._calls.append(effect)

    def _timed_mask(self, key: bytes, nonce: bytes, out: npt.NDArray[np.uint32]) -> None:
        self._helper_laps("authenticate")
        mask_into(key, nonce, out)
        self._helper_laps("mask")

    def take_stages(self) -> dict[str, float]:
        """Seconds by party and stage since the last call."""
        taken = dict(self.stages)
        self.stages.clear()
        return taken

    def open_epochs(self) -> dict[str, float]:
        """Hand every epoch to both parties, and derive each party's keys; seconds by stage."""
        for records in self.fleet.epoch_records():
            with self._leader_laps:
                self._leader.feed(EpochsArrived(records, self.now_s))
                self._leader_laps("epochs")
        raw = self.fleet.raw
        for start in range(0, len(raw), 1000):
            with self._helper_laps:
                self._helper.submit_epochs(raw[start : start + 1000])
                self._helper_laps("epochs")
        self._derive_keys(self.task_id)
        return self.take_stages()

    def _derive_keys(self, task_id: TaskId) -> None:
        names = [(e.header.host_id, e.header.epoch_id) for e in self.fleet.epochs]
        leader = [self.leader.book.find(*name) for name in names]
        helper = [self.helper.book.find(*name) for name in names]
        with self._leader_laps:
            for epoch in leader:
                if epoch is not None:
                    epoch.box_key(task_id)
            self._leader_laps("derive_keys")
        with self._helper_laps:
            for epoch in helper:
                if epoch is not None:
                    epoch.keys_of_helper(task_id)
            self._helper_laps("derive_keys")

    def round(self, window: int) -> dict[str, float]:
        """One window from sealed reports to the released vector; seconds by party and stage.

        Raises      AssertionError unless the release is exactly the sum that the agents sealed
        """
        self.now_s = float(window + WINDOW_S + 2)
        total = np.zeros(self.task.d, dtype=np.int64)
        for records in sealed_chunks(self.fleet, self.task_id, self.task, window, total):
            with self._leader_laps:
                self._leader.feed(ReportsArrived(records, self.now_s))
        self.now_s = float(window + WINDOW_S + self.task.lateness_s + 1)
        with self._leader_laps:
            self._leader.feed(Tick(self.now_s))
            self._leader_laps("freeze")
        with self._helper_laps:
            came = call_helper(self._helper, self._calls.pop(), (), lambda: self.now_s)
            self._helper_laps("commit")
        with self._leader_laps:
            self._leader.feed(came)
        (released,) = self.store.written
        self.store.written.clear()
        n = len(self.fleet.hosts)
        assert released.n == n, f"expected {n} accepted hosts, got {released.n}"
        assert (released.vector == total).all(), "expected the sum that was sealed, got another"
        return self.take_stages()


def _held(pair: HpkeKeyPair) -> Callable[[bytes], HpkeKeyPair | None]:
    own = key_id(pair.public_bytes)
    return lambda kid: pair if kid == own else None


def run_round(
    fleet: Fleet, d: int, rounds: int, folder: Path
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Open the fleet's epochs once, then play windows; (epoch stages, stages of each window)."""
    with TemporaryDirectory(dir=folder) as scratch:
        pair = Pair(fleet, d, Path(scratch))
        opened = pair.open_epochs()
        return opened, [pair.round(T0 + i * WINDOW_S) for i in range(rounds)]


def floor(n: int, d: int) -> float:
    """CPU seconds of the least that unmasking can cost.

    AES-256-CTR over n messages of 4d bytes, each under its own key and fresh context, and two NumPy
    sums modulo 2^32 of the matrix they make; by blocks of 1 MiB, the fastest way, so that a floor
    of 4 GB neither needs the memory nor waits for it.
    """
    keys = os.urandom(32 * n)
    rows = max(1, BLOCK_BYTES // (4 * d))
    zeros = bytes(4 * d)
    block = np.empty((rows, d), dtype=np.uint32)
    sums = np.zeros((2, d), dtype=np.uint32)
    started = time.process_time_ns()
    for start in range(0, n, rows):
        count = min(rows, n - start)
        for i in range(count):
            key = keys[32 * (start + i) : 32 * (start + i + 1)]
            out = block[i].data.cast("B")
            Cipher(AES256(key), CTR(bytes(16))).encryptor().update_into(zeros, out)
        sums[0] += block[:count].sum(axis=0, dtype=np.uint32)
        sums[1] += block[:count].sum(axis=0, dtype=np.uint32)
    spent = (time.process_time_ns() - started) / 1e9
    assert (sums[0] == sums[1]).all()
    return spent


def epoch_floor(fleet: Fleet) -> float:
    """CPU seconds of the least that opening a fleet's epochs costs both parties.

    Of each epoch a party verifies the host's signature and opens its seal, by the libraries that
    the parties use; nothing is decoded, looked up or stored.
    """
    opened = [
        (host.signing_key.public_bytes, raw, Epoch.decode(raw), raw[:HEADER_BYTES])
        for host, raw in zip(fleet.hosts, fleet.raw, strict=True)
    ]
    started = time.process_time_ns()
    for public_bytes, raw, epoch, header in opened:
        for pair, label, seal in (
            (LEADER_BOX, labels.SEAL_L, epoch.seal_l),
            (HELPER_BOX, labels.SEAL_H, epoch.seal_h),
        ):
            assert verify(public_bytes, raw[:-64], epoch.signature)
            pair.open(seal, label + header)
    return (time.process_time_ns() - started) / 1e9


def arithmetic(stages: Mapping[str, float]) -> float:
    return sum(stages[stage] for stage in ARITHMETIC)
