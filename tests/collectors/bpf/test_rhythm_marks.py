"""Rhythm marks and waits of loads whose sleeps, sends and answers are known."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.records.activity import HostRecord, RhythmKind, RhythmMarks
from tests.bpf_kit import Cgroup, Load, Seen, cgroup, drain, taken

pytestmark = [pytest.mark.root, pytest.mark.kernel]

ASKED, ANSWER_NS = 30, 10_000_000


def watching(source: EbpfSource, group: Cgroup) -> None:
    """Watch a cgroup that is there, but has run nothing yet."""
    source.watch([group.name])
    drain(source)


def records(source: EbpfSource) -> tuple[Seen, list[RhythmMarks]]:
    found: list[HostRecord] = list(source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))
    return taken(found), [one for one in found if isinstance(one, RhythmMarks)]


def asked(source: EbpfSource, group: Cgroup, cwd: Path) -> tuple[Load, Seen, list[RhythmMarks]]:
    load = Load("ask", ASKED, (group,), cwd=cwd)
    drain(source)  # its cgroup is known by name now
    drain(source)
    load.go()
    load.wait()
    seen, marks = records(source)
    load.end()
    return load, seen, marks


def test_marks_and_waits_of_a_client_that_asks(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("cpu") as group:
        watching(source, group)
        load, seen, marks = asked(source, group, tmp_path)
        row = seen.row("cgroup", group.name)
    (client,) = [one for one in marks if one.pid == load.pid]
    (server,) = [one for one in marks if one.pid != load.pid and one.cgroup == group.name]
    assert (client.cgroup, sum(client.beyond)) == (group.name, 0)
    assert client.program.startswith("python")
    assert (np.diff(client.at_ns) >= 0).all()
    assert set(client.thread.tolist()) == {load.pid}
    network = client.kind >= RhythmKind.SEND
    expected = [RhythmKind.SEND, RhythmKind.RECEIVE] * ASKED
    assert client.kind[network].tolist() == expected
    assert client.value[network].tolist() == [1] * len(expected)
    assert len(set(client.socket[network].tolist()) - {0}) == 1
    answers = (server.kind == RhythmKind.SEND).sum()
    assert answers == ASKED
    slept = client.value[client.kind == RhythmKind.WAKE]
    # On a busy machine a client may be late to its own sleep.
    assert (slept >= 0.7 * ANSWER_NS).sum() == ASKED
    assert np.median(slept) >= ANSWER_NS
    # Both sleep: the client for the answer, the server before it.
    waited_ns = ASKED * ANSWER_NS
    assert 0.9 * waited_ns <= row["receive_wait_ns"] <= 1.5 * waited_ns
    assert 1.8 * waited_ns <= row["sleep_ns"] <= 3 * waited_ns
    assert row["send_wait_ns"] == 0
    assert seen.total("wakeups") >= 2 * ASKED
    assert seen.total("net_srtts") >= 2 * ASKED
    assert seen.total("net_srtt_us") > 0


def test_cgroups_that_are_not_watched_make_no_marks(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("cpu") as group:
        source.watch(["/nowhere"])
        _, seen, marks = asked(source, group, tmp_path)
        row = seen.row("cgroup", group.name)
    assert marks == []
    assert row["switches"] >= 2 * ASKED
    assert row["sleep_ns"] == 0


def test_busy_cgroups_are_watched_unasked(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("cpu") as group:
        load = Load("ask", 60, (group,), cwd=tmp_path)
        drain(source)
        load.go()
        time.sleep(0.2)
        drain(source)  # it was busy: from here on it is watched
        load.wait()
        _, marks = records(source)
        load.end()
    assert load.pid in {one.pid for one in marks}


def test_marks_beyond_the_bound_are_counted(source: EbpfSource, tmp_path: Path) -> None:
    pieces = 4_000
    with cgroup("cpu") as group:
        watching(source, group)
        load = Load("tcp", pieces * 16_384, (group,), cwd=tmp_path)
        drain(source)
        drain(source)
        load.go()
        load.wait()
        _, marks = records(source)
        load.end()
    (mine,) = [one for one in marks if one.pid == load.pid]
    sends = int((mine.kind == RhythmKind.SEND).sum())
    assert sends + mine.beyond[RhythmKind.SEND] == pieces
    assert mine.beyond[RhythmKind.SEND] > 0
    assert sends >= 250


def test_packets_that_a_full_socket_refuses_are_queue_drops(
    source: EbpfSource, tmp_path: Path
) -> None:
    drain(source)
    load = Load("overflow", 100, (), "unshare", "-n", cwd=tmp_path)
    load.go()
    (said,) = load.wait()
    seen = drain(source)
    load.end()
    refused = int(said.split()[1])
    assert refused > 50
    assert refused <= seen.total("queue_drops") <= refused + 5


def test_too_many_cgroups_to_watch_are_refused(source: EbpfSource) -> None:
    with pytest.raises(ValueError, match="at most 64"):
        source.watch([f"/{number}" for number in range(65)])
