"""Epochs and sealing keys die when the promise says so, and not before, in the running parties."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from aggregator.enrolment.tasks import sign_roster, sign_task
from aggregator.helper.helper_runtime import HelperRuntime
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.leader.window_closing import HELPER_S
from aggregator.party.key_ring import DAY_S, OVERLAP_S
from edge_agent.protocol.epochs import EPOCH_LIFE_S, EPOCH_PERIOD_S, SealingKeys, open_epoch
from edge_agent.protocol.epochs import Host as Identity
from tests.process_kit import helper_config, leader_config
from tests.protocol_kit import Clock, Host, ListStore, World, build_world, seal_report, vector_of
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import write_signing_key
from wire.envelope import Kind, wrap
from wire.epoch import Epoch, KeyAnnouncement
from wire.fields import MAX_EPOCH_S, HostId
from wire.roster import PlanMembership
from wire.topics import EPOCHS, REPORTS

pytestmark = pytest.mark.slow

WEEK_S: Final = 7 * DAY_S
RETENTION_S: Final = 30 * 3600
"""The shipped plan's longest: of the week and of the eight weeks."""

CADENCES: Final = {
    "minute": (60, 30, 6 * 3600),
    "day": (DAY_S, 2 * 3600, 8 * 3600),
    "week": (WEEK_S, DAY_S, RETENTION_S),
    "eight_weeks": (8 * WEEK_S, DAY_S, RETENTION_S),
}
"""Window, lateness and retention of the shipped plan's tasks, seconds."""

START: Final = 2811 * WEEK_S
END: Final = START + WEEK_S
"""The end of the week's first window."""

HOSTS: Final = 9


class Parties:
    """A running Leader and a running Helper on one log, turned by hand on a clock of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock(START)
        first = (START // WEEK_S - 8) // 8 * 8 * WEEK_S
        self.world = build_world(
            HOSTS, first_window=first, last_window=first + 400 * WEEK_S, expiry=START + 10**9
        )
        self.tasks = {name: self._task(name) for name in CADENCES}
        self._write_files()
        self.log = EmbeddedLog(folder / "log")
        self.store = ListStore()
        self.sent: list[Epoch] = []
        self.start()

    def _task(self, name: str) -> World:
        window_s, lateness_s, retention_s = CADENCES[name]
        first = self.world.task.first_window
        # 60 days of minutes would each be settled: the first few are enough.
        last = START + 600 if name == "minute" else first + 400 * 8 * WEEK_S
        return self.world.resign(
            series=name,
            window_s=window_s,
            lateness_s=lateness_s,
            retention_s=retention_s,
            last_window=last,
        )

    def _write_files(self) -> None:
        signed = self.folder / "signed"
        signed.mkdir()
        for name, world in self.tasks.items():
            _, content = sign_task(world.task, world.leader_key, world.helper_key)
            (signed / f"{name}.task").write_bytes(content)
        plan = tuple(PlanMembership(name, 0, 100_000) for name in CADENCES)
        roster = dataclasses.replace(self.world.roster, plans=(plan,), effective_from=0)
        content = sign_roster(roster, self.world.leader_key, self.world.helper_key)
        (signed / "fleet.roster").write_bytes(content)
        for party, key in (("leader", self.world.leader_key), ("helper", self.world.helper_key)):
            keys = self.folder / f"keys-{party}"
            keys.mkdir(mode=0o700)
            write_signing_key(keys / "identity.key", key)

    def start(self) -> None:
        """Start both, as `run` does; the Leader calls the Helper without a channel between."""
        world = self.world
        self.helper = HelperRuntime(
            helper_config(self.folder, world.leader_key.public_bytes), clock=self.clock
        )
        self.helper._housekeeping(at_start=True)
        self.leader = LeaderRuntime(
            leader_config(self.folder, world.helper_key.public_bytes),
            self.log,
            self.store,
            helper=self.helper._runner,
            clock=self.clock,
        )
        self.turn(self.clock())

    def stop(self) -> None:
        self.leader._end()
        self.helper._presence.close()
        self.helper._state.close()

    def turn(self, now_s: float, rounds: int = 1) -> None:
        """Let the clock read `now_s`, and let both work until no call is out."""
        self.clock.now_s = now_s
        for _ in range(rounds):
            self.helper._housekeeping()
            self.leader._turn()
            self.leader._calls.wait()

    def open_epochs(self, now_s: int, hosts: Sequence[Host]) -> None:
        """Have hosts open epochs under the keys that are announced now; the log gets them."""
        found = [self._announced(shell, now_s) for shell in (self.leader, self.helper)]
        producer = self.log.producer()
        for host in hosts:
            state, raw = open_epoch(
                Identity(host.key, HostId(host.id)),
                SealingKeys(*found),
                self.world.roster.version,
                now_s,
                now_s,
                os.urandom,
            )
            host.epoch, host.secrets = Epoch.decode(raw), (state.k_h, state.k_l)
            self.sent.append(host.epoch)
            producer.send(EPOCHS, raw[16:48], wrap(Kind.EPOCH, raw))
        producer.close()

    def _announced(self, shell: LeaderRuntime | HelperRuntime, now_s: int) -> KeyAnnouncement:
        keys = [KeyAnnouncement.decode(raw) for raw in shell._keys.announcements(now_s)]
        return [key for key in keys if key.not_before <= now_s][-1]

    def report(self, name: str, window: int) -> None:
        """Have every host seal its report under the epoch it has, and the log get it."""
        world = self.tasks[name]
        producer = self.log.producer()
        for host in self.world.hosts:
            report = seal_report(world, host, vector_of(host, window, world.task.d), window=window)
            producer.send(REPORTS, bytes(host.id), wrap(Kind.REPORT, report.encode()))
        producer.close()

    def needed(self) -> set[bytes]:
        """The epochs that a report can still name: not_after + the longest retention."""
        return {
            bytes(epoch.header.epoch_id)
            for epoch in self.sent
            if epoch.header.not_after + RETENTION_S > self.clock.now_s
        }


@pytest.fixture
def parties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parties]:
    monkeypatch.setattr(
        "aggregator.leader.leader_runtime.POLL_S", 0.0
    )  # nobody else writes to the log
    made = Parties(tmp_path)
    yield made
    made.stop()
    made.log.close()


def kept_on_disk(parties: Parties, name: str) -> set[bytes]:
    if name == "leader":
        found = parties.leader._state._tables.execute("SELECT epoch_id FROM kept_epochs")
    else:
        found = parties.helper._state._db.execute("SELECT epoch_id FROM epochs")
    return {row[0] for row in found}


def kept_in_memory(parties: Parties, name: str) -> set[bytes]:
    book = parties.leader._leader.book if name == "leader" else parties.helper._helper.book
    found = [(e.header, book.find(e.header.host_id, e.header.epoch_id)) for e in parties.sent]
    assert all(known.key for _, known in found if known is not None)
    kept = {bytes(header.epoch_id) for header, known in found if known is not None}
    assert len(book) == len(kept)
    return kept


def test_sixty_days_leave_only_what_a_report_can_still_need(parties: Parties) -> None:
    hosts = parties.world.hosts[:2]
    days = [START + day * DAY_S + 600 for day in range(0, 58, 2)]
    hours = [START + 58 * DAY_S + 600 + hour * EPOCH_PERIOD_S for hour in range(36)]
    parties.turn(START)
    for now_s in (*days, *hours):
        parties.open_epochs(now_s, hosts)
        parties.turn(now_s + 1)
        parties.helper._runner.submit_epochs([e.encode() for e in parties.sent[-len(hosts) :]])
        parties.turn(now_s + 2 * DAY_S if now_s in days else now_s + EPOCH_PERIOD_S)
    parties.turn(hours[-1] + 2 * EPOCH_PERIOD_S + 1)  # state files are looked through once an hour
    needed = parties.needed()
    assert len(needed) == len(hosts) * 30
    for party in ("leader", "helper"):
        assert kept_in_memory(parties, party) == needed, party
        assert kept_on_disk(parties, party) == needed, party
        # A day's key opens what was sealed until OVERLAP_S after it, and that lasts MAX_EPOCH_S.
        lives_s = DAY_S + OVERLAP_S + MAX_EPOCH_S + RETENTION_S
        kept = sorted((parties.folder / f"keys-{party}").glob("*.hpke"))
        shell = parties.leader if party == "leader" else parties.helper
        starts = sorted(key.not_before for key in shell._keys._files.values())
        assert len(kept) == len(starts) == len(shell._keys._pairs)
        assert starts[0] + lives_s >= parties.clock.now_s > starts[0] - DAY_S + lives_s


@pytest.mark.parametrize("name", ["week", "eight_weeks"])
def test_long_window_is_answered_after_its_lateness(parties: Parties, name: str) -> None:
    """Sealed under the epoch of the window's end, judged by the Helper a day later."""
    window_s, lateness_s, _ = CADENCES[name]
    end = -(-END // window_s) * window_s
    parties.turn(end - 1800)
    parties.open_epochs(end - 1800, parties.world.hosts)
    parties.turn(end - 1799)
    parties.report(name, end - window_s)
    parties.turn(end + 10, 2)
    assert parties.leader._leader.admitted == HOSTS
    for hour in range(1, lateness_s // 3600):
        parties.turn(end + hour * 3600)
    parties.turn(end + lateness_s, 4)
    (released,) = parties.store.written
    assert (released.window_start_s, released.n) == (end - window_s, HOSTS)


def test_report_at_the_very_end_of_its_retention_is_answered_after_restarts(
    parties: Parties,
) -> None:
    """The epoch ended a second after the window; both come back as the retention ends."""
    opened_s = END + 1 - EPOCH_LIFE_S
    parties.turn(opened_s)
    parties.open_epochs(opened_s, parties.world.hosts)
    parties.turn(opened_s + 1)
    parties.stop()
    parties.report("week", START)
    parties.clock.now_s = END + RETENTION_S - HELPER_S - 1
    parties.start()
    parties.turn(END + RETENTION_S, 4)
    (released,) = parties.store.written
    assert released.n == HOSTS
    task = parties.tasks["week"].task
    total = sum(vector_of(host, START, task.d) for host in parties.world.hosts)
    assert np.array_equal(released.vector, np.asarray(total))
    parties.turn(END + 1 + RETENTION_S + 3601)
    assert kept_in_memory(parties, "leader") == kept_in_memory(parties, "helper") == set()
