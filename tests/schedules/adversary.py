"""What nobody honest sends: a host whose reports do not check, a broker that makes things up."""

from __future__ import annotations

from typing import Final

import numpy as np

from edge_agent.protocol.epochs import HostEpoch, SealingKeys, open_epoch
from privacy.masks import mask_into, seal_box, tag_and_nonce
from privacy.noise_table import SeededBytes
from tests.agent_world import T0
from tests.schedules.signed_world import (
    COHORT,
    LAST_WINDOW,
    LIAR,
    WINDOW_S,
    announced_keys,
    signed_task,
    task_of,
    world,
)
from tests.schedules.simulated_log import SimulatedLog
from wire.envelope import Kind, unwrap, wrap
from wire.fields import ReportId, TaskId, task_id
from wire.report import Report, ReportHeader
from wire.topics import EPOCHS, REPORTS, epoch_key, report_key

FORGERIES: Final = ("truncated", "longer", "turned bit", "another host", "another window", "noise")

_WINDOW: Final = slice(88, 96)
"""Of a report."""


class Liar:
    """A host with good keys whose reports have a tag, or check words, of its own making.

    The Leader cannot tell and puts it into its batches; the Helper clears its bit.
    """

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self._host = world().identities[LIAR]
        self._draw = SeededBytes(LIAR, "liar")
        self._task_id = TaskId(task_id(signed_task(1)[:-128]))
        self._epoch: HostEpoch | None = None
        self._said = T0

    def turn(self, now_s: int) -> None:
        if self._epoch is None:
            leader, helper = announced_keys()
            keys = SealingKeys(leader, helper)
            self._epoch, sealed = open_epoch(self._host, keys, 1, 1, T0, self._draw)
            key = epoch_key(self._host.host_id, self._epoch.header.epoch_id)
            self._log.append(EPOCHS, key, wrap(Kind.EPOCH, sealed))
        while self._said + WINDOW_S <= now_s and self._said <= LAST_WINDOW:
            report = self._report(self._epoch, self._said)
            self._log.append(REPORTS, report_key(self._host.host_id), wrap(Kind.REPORT, report))
            self._said += WINDOW_S

    def _report(self, epoch: HostEpoch, window: int) -> bytes:
        keys, d = epoch.keys(self._task_id), task_of(1).d
        report_id = ReportId(self._draw(16))
        header = ReportHeader(COHORT, d, window, report_id)
        tag, nonce = tag_and_nonce(keys.k_id, header.encode())
        vector = np.full(d, 1_000_000, dtype=np.uint32)
        mask = np.empty(d, dtype=np.uint32)
        mask_into(keys.k_mask, nonce, mask)
        if window // WINDOW_S % 2:
            vector[:2], tag = 1, bytes(16)
        words = (vector + mask).astype("<u4").tobytes()
        box = seal_box(keys.k_box, report_id, header.encode() + tag, words)
        epoch_id = epoch.header.epoch_id
        return Report(self._host.host_id, epoch_id, self._task_id, header, tag, box).encode()


def forge(value: bytes, which: int) -> bytes:
    """Make something of a report that its host never sent."""
    kind = FORGERIES[which % len(FORGERIES)]
    at = which * 7919 % max(1, len(value))
    if kind == "truncated":
        return value[:at]
    if kind == "longer":
        return value + bytes(1 + which % 9)
    if kind == "turned bit":
        return value[:at] + bytes([value[at] ^ (1 << which % 8)]) + value[at + 1 :]
    if kind == "noise":
        return SeededBytes(which, "forged")(at)
    core = unwrap(value, 1 << 20)[1]
    report = bytearray(core)
    if kind == "another host":
        report[:16] = world().identities[which % len(world().identities)].host_id
    else:
        later = int.from_bytes(report[_WINDOW]) + (which % 5 - 2) * WINDOW_S
        report[_WINDOW] = later.to_bytes(8)
    return wrap(Kind.REPORT, bytes(report))
