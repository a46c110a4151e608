"""The embedded log: the contract of all transports, and what belongs to a SQLite file alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transport.conformance import (
    PARTITIONS,
    SPAWN,
    TOPIC,
    TransportConformance,
    TransportFactory,
    append,
    kill,
    poll_until,
    read_and_hold,
    read_until,
)
from transport.embedded.embedded import EmbeddedLog
from transport.embedded.embedded_group import FILE_NAME, Membership, share_out
from transport.interface import Noted, Transport, TransportUnavailable, partition_of
from transport.process.supervision import close_within


@dataclass(frozen=True)
class EmbeddedFactory:
    """The log in a folder, with a short lease, so that silent members are soon replaced."""

    folder: Path
    lease_s: float = 1.0
    max_value_bytes: int = 1 << 20

    def open(self) -> Transport:
        return EmbeddedLog(self.folder, lease_s=self.lease_s, max_value_bytes=self.max_value_bytes)

    def make_anew(self) -> None:
        shutil.rmtree(self.folder)
        with self.open() as log:
            log.create_topic(TOPIC, PARTITIONS)


class TestEmbeddedConformance(TransportConformance):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> TransportFactory:
        return EmbeddedFactory(tmp_path / "log")


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    with EmbeddedLog(folder) as log:
        log.create_topic(TOPIC, 2)
    return folder


def test_partition_of_a_key_never_changes() -> None:
    # These numbers are part of the file format: a key must not move when the program is upgraded.
    assert [partition_of(key, 8) for key in (b"", b"a", b"host-1", bytes(16))] == [0, 3, 3, 5]


@pytest.mark.parametrize("group", ["no-such-group", *(["root"] if os.geteuid() else [])])
def test_log_for_a_group_that_is_not_its_maker_s_is_refused_and_nothing_is_made(
    tmp_path: Path, group: str
) -> None:
    for _ in range(3):  # a file left behind would open the next time, for its maker alone
        with pytest.raises(TransportUnavailable, match=f"expected .* group {group} that shares it"):
            EmbeddedLog(tmp_path / "log", group=group)
    assert list(tmp_path.iterdir()) == []


def test_file_of_an_earlier_program_gets_an_identity_and_keeps_its_commits(
    log_folder: Path,
) -> None:
    with EmbeddedLog(log_folder) as log:
        append(log, 20)
        reader = log.consumer("g", [TOPIC])
        read_until(reader, 20)
        reader.commit(reader.positions())
        reader.close()
    with closing(sqlite3.connect(log_folder / FILE_NAME)) as file:
        file.execute("DROP TABLE identity")
    with EmbeddedLog(log_folder) as log, EmbeddedLog(log_folder) as other:
        assert log.identity(TOPIC) == other.identity(TOPIC) != ""
        append(log, 5, first=20)
        reader = log.consumer("g", [TOPIC])
        assert {r.value for r in read_until(reader, 5)} == {b"value-%d" % i for i in range(20, 25)}
        assert reader.notes() == []
        reader.close()


def test_log_that_lost_its_end_is_read_again_by_a_member_that_runs_and_at_a_start(
    log_folder: Path,
) -> None:
    with EmbeddedLog(log_folder) as log:
        append(log, 60)
        reader = log.consumer("g", [TOPIC])
        read_until(reader, 60)
        reader.commit(reader.positions())
        with closing(sqlite3.connect(log_folder / FILE_NAME)) as file, file:
            file.execute('DELETE FROM records WHERE "offset" >= 10')
            file.execute("UPDATE ends SET next_offset = 10")
        found = read_until(reader, 20)
        assert sorted(r.offset for r in found) == sorted([*range(10)] * 2)
        assert {note.noted for note in reader.notes()} == {Noted.SHORTER}
        reader.close()
        late = log.consumer("g", [TOPIC])
        assert len(read_until(late, 20)) == 20
        assert len(late.notes()) == 2
        late.close()


def test_copy_put_back_in_place_of_the_log_is_the_same_log(log_folder: Path) -> None:
    """A member goes over to it, and reads what it has after its commit."""
    with EmbeddedLog(log_folder) as log:
        append(log, 20)
        reader, producer = log.consumer("g", [TOPIC]), log.producer()
        read_until(reader, 20)
        path = log_folder / FILE_NAME
        with closing(sqlite3.connect(path)) as file:
            file.execute("VACUUM INTO ?", (str(log_folder / "copy"),))
        for side in ("-wal", "-shm"):
            path.with_name(FILE_NAME + side).unlink()
        (log_folder / "copy").replace(path)
        producer.send(TOPIC, b"k", b"after")
        producer.flush()
        assert b"after" in {r.value for r in read_until(reader, 21)}
        assert reader.notes() == []
        reader.close()
        producer.close()


def test_flush_failure_keeps_the_records_for_later(log_folder: Path) -> None:
    with EmbeddedLog(log_folder) as log:
        producer = log.producer()
        pages = producer._connection.execute("PRAGMA page_count").fetchone()[0]
        producer._connection.execute(f"PRAGMA max_page_count={pages}")  # a full disk
        producer.send(TOPIC, b"k", b"v" * 100_000)
        with pytest.raises(TransportUnavailable, match="full"):
            producer.flush()
        producer._connection.execute("PRAGMA max_page_count=1000000")
        producer.flush()
        producer.flush()
        consumer = log.consumer("g", [TOPIC])
        assert [len(r.value) for r in read_until(consumer, 1)] == [100_000]
        assert consumer.poll(10, 0.01) == []
        consumer.close()
        producer.close()


def test_send_refuses_to_grow_while_the_log_is_away(
    log_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transport.interface.BATCH_RECORDS", 3)
    with EmbeddedLog(log_folder, busy_timeout_s=0.01) as log:
        producer = log.producer()
        blocker = sqlite3.connect(log.path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            producer.send(TOPIC, b"k", b"v")
        with pytest.raises(TransportUnavailable, match="locked"):
            producer.send(TOPIC, b"k", b"refused")
        blocker.execute("ROLLBACK")
        blocker.close()
        producer.close()
        consumer = log.consumer("g", [TOPIC])
        assert [r.value for r in read_until(consumer, 3)] == [b"v"] * 3
        consumer.close()


def test_log_can_be_created_by_many_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        with EmbeddedLog(tmp_path / "log") as log:
            log.create_topic(TOPIC, 2)
            append(log, 1, first=number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    with EmbeddedLog(tmp_path / "log") as log:
        consumer = log.consumer("g", [TOPIC])
        assert len(read_until(consumer, 8)) == 8
        consumer.close()


def test_opening_reports_a_file_that_is_no_log(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database, and long enough to tell" * 30)
    with pytest.raises(TransportUnavailable, match="not a database"):
        EmbeddedLog(tmp_path)


def test_opening_refuses_the_schema_of_another_version(log_folder: Path) -> None:
    with sqlite3.connect(log_folder / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(TransportUnavailable, match=r"newer version .*schema 7, this one reads 1"):
        EmbeddedLog(log_folder)


def test_opening_reports_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TransportUnavailable, match="file"):
        EmbeddedLog(tmp_path / "file" / "log")


def test_purge_keeps_offsets_and_moves_readers_on(log_folder: Path) -> None:
    with EmbeddedLog(log_folder) as log:
        append(log, 10)
        assert log.purge(older_than_s=2**40) == 10
        append(log, 10, first=10)
        consumer = log.consumer("g", [TOPIC])
        records = read_until(consumer, 10)
        consumer.close()
    assert {r.value for r in records} == {f"value-{i}".encode() for i in range(10, 20)}
    lowest = {p: min(r.offset for r in records if r.partition == p) for p in (0, 1)}
    assert sum(lowest.values()) == 10


def test_purged_records_leave_no_bytes_behind(log_folder: Path) -> None:
    """A masked vector of a page or of many, in the file, its free pages or its write-ahead log."""
    marks = [b"masked vector %d " % number for number in range(3)]
    with EmbeddedLog(log_folder) as log:
        producer = log.producer()
        for mark, repeats in zip(marks, (3, 250, 4000), strict=True):
            producer.send(TOPIC, mark, mark * repeats)
        producer.flush()
        assert any(marks[2] in path.read_bytes() for path in log_folder.iterdir())
        assert log.purge(older_than_s=2**40) == 3
        for path in log_folder.iterdir():
            found = path.read_bytes()
            assert [mark for mark in marks if mark in found] == [], path.name
        producer.close()


def test_retention_is_applied_by_producers(log_folder: Path) -> None:
    with EmbeddedLog(log_folder, retention_s=-60.0) as log:  # everything is already too old
        append(log, 10)
        consumer = log.consumer("g", [TOPIC])
        assert consumer.poll(10, 0.01) == []
        consumer.close()


def test_log_folder_of_one_user_is_private(log_folder: Path) -> None:
    assert stat.S_IMODE(log_folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((log_folder / FILE_NAME).stat().st_mode) == 0o600


def test_shared_log_belongs_to_the_group_whatever_the_umask(tmp_path: Path) -> None:
    import grp

    folder = tmp_path / "log"
    group = grp.getgrgid(os.getegid()).gr_name
    before = os.umask(0o077)
    try:
        with EmbeddedLog(folder, group=group) as log:
            log.create_topic(TOPIC, 2)
            append(log, 3)
            modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2770
    assert modes == dict.fromkeys([FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"], 0o660)


def test_member_alone_looks_for_the_dead_only_after_somebody_wrote(
    log_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = Membership.somebody_died

    def looked(self: Membership, connection: sqlite3.Connection) -> bool:
        looks.append(self.member)
        return real(self, connection)

    monkeypatch.setattr(Membership, "somebody_died", looked)
    monkeypatch.setattr("transport.embedded.embedded._LOOK_EVERY_S", 0.0)
    with EmbeddedLog(log_folder, lease_s=600) as log:
        alone = log.consumer("group", [TOPIC])
        alone.poll(1, 0)
        alone.poll(1, 0)
        before = len(looks)
        assert before
        for _ in range(5):
            alone.poll(1, 0)
        assert len(looks) == before
        monkeypatch.setattr(alone, "_look_s", float("inf"))  # who joins between two looks
        other = log.consumer("group", [TOPIC])
        alone.poll(1, 0)
        alone.poll(1, 0)
        monkeypatch.setattr(alone, "_look_s", 0.0)
        for _ in range(5):
            alone.poll(1, 0)
        assert len(looks) == before + 5
        other.close()
        alone.close()


def test_member_whose_process_died_is_replaced_before_its_lease_ends(log_folder: Path) -> None:
    factory = EmbeddedFactory(log_folder, lease_s=1e9)
    with factory.open() as log:
        append(log, 4)
        has_read = SPAWN.Event()
        child = SPAWN.Process(target=read_and_hold, args=(factory, "g", has_read), daemon=True)
        child.start()
        assert has_read.wait(60)
        heir = log.consumer("g", [TOPIC])
        poll_until([heir], lambda: len(heir.positions()) == 1)
        kill(child)
        poll_until([heir], lambda: len(heir.positions()) == 2)
        heir.close()


def test_leaving_member_does_not_keep_its_lease(log_folder: Path) -> None:
    with EmbeddedLog(log_folder, lease_s=1e9) as log:
        one, two = log.consumer("g", [TOPIC]), log.consumer("g", [TOPIC])
        assert len(one.positions()) == len(two.positions()) == 1
        two.close()
        assert len(one.positions()) == 2
        one.close()


def test_member_leaves_though_another_writer_never_ends(log_folder: Path) -> None:
    with EmbeddedLog(log_folder, busy_timeout_s=0.1) as log:
        consumer = log.consumer("g", [TOPIC])
        with sqlite3.connect(log.path, isolation_level=None) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert close_within(10.0, consumer.close)
            writer.execute("ROLLBACK")
        writer.close()


def test_log_refuses_text_for_bytes(log_folder: Path) -> None:
    with (
        sqlite3.connect(log_folder / FILE_NAME) as other,
        pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT value in BLOB"),
    ):
        other.execute("INSERT INTO records VALUES (1, 0, 0, 0.0, 'text', x'00')")
    other.close()


def test_member_of_an_earlier_boot_is_replaced_at_once(log_folder: Path) -> None:
    with EmbeddedLog(log_folder, lease_s=1e9) as log:
        old = log.consumer("g", [TOPIC])
        log._connection.execute("UPDATE members SET boot = 'earlier', expires_s = 1e12")
        new = log.consumer("g", [TOPIC])
        assert len(new.positions()) == 2
        new.close()
        old.close()


def test_silent_member_reads_again_from_the_commit(log_folder: Path) -> None:
    with EmbeddedLog(log_folder, lease_s=1.0) as log:
        append(log, 6)
        silent = log.consumer("g", [TOPIC])
        assert len(read_until(silent, 6)) == 6
        other = log.consumer("g", [TOPIC])
        poll_until([other], lambda: len(other.positions()) == 2)
        other.close()
        assert len(read_until(silent, 6)) == 6
        silent.close()


_MEMBERS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.frozensets(st.integers(0, 3), min_size=1),
    max_size=6,
)
_SLOTS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20)


@given(slots=_SLOTS, members=_MEMBERS, data=st.data())
def test_share_out_gives_every_readable_slot_one_able_holder(
    slots: set[tuple[int, int]], members: dict[str, frozenset[int]], data: st.DataObject
) -> None:
    known = [*members, "gone"]
    holders = {slot: data.draw(st.sampled_from(known)) for slot in sorted(slots)}
    result = share_out(sorted(slots), holders, members)
    readable = {slot for slot in slots if any(slot[0] in topics for topics in members.values())}
    assert result.keys() == readable
    assert all(slot[0] in members[member] for slot, member in result.items())


@given(
    partitions=st.integers(1, 20),
    before=st.integers(1, 6),
    after=st.integers(1, 6),
)
def test_share_out_is_even_and_moves_no_more_than_it_must(
    partitions: int, before: int, after: int
) -> None:
    slots = [(0, partition) for partition in range(partitions)]
    topics = frozenset({0})
    held = share_out(slots, {}, {f"m{i}": topics for i in range(before)})
    fresh = share_out(slots, held, {f"m{i}": topics for i in range(after)})
    load = Counter(fresh.values())
    sizes = [load[f"m{i}"] for i in range(after)]
    assert max(sizes) - min(sizes) <= 1
    stays = [slot for slot in slots if int(held[slot][1:]) < after]
    kept = sum(fresh[slot] == held[slot] for slot in stays)
    quota = -(-partitions // after)
    by_member = Counter(held[slot] for slot in stays)
    assert kept >= sum(min(count, quota - 1) for count in by_member.values())
