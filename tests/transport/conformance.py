"""What every transport must do; a subclass names its factory and inherits the tests unchanged."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Protocol

import pytest

from transport.interface import (
    Consumer,
    Noted,
    OpenLog,
    Record,
    RecordTooLarge,
    Transport,
    UnknownTopic,
    partition_of,
)

TOPIC = "reports"
PARTITIONS = 4
PATIENCE_POLLS = 300
"""Polls of 0.1 s before a test gives up: a bound against hanging, not an expectation."""

Join = Callable[[str], Consumer]
"""Opens a member of a group."""

SPAWN = multiprocessing.get_context("spawn")


class TransportFactory(Protocol):
    """Opens a transport on one log; picklable, as other processes open it too."""

    @property
    def max_value_bytes(self) -> int:
        """The longest value that `send` takes."""
        ...

    def open(self) -> Transport:
        """A fresh access to the same log, whose group members time out within two seconds."""
        ...

    def make_anew(self) -> None:
        """Take the log away with all that it holds, as its operator would, and make TOPIC again."""
        ...


def read_until(consumer: Consumer, count: int) -> list[Record]:
    """Poll until `count` records came."""
    records: list[Record] = []
    for _ in range(PATIENCE_POLLS):
        records += consumer.poll(1000, 0.1)
        if len(records) >= count:
            return records
    raise AssertionError(f"expected {count} records, got {len(records)}")


def poll_until(
    consumers: list[Consumer], holds: Callable[[], bool], values: set[bytes] | None = None
) -> list[Record]:
    """Keep the members polling until `holds`; their values come into `values`."""
    records: list[Record] = []
    for _ in range(PATIENCE_POLLS):
        if holds():
            return records
        for consumer in consumers:
            records += consumer.poll(1000, 0.1)
        if values is not None:
            values.update(record.value for record in records)
    raise AssertionError("the members did not come to an agreement")


def append(transport: Transport, count: int, first: int = 0) -> None:
    producer = transport.producer()
    for i in range(first, first + count):
        producer.send(TOPIC, f"host-{i % 37}".encode(), f"value-{i}".encode())
    producer.close()


def next_offsets(records: list[Record]) -> dict[tuple[str, int], int]:
    result: dict[tuple[str, int], int] = {}
    for r in records:
        slot = (r.topic, r.partition)
        result[slot] = max(result.get(slot, 0), r.offset + 1)
    return result


def produce_numbered(factory: TransportFactory, name: str, count: int) -> None:
    """Body of a child: values `name-0`, `name-1`, ... under one key, flushed now and then."""
    with factory.open() as transport:
        producer = transport.producer()
        for i in range(count):
            producer.send(TOPIC, name.encode(), f"{name}-{i}".encode())
            if i % 7 == 0:
                producer.flush()
        producer.close()


def produce_batches(factory: TransportFactory, batch: int) -> None:
    """Body of a child that is killed: batches of one key without end."""
    with factory.open() as transport:
        producer = transport.producer()
        number = 0
        while True:
            for i in range(batch):
                producer.send(TOPIC, b"one-key", f"{number} {i}".encode())
            producer.flush()
            number += 1


def read_and_hold(factory: TransportFactory, group: str, has_read: Event) -> None:
    """Body of a child that is killed: reads without committing and stays a member."""
    with factory.open() as transport:
        consumer = transport.consumer(group, [TOPIC])
        while True:
            if consumer.poll(1000, 0.1):
                has_read.set()


def kill(process: SpawnProcess) -> None:
    """kill -9, and wait for it."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


class TransportConformance:
    """The contract of `transport.interface`; the subclass overrides the fixture `factory`."""

    @pytest.fixture
    def factory(self) -> TransportFactory:
        raise AssertionError("the subclass names its transport")

    @pytest.fixture
    def transport(self, factory: TransportFactory) -> Iterator[Transport]:
        with factory.open() as transport:
            transport.create_topic(TOPIC, PARTITIONS)
            yield transport

    @pytest.fixture
    def members(self, transport: Transport) -> Iterator[Join]:
        with ExitStack() as stack:

            def join(group: str) -> Consumer:
                consumer = transport.consumer(group, [TOPIC])
                stack.callback(consumer.close)
                return consumer

            yield join

    def test_record_arrives_as_sent(self, transport: Transport, members: Join) -> None:
        producer = transport.producer()
        producer.send(TOPIC, b"\x00key\xff", b"\x00" * 5)
        producer.send(TOPIC, b"k", b"")
        producer.close()
        got = {(r.topic, r.key, r.value) for r in read_until(members("g"), 2)}
        assert got == {(TOPIC, b"\x00key\xff", b"\x00" * 5), (TOPIC, b"k", b"")}

    def test_flush_makes_records_visible_to_another_opening(
        self, transport: Transport, factory: TransportFactory
    ) -> None:
        producer = transport.producer()
        producer.send(TOPIC, b"k", b"v")
        producer.flush()
        with factory.open() as other:
            consumer = other.consumer("g", [TOPIC])
            assert [r.value for r in read_until(consumer, 1)] == [b"v"]
            consumer.close()
        producer.close()

    def test_key_stays_in_one_partition_and_in_order(
        self, transport: Transport, members: Join
    ) -> None:
        append(transport, 200)
        append(transport, 200, first=200)
        records = read_until(members("g"), 400)
        by_key: dict[bytes, list[Record]] = {}
        for record in records:
            by_key.setdefault(record.key, []).append(record)
        for key, of_key in by_key.items():
            assert len({r.partition for r in of_key}) == 1, key
            numbers = [int(r.value.split(b"-")[1]) for r in of_key]
            assert numbers == sorted(numbers), key
        assert len({r.partition for r in records}) == PARTITIONS

    def test_offsets_rise_by_one_from_zero(self, transport: Transport, members: Join) -> None:
        append(transport, 100)
        append(transport, 100, first=100)
        offsets: dict[int, list[int]] = {}
        for record in read_until(members("g"), 200):
            offsets.setdefault(record.partition, []).append(record.offset)
        for partition, seen in offsets.items():
            assert seen == list(range(len(seen))), partition

    def test_poll_respects_its_limit_and_returns_nothing_at_the_end(
        self, transport: Transport, members: Join
    ) -> None:
        append(transport, 25)
        consumer = members("g")
        seen = 0
        while seen < 25:
            records = consumer.poll(10, 1.0)
            assert 0 < len(records) <= 10
            seen += len(records)
        assert consumer.poll(10, 0.05) == []

    def test_group_resumes_at_its_commit(self, transport: Transport, members: Join) -> None:
        append(transport, 60)
        first = members("g")
        done = read_until(first, 60)[:30]
        first.commit(next_offsets(done))
        first.close()
        resumed = read_until(members("g"), 60 - len(done))
        assert Counter(r.value for r in done + resumed).total() == 60
        assert {r.value for r in resumed}.isdisjoint(r.value for r in done)

    @pytest.mark.parametrize("appended", [10, 90])
    def test_log_made_anew_is_read_whole_by_a_member_that_runs_and_by_one_that_comes_later(
        self, transport: Transport, factory: TransportFactory, members: Join, appended: int
    ) -> None:
        """Also where the new one has passed the place where the old one was left."""
        append(transport, 60)
        running = members("g")
        running.commit(next_offsets(read_until(running, 60)))
        assert running.notes() == []
        factory.make_anew()
        with factory.open() as other:
            append(other, appended, first=1000)
            values = {f"value-{1000 + i}".encode() for i in range(appended)}
            found = set[bytes]()
            poll_until([running], lambda: values <= found, found)
            noted = running.notes()
            assert [(note.noted, note.topic) for note in noted] == [(Noted.ANEW, TOPIC)]
            running.commit({(TOPIC, partition): 60 for partition in range(PARTITIONS)})
            running.close()
            late = other.consumer("g", [TOPIC])
            found.clear()  # what was committed was of the old log, and counts for none of these
            poll_until([late], lambda: values <= found, found)
            late.close()

    def test_uncommitted_records_are_delivered_again(
        self, transport: Transport, members: Join
    ) -> None:
        append(transport, 20)
        first = members("g")
        before = read_until(first, 20)
        first.close()
        after = read_until(members("g"), 20)
        assert {(r.partition, r.offset, r.value) for r in after} == {
            (r.partition, r.offset, r.value) for r in before
        }

    def test_positions_follow_reading(self, transport: Transport, members: Join) -> None:
        append(transport, 40)
        consumer = members("g")
        records = read_until(consumer, 40)
        assert consumer.positions() == next_offsets(records)

    def test_lag_counts_what_is_left_to_read(self, transport: Transport, members: Join) -> None:
        append(transport, 25)
        consumer = members("g")
        seen: list[Record] = []
        while len(seen) < 25:
            seen += consumer.poll(10, 0.1)
            assert consumer.lag() == 25 - len(seen) if seen else consumer.lag() in {None, 25}
        append(transport, 5, first=25)
        assert len(read_until(consumer, 5)) == 5
        assert consumer.lag() == 0

    def test_lag_is_unknown_without_a_partition(self, transport: Transport) -> None:
        """No answer of the log is no proof that nothing was left to read."""
        transport.create_topic("single", 1)
        with ExitStack() as stack:
            pair = [transport.consumer("g", ["single"]) for _ in range(2)]
            for one in pair:
                stack.callback(one.close)
            poll_until(pair, lambda: sum(len(one.positions()) for one in pair) == 1)
            assert [one.lag() for one in pair if not one.positions()] == [None]

    def test_groups_do_not_disturb_each_other(self, transport: Transport, members: Join) -> None:
        append(transport, 20)
        one = members("one")
        one.commit(next_offsets(read_until(one, 20)))
        assert len(read_until(members("two"), 20)) == 20

    def test_members_share_the_partitions(self, transport: Transport, members: Join) -> None:
        one, two = members("g"), members("g")

        def divided() -> bool:
            held = [*one.positions(), *two.positions()]
            return len(one.positions()) == len(two.positions()) == 2 and len(set(held)) == 4

        poll_until([one, two], divided)
        append(transport, 100)
        values = Counter(r.value for r in one.poll(1000, 1.0) + two.poll(1000, 1.0))
        for _ in range(PATIENCE_POLLS):
            if values.total() >= 100:
                break
            values.update(r.value for r in one.poll(1000, 0.05) + two.poll(1000, 0.05))
        assert values == Counter({f"value-{i}".encode(): 1 for i in range(100)})

    def test_leaving_member_hands_over_its_partitions(
        self, transport: Transport, members: Join
    ) -> None:
        one, two = members("g"), members("g")
        poll_until([one, two], lambda: len(one.positions()) == len(two.positions()) == 2)
        two.close()
        poll_until([one], lambda: len(one.positions()) == PARTITIONS)
        append(transport, 40)
        assert len(read_until(one, 40)) == 40

    def test_killed_member_is_replaced_from_the_commit(
        self, transport: Transport, factory: TransportFactory, members: Join
    ) -> None:
        append(transport, 40)
        has_read = SPAWN.Event()
        child = SPAWN.Process(target=read_and_hold, args=(factory, "g", has_read), daemon=True)
        child.start()
        try:
            assert has_read.wait(60)
        finally:
            kill(child)
        values = {r.value for r in read_until(members("g"), 40)}
        assert values == {f"value-{i}".encode() for i in range(40)}

    def test_replaced_member_cannot_move_the_commit(
        self, transport: Transport, members: Join
    ) -> None:
        append(transport, 40)
        stale = members("g")
        early = read_until(stale, 40)[:4]
        fresh = members("g")
        # `stale` does not poll any more, so its membership runs out.
        read = poll_until(
            [fresh], lambda: len(fresh.positions()) == PARTITIONS and fresh.lag() == 0
        )
        done = next_offsets(read)
        fresh.commit(done)
        stale.commit(next_offsets(early))
        fresh.close()
        stale.close()
        last = members("g")
        # Nothing comes again: the commit stands where the successor put it.
        assert poll_until([last], lambda: last.positions() == done) == []

    def test_oversized_value_is_refused_and_the_largest_arrives(
        self, transport: Transport, factory: TransportFactory, members: Join
    ) -> None:
        largest = b"\xaa" * factory.max_value_bytes
        producer = transport.producer()
        with pytest.raises(RecordTooLarge, match="expected at most"):
            producer.send(TOPIC, b"k", largest + b"\xaa")
        producer.send(TOPIC, b"k", largest)
        producer.close()
        assert read_until(members("g"), 1)[0].value == largest

    def test_newest_record_tells_the_time_of_the_log(self, transport: OpenLog) -> None:
        """Also a topic that is missing may be asked for; nothing of what is there is read."""
        assert transport.newest_s([TOPIC, "missing"]) is None
        began_s = time.time()
        append(transport, 5)
        newest_s = transport.newest_s([TOPIC, "missing"])
        assert newest_s is not None
        assert began_s - 5 <= newest_s <= time.time() + 5
        consumer = transport.consumer("group", [TOPIC])
        assert len(read_until(consumer, 5)) == 5
        consumer.close()

    def test_unknown_topic_is_refused(self, transport: Transport) -> None:
        producer = transport.producer()
        with pytest.raises(UnknownTopic):
            producer.send("nowhere", b"k", b"v")
        producer.close()
        with pytest.raises(UnknownTopic):
            transport.consumer("g", ["nowhere"])

    def test_topic_stays_as_it_was_made(self, transport: Transport) -> None:
        """Whoever asks for another number of partitions takes the topic as it is."""
        transport.create_topic(TOPIC, PARTITIONS + 1)
        assert transport.partitions(TOPIC) == PARTITIONS
        producer, keys = transport.producer(), [f"key-{i}".encode() for i in range(50)]
        for key in keys:
            producer.send(TOPIC, key, b"")
        producer.close()
        consumer = transport.consumer("group", [TOPIC])
        found = {record.key: record.partition for record in read_until(consumer, 50)}
        consumer.close()
        assert found == {key: partition_of(key, PARTITIONS) for key in keys}
        with pytest.raises(UnknownTopic):
            transport.partitions("nowhere")

    def test_processes_append_at_once(
        self, transport: Transport, factory: TransportFactory, members: Join
    ) -> None:
        names = ["ada", "grace", "mary"]
        children = [
            SPAWN.Process(target=produce_numbered, args=(factory, name, 150)) for name in names
        ]
        for child in children:
            child.start()
        records = read_until(members("g"), 450)
        for child in children:
            child.join()
            assert child.exitcode == 0
        for name in names:
            values = [r.value.decode() for r in records if r.key == name.encode()]
            assert values == [f"{name}-{i}" for i in range(150)]

    def test_killed_producer_leaves_whole_batches(
        self, transport: Transport, factory: TransportFactory, members: Join
    ) -> None:
        batch = 50
        child = SPAWN.Process(target=produce_batches, args=(factory, batch), daemon=True)
        child.start()
        consumer = members("g")
        try:
            records = read_until(consumer, 3 * batch)
        finally:
            kill(child)
        while more := consumer.poll(1000, 0.2):
            records += more
        values = [r.value.decode() for r in records]
        batches = len(values) // batch
        assert values == [f"{b} {i}" for b in range(batches) for i in range(batch)]
        append(transport, 5)  # the log still takes records
        assert len(read_until(consumer, 5)) == 5
