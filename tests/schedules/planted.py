"""Bugs planted into the roles: a step that the protocol needs, left out or taken too early.

They show that the oracle sees what it is there for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from aggregator.helper.helper_state import HelperState
from aggregator.leader import chains
from aggregator.leader.admission import Admission, Heading
from aggregator.leader.held_windows import OpenWindow, resume_window
from aggregator.leader.leader import Leader
from aggregator.leader.leader_events import CommitOffsets, LeaderEffect, StoreRelease
from aggregator.leader.leader_runner import LeaderRunner
from aggregator.protocol.epochs import KnownEpoch
from aggregator.witness.chain import WitnessedChain
from edge_agent.ledger import ledger as ledger_module
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import entry_row, read_meta
from edge_agent.ledger.ledger_loss import FenceMark
from edge_agent.ledger.ledger_records import HostEntry, SealedRecord
from edge_agent.protocol import eligibility
from edge_agent.protocol.eligibility import window_fault
from edge_agent.protocol.protocol_events import CommitSealed, WindowClosed, Withheld
from edge_agent.sending.effects import Effects
from edge_agent.sending.outbox import Outbox
from tests.schedules.schedule import Fault, Schedule, draw_schedule
from transport.interface import TransportUnavailable
from wire.report import EPOCH_AT
from wire.task import Task


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug.

    replaced   (owner, name, what stands there instead)
    shown_by   a schedule that shows it; without the bug nothing is wrong with it
    """

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    shown_by: Schedule

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, bug in self.replaced:
                stack.enter_context(patch.object(owner, name, bug))
            yield


# Agents

_commit_sealed, _send = Effects._commit_sealed, Outbox._send


def _leaves_first(effects: Effects, effect: CommitSealed) -> None:
    with suppress(TransportUnavailable):
        producer = effects._outbox._transport.producer()
        for record in effect.records:
            producer.send(record.topic, record.key, record.value)
        producer.flush()
    _commit_sealed(effects, effect)


def _two_transactions(
    ledger: Ledger,
    entries: Sequence[HostEntry],
    records: Sequence[SealedRecord],
    now_s: int,
    keep_from_s: int = 0,
    left: Sequence[Any] = (),
) -> tuple[int, ...]:
    def spool() -> tuple[int, ...]:
        ids = ledger._spool.insert(records)
        ledger._left.insert(left, ids)
        return ids

    def spend() -> tuple[int, ...]:
        insert = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)"
        ledger._db.executemany(insert, map(entry_row, entries))
        return ()

    ids = ledger._commit(spool, records, now_s)
    ledger._commit(spend, (), now_s)
    return ids


def _sent_anyway(outbox: Outbox, records: Sequence[SealedRecord]) -> None:
    with suppress(TransportUnavailable):
        _send(outbox, records)


def _any_mark(db: Any, fence: Any, path: Any, binding: bytes) -> FenceMark:
    meta = read_meta(db, path)
    return FenceMark(meta["ledger_id"], meta["generation"])


def _resumed_at_once(task: Task, event: WindowClosed, _resume_after_s: int) -> Withheld | None:
    return window_fault(task, event, 0)


# The Leader

_carry_out, _open = LeaderRunner._carry_out, Admission.open


def _all_offsets(leader: Leader) -> list[LeaderEffect]:
    return [CommitOffsets(dict(leader._next_offset))]


def _any_report(*arguments: Any) -> OpenWindow:
    window = resume_window(*arguments)
    window.expected = None
    return window


def _settled_first(runner: LeaderRunner, effect: LeaderEffect) -> None:
    if isinstance(effect, StoreRelease):
        runner._state.store_release(effect)
        runner._checkpoint("between transcript and store")
        runner._store.write(effect.released)
        runner._tell(effect)
    else:
        _carry_out(runner, effect)


def _every_delivery(
    admission: Admission,
    head: bytes,
    box: memoryview,
    heading: Heading,
    epoch: KnownEpoch,
    partition: int,
) -> memoryview:
    heading.window.hosts.pop(head[:EPOCH_AT], None)
    return _open(admission, head, box, heading, epoch, partition)


def _every_row(window: OpenWindow, _hosts: object) -> Any:
    total: Any = 0
    for rows in window.parts.values():
        total = total + rows.sum_of(np.ones(rows.n, dtype=np.bool_))
    return total


# The Helper

_answer = HelperState.answer


def _this_life(state: HelperState, key: Any) -> Any:
    return _answer(state, key) if key in state.__dict__.setdefault("_mine", set()) else None


_commit = HelperState.commit


def _commit_again(state: HelperState, answer: Any, closed_s: int) -> None:
    state.__dict__.setdefault("_mine", set()).add(answer.key)
    with suppress(Exception):
        place = answer.key.task_id, answer.key.cohort, answer.key.window
        where = "task_id = ? AND cohort = ? AND window = ?"
        state._db.execute(f"DELETE FROM answers WHERE {where}", place)
    _commit(state, answer, closed_s)


def _unfenced(state: HelperState, connection: Any) -> int:
    return int(connection.execute("SELECT commits FROM fence").fetchone()[0])


def _nothing(*_arguments: object) -> None:
    return None


PLANTED: Final = (
    Planted(
        "a report leaves before its budget is spent",
        ((Effects, "_commit_sealed", _leaves_first),),
        draw_schedule(0),
    ),
    Planted(
        "bytes and budget are two transactions",
        ((Ledger, "commit_sealed", _two_transactions),),
        Schedule(1, faults=(Fault(3, 0, "agent falls at a step", 0, 6),)),
    ),
    Planted(
        "a report counts as sent that the log refused",
        ((Outbox, "_send", _sent_anyway),),
        draw_schedule(9),
    ),
    Planted(
        "a ledger that was put back goes on",
        ((ledger_module, "proven_mark", _any_mark),),
        Schedule(
            1,
            faults=(
                Fault(1, 0, "agent ledger backed up"),
                Fault(9, 0, "agent ledger restored"),
            ),
        ),
    ),
    Planted(
        "a recovered ledger spends what the lost one may have spent",
        ((eligibility, "window_fault", _resumed_at_once),),
        Schedule(
            1,
            faults=(
                Fault(1, 0, "agent ledger backed up"),
                Fault(7, 0, "agent ledger restored"),
            ),
        ),
    ),
    Planted(
        "offsets are committed past open windows",
        ((Leader, "_offsets", _all_offsets),),
        draw_schedule(4),
    ),
    Planted(
        "a batch's reports are forgotten at a restart",
        ((chains, "resume_window", _any_report),),
        Schedule(
            1,
            faults=(
                Fault(2, 0, "agent cut off", 1, 6),
                Fault(4, 0, "channel cut", 0, 6),
                Fault(8, 0, "leader killed", 0, 1),
            ),
        ),
    ),
    Planted(
        "a window is settled before the store has it",
        ((LeaderRunner, "_carry_out", _settled_first),),
        draw_schedule(71),
    ),
    Planted(
        "a late report opens a window again",
        ((Leader, "is_settled", lambda *_: False),),
        draw_schedule(13),
    ),
    Planted(
        "a delivery counts twice",
        ((Admission, "open", _every_delivery), (OpenWindow, "sum_of", _every_row)),
        draw_schedule(0),
    ),
    Planted(
        "a cleared host's vector stays in the sum",
        ((OpenWindow, "sum_of", _every_row),),
        Schedule(1, liar=True),
    ),
    Planted(
        "a Helper answers again after a restart",
        (
            (HelperState, "answer", _this_life),
            (HelperState, "commit", _commit_again),
            (HelperState, "used_hosts", lambda *_: frozenset()),
        ),
        draw_schedule(1),
    ),
    Planted(
        "a Helper that was succeeded answers",
        ((HelperState, "_fenced", _unfenced),),
        Schedule(1, faults=(Fault(1, 0, "helper twice"),)),
    ),
    Planted(
        "a Helper does not ask its witness",
        ((WitnessedChain, "settle", _nothing),),
        Schedule(
            1,
            faults=(Fault(1, 5, "helper backed up"), Fault(8, 0, "helper restored")),
        ),
    ),
)
