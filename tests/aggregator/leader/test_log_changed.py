"""A log that begins anew under an open window: what is committed is of the log of now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aggregator.leader.leader_events import LogChanged
from tests.protocol_kit import T0, WINDOW_S, build_world, open_epochs
from tests.reader_kit import HOSTS, OneProcess, after, give_epochs, honest_bytes
from transport.interface import Record
from wire.envelope import Kind, wrap
from wire.topics import REPORTS


def test_window_that_spans_two_logs_holds_the_second_ones_commit(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    open_epochs(world)
    fleet = OneProcess(world, tmp_path)
    give_epochs(fleet)
    fleet.clock.now_s = after(T0)
    records = [
        Record(REPORTS, 0, 100 + number, b"", wrap(Kind.REPORT, raw), float(T0))
        for number, raw in enumerate(honest_bytes(world))
    ]
    fleet.read(records[:3])
    fleet.tick(after(T0))
    assert fleet.log.committed[REPORTS, 0] == 100
    fleet.feed(LogChanged(REPORTS))
    second = [replace(record, offset=number) for number, record in enumerate(records[3:6])]
    fleet.read([replace(records[0], offset=0)])  # what it has already counts no second time
    fleet.read([replace(record, offset=record.offset + 1) for record in second])
    fleet.tick(after(T0) + 1)
    assert fleet.log.committed[REPORTS, 0] == 0
    fleet.read([replace(r, offset=4 + number) for number, r in enumerate(records[6:])])
    for late_s in (31, 32):
        fleet.tick(T0 + WINDOW_S + late_s)
    assert fleet.log.committed[REPORTS, 0] == 4 + HOSTS - 6
    (released,) = fleet.store.written
    assert released.n == HOSTS
