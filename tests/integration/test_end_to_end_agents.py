"""Twenty production agents, a Leader and a Helper: released minus true is the noise they drew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.leader.window_closing import RESEND_S
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from edge_agent.ledger.ledger_records import HostSpending, LedgerView
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.protocol_events import (
    EpochDue,
    KeysAnnounced,
    RosterReceived,
    TaskReceived,
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds
from privacy.noise_table import SeededSampler
from tests import protocol_kit
from tests.agent_world import T0, MemoryRuntime, World, counting_bytes, epochs, reports
from wire.fields import TaskId, task_id
from wire.report import Report
from wire.roster import Roster
from wire.task import Task

HOSTS, WINDOWS, WINDOW_S, STEP = 20, 3, 60, 1000
WEIGHTS = {"minute": 600_000}
ABSENT, LATE, TWICE, FORGED = 3, 7, 11, 13
"""Hosts that are down in some windows, report late, twice, and of whom others forge reports."""


class RecordingSampler:
    """The seeded sampler, which remembers every draw of its one host, in order."""

    seeded = True

    def __init__(self, seed: int) -> None:
        self._inner = SeededSampler(seed)
        self.drawn: list[NDArray[np.int64]] = []

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = self._inner.sample(hosts, sigma_1024)
        assert hosts == 1
        self.drawn.append(noise[0].copy())
        return noise


class Agent:
    """One host: the production participant with a recording sampler."""

    def __init__(self, world: World, number: int, signed_task: bytes, roster: bytes) -> None:
        identity = world.identities[number]
        self.number, self.sampler = number, RecordingSampler(number)
        self.noise: dict[int, NDArray[np.int64]] = {}
        rules = world.rules(bounds=Bounds(n_min_at_least=10))
        view = LedgerView((HostSpending(identity.host_id, (), 0, ()),))
        participant = Participant([identity], view, self.sampler, counting_bytes(number), rules)
        self.runtime = MemoryRuntime(participant)
        self.runtime.tell(TaskReceived(signed_task, T0))
        self.runtime.tell(RosterReceived(roster, T0))
        self.runtime.tell(KeysAnnounced(world.keys(T0), T0))
        self.runtime.tell(EpochDue(T0))

    def close(self, identity: TaskId, window: int) -> Report | None:
        """Close a window; give the report that went out, if any, and keep its noise."""
        sent, drawn = len(self.runtime.published), len(self.sampler.drawn)
        rows = truth_of(self.number, window)[np.newaxis] * STEP
        up = np.array([window != T0 + WINDOW_S or self.number != ABSENT])
        self.runtime.tell(WindowClosed(identity, window, rows, up, window + WINDOW_S))
        for noise in self.sampler.drawn[drawn:]:
            self.noise[window] = noise
        found = reports(self.runtime.published[sent:])
        return found[0] if found else None


def truth_of(number: int, window: int) -> NDArray[np.int64]:
    """Steps of one host: whole ones, 64 in all, so that nothing is rounded."""
    steps = np.array([number, 20 - number % 20, window // 60 % 7, 0], dtype=np.int64)
    steps[3] = 64 - steps.sum()
    return steps


@pytest.fixture
def world() -> World:
    return World(HOSTS)


@pytest.fixture
def task(world: World) -> Task:
    return world.task(n_max=HOSTS, n_min=16, t=2, retention_s=6 * 3600)


@pytest.fixture
def signed(world: World, task: Task) -> tuple[bytes, bytes]:
    return world.sign_task(task), world.roster(WEIGHTS, cohort=0, crowd=HOSTS)


@pytest.fixture
def agents(world: World, signed: tuple[bytes, bytes]) -> list[Agent]:
    return [Agent(world, number, *signed) for number in range(HOSTS)]


@pytest.fixture
def fleet(
    world: World, task: Task, signed: tuple[bytes, bytes], tmp_path: Path
) -> Iterator[protocol_kit.Fleet]:
    """Both aggregators, on the keys and signatures that the agents pin."""
    parties = protocol_kit.World(
        leader_key=world.leader.signing,
        helper_key=world.helper.signing,
        leader_hpke=world.leader.hpke,
        helper_hpke=world.helper.hpke,
        task=task,
        task_id=TaskId(task_id(signed[0][:-128])),
        task_bytes=signed[0],
        roster=Roster(1, 0, (), ()),
        roster_bytes=signed[1],
        hosts=[],
    )
    made = protocol_kit.Fleet(parties, tmp_path)
    made.clock.now_s = T0 + 1
    yield made
    made.state.close()


def forged(report: Report) -> list[Report]:
    """What somebody on the log makes of a report: another box, another host's name."""
    spoilt = replace(report, box=report.box[:-1] + bytes([report.box[-1] ^ 1]))
    return [spoilt, replace(report, epoch_id=type(report.epoch_id)(bytes(16)))]


def test_released_minus_true_is_what_the_agents_drew(
    world: World, fleet: protocol_kit.Fleet, agents: list[Agent], tmp_path: Path
) -> None:
    """With dropouts, duplicates, late and forged reports, and a restart of the Leader."""
    for agent in agents:
        fleet.send_epochs([one.encode() for one in epochs(agent.runtime.published)])
    for number in range(WINDOWS):
        window = T0 + number * WINDOW_S
        made = {a.number: a.close(fleet.world.task_id, window) for a in agents}
        sent = {who: report for who, report in made.items() if report is not None}
        assert sorted(set(made) - set(sent)) == ([ABSENT] if number == 1 else [])
        late = sent.pop(LATE)
        fleet.send([*forged(sent[FORGED]), *sent.values(), sent[TWICE]], at_s=window + WINDOW_S + 1)
        closes_s: float = window + WINDOW_S + 30
        if number == 1:
            fleet.restart_leader()
            fleet.tick(fleet.clock.now_s)
            closes_s = fleet.clock.now_s + RESEND_S
        fleet.tick(closes_s)
        fleet.send([late], at_s=closes_s + 1)
        check(fleet, [agents[who] for who in sent], number)
    both = [read_transcript(tmp_path / name) for name in ("leader.sqlite", "helper.sqlite")]
    verdict = verify_transcripts(both[0], both[1], fleet.world.parties)
    assert (verdict.problems, verdict.releases, verdict.unsigned) == ([], WINDOWS, 0)
    for reason in ("box", "duplicate", "window_late"):
        assert fleet.leader.rejected[reason] > 0


def check(fleet: protocol_kit.Fleet, counted: list[Agent], number: int) -> None:
    """The release is exactly the true steps of the counted hosts and the noise they drew."""
    window = T0 + number * WINDOW_S
    release = fleet.store.written[number]
    true = sum((truth_of(a.number, window) for a in counted), np.zeros(4, dtype=np.int64))
    noise = sum((a.noise[window] for a in counted), np.zeros(6, dtype=np.int64))
    assert (release.n, release.window_start_s) == (len(counted), window)
    assert list(release.vector[:2]) == [len(counted)] * 2
    assert np.array_equal(release.vector[2:] - true, noise[2:])
    assert noise[2:].any()
    assert fleet.world.task.sections[0].sigma_1024 >= 2048
