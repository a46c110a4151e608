"""Both roles as processes beside a broker, and what a report costs each of them."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import psutil

from aggregator.helper.helper_runtime import HelperShell
from aggregator.leader.leader_runtime import LeaderShell
from aggregator.party.channel import prepare_socket_folder
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import HelperConfig, LeaderConfig
from aggregator.party.key_ring import DAY_S
from aggregator.protocol.released import ReleasedWindow
from bench.kafka import bare_rate
from bench.parts import Part
from bench.round_fleet import HELPER, HELPER_BOX, LEADER, LEADER_BOX, T0
from bench.scale_hour import (
    EPOCHS_A_WINDOW,
    HOSTS,
    NOW_S,
    WINDOWS,
    HeldTransport,
    HourLog,
    hour_of_reports,
)
from pointillist.broker.local import RunningBroker
from simulator.engine.interface import MemoryStore
from transport.files.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import Side, open_transport

PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.02
SPAWN: Final = multiprocessing.get_context("spawn")


class RunningClock:
    """The machine's clock, moved so that it stands at a moment of the fleet when it is made."""

    def __init__(self, now_s: float) -> None:
        self._ahead_s = now_s - time.time()

    def __call__(self) -> float:
        """Give unix seconds."""
        return time.time() + self._ahead_s


class NotingStore(MemoryStore):
    """Notes when each window was released, in seconds that all processes share."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def write(self, release: ReleasedWindow) -> None:
        """Note the moment; the numbers are not kept."""
        with self._path.open("a") as file:
            file.write(f"{time.monotonic()} {release.n}\n")


class Release(NamedTuple):
    """A window that was released: seconds of a clock that all processes share, and its hosts."""

    at_s: float
    n: int


@dataclass(frozen=True, slots=True)
class Round:
    """One way to run both roles over one log."""

    folder: Path
    log: KafkaSettings
    clock: RunningClock

    @property
    def hold(self) -> Path:
        """While it is there, nobody reads the log."""
        return self.folder / "hold"

    @property
    def helper_socket(self) -> ChannelAddress:
        """Where the Helper listens."""
        return ChannelAddress(self.folder / "run" / "helper")

    @property
    def leader(self) -> LeaderConfig:
        """The Leader's configuration."""
        return LeaderConfig(
            key_dir=self.folder / "leader-keys",
            state_dir=self.folder / "leader",
            signed_dir=self.folder / "signed",
            helper_pk=HELPER.public_bytes,
            user="",
            transport=self.log,
            helper=self.helper_socket,
            database=self.folder / "none.duckdb",
            releases_dir=self.folder,
            catalogue=None,
            status_file=self.folder / "leader.json",
        )

    @property
    def helper(self) -> HelperConfig:
        """The Helper's configuration."""
        return HelperConfig(
            key_dir=self.folder / "helper-keys",
            state_dir=self.folder / "helper",
            fence_file=self.folder / "helper.fence",
            signed_dir=self.folder / "signed",
            leader_pk=LEADER.public_bytes,
            user="",
            address=self.helper_socket,
            peer_group=None,
            status_file=self.folder / "helper.json",
        )


def run_helper(asked: Round) -> None:
    """What the Helper's process does."""
    shell = HelperShell(asked.helper, clock=asked.clock)
    signal.signal(signal.SIGTERM, lambda *_: shell.stop())
    shell.run()


def run_leader(asked: Round) -> None:
    """What the Leader's process does."""
    store = NotingStore(asked.folder / "released")
    with HeldTransport(open_transport(asked.log, Side.AGGREGATOR), asked.hold) as log:
        shell = LeaderShell(asked.leader, log, store, clock=asked.clock)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


def prepare(signed_task: bytes, roster: bytes, asked: Round) -> None:
    """Write keys, task and roster."""
    (asked.folder / "signed").mkdir()
    (asked.folder / "signed" / "bench.task").write_bytes(signed_task)
    (asked.folder / "signed" / "bench.roster").write_bytes(roster)
    for name, key, pair in (("leader", LEADER, LEADER_BOX), ("helper", HELPER, HELPER_BOX)):
        folder = asked.folder / f"{name}-keys"
        folder.mkdir(mode=0o700)
        write_signing_key(folder / "identity.key", key)
        start = T0 // DAY_S * DAY_S
        day = time.strftime("%Y-%m-%d", time.gmtime(start))
        write_hpke_key(folder / f"{day}.hpke", HpkeKeyFile(pair, start, start + DAY_S + 3900))
    prepare_socket_folder(asked.folder / "run" / "helper", None, None)


class Parties:
    """Both roles as processes beside a broker, and what each has used of a core."""

    def __init__(self, asked: Round, broker_pid: int) -> None:
        self._asked = asked
        self._roles = {
            name: SPAWN.Process(target=run, args=(asked,))
            for name, run in (("helper", run_helper), ("leader", run_leader))
        }
        for role in self._roles.values():
            role.start()
        self._pids = {name: role.pid for name, role in self._roles.items()}
        self._pids["broker"] = broker_pid

    def cpu_s(self) -> dict[str, float]:
        """Core-seconds of each since it began."""
        return {name: cpu_s(pid) for name, pid in self._pids.items() if pid is not None}

    def wait_for(self, windows: int) -> list[Release]:
        """Wait until so many windows were released."""
        begun_s = time.monotonic()
        while len(found := released(self._asked.folder)) < windows:
            time.sleep(LOOK_S)
            late = time.monotonic() - begun_s > PATIENCE_S
            if late or not all(role.is_alive() for role in self._roles.values()):
                raise RuntimeError(f"expected {windows} releases, got {len(found)}")
        return found

    def wait_for_epochs(self, count: int) -> None:
        """Wait until the Leader says that it has opened so many."""
        begun_s = time.monotonic()
        while json.loads(self._asked.leader.status_file.read_text())["epochs_open"] < count:
            time.sleep(LOOK_S)
            if time.monotonic() - begun_s > PATIENCE_S:
                raise RuntimeError(f"expected {count} epochs to be opened")

    def end(self) -> None:
        """End both."""
        for role in self._roles.values():
            role.terminate()
        for role in self._roles.values():
            role.join(20)


def cpu_s(pid: int) -> float:
    """Core-seconds of a process and of its children that are there."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def released(folder: Path) -> list[Release]:
    """When windows were released, in their order."""
    path = folder / "released"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(Release(float(line.split()[0]), int(line.split()[1])) for line in lines)


def run_roles(broker: RunningBroker, d: int) -> Part:
    """Run both roles over the windows.

    The epochs of an hour are opened before, as in life. What that costs is counted as if nothing
    else ran meanwhile: of a minute's window the sixtieth part.
    """
    log = KafkaSettings((broker.bootstrap,), prefix=f"scale-{uuid.uuid4().hex[:8]}.")
    hour, written = hour_of_reports(d), HourLog(log)
    n = len(hour.reports)
    written.write(hour.before)
    with TemporaryDirectory(prefix="plst-") as folder:
        asked = Round(Path(folder), log, RunningClock(NOW_S))
        prepare(hour.signed_task, hour.roster, asked)
        parties = Parties(asked, broker.pid)
        try:
            parties.wait_for(1)
            waiting = parties.cpu_s()
            written.write(hour.epochs)
            parties.wait_for_epochs(2 * HOSTS)
            written.write(hour.opening)
            parties.wait_for(2)
            asked.hold.touch()
            written.write(hour.reports)
            opened, begun_s = parties.cpu_s(), time.monotonic()
            asked.hold.unlink()
            found = parties.wait_for(2 + WINDOWS)
            ended = parties.cpu_s()
        finally:
            parties.end()
    us = {role: (ended[role] - opened[role]) / n * 1e6 for role in ended}
    epoch_us = {
        role: max(0.0, (opened[role] - waiting[role]) / HOSTS * 1e6 - us[role])
        for role in ("leader", "helper")
    }
    epochs_s = sum(epoch_us.values()) / 1e6 * n * EPOCHS_A_WINDOW
    bare, _cpu = bare_rate(log, n)
    return {
        "d": d, "bare": bare, "rate": n / (found[-1].at_s - begun_s + epochs_s),
        "rate_epochs_open": n / (found[-1].at_s - begun_s),
        "counted": sum(release.n for release in found[2:]) / n,
        "epoch_us": max(epoch_us.values()),
        **{f"{role}_us": used for role, used in us.items()},
    }  # fmt: skip
