"""Leader and Helper as real processes on a real log, killed where a test says."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.channel import ChannelHelper, prepare_socket_folder
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import HelperConfig, LeaderConfig
from aggregator.protocol.interfaces import BatchReply, HelperStatus, ReleaseReply
from aggregator.protocol.released import ReleasedWindow
from simulator.engine.interface import MemoryStore
from tests.fault_notes import note
from tests.protocol_kit import T0, World
from tests.wait_kit import until
from transport.embedded.embedded import EmbeddedConsumer, EmbeddedLog
from transport.factory import EmbeddedSettings
from transport.files.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from transport.interface import Record, create_topics
from wire.envelope import Kind, wrap
from wire.topics import EPOCHS, REPORTS

DAY_S = 86_400
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["tests.process_kit"])


class FileClock:
    """A clock that a test turns by writing a file; all processes read the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "clock"

    def __call__(self) -> float:
        return float(self._path.read_text())

    def set(self, now_s: float) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_text(str(now_s))
        temporary.replace(self._path)


class KillHere:
    """SIGKILL to the own process at the step that the file `kill` names, once."""

    def __init__(self, folder: Path, party: str) -> None:
        self._path, self._party = folder / "kill", party

    def __call__(self, step: str) -> None:
        with suppress(FileNotFoundError):  # of two that are here at once, one falls
            if self._path.read_text() == f"{self._party} {step}":
                self._path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


class NotingLog(EmbeddedLog):
    """The embedded log, noting how far reports were read, so that a test need not guess."""

    noted: Path

    def consumer(self, group: str, topics: Sequence[str]) -> EmbeddedConsumer:
        consumer = super().consumer(group, topics)
        poll, seen = consumer.poll, dict[int, int]()

        def noting_poll(max_records: int, timeout_s: float) -> list[Record]:
            records = poll(max_records, timeout_s)
            for record in records:
                if record.topic == REPORTS:
                    seen[record.partition] = record.offset + 1
            if records:
                self.noted.write_text(json.dumps(sum(seen.values())))
            return records

        consumer.poll = noting_poll  # type: ignore[method-assign]
        return consumer


class FileStore(MemoryStore):
    """Appends each write as a line: what a store would have seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "store.jsonl"

    def write(self, release: ReleasedWindow) -> None:
        line = {"window": release.window_start_s, "n": release.n, "vector": release.vector.tolist()}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class RecordingChannel:
    """The channel, noting each share that came back, by batch."""

    def __init__(self, address: ChannelAddress, folder: Path) -> None:
        self._inner, self._path = ChannelHelper(address), folder / "shares.jsonl"

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        reply = self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)
        if reply.share:
            line = [int.from_bytes(signed_batch[52:60], "big"), digest(reply.share)]
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._inner.status()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def helper_config(folder: Path, leader_pk: bytes) -> HelperConfig:
    return HelperConfig(
        key_dir=folder / "keys-helper",
        state_dir=folder,
        fence_file=folder / "helper.fence",
        signed_dir=folder / "signed",
        leader_pk=leader_pk,
        user="pointillist-helper",
        address=ChannelAddress(socket=folder / "run" / "h.sock", call_timeout_s=10),
        peer_group=None,
        status_file=folder / "helper-status.json",
    )


def leader_config(folder: Path, helper_pk: bytes) -> LeaderConfig:
    return LeaderConfig(
        key_dir=folder / "keys-leader",
        state_dir=folder,
        signed_dir=folder / "signed",
        helper_pk=helper_pk,
        user="pointillist-leader",
        transport=EmbeddedSettings(folder / "log"),
        helper=ChannelAddress(socket=folder / "run" / "h.sock", call_timeout_s=10),
        database=folder / "r.duckdb",
        releases_dir=folder / "parquet",
        catalogue=None,
        status_file=folder / "leader-status.json",
    )


def helper_process(folder: Path, leader_pk: bytes) -> None:
    shell = HelperRuntime(
        helper_config(folder, leader_pk),
        clock=FileClock(folder),
        checkpoint=KillHere(folder, "helper"),
    )
    signal.signal(signal.SIGTERM, lambda *_: shell.stop())
    shell.run()


def leader_process(folder: Path, helper_pk: bytes) -> None:
    config = leader_config(folder, helper_pk)
    assert config.helper is not None
    assert isinstance(config.transport, EmbeddedSettings)
    with NotingLog(config.transport.folder) as log:
        log.noted = folder / "read"
        shell = LeaderRuntime(
            config,
            log,
            FileStore(folder),
            helper=RecordingChannel(config.helper, folder),
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "leader"),
        )
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


class ProcessFleet:
    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.clock = FileClock(folder)
        self.clock.set(T0)
        self._write_files()
        self.log = EmbeddedLog(folder / "log")
        create_topics(self.log)
        self._producer = self.log.producer()
        self.processes: dict[str, BaseProcess] = {}
        self._armed = ""

    def _write_files(self) -> None:
        world, day = self.world, time.strftime("%Y-%m-%d", time.gmtime(T0))
        start = T0 // DAY_S * DAY_S
        for name, key, pair in (
            ("leader", world.leader_key, world.leader_hpke),
            ("helper", world.helper_key, world.helper_hpke),
        ):
            folder = self.folder / f"keys-{name}"
            folder.mkdir()
            write_signing_key(folder / "identity.key", key)
            write_hpke_key(folder / f"{day}.hpke", HpkeKeyFile(pair, start, start + DAY_S + 3900))
        signed = self.folder / "signed"
        signed.mkdir()
        (signed / "minute.task").write_bytes(world.task_bytes)
        (signed / "fleet.roster").write_bytes(world.roster_bytes)
        prepare_socket_folder(self.folder / "run" / "h.sock", None, None)

    def start(self, party: str) -> None:
        if party == "leader":
            # The clock stands still between a test's steps: a call that fails is not made again.
            until((self.folder / "run" / "h.sock").exists)
            arguments = (self.folder, self.world.helper_key.public_bytes)
            process = SPAWN.Process(target=leader_process, args=arguments)
        else:
            asked = (self.folder, self.world.leader_key.public_bytes)
            process = SPAWN.Process(target=helper_process, args=asked)
        process.start()
        self.processes[party] = process

    def publish(self, epochs: Sequence[bytes], reports: Sequence[bytes]) -> None:
        for raw in epochs:
            self._producer.send(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw))
        for raw in reports:
            self._producer.send(REPORTS, raw[:16], wrap(Kind.REPORT, raw))
        self._producer.flush()

    def kill_at(self, where: str) -> None:
        """Arm the next kill: `PARTY STEP`."""
        self._armed = where
        (self.folder / "kill").write_text(where)

    def killed(self) -> bool:
        """Whether the armed kill happened; the fallen party is started again."""
        for party, process in list(self.processes.items()):
            if not process.is_alive():
                process.join()
                assert process.exitcode == -signal.SIGKILL, (party, process.exitcode)
                self.start(party)
        happened = not (self.folder / "kill").exists()
        if happened and self._armed:
            note(self._armed.replace(" ", "@", 1))
            self._armed = ""
        return happened

    def passes(self) -> bool:
        """Let a little time pass on everybody's clock; for `wait_for`."""
        self.clock.set(self.clock() + 0.02)
        return True

    def released(self, wanted: int) -> bool:
        return len({line["window"] for line in self.lines("store.jsonl")}) >= wanted  # type: ignore[index]

    def reports_read(self) -> int:
        """Reports that the Leader has read, over all its lives."""
        try:
            return int((self.folder / "read").read_text() or 0)
        except FileNotFoundError:
            return 0

    def lines(self, name: str) -> list[object]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def stop(self) -> list[int | None]:
        """End both gracefully; returns their exit codes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.join(20)
            if process.is_alive():
                process.kill()
        self._producer.close()
        self.log.close()
        return [process.exitcode for process in self.processes.values()]
