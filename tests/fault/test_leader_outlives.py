"""What a Leader outlives: mixed-up epochs, a growing roster, restarts, a Helper that refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.enrolment.tasks import SignedFolder, sign_roster
from aggregator.leader.leader_events import EpochsArrived, ReportsArrived, StoreSuppressed
from aggregator.leader.leader_runner import restore_leader
from aggregator.leader.leader_state import LeaderState
from aggregator.leader.window_closing import RESEND_S
from aggregator.protocol.directory import Directory
from aggregator.protocol.epochs import AdmittedEpochs
from aggregator.protocol.interfaces import (
    BatchReply,
    HelperPort,
    HelperStatus,
    HelperUnavailable,
    ReleaseReply,
    RosterSeen,
    TaskSeen,
)
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    make_epoch,
    open_epochs,
    seeded_bytes,
    true_sum,
)
from wire.envelope import Kind
from wire.epoch import Epoch
from wire.fields import EpochId
from wire.rejection import ReportRejected


class Away:
    """A Helper behind a broken line, until it is mended."""

    def __init__(self, port: HelperPort) -> None:
        self._port, self.broken = port, True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if self.broken:
            raise HelperUnavailable("away")
        found: Callable[..., Any] = getattr(self._port, name)
        return found


class Refusing:
    """A Helper that answers batches and refuses the first releases."""

    def __init__(self, port: HelperPort, refusals: int) -> None:
        self._port, self._left = port, refusals
        self.asked: list[bytes] = []

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._port.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        return self._port.submit_batch(signed_batch, epochs_complete=epochs_complete)

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        self.asked.append(entry)
        if self._left:
            self._left -= 1
            return ReleaseReply(refusal="release_chain")
        return self._port.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._port.status()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(build_world(10), tmp_path)
    yield made
    made.state.close()


def test_later_epoch_polled_first_loses_no_report(fleet: Fleet) -> None:
    """Epochs of a host lie in several partitions: N + 1 may be read a poll before N."""
    world = fleet.world
    first = [make_epoch(world, h, name=1, not_before=T0 - 600) for h in world.hosts]
    second = [make_epoch(world, h, name=2, not_before=T0 + 30) for h in world.hosts]
    for made in (second, first):
        records = [fleet.epoch_log.append(Kind.EPOCH, epoch.encode()) for epoch, _ in made]
        fleet.feed(EpochsArrived(records, T0 + 31))
    for host, (epoch, secrets) in zip(world.hosts, first, strict=True):
        host.epoch, host.secrets = epoch, secrets
    fleet.send(honest_reports(world))
    fleet.close_window()
    assert fleet.leader.rejected == {}
    assert np.array_equal(fleet.store.written[0].vector, true_sum(world, world.hosts))


@pytest.mark.parametrize("grown", [{"n_max": 9}, {"operators": lambda i: f"operator-{i // 3}"}])
def test_window_of_a_roster_that_outgrew_the_task_is_suppressed(
    grown: dict[str, Any], tmp_path: Path
) -> None:
    world = build_world(10, **grown)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    assert (fleet.store.written, fleet.leader.suppressed) == ([], {"roster_bound": 1})
    assert fleet.helper_state.counts()["answers"] == 0


def test_reports_parked_for_a_frozen_window_are_refused(fleet: Fleet) -> None:
    world = fleet.world
    fleet.port = Away(fleet.port)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    junk = [
        replace(report, epoch_id=EpochId(seeded_bytes("forged", k)[:16]))
        for report in honest_reports(world)
        for k in range(8)
    ]
    fleet.send(junk, fleet.clock())
    # Of each of five operators of two hosts, three times their reports are looked at once more.
    assert fleet.leader.rejected == {"window_late": 30, "quota": 50}
    assert fleet.leader.intake.parked == {}


def test_reports_parked_for_a_window_that_is_past_are_swept(fleet: Fleet) -> None:
    """After a restart a frozen window may wait for epochs, until its retention ends."""
    world = fleet.world
    fleet.port = Away(fleet.port)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    fleet.restart_leader()
    forged = [replace(r, epoch_id=EpochId(bytes(16))) for r in honest_reports(world)]
    fleet.clock.now_s += 1
    fleet.feed(ReportsArrived([fleet.append(r) for r in forged], fleet.clock()))
    assert len(fleet.leader.intake.parked) == 10
    fleet.tick(T0 + WINDOW_S + world.task.retention_s + 100)
    assert (fleet.leader.intake.parked, fleet.leader.intake.parked_bytes) == ({}, 0)


def test_frozen_batch_ends_with_its_task_over_a_restart(tmp_path: Path) -> None:
    world = build_world(10, expiry=T0 + 120)
    fleet = frozen_fleet(world, tmp_path)
    fleet.clock.now_s = T0 + 200
    directory = Directory(world.parties)
    directory.add_roster(world.roster_bytes)
    with pytest.raises(ReportRejected, match="task_expired"):
        directory.add_task(world.task_bytes, T0 + 200)
    assert directory.add_task(world.task_bytes, T0 + 200, at_start=True).task == world.task
    fleet.restart_leader()
    fleet.port.broken = False  # type: ignore[attr-defined]
    fleet.tick(T0 + 260)
    assert fleet.store.written == []
    assert [(s.window_start_s, s.reason, s.hosts) for s in fleet.store.suppressed] == [
        (T0, "task_expired", 10)
    ]


def test_restarted_leader_opens_the_epochs_that_reports_name_and_no_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []
    really = AdmittedEpochs._open

    def noted(self: AdmittedEpochs, epoch: Epoch, raw: bytes) -> bytes:
        opened.append(bytes(epoch.header.host_id))
        return really(self, epoch, raw)

    fleet.send_epochs(open_epochs(fleet.world))
    monkeypatch.setattr(AdmittedEpochs, "_open", noted)
    fleet.restart_leader()
    assert (opened, len(fleet.leader.book)) == ([], 10)
    hosts = fleet.world.hosts[:9]
    fleet.send(honest_reports(fleet.world, hosts))
    assert (fleet.leader.admitted, sorted(opened)) == (9, sorted(host.id for host in hosts))


def frozen_fleet(world: World, folder: Path) -> Fleet:
    """A window frozen while the Helper is away."""
    fleet = Fleet(world, folder)
    fleet.port = Away(fleet.port)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    assert len(fleet.state.closed()) == 1
    return fleet


def test_frozen_batch_whose_task_is_gone_is_settled(fleet: Fleet, tmp_path: Path) -> None:
    other = frozen_fleet(build_world(10), tmp_path / "other")
    other.state.close()
    state = LeaderState(tmp_path / "other" / "leader.sqlite")
    empty = fleet.leader
    empty.directory.tasks.clear()
    (owed,) = restore_leader(empty, state, T0 + 200)
    assert isinstance(owed, StoreSuppressed)
    assert (owed.series, owed.hosts, owed.public().n_min) == ("minute", 10, None)
    state.store_suppressed(owed)
    assert state.closed() == []
    assert (state.counts(), empty.suppressed) == ({"suppressed": 1}, {"task_unknown": 1})
    state.close()


def test_signed_files_come_by_version_and_a_superseded_task_comes_back(tmp_path: Path) -> None:
    """`v10` sorts before `v9` by name; a window of either may still be open after a restart."""
    world = build_world(10, version=9)
    newer = world.resign(version=10)
    for number, made in ((9, world), (10, newer)):
        (tmp_path / f"minute-v{number}.task").write_bytes(made.task_bytes)
        later = replace(world.roster, version=number)
        signed = sign_roster(later, world.leader_key, world.helper_key)
        (tmp_path / f"fleet-v{number}.roster").write_bytes(signed)
    names = [path.name for path, _ in SignedFolder(tmp_path).new_files()]
    assert names == [f"{kind}" for kind in (
        "fleet-v9.roster", "fleet-v10.roster", "minute-v9.task", "minute-v10.task"
    )]  # fmt: skip
    directory = Directory(world.parties)
    for signed in (newer.task_bytes, world.task_bytes):
        directory.add_task(signed, T0, at_start=True)
    assert len(directory.tasks) == 2
    with pytest.raises(ReportRejected, match="task_superseded"):
        directory.add_task(world.resign(t=3).task_bytes, T0, at_start=True)
    with pytest.raises(ReportRejected, match="task_superseded"):
        directory.add_task(world.resign(version=8).task_bytes, T0)


def test_signed_file_that_cannot_be_read_is_read_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "minute.task").write_bytes(build_world(2).task_bytes)
    folder = SignedFolder(tmp_path)

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as owned_by_root:
        owned_by_root.setattr(Path, "read_bytes", refused)
        with pytest.raises(PermissionError):
            list(folder.new_files())
    assert [path.name for path, _ in folder.new_files()] == ["minute.task"]
    assert list(folder.new_files()) == []


def test_refused_countersignature_is_final_and_blocks_nothing(tmp_path: Path) -> None:
    fleet = Fleet(build_world(10), tmp_path)
    fleet.port = refusing = Refusing(fleet.port, 1)
    fleet.send_epochs(open_epochs(fleet.world))
    fleet.send(honest_reports(fleet.world))
    fleet.close_window()
    assert fleet.leader.rejected == {"release_chain": 1}
    assert fleet.state.unsigned() == []
    for later in range(40, 400, 40):
        fleet.tick(T0 + WINDOW_S + later)
    assert len(refusing.asked) == 1
    (unsigned,) = fleet.state.to_publish(9)  # as the transcript has it: one signature
    assert unsigned.entry == refusing.asked[0]
    window = T0 + WINDOW_S * 8
    fleet.send(honest_reports(fleet.world, window=window), window + WINDOW_S + 1)
    fleet.tick(fleet.clock.now_s + RESEND_S)  # hosts were silent for eight windows
    assert len(fleet.store.written) == 2
    # The Helper's chain has parted from the Leader's: it is asked, and says so, once a window.
    assert len(refusing.asked) == 2
    assert fleet.leader.rejected == {"release_chain": 2}
    assert fleet.state.unsigned() == []
    fleet.state.close()


def test_roster_events_follow_the_rules_of_the_directory(fleet: Fleet) -> None:
    """A roster in the middle of a week moves no window that was sealed under the one before."""
    world = fleet.world
    midweek = replace(world.roster, version=2, effective_from=T0 - 30)
    signed = sign_roster(midweek, world.leader_key, world.helper_key)
    for take in (fleet.leader.handle, fleet.helper.learn):
        with pytest.raises(ReportRejected, match="roster_change"):
            take(RosterSeen(signed))
    fleet.leader.handle(TaskSeen(world.resign(version=2).task_bytes, T0))
    assert set(fleet.leader.directory.rosters) == {1}
