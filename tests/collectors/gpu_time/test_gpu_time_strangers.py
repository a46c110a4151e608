"""What processes write and how many come: the agent's time and memory stay bounded."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from collectors.binaries.symbols import Demangler
from collectors.boot_clock import boottime_ns
from collectors.gpu_time import gpu_time_source
from collectors.gpu_time.listener import MOST_READ, Held, Listener, Reporter
from collectors.gpu_time.segment import ROWS, RowKind, RowNames
from collectors.interface import SourceUnavailable
from kernels.signatures import Signatures
from tests.followed_kit import FakeLibrary, Followed
from tests.segment_kit import FakeMemory
from tests.wait_kit import until

S = 1_000_000_000
CROWD = 6


@dataclass
class Member:
    """A process that reports, written by hand."""

    pid: int
    memory: FakeMemory
    connection: socket.socket

    def launched(self, launches: int, **fields: int) -> None:
        row = {"kind": RowKind.KERNEL, "count": launches}
        self.memory.rows(("gemm", row), ("relu", row))
        self.memory.head(
            rows_used=3, names_used=10, launches=2 * launches, numbered=2 * launches,
            windows=1, on_ns=launches, **fields,
        )  # fmt: skip


@pytest.fixture
def crowd(followed: Followed) -> Iterator[list[Member]]:
    """Processes that the source follows, of which none has a connection that it could lose."""
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(CROWD)]
    members = []
    for sleeper in sleepers:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.setblocking(False)
        member = Member(sleeper.pid, FakeMemory(), own)
        followed.source._take(Reporter(other, sleeper.pid, 1000, member.memory.segment()))
        members.append(member)
    yield members
    for sleeper, member in zip(sleepers, members, strict=True):
        sleeper.kill()
        sleeper.wait()
        member.connection.close()
        member.memory.close()


def test_a_drain_reads_so_many_rows_and_the_next_goes_on_where_it_ended(
    followed: Followed, crowd: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_time_source, "MOST_READ", 4)
    for member in crowd:
        member.launched(5)
    for drains in range(1, CROWD // 2 + 1):
        followed.drain()
        assert followed.launches() == drains * 2 * 2 * 5  # two processes, two kernels
    followed.drain()
    assert followed.launches() == CROWD * 2 * 5


def test_a_process_is_told_of_when_its_names_are_learnt_of_which_a_drain_learns_so_many(
    followed: Followed, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_time_source, "MOST_LEARNT", 4)
    row = {"kind": RowKind.KERNEL, "count": 1}
    library.memory.rows(*((f"kernel_{number}", row) for number in range(9)))
    followed.drain()  # and OTHER, which has no name
    followed.drain()
    assert followed.activity == []
    library.connection.close()
    until(lambda: all(process.gone for process in followed.source._processes))
    followed.drain()
    assert (len(followed.activity), followed.reporting()) == (9, 0)


def test_the_class_of_a_process_is_found_once_in_a_drain(
    followed: Followed, library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a millisecond: once for each kernel, a drain of many took seconds."""
    asked: list[object] = []
    monkeypatch.setattr(Signatures, "nearest", lambda _, mix: asked.append(mix))
    row = {"kind": RowKind.KERNEL, "count": 10_000}
    library.memory.rows(*((f"kernel_{number}", row) for number in range(50)))
    followed.drain()
    assert (len(followed.activity), len(asked) <= 2) == (50, True)


def test_processes_that_never_rest_do_not_hold_up_a_drain(
    followed: Followed, crowd: list[Member]
) -> None:
    for member in crowd:
        member.launched(5, generation=7)
    followed.drain()
    unsettled = sum(process.unsettled for process in followed.source._processes)
    assert unsettled == MOST_READ // ROWS < CROWD


def test_who_is_not_reached_is_not_told_again(
    followed: Followed, crowd: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_ns = boottime_ns()
    for member in crowd:
        member.launched(5, written_ns=begun_ns)
    followed.drain()
    told = len(followed.times)
    monkeypatch.setattr(gpu_time_source, "MOST_READ", 0)
    followed.drain()
    assert (told, len(followed.times)) == (CROWD, CROWD)


def test_processes_beyond_the_room_are_let_go_and_counted(
    followed: Followed, crowd: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Held] = []

    def refuse(held: Iterator[Held], more: Held) -> bool:
        asked.append(more)
        return len(list(held)) < CROWD - 1

    monkeypatch.setattr(gpu_time_source, "has_room", refuse)
    crowd[0].launched(5)
    followed.drain()
    followed.drain()
    assert asked[0] == Held(1000, 3, 10)
    assert (followed.reporting(), followed.source.left_out["full"] > 0) == (CROWD - 1, True)


def test_a_state_from_the_future_is_no_library_s(followed: Followed, library: FakeLibrary) -> None:
    """Its span would reach back beyond what a history can keep, and its whole batch be lost."""
    followed.drain()
    library.launched(5, 50)
    library.head(written_ns=(1 << 64) - 1, on_ns=1 << 63)
    followed.drain()
    followed.drain()
    assert (followed.times, followed.reporting()) == ([], 0)
    assert followed.source.left_out["malformed"] >= 1


def test_time_is_accounted_for_once_though_a_process_turns_its_clock_back(
    followed: Followed, library: FakeLibrary
) -> None:
    begun_ns = boottime_ns()
    for launches, written_ns in ((1, begun_ns), (2, 5), (3, begun_ns + 7)):
        library.launched(launches, launches)
        library.head(written_ns=written_ns)
        followed.drain()
    assert sum(one.span_ns for one in followed.times) <= boottime_ns() - begun_ns + S


def test_an_agent_whose_socket_another_takes_says_so_and_goes_on(
    followed: Followed, library: FakeLibrary
) -> None:
    later = Listener(followed.path)
    library.launched(5)
    with pytest.raises(SourceUnavailable, match=r"s\.sock is gone, or another agent's"):
        followed.drain()
    assert followed.launches() == 5
    later.close()


def test_names_take_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.gpu_time.segment._MOST_CHARACTERS", 10_000)
    names = RowNames()
    for turn in range(20):
        learnt = [(RowKind.KERNEL, f"{turn}-{name}-" + "x" * 500) for name in range(4)]
        names.learn(learnt)
        assert all(names.called(*row)[0] == row[1] for row in learnt)
        assert sum(map(len, names._named)) <= 10_000


def test_readable_names_take_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.binaries.symbols._MOST_CHARACTERS", 100)
    demangler = Demangler()
    wanted = [f"_Z{5 + len(str(n))}kerne{n}Pf" for n in range(40)]
    assert demangler.demangle(wanted) == [f"kerne{n}(float*)" for n in range(40)]
    assert 0 < sum(map(len, (*demangler._known, *demangler._known.values()))) <= 100
