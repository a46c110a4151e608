"""A Leader, a Helper and several agents on one log and one clock, through outages of the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd

from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import HelperState
from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.config import LeaderConfig
from aggregator.party.key_ring import KeyRing
from aggregator.protocol.directory import Directory, PinnedParties
from aggregator.protocol.interfaces import HelperPort, RosterSeen, TaskSeen
from aggregator.releases.releases import read_windows
from aggregator.releases.store import Store
from collectors.gpu_calls.gpu_probes import ProbesSection
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.clock import Clock
from edge_agent.config import (
    AgentConfig,
    HostSection,
    SourcesSection,
    TrustSection,
)
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.open_agent import open_agent, this_machine
from edge_agent.protocol.task_check import Bounds
from privacy.noise import NoiseSampler
from privacy.noise_table import SeededSampler
from tests import process_kit
from tests.agent_live import SteppedClock
from tests.agent_world import T0, World
from transport.factory import Side, TransportTable, open_transport
from transport.files.keyfiles import HostKey, write_host_key, write_signing_key
from transport.interface import Transport, TransportUnavailable
from wire.catalogue import Catalogue
from wire.task import Task

HOSTS = 10
CATALOGUE = Catalogue.load()
WEIGHT = 600_000


class Line:
    """What lies between everybody and the log; while it is cut, every call fails.

    patient     polls wait, as they do where time passes by itself
    """

    cut = patient = False

    def check(self) -> None:
        if self.cut:
            raise TransportUnavailable("the log is cut off")


class Cuttable:
    """A transport, producer or consumer at the far end of a line."""

    def __init__(self, inner: object, line: Line) -> None:
        self._inner, self._line = inner, line

    def __getattr__(self, name: str) -> Any:
        if name != "notes":  # said by this side
            self._line.check()
        found = getattr(self._inner, name)
        if name in {"producer", "consumer"}:
            return lambda *given: Cuttable(found(*given), self._line)
        if name == "poll" and not self._line.patient:
            return lambda most, _timeout_s: found(most, 0.0)
        return found


class OutageFleet:
    """HOSTS agents, a Leader with its store and a Helper; `run_to` moves their common clock."""

    def __init__(
        self,
        folder: Path,
        log: TransportTable,
        *,
        window_s: int,
        windows: int,
        lateness_s: int = 30,
        first: int | None = None,
        sampler: Callable[[int], NoiseSampler] = SeededSampler,
    ) -> None:
        """Start everybody.

        first       start of the first window; agents must have task, roster and keys by then
        sampler     noise of the host with a number
        """
        self.folder, self.line = folder, Line()
        self.first = T0 + max(120, window_s) if first is None else first
        self.stepped = SteppedClock(T0)
        self._sampler = sampler
        self._log = log
        self._stack = ExitStack()
        self.world = World(HOSTS)
        self.task = _task(self.world, window_s, windows, lateness_s, self.first)
        self._write_signed()
        self.start_helper()
        self.start_leader()
        self.agents = [self.agent(number) for number in range(HOSTS)]

    def now_s(self) -> float:
        return self.stepped.now_ms / 1000

    # What tests of faults stand between

    def party_clock(self, _party: str) -> Callable[[], float]:
        return self.now_s

    def agent_clock(self, _number: int) -> Clock:
        return self.stepped

    def leader_folder(self) -> Path:
        return self.folder

    def helper_folder(self) -> Path:
        return self.folder

    def make_store(self, config: LeaderConfig) -> Store:
        return Store(config.database, config.releases_dir, CATALOGUE)

    def helper_port(self) -> HelperPort:
        return self.helper

    def agent_log(self, _number: int, log: Transport) -> Transport:
        return cast("Transport", Cuttable(log, self.line))

    def leader_log(self, log: Transport) -> Transport:
        return cast("Transport", Cuttable(log, self.line))

    def _write_signed(self) -> None:
        signed = self.folder / "signed"
        signed.mkdir()
        (signed / "minute.task").write_bytes(self.world.sign_task(self.task))
        (signed / "fleet.roster").write_bytes(
            self.world.roster({self.task.series: WEIGHT}, crowd=HOSTS)
        )
        for name, party in (("leader", self.world.leader), ("helper", self.world.helper)):
            (self.folder / f"keys-{name}").mkdir()
            write_signing_key(self.folder / f"keys-{name}" / "identity.key", party.signing)

    def start_helper(self) -> None:
        world, now_s = self.world, self.party_clock("helper")
        keys = KeyRing(self.folder / "keys-helper")
        keys.rotate(now_s(), 86_400)
        folder = self.helper_folder()
        state = HelperState(folder / "helper.sqlite", self.folder / "fence", now_s())
        self._stack.callback(state.close)
        self.close_helper = state.close
        directory = Directory(PinnedParties(world.leader.pk, world.helper.pk))
        helper = Helper(directory, keys.identity, keys.pair, state)
        for path in sorted((self.folder / "signed").iterdir(), reverse=True):
            seen = path.read_bytes()
            task = path.suffix == ".task"
            helper.learn(TaskSeen(seen, now_s()) if task else RosterSeen(seen))

        def announcements() -> Sequence[bytes]:
            keys.rotate(now_s(), 86_400)
            return keys.announcements(now_s())

        self.helper = HelperRunner(
            helper,
            now_s,
            helper_pk=world.helper.pk,
            announcements=announcements,
        )

    def start_leader(self) -> None:
        config = leader_config(self.folder, self.world.helper.pk, self.leader_folder())
        self._store = self.make_store(config)
        self._transport = open_transport(self._log.settings, Side.AGGREGATOR)
        self.leader = LeaderRuntime(
            config,
            self.leader_log(self._transport),
            self._store,
            helper=self.helper_port(),
            clock=self.party_clock("leader"),
            pause=lambda _seconds: None,
        )

    def stop_leader(self) -> None:
        """End the Leader; windows go on without it."""
        self.leader._end()
        self._store.close()
        self._transport.close()

    def agent_config(self, number: int) -> AgentConfig:
        folder, world = self.folder / f"host-{number}", self.world
        return AgentConfig(
            HostSection(folder / "keys" / "host.key", folder / "state", ("H100", "H100")),
            self._log,
            TrustSection(frozenset({world.leader.pk}), frozenset({world.helper.pk})),
            Bounds(n_min_at_least=8),
            SpoolLimits(),
            SourcesSection(
                host=False, gpus=False, faults=False, probes=ProbesSection(enabled=False)
            ),
        )

    def agent(
        self, number: int, fault_point: Callable[[str], None] = lambda _point: None
    ) -> AgentRuntime:
        """Start an agent, which belongs to this thread, with what an earlier one left."""
        config = self.agent_config(number)
        if not config.host.key_file.exists():
            config.host.key_file.parent.mkdir(parents=True)
            key = HostKey(self.world.signing_keys[number], this_machine(config))
            write_host_key(config.host.key_file, key)
        log = open_transport(self._log.settings, Side.AGENT)
        self._stack.callback(log.close)
        runtime, _ = open_agent(
            config,
            domain="demo",
            sampler=self._sampler(number),
            clock=self.agent_clock(number),
            transport=self.agent_log(number, log),
            fault_point=fault_point,
        )
        runtime.start()
        return runtime

    def step(self) -> None:
        for agent in self.agents:
            agent.step()
        self.leader._turn()
        self.leader._calls.wait()  # the Helper has answered by now

    def run_to(self, until_s: float, step_s: float = 0.0) -> None:
        """Move the clock, from one thing that an agent has to do to the next, or by equal steps."""
        while self.now_s() < until_s:
            self.step()
            pause_ms = min(agent.pause_ms() for agent in self.agents)
            left_ms = round(until_s * 1000) - self.stepped.now_ms
            self.stepped.sleep_ms(max(1, min(round(step_s * 1000) or pause_ms, left_ms)))
        self.step()

    def ends(self) -> pd.DataFrame:
        """How every window ended, as a reader of the store sees it."""
        return read_windows(self.folder / "releases")

    def windows(self) -> list[int]:
        task = self.task
        return list(range(task.first_window, task.last_window + 1, task.window_s))

    def close(self) -> None:
        self.line.cut = False
        for agent in self.agents:
            agent.close()
        self.stop_leader()
        self._stack.close()


def _task(world: World, window_s: int, windows: int, lateness_s: int, first: int) -> Task:
    return world.catalogue_task(
        {"kernel_mix": WEIGHT}, window_s=window_s, windows=windows, first=first,
        lateness_s=lateness_s, n_max=HOSTS, n_min=8, t=1, largest_operator=1,
        expiry=first + windows * window_s + 86_400,
    )  # fmt: skip


def leader_config(folder: Path, helper_pk: bytes, state: Path) -> LeaderConfig:
    return replace(
        process_kit.leader_config(folder, helper_pk),
        state_dir=state, helper=None, database=folder / "store" / "r.duckdb",
        releases_dir=folder / "releases",
    )  # fmt: skip
