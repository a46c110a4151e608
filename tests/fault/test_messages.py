"""Messages that come twice, in another order, late, cut short or forged change no release."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS
from tests.tampering import Held, Sent
from wire.envelope import Kind, unwrap, wrap
from wire.report import Report
from wire.topics import EPOCHS, REPORTS

LATE_HOST = 3


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    made = FaultFleet(tmp_path)
    yield made
    made.close()


@pytest.mark.fault_case("messages-duplicated")
def test_messages_that_come_three_times_count_once(fleet: FaultFleet) -> None:
    fleet.tamper = lambda _number, sent: [sent] * 3
    verdict = fleet.finish()
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
    # The copies of a window's last report come when it is released already.
    refused = fleet.all_refused()
    assert refused["duplicate"] + refused["window_released"] == 2 * 3 * HOSTS


@pytest.mark.fault_case("messages-reordered")
@pytest.mark.parametrize("seed", [1, 2])
def test_messages_in_another_order_are_all_released(fleet: FaultFleet, seed: int) -> None:
    held, order = Held(), random.Random(seed)
    for window in fleet.windows():
        fleet.tamper = held
        fleet.run_to(window + fleet.task.window_s + 20, step_s=STEP_S)
        order.shuffle(held.records)
        _pass_on(fleet, [sent for sent in held.records if sent[0] == REPORTS])
        fleet.step()  # they are read before their epochs
        _pass_on(fleet, [sent for sent in held.records if sent[0] == EPOCHS])
        held.records.clear()
    verdict = fleet.finish()
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.mark.fault_case("messages-delayed")
def test_message_past_the_lateness_is_refused_by_name(fleet: FaultFleet) -> None:
    held = Held(lambda number, sent: number == LATE_HOST and sent[0] == REPORTS)
    fleet.tamper = held
    fleet.run_to(fleet.end_s + 100, step_s=STEP_S)
    assert len(held.records) == 3
    fleet.tamper = None
    _pass_on(fleet, held.records)
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released) == (3, 3 * (HOSTS - 1))
    assert verdict.lost == {"refused": 3}
    assert fleet.all_refused() == {"window_late": 3}


def _cut_record(value: bytes, length: int) -> bytes:
    return value[:length]


def _cut_report(value: bytes, length: int) -> bytes:
    """The report alone is cut; its envelope says how long it is now."""
    return wrap(Kind.REPORT, unwrap(value, 1 << 20)[1][:length])


@pytest.mark.fault_case("messages-truncated")
@pytest.mark.parametrize(
    ("shorten", "whole", "refused"),
    [
        (_cut_record, len, lambda size: {"envelope": size}),
        # An envelope of nothing is none.
        (
            _cut_report,
            lambda value: len(unwrap(value, 1 << 20)[1]),
            lambda size: {"length": size - 1, "envelope": 1},
        ),
    ],
    ids=["record", "report"],
)
def test_messages_cut_short_are_refused_and_the_whole_ones_count(
    fleet: FaultFleet,
    shorten: Callable[[bytes, int], bytes],
    whole: Callable[[bytes], int],
    refused: Callable[[int], dict[str, int]],
) -> None:
    """At each length, which the hosts divide among themselves; of one only the cut ones come."""
    sizes = set()

    def cut(number: int, sent: Sent) -> Sequence[Sent]:
        topic, key, value = sent
        if topic != REPORTS:
            return [sent]
        sizes.add(whole(value))
        lengths = range(number, whole(value), HOSTS)
        parts = [(topic, key, shorten(value, length)) for length in lengths]
        return parts if number == LATE_HOST else [*parts, sent]

    fleet.tamper = cut
    verdict = fleet.finish()
    assert (verdict.windows, verdict.released) == (3, 3 * (HOSTS - 1))
    assert verdict.lost == {"refused": 3}
    (size,) = sizes
    assert fleet.all_refused() == {name: 3 * count for name, count in refused(size).items()}


@pytest.mark.fault_case("messages-forged")
def test_forged_messages_take_no_reports_place(fleet: FaultFleet) -> None:
    """Each comes before the genuine one."""

    def forge(_number: int, sent: Sent) -> Sequence[Sent]:
        topic, key, value = sent
        if topic != REPORTS:
            return [(topic, key, value[:-1] + bytes([value[-1] ^ 1])), sent]
        report = Report.decode(unwrap(value, 1 << 20)[1])
        header = report.header
        forged = [
            replace(report, box=bytes([report.box[0] ^ 1]) + report.box[1:]),
            replace(report, host_id=type(report.host_id)(bytes(16))),
            replace(report, header=replace(header, window=header.window + 1)),
        ]
        return [*((topic, key, wrap(Kind.REPORT, one.encode())) for one in forged), sent]

    fleet.tamper = forge
    verdict = fleet.finish()
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
    each = 3 * HOSTS
    assert fleet.all_refused() == {
        "box": each, "host_unknown": each, "window_misaligned": each, "epoch_signature": HOSTS,
    }  # fmt: skip


def _pass_on(fleet: FaultFleet, records: Sequence[Sent]) -> None:
    """Give the log what was held back."""
    producer = fleet._transport.producer()
    for topic, key, value in records:
        producer.send(topic, key, value)
    producer.close()
