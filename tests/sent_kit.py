"""One live agent on disk among a cohort in memory, through Leader and Helper to releases."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from collectors.records.activity import Observation
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.config import (
    MetricsSection,
)
from edge_agent.ledger.ledger_records import HostSpending, LedgerView
from edge_agent.open_agent import open_agent
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.protocol_events import (
    EpochDue,
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds
from edge_agent.service.agent_service import AgentService
from privacy.noise import NoiseSampler
from privacy.noise_table import SeededSampler
from tests import protocol_kit
from tests.agent_live import SteppedClock, Surroundings, run_until, surroundings
from tests.agent_world import T0, MemoryRuntime, World, counting_bytes, epochs, reports, told
from wire.envelope import unwrap
from wire.fields import TaskId, task_id
from wire.report import Report
from wire.task import Task
from wire.topics import EPOCHS, REPORTS

HOSTS, WINDOW_S, SERIES = 20, 60, "minute"
USER_MS = 13_000
"""What the live host is seen to spend in user mode, in each window."""


class BusyHost:
    name = "host"

    def __init__(self, clock: SteppedClock) -> None:
        self._clock, self._window = clock, 0

    def probe(self) -> str | None:
        return None

    def start(self) -> None:
        return

    def drain(self, now_boottime_ns: int) -> list[Observation]:
        window = self._clock.now_ms // 1000 // WINDOW_S
        if window == self._window:
            return []
        self._window = window
        return [Observation("host_cpu", "user", USER_MS, now_boottime_ns)]

    def stop(self) -> None:
        return


def small_task(world: World, windows: int) -> Task:
    """A task of two sections of the real catalogue that 16 of 20 hosts release."""
    weights = {"kernel_mix": 300_000, "host_cpu": 300_000}
    return world.catalogue_task(weights, windows=windows, gpus_per_host=2, n_max=HOSTS, n_min=16)


def as_it_is(report: Report) -> Report:
    return report


@dataclass
class SentFleet:
    """Everything around the live host; `config_file` is what its owner names."""

    folder: Path
    world: World
    made: Surroundings
    signed: tuple[bytes, bytes]
    aggregators: protocol_kit.Fleet
    others: list[MemoryRuntime]
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(T0))
    read: set[bytes] = field(default_factory=set)
    runtime: AgentRuntime | None = None

    @property
    def task_id(self) -> TaskId:
        return TaskId(task_id(self.signed[0][:-128]))

    @property
    def leader(self) -> Path:
        return self.folder / "leader.sqlite"

    @property
    def helper(self) -> Path:
        return self.folder / "helper.sqlite"

    @property
    def config_file(self) -> Path:
        return self.folder / "agent.toml"

    def start(self, sampler: NoiseSampler | None = None) -> None:
        self.runtime, _ = open_agent(
            self.made.config, domain="demo", sampler=sampler or SeededSampler(0), clock=self.clock
        )
        self.runtime.replace_sources((BusyHost(self.clock),))
        service = AgentService(self.runtime, self.made.config, clock=self.clock)
        self.runtime.observe(service)
        self.runtime.start()
        for other in self.others:
            self.aggregators.send_epochs([epoch.encode() for epoch in epochs(other.published)])

    def window(
        self,
        number: int,
        *,
        alter: Callable[[Report], Report | None] = as_it_is,
        others: int = HOSTS - 1,
    ) -> Report:
        """Play a window through to its release, or not; give the live host's report.

        alter    what reaches the Leader instead of the live host's report
        others   of so many other hosts the reports arrive
        """
        start_s = T0 + number * WINDOW_S
        end_s = start_s + WINDOW_S
        assert self.runtime is not None
        run_until(self.runtime, self.clock, end_s + 25)
        mine = self._new_records()
        assert mine is not None
        sent = [alter(mine)]
        for other in self.others[:others]:
            sent += _closed(other, self.task_id, self.made.task, start_s)
        self.aggregators.send([report for report in sent if report is not None], at_s=end_s + 26)
        self.aggregators.tick(end_s + 30)
        return mine

    def _new_records(self) -> Report | None:
        report = None
        for record in self.made.records(EPOCHS, REPORTS):
            if record.value in self.read:
                continue
            self.read.add(record.value)
            core = unwrap(record.value, 1 << 22)[1]
            if record.topic == EPOCHS:
                self.aggregators.send_epochs([core])
            else:
                report = Report.decode(core)
        return report

    def stop(self) -> None:
        """Stop agent and aggregators; their files stay."""
        if self.runtime is not None:
            self.runtime.close()
        self.aggregators.state.close()
        self.aggregators.helper_state.close()


def _closed(other: MemoryRuntime, identity: TaskId, task: Task, start_s: int) -> Iterable[Report]:
    before = len(other.published)
    rows = np.zeros((1, task.d - 2), dtype=np.int64)
    present = np.ones(1, dtype=np.bool_)
    end_s = start_s + task.window_s
    other.tell(EpochDue(end_s))
    other.tell(WindowClosed(identity, start_s, rows, present, end_s))
    return reports(other.published[before:])


def sent_fleet(folder: Path) -> SentFleet:
    world = World(HOSTS)
    task = small_task(world, 100)
    bounds, metrics = Bounds(n_min_at_least=10), MetricsSection(enabled=False)
    made = surroundings(folder, world=world, task=task, bounds=bounds, metrics=metrics)
    weights = {task.series: sum(section.weight_millionths for section in task.sections)}
    signed = world.sign_task(task), world.roster(weights, crowd=HOSTS)
    others = [_other(world, number, *signed) for number in range(1, HOSTS)]
    aggregators = protocol_kit.Fleet(protocol_kit.world_of(world, task, *signed), folder)
    aggregators.clock.now_s = T0 + 1
    fleet = SentFleet(folder, world, made, signed, aggregators, others)
    _write_config(fleet)
    return fleet


def _other(world: World, number: int, signed_task: bytes, roster: bytes) -> MemoryRuntime:
    identity = world.identities[number]
    view = LedgerView((HostSpending(identity.host_id, (), 0, ()),))
    rules = world.rules(bounds=Bounds(n_min_at_least=10))
    sampler = SeededSampler(number)
    participant = Participant([identity], view, sampler, counting_bytes(number), rules)
    return told(participant, [signed_task], roster, world.keys(T0))


def _write_config(fleet: SentFleet) -> None:
    config = fleet.made.config
    fleet.config_file.write_text(
        f"""
[host]
key_file = {json.dumps(str(config.host.key_file))}
state_dir = {json.dumps(str(config.host.state_dir))}
gpus = ["H100", "H100"]
user = "{getpass.getuser()}"
[transport]
folder = {json.dumps(str(config.transport.folder))}
[trust]
leaders = ["{fleet.world.leader.pk.hex()}"]
helpers = ["{fleet.world.helper.pk.hex()}"]
[bounds]
n_min_at_least = 10
""",
        encoding="utf-8",
    )
