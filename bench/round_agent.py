"""What one report costs a live agent: the whole of its state machine, and its parts."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from bench.round_fleet import (
    GPUS,
    PARTIES,
    T0,
    WINDOW_S,
    Fleet,
    announcements,
    make_roster,
    make_task,
)
from edge_agent.ledger.ledger_records import HostView, LedgerView
from edge_agent.protocol.participant import Participant, ParticipantRules
from edge_agent.protocol.protocol_events import (
    CommitEpochs,
    CommitSealed,
    EpochDue,
    Event,
    KeysAnnounced,
    LedgerCommitted,
    RosterReceived,
    TaskReceived,
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds, Pins
from edge_agent.windows.encode import encode_rows
from privacy.masks import mask_into, seal_box, tag_and_nonce
from privacy.noise import OpenDpSampler
from privacy.noise_live import LiveSampler
from privacy.noise_table import TableSampler
from wire.envelope import Kind, wrap
from wire.ids import ReportId
from wire.report import Report, ReportHeader

REPEATS = 200
TABLE_HOSTS = 256


def agent_costs(fleet: Fleet, d: int) -> dict[str, float]:
    """Median CPU microseconds per report.

    publish     a live agent, batch of one, its noise included: a window's raw row to sealed bytes
    others      its parts; noise_opendp is what the noise would take by opendp, noise_table the
                batch sampler's share of a fleet in one process
    """
    one = fleet.first(1)
    # A fleet's task: noise of one host among 100,000, not of a fleet of one.
    n = len(fleet.hosts)
    task_id, task, signed = make_task(n, d)
    rng = np.random.default_rng(1)
    rows = rng.multinomial(GPUS * WINDOW_S * 1000, np.full(d - 2, 1 / (d - 2)), size=1)
    live, batch, others = LiveSampler(os.urandom), TableSampler(os.urandom), OpenDpSampler()
    sigma = task.sigma_vector_1024()
    steps = encode_rows(task, rows, os.urandom)
    words = steps.astype("<u4")[0]
    keys, report_id = one.epochs[0].keys(task_id), ReportId(bytes(16))
    header = ReportHeader(0, d, T0, report_id)
    mask = np.empty(d, dtype=np.uint32)

    def mask_it() -> None:
        _tag, nonce = tag_and_nonce(keys.k_id, header.encode())
        mask_into(keys.k_mask, nonce, mask)
        np.add(words, mask, out=mask)

    def seal_it() -> None:
        tag = bytes(16)
        box = seal_box(keys.k_box, report_id, header.encode() + tag, words.tobytes())
        host, epoch = one.hosts[0].host_id, one.epochs[0].header.epoch_id
        wrap(Kind.REPORT, Report(host, epoch, task_id, header, tag, box).encode())

    return {
        "publish": _publish(fleet, d, signed, rows),
        "encode": _median(lambda: encode_rows(task, rows, os.urandom)),
        "noise": _median(lambda: live.sample(1, sigma)),
        "noise_opendp": _median(lambda: others.sample(1, sigma)),
        "noise_table": _median(lambda: batch.sample(TABLE_HOSTS, sigma), 10) / TABLE_HOSTS,
        "mask": _median(mask_it),
        "seal": _median(seal_it),
    }


def _publish(fleet: Fleet, d: int, signed: bytes, rows: np.typing.NDArray[np.int64]) -> float:
    host = fleet.hosts[0]
    pins = Pins(frozenset({PARTIES.leader_pk}), frozenset({PARTIES.helper_pk}))
    view = LedgerView((HostView(host.host_id, (), 0, ()),))
    rules = ParticipantRules(pins, Bounds(n_min_at_least=1))
    participant = Participant([host], view, LiveSampler(os.urandom), os.urandom, rules)

    def tell(event: Event) -> None:
        for effect in participant.handle(event):
            assert not hasattr(effect, "reason"), f"expected no refusal, got {effect}"
            if isinstance(effect, CommitEpochs | CommitSealed):
                tell(LedgerCommitted(effect.token, (1,)))

    tell(TaskReceived(signed, T0))
    tell(RosterReceived(make_roster(fleet, [d]), T0))
    tell(KeysAnnounced(announcements(), T0))
    tell(EpochDue(T0))
    (task_id,) = participant.tasks
    present = np.ones(1, dtype=np.bool_)
    starts = iter(range(T0, T0 + WINDOW_S * 10_000, WINDOW_S))

    def window() -> None:
        start = next(starts)
        # One epoch serves them all: the clock stands still at the first window's end.
        tell(WindowClosed(task_id, start, rows, present, max(T0, start) + WINDOW_S))

    return _median(window, 50)


def _median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median CPU time in microseconds, the first call left out."""
    work()
    spent = []
    for _ in range(repeats):
        started = time.process_time_ns()
        work()
        spent.append((time.process_time_ns() - started) / 1000)
    return statistics.median(spent)
