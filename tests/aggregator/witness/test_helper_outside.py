"""The Helper's process with what it has outside: a witness process, and the log's releases."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aggregator.helper import helper_runtime
from aggregator.helper.helper_runtime import HelperRuntime, compare_releases
from aggregator.party.channel import ChannelHelper
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import HelperConfig, WitnessProcess, WitnessSettings
from aggregator.protocol.interfaces import HelperUnavailable
from aggregator.witness.backends import ProcessWitness
from aggregator.witness.chain import RollbackSeen, WitnessUnavailable
from aggregator.witness.service import WitnessConfig, WitnessShell
from tests.aggregator.witness.witness_kit import (
    HELPER_KEYS,
    TIMEOUT_S,
    WITNESS_KEY,
    ProcessStand,
    extend,
    patiently,
)
from tests.disk_kit import fill, small_disk
from tests.process_kit import ProcessFleet, helper_config
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Clock,
    Fleet,
    build_world,
    honest_reports,
    open_epochs,
    start_helper,
)
from tests.wait_kit import until
from transport.embedded.embedded import EmbeddedLog
from transport.factory import EmbeddedSettings, open_transport
from transport.files.keyfiles import write_signing_key
from transport.interface import TransportUnavailable
from wire.envelope import Kind, wrap
from wire.topics import RELEASES, release_key

LATER = T0 + 10 * WINDOW_S


def publish(log: EmbeddedLog, entry: bytes) -> None:
    producer = log.producer()
    producer.send(RELEASES, release_key("minute", 0), wrap(Kind.RELEASE, entry))
    producer.close()


def compared(world: Any, state: Any, log: EmbeddedLog) -> int:
    return compare_releases(log, world.helper_key.public_bytes, state, lambda: None)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with EmbeddedLog(tmp_path / "log") as made:
        made.create_topic(RELEASES, 1)
        yield made


def test_release_of_its_own_that_the_state_lacks_is_refused(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    """Database and fence are put back together; no witness is configured."""
    world = build_world(10)
    for name in ("live", "backup"):
        (tmp_path / name).mkdir()
    fleet = Fleet(world, tmp_path / "live")
    for name in ("helper.sqlite", "helper.fence"):
        shutil.copy(tmp_path / "live" / name, tmp_path / "backup" / name)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    (final,) = fleet.state.to_publish(10)
    # Records of others say nothing: garbage, the Leader's alone, another Helper's.
    for entry in (b"\1" * 50, final.entry[:-64] + bytes(64), final.entry[:-64] + b"\1" * 64):
        publish(log, entry)
    _, restored, _ = start_helper(world, tmp_path / "backup", Clock())
    assert compared(world, restored, log) == 3
    publish(log, final.entry)
    with pytest.raises(RollbackSeen, match="new identity"):
        compared(world, restored, log)
    assert compared(world, fleet.helper_state, log) == 4
    restored.close()


def test_restore_that_was_noticed_answers_for_releases_until_then(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    """The state alone came back: the fence closed every window that was over by then."""
    world = build_world(10)
    fleet = Fleet(world, tmp_path)
    shutil.copy(tmp_path / "helper.sqlite", tmp_path / "backup.sqlite")
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    (final,) = fleet.state.to_publish(10)
    publish(log, final.entry)
    fleet.helper_state.close()
    shutil.copy(tmp_path / "backup.sqlite", tmp_path / "helper.sqlite")
    _, restored, _ = start_helper(world, tmp_path, Clock(4_000_000_000))
    assert restored.refuse_before_s == 4_000_000_000
    assert compared(world, restored, log) == 1
    publish(log, final.entry)
    restored.close()


def test_log_without_the_topic_shows_nothing(tmp_path: Path) -> None:
    world = build_world(10)
    _, state, _ = start_helper(world, tmp_path, Clock())
    with EmbeddedLog(tmp_path / "empty") as log:
        assert compared(world, state, log) == 0
    state.close()


class Running:
    """A Helper's shell in a thread, its turns short."""

    def __init__(self, fleet: ProcessFleet, **changes: Any) -> None:
        base = helper_config(fleet.folder, fleet.world.leader_key.public_bytes)
        self.config: HelperConfig = replace(base, **changes)
        self.shell = HelperRuntime(self.config, clock=fleet.clock)
        self.ended: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.shell.run()
        except Exception as error:  # noqa: BLE001  (a test looks at it)
            self.ended = error

    def wait(self) -> BaseException | None:
        self.thread.join(60)
        went_on = self.thread.is_alive()
        self.shell.stop()
        self.thread.join()
        assert not went_on
        return self.ended

    def stop(self) -> None:
        self.shell.stop()
        assert self.wait() is None

    def troubles(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.config.status_file.read_text())["troubles"]
        except FileNotFoundError:
            return {"": "nothing said yet"}
        return found


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessFleet]:
    monkeypatch.setattr(helper_runtime, "STATUS_EVERY_S", 0.05)
    made = ProcessFleet(build_world(10), tmp_path)
    made.clock.set(LATER)
    yield made
    made.stop()


def release_one(fleet: ProcessFleet, folder: Path) -> bytes:
    """One window through a Leader and the Helper that serves; the release as it goes to the log."""
    channel = ChannelHelper(ChannelAddress(socket=fleet.folder / "run" / "h.sock"))
    until(lambda: answers(channel))
    folder.mkdir()
    leader = Fleet(fleet.world, folder, helper=channel)
    leader.send_epochs(open_epochs(fleet.world))
    leader.send(honest_reports(fleet.world))
    leader.close_window()
    (final,) = leader.state.to_publish(10)
    channel.close()
    leader.state.close()
    return final.entry


def answers(channel: ChannelHelper) -> bool:
    """Whether batches are answered; garbage is refused with a reason."""
    try:
        return bool(channel.submit_batch(b"\1" * 3, epochs_complete=False).refusal)
    except HelperUnavailable:
        return False


def serves(channel: ChannelHelper) -> bool:
    """Whether the Helper says who it is."""
    try:
        return channel.status().version == "plst1"
    except HelperUnavailable:
        return False


def test_restored_process_reads_the_releases_before_it_answers(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    """Its witness is put back too, and says what the copy expects."""
    stand = ProcessStand(tmp_path / "witness")
    outside = {"transport": EmbeddedSettings(fleet.folder / "log"), **witnessed(stand.address)}
    first = Running(fleet, **outside)
    first.stop()
    backup = tmp_path / "backup"
    backup.mkdir()
    names = ("helper.sqlite", "helper.fence")
    for name in names:
        shutil.copy(fleet.folder / name, backup / name)
    stand.back_up(0)
    live = Running(fleet, **outside)
    publish(fleet.log, release_one(fleet, tmp_path / "leader"))
    live.stop()
    again = Running(fleet, **outside)  # a restart of what was not rolled back
    channel = ChannelHelper(ChannelAddress(socket=fleet.folder / "run" / "h.sock"))
    until(lambda: answers(channel))
    channel.close()
    again.stop()
    for name in names:
        shutil.copy(backup / name, fleet.folder / name)
    stand.forget(0)
    ended = Running(fleet, **outside).wait()
    stand.end()
    assert isinstance(ended, RollbackSeen)
    assert "plst1.releases" in str(ended)


def test_log_that_is_away_at_the_start_is_waited_for(
    fleet: ProcessFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True

    def open_or_not(*given: Any) -> Any:
        if away:
            raise TransportUnavailable("log: expected an answer, got none")
        return open_transport(*given)

    monkeypatch.setattr(helper_runtime, "open_transport", open_or_not)
    running = Running(fleet, transport=EmbeddedSettings(fleet.folder / "log"))
    channel = ChannelHelper(ChannelAddress(socket=fleet.folder / "run" / "h.sock"))
    until(lambda: serves(channel))
    until(lambda: "log_away" in running.troubles())
    assert not answers(channel)
    away = False
    until(lambda: answers(channel))
    assert running.troubles() == {}
    channel.close()
    running.stop()


def witnessed(address: ChannelAddress) -> dict[str, Any]:
    address = replace(address, call_timeout_s=TIMEOUT_S)
    return {
        "witnesses": (
            WitnessSettings(WitnessProcess(address, WITNESS_KEY.public_bytes), TIMEOUT_S),
        )
    }


def test_helper_says_that_its_witness_is_away_and_goes_on_when_it_is_back(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    stand = ProcessStand(tmp_path / "witness")
    stand.stop()
    running = Running(fleet, **witnessed(stand.address))
    channel = ChannelHelper(ChannelAddress(socket=fleet.folder / "run" / "h.sock"))
    until(lambda: serves(channel))  # keys are announced meanwhile
    until(lambda: "witness_away" in running.troubles())
    assert not answers(channel)
    stand.start()
    until(lambda: answers(channel))
    assert release_one(fleet, tmp_path / "leader")
    until(lambda: running.shell.health.document["links_witnessed"] == 2)
    channel.close()
    running.stop()
    stand.end()


def test_rolled_back_process_ends_and_says_how_to_go_on(
    fleet: ProcessFleet, tmp_path: Path
) -> None:
    stand = ProcessStand(tmp_path / "witness")
    Running(fleet, **witnessed(stand.address)).stop()
    backup = shutil.copy(fleet.folder / "helper.sqlite", tmp_path / "backup.sqlite")
    fence = shutil.copy(fleet.folder / "helper.fence", tmp_path / "backup.fence")
    live = Running(fleet, **witnessed(stand.address))
    release_one(fleet, tmp_path / "leader")
    live.stop()
    shutil.copy(backup, fleet.folder / "helper.sqlite")
    shutil.copy(fence, fleet.folder / "helper.fence")
    rolled_back = Running(fleet, **witnessed(stand.address))
    ended = rolled_back.wait()
    assert isinstance(ended, RollbackSeen)
    assert "--after-restore" in rolled_back.troubles()["rolled_back"]["detail"]
    config = replace(
        helper_config(fleet.folder, fleet.world.leader_key.public_bytes),
        **witnessed(stand.address),
    )
    stand.stop()
    with pytest.raises(WitnessUnavailable):
        HelperRuntime(config, clock=fleet.clock, after_restore=True)
    stand.start()
    shell = HelperRuntime(config, clock=fleet.clock, after_restore=True)
    shell.stop()
    shell.run()
    assert shell.health.document["refuses_windows_before"] == LATER
    stand.end()


@pytest.fixture
def witness_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WitnessConfig:
    monkeypatch.setattr("aggregator.party.health.STATUS_EVERY_S", 0.05)
    (tmp_path / "keys").mkdir()
    write_signing_key(tmp_path / "keys" / "identity.key", WITNESS_KEY)
    return WitnessConfig(
        key_dir=tmp_path / "keys",
        state_dir=tmp_path / "disk" / "state",
        helper_pks=(HELPER_KEYS[0].public_bytes,),
        user="pointillist-witness",
        address=ChannelAddress(socket=tmp_path / "w.sock", call_timeout_s=TIMEOUT_S),
        peer_group=None,
        status_file=tmp_path / "status.json",
    )


@contextmanager
def witness_running(config: WitnessConfig) -> Iterator[None]:
    shell = WitnessShell(config)
    thread = threading.Thread(target=shell.run)
    thread.start()
    try:
        yield
    finally:
        shell.stop()
        thread.join(30)


def test_witness_process_keeps_its_chains_and_says_how_many_links(
    witness_config: WitnessConfig,
) -> None:
    links = 0
    for _ in range(2):
        with witness_running(witness_config):
            links = appended(witness_config.address, links)
            until(says(witness_config, links={HELPER_KEYS[0].public_bytes.hex(): links}))
    assert links == 4


@pytest.mark.root
def test_witness_on_a_full_disk_takes_no_link_and_goes_on_when_there_is_room(
    witness_config: WitnessConfig, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, witness_running(witness_config):
        links = appended(witness_config.address, 0)
        ballast = fill(disk)
        witness = ProcessWitness(witness_config.address, WITNESS_KEY.public_bytes, HELPER_KEYS[0])
        with pytest.raises(WitnessUnavailable):
            extend(witness, 1)
        until(says(witness_config, ready=0))
        ballast.unlink()
        until(says(witness_config, ready=1))
        assert appended(witness_config.address, links) == links + 2
        witness.close()


def appended(address: ChannelAddress, before: int) -> int:
    witness = ProcessWitness(address, WITNESS_KEY.public_bytes, HELPER_KEYS[0])
    assert patiently(witness.head).sequence == before
    after = extend(witness, 2).sequence
    witness.close()
    return after


def says(config: WitnessConfig, **wanted: object) -> Callable[[], bool]:
    def look() -> bool:
        if not config.status_file.exists():
            return False
        said = json.loads(config.status_file.read_text(encoding="utf-8"))
        return all(said[name] == value for name, value in wanted.items())

    return look
