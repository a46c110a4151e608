"""What a host may still do after it lost its ledger: what the aggregators' signatures say it did.

A series that the signed roster and tasks gave this host resumes with the first window that starts
after everything the old ledger can have spent; its weight is the least it had in any roster still
on the log, so that old and new windows together stay within the budget.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from edge_agent.ledger.ledger_records import KnownSeries
from privacy.signing import verify
from transport.port import Transport, create_topics
from wire import labels
from wire.envelope import Signed, unwrap
from wire.epoch import KeyAnnouncement
from wire.fields import HostId
from wire.rejection import ReportRejected
from wire.task import Task
from wire.topics import KEYS, ROSTERS, TASKS, TOPICS

from .roster_book import RosterBook
from .task_check import Pins, verified_task

_MAX_BYTES = {topic.name: topic.max_bytes for topic in TOPICS}


@dataclass(frozen=True, slots=True)
class SignedPast:
    """What the log proves about a host's past.

    signed_time_s   latest beginning of a sealing key that a pinned aggregator has signed
    """

    known: tuple[KnownSeries, ...]
    signed_time_s: int


def read_signed_past(transport: Transport, host: HostId, pins: Pins) -> SignedPast:
    """Read tasks, rosters and keys from the oldest on; what no pinned party signed is left out.

    Raises      TransportUnavailable
    """
    weights: dict[str, int] = {}
    tasks: dict[str, Task] = {}
    signed_time_s = 0
    rosters = RosterBook(pins, (host,), weekly=False)
    for topic, core in _cores(transport):
        try:
            if topic == ROSTERS:
                _take_roster(rosters, core, weights)
            elif topic == TASKS:
                task = verified_task(Signed.decode(core, labels.TASK), pins)
                if task.version >= (tasks[task.series].version if task.series in tasks else 0):
                    tasks[task.series] = task
            else:
                signed_time_s = max(signed_time_s, _signed_time(core, pins))
        except ReportRejected:
            continue
    known = tuple(
        KnownSeries(name, tasks[name].version, weight, tasks[name].window_s)
        for name, weight in sorted(weights.items())
        if name in tasks
    )
    return SignedPast(known, signed_time_s)


def _take_roster(rosters: RosterBook, core: bytes, weights: dict[str, int]) -> None:
    known = rosters.add(core)
    for plan in known.plans.values() if known else ():
        for membership in plan or ():
            least = weights.get(membership.series, membership.weight_millionths)
            weights[membership.series] = min(membership.weight_millionths, least)


def _signed_time(core: bytes, pins: Pins) -> int:
    key = KeyAnnouncement.decode(core)
    pinned = key.party_pk in pins.leaders | pins.helpers
    good = pinned and verify(key.party_pk, key.unsigned(), key.signature)
    return key.not_before if good else 0


def _cores(transport: Transport) -> Iterator[tuple[str, bytes]]:
    create_topics(transport)
    consumer = transport.consumer(f"recover-{secrets.token_hex(6)}", (ROSTERS, TASKS, KEYS))
    try:
        while records := consumer.poll(100, 1.0):
            for record in records:
                try:
                    yield record.topic, unwrap(record.value, _MAX_BYTES[record.topic])[1]
                except ReportRejected:
                    continue
    finally:
        consumer.close()
