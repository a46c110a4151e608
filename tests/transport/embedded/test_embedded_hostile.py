"""Another user of the log's group writes what no member writes: nobody dies of it."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from transport.embedded.embedded import EmbeddedLog
from transport.embedded.embedded_group import Membership
from transport.process.supervision import boot_s

TOPIC = "plst1.reports"
HERE = Membership("leader", [], 1.0, "here")


def other_user(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "log.sqlite", isolation_level=None)


@pytest.mark.parametrize("topics", ["junk", "[[1]]", '{"1": 2}', "[" * 100_000, '["1"]'])
def test_member_with_topics_of_no_member_is_replaced(tmp_path: Path, topics: str) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic(TOPIC, 2)
        other_user(tmp_path / "log").execute(
            "INSERT INTO members VALUES ('leader', 'x', ?, ?, ?, ?, 1)",
            (topics, boot_s() + 9e9, HERE._boot, HERE._space),
        )
        consumer = log.consumer("leader", [TOPIC])
        assert len(consumer.positions()) == 2
        consumer.close()


def test_member_with_an_impossible_process_is_replaced(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic(TOPIC, 2)
        for pid in (1 << 60, -1, 0):
            other_user(tmp_path / "log").execute(
                "INSERT INTO members VALUES ('leader', ?, '[1]', ?, ?, ?, ?)",
                (str(pid), boot_s() + 9e9, HERE._boot, HERE._space, pid),
            )
        consumer = log.consumer("leader", [TOPIC])
        assert len(consumer.positions()) == 2
        consumer.close()


def test_record_that_is_no_bytes_is_passed_over(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log") as log:
        log.create_topic(TOPIC, 1)
        db = other_user(tmp_path / "log")
        db.execute("DROP TABLE records")
        db.execute('CREATE TABLE records (topic_id, partition, "offset", appended_s, key, value)')
        rows = [
            (1, 0, 0, 0.0, b"k", "text"),
            (1, 0, 1, 0.0, None, b"v"),
            (1, 0, 2, 0.0, b"k", b"v"),
        ]
        db.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)
        consumer = log.consumer("leader", [TOPIC])
        assert [record.value for record in consumer.poll(10, 0.0)] == [b"v"]
        consumer.close()


def test_purge_spares_the_topics_that_are_kept(tmp_path: Path) -> None:
    with EmbeddedLog(tmp_path / "log", keep=("tasks",)) as log:
        for topic in ("tasks", TOPIC):
            log.create_topic(topic, 1)
            producer = log.producer()
            producer.send(topic, b"k", topic.encode())
            producer.close()
        assert log.purge(time.time() + 1) == 1
        consumer = log.consumer("new", ["tasks", TOPIC])
        assert [record.value for record in consumer.poll(10, 0.0)] == [b"tasks"]
        consumer.close()
