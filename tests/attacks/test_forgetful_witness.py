"""A Helper restored from a backup, and a witness that forgets: no second answer to one window.

Whoever gets one sum with a host and one without has that host's report under its own noise alone.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from aggregator.helper import helper_runtime
from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.party.channel import ChannelHelper
from aggregator.party.channel_address import ChannelAddress
from aggregator.party.config import load_helper_config
from aggregator.protocol.interfaces import HelperUnavailable
from aggregator.witness.chain import RollbackSeen
from aggregator.witness.service import WitnessBook, WitnessStore, serve_witness
from privacy.masks import derive_epoch_task_keys, open_box
from privacy.signing import SigningKey
from tests.process_kit import ProcessFleet
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Host,
    build_world,
    open_epochs,
    seal_report,
    signing_key,
    vector_of,
)
from tests.wait_kit import until
from transport.settings.config import ConfigError
from wire.batch import ENTRY, Batch, SignedBatch, SignedShare


class WitnessProcess:
    """Keeps its word until its keeper puts older records back."""

    def __init__(self, folder: Path, key: SigningKey, helper_pk: bytes) -> None:
        self._folder, self._key, self._helper_pk = folder, key, helper_pk
        folder.mkdir()
        self.address = ChannelAddress(socket=folder / "w.sock")
        self.start()

    def start(self) -> None:
        self._store = WitnessStore(self._folder / "witness.sqlite")
        book = WitnessBook(self._key, [self._helper_pk], self._store)
        self._server: grpc.Server = serve_witness(book, self.address, _raise, threading.Lock())

    def stop(self) -> None:
        self._server.stop(0).wait()
        self._store.close()

    def forget(self) -> None:
        self.stop()
        (self._folder / "witness.sqlite").unlink()
        self.start()

    @property
    def table(self) -> str:
        return (
            f'[witness.process]\nsocket = "{self.address.socket}"\n'
            f'witness_pk = "{self._key.public_bytes.hex()}"\n'
        )


def _raise(error: BaseException) -> None:
    raise error


class LyingLeader:
    """Has a valid report of each host, and asks for sums over hosts of its choice."""

    def __init__(self, fleet: ProcessFleet) -> None:
        self.fleet, world = fleet, fleet.world
        self.epochs = open_epochs(world)
        self.masked: dict[int, np.ndarray] = {}
        self._rows: dict[int, tuple[bytes, ...]] = {}
        for host in world.hosts:
            report = seal_report(world, host, vector_of(host, T0, world.task.d))
            assert host.epoch is not None
            keys = derive_epoch_task_keys(*host.secrets, host.epoch.hash(), world.task_id)
            plain = open_box(keys.k_box, report.header.report_id, report.aad, report.box)
            self.masked[host.number] = np.frombuffer(plain, "<u4")
            ids = (report.host_id, report.epoch_id, report.header.report_id)
            self._rows[host.number] = (*ids, report.tag_h, plain[:8])

    def sum_of(self, hosts: list[Host], channel: ChannelHelper) -> np.ndarray:
        world = self.fleet.world
        rows = sorted(b"".join(self._rows[host.number]) for host in hosts)
        entries = np.frombuffer(b"".join(rows), ENTRY)
        batch = Batch(world.task_id, 0, T0, 1, entries)
        signed = SignedBatch(batch, world.leader_key.sign(batch.unsigned())).encode()
        channel.submit_epochs(self.epochs)
        reply = channel.submit_batch(signed, epochs_complete=True)
        assert reply.share, reply.refusal
        mask = SignedShare.decode(reply.share, batch.n, world.task.d).share.vector
        total = sum((self.masked[h.number] for h in hosts), np.zeros(world.task.d, np.uint32))
        return total - mask


class Lifetime:
    """One life of the Helper, in a thread."""

    def __init__(self, fleet: ProcessFleet, config: Path) -> None:
        self.shell = HelperRuntime(load_helper_config(config), clock=fleet.clock)
        self.ended: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._socket = fleet.folder / "run" / "h.sock"

    def _run(self) -> None:
        try:
            self.shell.run()
        except Exception as error:  # noqa: BLE001  (a test looks at it)
            self.ended = error

    def over(self) -> bool:
        return not self._thread.is_alive()

    def ask(self, question: Callable[[ChannelHelper], np.ndarray | None]) -> np.ndarray | None:
        """Ask once it serves, then stop it; None where it ended by itself instead."""
        channel = ChannelHelper(ChannelAddress(socket=self._socket))

        def serves() -> bool:
            try:
                return bool(channel.submit_batch(b"\1", epochs_complete=False).refusal)
            except HelperUnavailable:
                return self.over()

        until(serves)
        answer = None if self.over() else question(channel)
        channel.close()
        self.shell.stop()
        self._thread.join()
        return answer


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessFleet]:
    monkeypatch.setattr(helper_runtime, "STATUS_EVERY_S", 0.02)
    made = ProcessFleet(build_world(12), tmp_path)
    made.clock.set(T0 + WINDOW_S + 5)
    yield made
    made.stop()


def attack(fleet: ProcessFleet, witness: str, forget: Callable[[], None]) -> BaseException | None:
    """Answer 12 hosts, restore the Helper, have a witness forget, and answer 11.

    witness     its tables of helper.toml
    Returns     how the restored Helper ended; it fails where one host's report is known
    """
    folder, leader = fleet.folder, LyingLeader(fleet)
    config = folder / "helper.toml"
    config.write_text(
        f'[helper]\nkey_dir = "{folder}/keys-helper"\nstate_dir = "{folder}"\n'
        f'fence_file = "{folder}/helper.fence"\nsigned_dir = "{folder}/signed"\n'
        f'leader_pk = "{fleet.world.leader_key.public_bytes.hex()}"\n'
        f'[listen]\nsocket = "{folder}/run/h.sock"\n{witness}'
    )
    Lifetime(fleet, config).ask(lambda _: None)
    for name in ("helper.sqlite", "helper.fence"):
        shutil.copy(folder / name, folder / f"{name}.backup")
    whole = Lifetime(fleet, config).ask(lambda channel: leader.sum_of(fleet.world.hosts, channel))
    assert whole is not None
    for name in ("helper.sqlite", "helper.fence"):
        shutil.copy(folder / f"{name}.backup", folder / name)
    forget()
    restored = Lifetime(fleet, config)
    without = restored.ask(lambda channel: leader.sum_of(fleet.world.hosts[1:], channel))
    if without is not None:
        first = fleet.world.hosts[0]
        learned = (whole - without).astype(np.int32).tolist()
        assert learned == vector_of(first, T0, fleet.world.task.d).tolist()
        pytest.fail(f"the Leader has the report of one host: {learned}")
    return restored.ended


def test_key_of_the_leader_is_no_witness_key(fleet: ProcessFleet, tmp_path: Path) -> None:
    helper_pk = fleet.world.helper_key.public_bytes
    witness = WitnessProcess(tmp_path / "w", fleet.world.leader_key, helper_pk)
    with pytest.raises(ConfigError, match="witness_pk: expected a key of somebody else"):
        attack(fleet, f"[witness]\n{witness.table}", witness.forget)
    witness.stop()


@pytest.mark.parametrize("forgetful", [0, 1])
def test_of_two_witnesses_one_may_forget(
    fleet: ProcessFleet, tmp_path: Path, forgetful: int
) -> None:
    helper_pk = fleet.world.helper_key.public_bytes
    witnesses = [
        WitnessProcess(tmp_path / name, signing_key(name), helper_pk) for name in ("one", "two")
    ]
    tables = "".join(f"[[witness]]\n{one.table}" for one in witnesses)
    ended = attack(fleet, tables, witnesses[forgetful].forget)
    assert isinstance(ended, RollbackSeen)
    said = {0: "0 links up to 0{16}; 1 links", 1: "1 links up to .{16}; 0 links"}
    assert re.search(said[forgetful], str(ended))
    for one in witnesses:
        one.stop()
