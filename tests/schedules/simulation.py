"""One schedule under way: turns in a drawn order, faults between them, then peace."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from aggregator.protocol.interfaces import CommittedAnswer
from tests.agent_world import T0
from tests.aggregator.witness.witness_kit import MemoryStand
from tests.schedules.adversary import Liar
from tests.schedules.agents import Agent
from tests.schedules.helpers import Channel, HelperProcess
from tests.schedules.leaders import LeaderProcess
from tests.schedules.machine import Machine, Process
from tests.schedules.oracle import Oracle
from tests.schedules.schedule import AGENTS, SLOT_S, SLOTS, Fault, Schedule
from tests.schedules.signed_world import (
    HOSTS,
    LAST_WINDOW,
    LIAR,
    WINDOW_S,
    WINDOWS,
    control_records,
)
from tests.schedules.simulated_log import SimulatedLog, unread

CALM_SLOTS: Final = WINDOWS * WINDOW_S // SLOT_S - SLOTS
SETTLE_SLOTS: Final = 20


class Simulation:
    """Every process of one schedule, and the time they share."""

    def __init__(
        self, schedule: Schedule, folder: Path, strike: Callable[[Simulation, Fault], None]
    ) -> None:
        """Start nobody yet.

        strike    lets a fault happen
        """
        self.schedule, self.folder, self._strike = schedule, folder, strike
        self.now_s = float(T0)
        self.machine, self.oracle = Machine(), Oracle()
        self.log = SimulatedLog(self.now)
        self.log.on_append = lambda by, record: self.oracle.note_append(by, record, self.now_s)
        self.witness = MemoryStand()
        self.helpers: list[HelperProcess] = []
        self.add_helper("helper", folder / "helper")
        self.channel = Channel(self.machine, self.route)
        self.channel.on_share = self.oracle.note_share
        self.channel.on_signed = self._note_signed
        self.leaders = [self.new_leader("leader")]
        self.agents = [self._agent(number) for number in range(AGENTS)]
        self.liar = Liar(self.log) if schedule.liar else None
        self.parted = self.helper_parted = self.helper_copied = False
        """Copies of a party spoke for it: the chains of both need not agree."""
        self.commits_lost = False
        self.endings: list[tuple[int, Callable[[], None]]] = []
        self.versions: list[int] = []
        self.announce(1)

    def now(self) -> float:
        return self.now_s

    # Its parts

    @property
    def leader(self) -> LeaderProcess:
        """The one that stays."""
        return self.leaders[0]

    def announce(self, version: int) -> None:
        self.versions.append(version)
        for topic, value in control_records(version):
            self.log.append(topic, b"", value)

    def _agent(self, number: int) -> Agent:
        agent = Agent(f"agent-{number}", self.log, self.now, self.folder, self.schedule.seed)
        hosts = range(LIAR if self.schedule.liar else HOSTS)
        agent.enrol([host for host in hosts if host % AGENTS == number])
        agent.sealed = partial(self.oracle.note_sealed, agent)
        return agent

    def new_leader(self, name: str) -> LeaderProcess:
        return LeaderProcess(name, self.log, self.now, self.folder / name, self.channel)

    def add_helper(self, name: str, folder: Path) -> HelperProcess:
        helper = HelperProcess(name, self.now, folder, self.witness)
        helper.on_commit = self._note_commit
        self.helpers.append(helper)
        return helper

    def route(self) -> HelperProcess:
        live = [helper for helper in self.helpers if helper.alive] or self.helpers
        return live[(int(self.now_s) // SLOT_S + self.schedule.seed) % len(live)]

    def _note_commit(self, helper: HelperProcess, answer: CommittedAnswer) -> None:
        same = [other for other in self.helpers if other.folder == helper.folder]
        unordered = any(other.put_back for other in same)
        newest = unordered or max(other.fence for other in same) == helper.fence
        self.oracle.note_commit(newest, helper, answer)

    def _note_signed(self, helper: HelperProcess, entry: bytes) -> None:
        if helper.rolled_back:
            self.oracle.say("a Helper signed a release that had been rolled back")

    # Time

    def processes(self) -> list[Process]:
        return [*self.agents, *self.leaders, *self.helpers]

    def play(self) -> None:
        faults = sorted(self.schedule.faults, key=lambda fault: (fault.slot, fault.turn))
        for slot in range(SLOTS):
            self._end_faults(slot)
            self._slot(slot, [fault for fault in faults if fault.slot == slot])
        self.put_right()
        for slot in range(SLOTS, SLOTS + CALM_SLOTS):
            self._in_peace(slot)

    def settle(self) -> None:
        """The task's windows are over: let the parties finish."""
        for slot in range(SETTLE_SLOTS):
            if self.is_settled():
                return
            self._in_peace(SLOTS + CALM_SLOTS + slot)

    def _in_peace(self, slot: int) -> None:
        """One slot in which operators start again what stopped."""
        self._revive(self.helpers[0])
        self._slot(slot, [])

    def is_settled(self) -> bool:
        leader = self.leader
        if leader.leader is None or leader.state is None or leader.leader.unsettled:
            return False
        over = {key.window for key, _ in leader.settled}
        if LAST_WINDOW not in over or leader.state.unsigned():
            return False
        if self.commits_lost:  # of what is behind the last commit it may hear nothing more
            return leader.has_read_all()
        return not unread(self.log, leader.group)

    def _slot(self, slot: int, faults: list[Fault]) -> None:
        order = self.processes()
        random.Random(f"{self.schedule.seed}/{slot}").shuffle(order)
        begin_s = T0 + slot * SLOT_S
        for place, process in enumerate(order):
            self.now_s = begin_s + SLOT_S * place / len(order)
            for fault in faults:
                if fault.turn == place or (fault.turn >= len(order) and place == 0):
                    self._strike(self, fault)
            self._turn(process)
        self.now_s = begin_s + SLOT_S - 0.01
        if self.liar is not None:
            self.liar.turn(int(self.now_s))
        for leader in self.leaders:
            leader.deliver_stray_calls()

    def _turn(self, process: Process) -> None:
        match process:
            case Agent() | HelperProcess() | LeaderProcess():
                process.turn(self.machine)
            case _:
                raise TypeError(f"process: expected one that takes turns, got {process}")

    def until(self, slots: int, slot: int, ending: Callable[[], None]) -> None:
        self.endings.append((slot + slots, ending))

    def _end_faults(self, slot: int) -> None:
        for at, ending in [row for row in self.endings if row[0] <= slot]:
            ending()
            self.endings.remove((at, ending))

    def put_right(self) -> None:
        for _, ending in self.endings:
            ending()
        self.endings.clear()
        log, channel = self.log, self.channel
        log.away = log.backwards = channel.cut = False
        log.held.clear()
        channel.lose_replies = 0
        self.witness.start()
        for process in self.processes():
            process.calm_down()
        for leader in self.leaders[1:]:
            leader.kill()
            leader.stopped = True
        self.leader.helper_delay_s = 0.0
        self.leader.stopped = False
        self._keep_one_helper()
        for agent in self.agents:
            agent.client.lose_flush = 0
        for version in self.versions:
            self.leader.learn(version)
            for helper in self.helpers:
                helper.learn(version)

    def _keep_one_helper(self) -> None:
        """End every copy; what was rolled back goes on after the witness's word."""
        first, *copies = self.helpers
        for helper in copies:
            helper.kill()
            helper.stopped = True
        if any(helper.folder == first.folder for helper in copies):
            first.kill()  # a twin has taken its state over

    def _revive(self, helper: HelperProcess) -> None:
        """Start a Helper that stopped: with `--after-restore` where its witness holds more."""
        if helper.stopped or helper.rolled_back:
            helper.kill()
            helper.after_restore = helper.is_behind()
            self.helper_parted |= helper.after_restore
            self.parted |= self.helper_parted
        helper.stopped = False

    # The end

    def close(self) -> None:
        for process in self.processes():
            process.kill()
