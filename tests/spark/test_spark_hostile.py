"""Spark's reader against who may write to the log: what it keeps of forged reports is bounded."""

from __future__ import annotations

from pathlib import Path

from aggregator.leader.admission import PARKED_PER_HOST
from aggregator.protocol.answers import BatchKey
from aggregator.spark.partial_sums import PartialSum
from aggregator.spark.sum_store import SumStore
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    build_world,
    honest_reports,
    open_epochs,
    seeded_bytes,
)
from tests.spark_kit import SparkFleet
from tests.workers.test_workers_release import send
from wire.report import EPOCH_AT, TASK_AT

HOSTS = 5
KEY = BatchKey(b"t" * 32, 0, T0)


def a_pass(first: int, reasons: dict[str, int], hosts: int = 0) -> PartialSum:
    return PartialSum(
        *(KEY, 1, first, T0 + 90, T0 + 61.0, b"e" * 72 * hosts, b"r" * 144 * hosts),
        *(tuple(range(hosts)), None, reasons, b"v" * 8 * hosts),
    )


def test_passes_that_admit_no_host_leave_one_sum(tmp_path: Path) -> None:
    store = SumStore(tmp_path / "sums.sqlite")
    store.put([a_pass(3, {"box": 1})])
    store.put([a_pass(5, {"box": 2}, hosts=1)])
    for number in range(50):
        store.put([a_pass(7 + number, {"box": 1, "tag": 1})])
    store.close()
    again = SumStore(tmp_path / "sums.sqlite")
    for found in (store, again):
        (sums,) = found.sums.values()
        assert [(len(part.offsets), part.first, part.reasons) for part in sums] == [
            (1, 5, {"box": 2}),
            (0, 3, {"box": 51, "tag": 50}),
        ]
    again.close()


def test_epochs_that_forgers_name_are_forgotten_where_no_report_waits(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    open_epochs(world)
    fleet = SparkFleet(world, tmp_path)
    driver = fleet.drive()
    fleet.quiesce()
    honest = [report.encode() for report in honest_reports(world, window=T0)]
    for number in range(3 * PARKED_PER_HOST):
        name = seeded_bytes("an epoch of nobody", number)[:16]
        send(fleet, [r[:EPOCH_AT] + name + r[TASK_AT:] for r in honest], T0 + WINDOW_S + 1)
        fleet.quiesce()
    reader = driver.shell._reader
    waiting = {report.name for report in driver.store.parked}
    assert reader._epochs._unknown == fleet.leader._wanted.keys() == waiting
    assert len(waiting) == HOSTS * PARKED_PER_HOST
