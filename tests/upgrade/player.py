"""Plays agents, a Leader and a Helper of the tree it lies in, for a test that may be of another.

    python -m tests.upgrade.player        in the root of a tree

One command a line on stdin, one answer a line on stdout, both JSON; what several trees share lies
in a folder: the fleet's secrets and signed messages, the log, each party's state, the releases.
Commands and files may only grow: the tree of the first compatible version answers as it did.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import wire
from aggregator.enrolment.tasks import sign_roster
from aggregator.party.channel import ChannelHelper, prepare_socket_folder, serve
from aggregator.party.channel_address import ChannelAddress
from aggregator.protocol.released import ReleasedWindow
from aggregator.releases.releases import read_releases, read_windows
from aggregator.releases.store import Store
from edge_agent.ledger.ledger import Ledger
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.protocol_events import (
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from tests import protocol_kit
from tests.agent_world import T0, MemoryRuntime, NoNoise, Party, World, told
from transport.embedded.embedded import EmbeddedLog
from transport.interface import create_topics
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed, unwrap
from wire.epoch import KeyAnnouncement
from wire.fields import TaskId, host_id, task_id
from wire.roster import FleetName, Roster
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

WINDOW_S = 60
LATENESS_S = 30
BINDING = b"machine"
WEIGHT = 600_000
Answer = dict[str, Any]


class Fleet:
    """What a folder says of a fleet: everybody's secrets, and what both parties signed."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / "fleet.json").read_text())
        self.folder = folder
        self.leader, self.helper = (_party(told[name]) for name in ("leader", "helper"))
        keys = [SigningKey.from_seed_bytes(bytes.fromhex(seed)) for seed in told["hosts"]]
        self.hosts = [Host(key, host_id(key.public_bytes)) for key in keys]
        self.task, self.roster = (bytes.fromhex(told[name]) for name in ("task", "roster"))
        self.announced = [KeyAnnouncement.decode(bytes.fromhex(k)) for k in told["keys"]]
        self.body = Task.decode_body(self.task[20:-128])

    def parties(self) -> protocol_kit.World:
        world = World(0, self.leader, self.helper)
        return protocol_kit.world_of(world, self.body, self.task, self.roster)

    def window(self, number: int) -> int:
        return T0 + number * WINDOW_S

    def address(self) -> ChannelAddress:
        return ChannelAddress(socket=self.folder / "run" / "h.sock", call_timeout_s=20)


def _party(seeds: list[str]) -> Party:
    signing, hpke = (bytes.fromhex(seed) for seed in seeds)
    return Party(SigningKey.from_seed_bytes(signing), HpkeKeyPair.from_seed_bytes(hpke))


class Player:
    """Carries commands out; one Helper is served at a time."""

    def __init__(self) -> None:
        self._stop_helper: Callable[[], None] = lambda: None

    def tree(self) -> Answer:
        root = Path(wire.__file__).resolve().parents[1]
        return {"root": str(root), "catalogue": Catalogue.load().hash.hex()}

    def catalogue(self, file: str) -> Answer:
        return {"catalogue": Catalogue.load(file).hash.hex()}

    def setup(self, folder: str, hosts: int, section: str = "kernel_mix") -> Answer:
        """Make a fleet: identities, sealing keys, a signed task and roster, an empty log."""
        world = World(hosts)
        task = world.catalogue_task(
            {section: WEIGHT}, n_max=hosts, n_min=hosts - 4, t=2, largest_operator=2
        )
        parties = {
            name: [party.signing.seed_bytes().hex(), party.hpke.seed_bytes().hex()]
            for name, party in (("leader", world.leader), ("helper", world.helper))
        }
        told = {
            **parties,
            "hosts": [key.seed_bytes().hex() for key in world.signing_keys],
            "task": world.sign_task(task).hex(),
            "roster": world.roster({"minute": WEIGHT}, cohort=0, crowd=hosts).hex(),
            "keys": [key.encode().hex() for key in world.keys(T0)],
        }
        (Path(folder) / "fleet.json").write_text(json.dumps(told))
        with EmbeddedLog(Path(folder) / "log") as log:
            create_topics(log)
        return {}

    def sign_roster(self, folder: str, version: int, window: int, name: str = "") -> Answer:
        """Sign the roster anew, in force from a window on; without a name it names no fleet."""
        fleet = Fleet(Path(folder))
        named = FleetName(fleet.leader.pk, fleet.helper.pk, name) if name else None
        body = Roster.decode_body(Signed.decode(fleet.roster, labels.ROSTER).body)
        since_s = fleet.window(window)
        roster = replace(body, version=version, effective_from=since_s, fleet=named)
        signed = sign_roster(roster, fleet.leader.signing, fleet.helper.signing)
        file = fleet.folder / "fleet.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"roster": signed.hex()}))
        return {}

    def agents(self, folder: str, hosts: list[int], window: int) -> Answer:
        """Let hosts report one window from their ledgers; host i tells of i + 1 steps.

        Answers         how many reports were sealed, and why others were not
        """
        fleet = Fleet(Path(folder))
        runtimes = [_agent(fleet, number, window) for number in hosts]
        with EmbeddedLog(fleet.folder / "log") as log:
            producer = log.producer()
            for runtime in runtimes:
                for record in runtime.published:
                    producer.send(record.topic, record.key, record.value)
            producer.flush()
            producer.close()
        refused = sorted({r.reason.value for runtime in runtimes for r in runtime.refused})
        return {"sealed": sum(len(runtime.committed) for runtime in runtimes), "refused": refused}

    def helper(self, folder: str) -> Answer:
        fleet = Fleet(Path(folder))
        clock, address = protocol_kit.Clock(T0 + WINDOW_S * 100), fleet.address()
        assert address.socket is not None
        prepare_socket_folder(address.socket, None, None)
        _, state, runner = protocol_kit.start_helper(fleet.parties(), fleet.folder, clock)
        server = serve(runner, address, lambda _error: False, threading.Lock())

        def stop() -> None:
            server.stop(0).wait()
            state.close()

        self._stop_helper = stop
        return {}

    def stop_helper(self) -> Answer:
        self._stop_helper()
        self._stop_helper = lambda: None
        return {}

    def leader(
        self, folder: str, window: int, *, store: bool, state: str = ".", without: int = -1
    ) -> Answer:
        """Read the log from its beginning, and close a window with the Helper.

        store           keep what is released in the fleet's store, too
        state           where below the folder the Leader's state lies
        without         a host whose reports it leaves out

        Answers         accepted hosts and the released vector; none when it was suppressed
        """
        fleet = Fleet(Path(folder))
        channel = ChannelHelper(fleet.address())
        made = protocol_kit.Fleet(fleet.parties(), fleet.folder / state, helper=channel)
        made.clock.now_s = fleet.window(window) + WINDOW_S + 1
        made.send_epochs(_cores(fleet.folder, EPOCHS))
        left_out = fleet.hosts[without].host_id if without >= 0 else b"none"
        reports = [c for c in _cores(fleet.folder, REPORTS) if not c.startswith(left_out)]
        made.send(reports, made.clock.now_s)
        made.tick(fleet.window(window) + WINDOW_S + LATENESS_S)
        written = [r for r in made.store.written if r.window_start_s == fleet.window(window)]
        if store:
            _keep(fleet.folder, written)
        made.state.close()
        channel.close()
        released = [{"n": r.n, "vector": r.vector.tolist()} for r in written]
        return {"released": released, "suppressed": [s.reason for s in made.store.suppressed]}

    def read(self, folder: str) -> Answer:
        """Read a fleet's releases as `pointillist query` does."""
        releases = str(Path(folder) / "releases")
        cells = read_releases(releases)
        return {"windows": len(read_windows(releases)), "cells": len(cells)}


def _agent(fleet: Fleet, number: int, window: int) -> MemoryRuntime:
    host = fleet.hosts[number]
    start_s, end_s = fleet.window(window), fleet.window(window) + WINDOW_S
    catalogue = Catalogue.load()
    rules = _rules(fleet, catalogue)
    ledger = _ledger(fleet.folder / f"host-{number}", host, start_s)
    view = ledger.view([host.host_id])
    participant = Participant([host], view, NoNoise(), os.urandom, rules)
    runtime = told(participant, [fleet.task], fleet.roster, fleet.announced, start_s, ledger)
    rows = np.zeros((1, fleet.body.d - 2), dtype=np.int64)
    rows[0, 0] = (number + 1) * fleet.body.sections[0].q
    identity = TaskId(task_id(fleet.task[:-128]))
    runtime.tell(WindowClosed(identity, start_s, rows, np.ones(1, dtype=np.bool_), end_s))
    ledger.close()
    return runtime


def _rules(fleet: Fleet, catalogue: Catalogue) -> Any:
    world = World(0, fleet.leader, fleet.helper)
    return world.rules(bounds=Bounds(n_min_at_least=1), catalogue=catalogue)


def _ledger(folder: Path, host: Host, now_s: int) -> Ledger:
    paths = folder / "ledger.sqlite", folder / "host.key.fence"
    if paths[0].exists():
        return Ledger.open(*paths, binding=BINDING)
    folder.mkdir()
    return Ledger.create(*paths, hosts=[host.host_id], binding=BINDING, now_s=now_s)


def _keep(folder: Path, released: Sequence[ReleasedWindow]) -> None:
    store = Store(folder / "store" / "r.duckdb", folder / "releases", Catalogue.load())
    for window in released:
        store.write(window)
    store.close()


def _cores(folder: Path, topic: str) -> list[bytes]:
    with EmbeddedLog(folder / "log") as log:
        consumer = log.consumer(os.urandom(4).hex(), (topic,))
        records = []
        while page := consumer.poll(1000, 0.0):
            records += page
        consumer.close()
    return [unwrap(record.value, 1 << 20)[1] for record in records]


def main() -> None:
    player = Player()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(player, command.pop("do"))(**command)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    player.stop_helper()


if __name__ == "__main__":
    main()
