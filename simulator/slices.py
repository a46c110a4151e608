"""Simulated hosts on the wall clock: one process of the production agent's loop plays them all.

`python -m simulator.slices FILE.json` makes its hosts' keys and prints their join requests as one
line of JSON; everything else it learns from the log, as any agent does.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Event
from time import time
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import Record
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.clock import Clock, SystemClock
from edge_agent.ledger.ledger_records import SpoolLimits
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from edge_agent.sending.effects import AgentTally
from edge_agent.windows.window_accumulator import ClosedWindow
from privacy.noise import NoiseSampler, OpenDpSampler
from privacy.noise_table import SeededBytes, SeededSampler, TableSampler
from simulator.fleet.fleet_model import SteadyFleet
from simulator.fleet.fleet_rows import FleetRows
from simulator.fleet.hosts import FleetStates
from transport.factory import (
    Side,
    TransportSettings,
    TransportTable,
    open_transport,
    prepare_transport,
)
from transport.files.private_files import parse_token
from transport.interface import Transport
from transport.kafka.kafka_frame import KafkaSettings
from transport.process.privileges import AGENT_USER, drop_to
from transport.process.unforeseen import told
from wire.catalogue import Catalogue
from wire.envelope import unwrap
from wire.fields import TaskId
from wire.report import Report
from wire.task import CHECK_WORDS, DEMO_DOMAIN, Task

from .engine.blocks import BlockRows, Span, spans
from .engine.interface import EngineSettings
from .mischief import MischievousTransport
from .scenario import Scenario, load
from .simulated_hosts import gpus_of, hosts_ledger, new_hosts, participant_of, vouched_requests
from .streams import stream


@dataclass(frozen=True, slots=True)
class WindowTruth:
    """What the hosts that report in time truly did: int64[k], base units of the task's sections."""

    series: str
    start_s: int
    hosts: int
    sums: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True, slots=True)
class LateHosts:
    """Hosts (places in the process) whose reports of a window are held back until it has closed."""

    closes_s: int
    hosts: frozenset[int]


@dataclass(slots=True)
class _Open:
    task_id: TaskId
    task: Task
    next_window: int

    @property
    def next_end(self) -> int:
        return self.next_window + self.task.window_s


class SimulatedWindows:
    """Closes the windows of many hosts at once; implements edge_agent's `Windows`.

    late_hosts   window start -> whose reports the network holds back, where late ones are sent
    """

    def __init__(
        self,
        fleet: FleetStates,
        catalogue: Catalogue,
        spans: tuple[Span, ...],
        tell: Callable[[WindowTruth], None],
        *,
        block_hosts: int,
        until_s: float = math.inf,
        tasks: int | None = None,
        sends_late: bool = False,
    ) -> None:
        """Begin without a task.

        until_s     Unix seconds: later windows are not closed
        tasks       how many there will be, where they are known to end
        sends_late  late reports are sent, for a network that holds them back; else left out
        """
        self._fleet, self._catalogue, self._tell = fleet, catalogue, tell
        settings = EngineSettings(seed=fleet.scenario.seed, block_hosts=block_hosts)
        self._rows = BlockRows(spans, settings)
        self._until_s, self._tasks, self._sends_late = until_s, tasks, sends_late
        self._part = slice(spans[0].lo, spans[-1].hi)
        self._shift_s: int | None = None
        self._open: list[_Open] = []
        self.late_hosts: dict[int, LateHosts] = {}
        self.opened = 0

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin with the first window that has not begun yet."""
        self._rows.learn(task.series, FleetRows(self._catalogue, task, self._fleet.applications))
        first = max(task.first_window, -(-now_s // task.window_s) * task.window_s)
        self._open = [window for window in self._open if window.task.series != task.series]
        self._open.append(_Open(task_id, task, first))
        self.opened += 1

    def add(self, record: Record) -> None:
        """Simulated hosts have no sources."""
        raise TypeError(f"simulated hosts take no records, got {type(record).__name__}")

    def next_end_s(self) -> int | None:
        return min((w.next_end for w in self._open if w.next_end <= self._until_s), default=None)

    def over(self, now_s: int) -> bool:
        if now_s >= self._until_s:
            return True
        return self._tasks is not None and self.opened >= self._tasks and not self._open

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        """Draw the rows of every window that has ended, and tell its truth.

        The oldest end first, then by series: a seed repeats on any machine and over any log.
        """
        while due := [w for w in self._open if w.next_end <= min(now_s, self._until_s)]:
            window = min(due, key=lambda w: (w.next_end, w.task.window_s, w.task.series))
            yield self._close(window)
            window.next_window += window.task.window_s
            self._open = [w for w in self._open if w.next_window <= w.task.last_window]

    def follow_clock(self) -> None:
        """Windows follow the wall clock already."""

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None:
        """Simulated windows follow the scenario's time, which is never set back."""

    def persist(self) -> None:
        """A simulated host that restarts has lost its open windows."""

    def _close(self, window: _Open) -> ClosedWindow:
        task, start_s = window.task, window.next_window
        state = self._fleet.at(start_s - self._shift(), task.window_s)
        truth = np.zeros(task.d - CHECK_WORDS, dtype=np.int64)
        drawn = self._rows.draw(task, state, truth)
        rows = np.concatenate([block.rows.copy() for block in drawn])
        present, late = state.present[self._part], state.late[self._part]
        in_time = present & ~late
        if self._sends_late:
            held = frozenset(np.flatnonzero(present & late).tolist())
            closes_s = start_s + task.window_s + task.lateness_s
            self.late_hosts[start_s] = LateHosts(closes_s, held)
        self._tell(WindowTruth(task.series, start_s, int(np.count_nonzero(in_time)), truth))
        return ClosedWindow(window.task_id, start_s, rows, present if self._sends_late else in_time)

    def _shift(self) -> int:
        """Wall clock less the scenario's time, in whole steps of the fleet."""
        if self._shift_s is None:
            scenario = self._fleet.scenario
            begun_s = min(window.next_window for window in self._open) - scenario.start_s
            self._shift_s = begun_s // scenario.step_s * scenario.step_s
        return self._shift_s


_IDLE_MS: Final = 200


class LiveFleet:
    def __init__(
        self,
        hosts: Sequence[Host],
        windows: SimulatedWindows,
        transport: Transport,
        *,
        folder: Path,
        name: str,
        rules: ParticipantRules,
        sampler: NoiseSampler,
        spool_reports: int,
        rounding: Callable[[int], bytes] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open the ledger in a folder of its own, 0700. Raises LedgerRefused.

        spool_reports   of each host may wait for the log
        rounding        None: the operating system
        """
        self._clock = clock or SystemClock()
        self._windows = windows
        limits = SpoolLimits(max_records=spool_reports * len(hosts))
        ledger = hosts_ledger(folder, hosts, self._now_s, limits)
        participant = participant_of(hosts, ledger, sampler, rules, rounding)
        self._runtime = AgentRuntime(
            participant, ledger, transport, windows, (), clock=self._clock, name=name
        )

    @property
    def _now_s(self) -> int:
        return self._clock.unix_ms() // 1000

    def run(self, stopping: Callable[[], bool] = lambda: False) -> AgentTally:
        """Report until windows are over and all is on the log, or stopped. Raises LedgerRefused."""
        runtime = self._runtime
        runtime.start()
        try:
            while not stopping():
                tally = runtime.tally
                sent = tally.published >= tally.sealed + tally.epochs
                if sent and self._windows.over(self._now_s):
                    break
                runtime.step()
                self._clock.sleep_ms(min(runtime.pause_ms(), _IDLE_MS))
        finally:
            runtime.close()
        return runtime.tally


def parts_of(hosts: int, parts: int) -> list[Span]:
    """Divide a fleet among processes, one block each; into fewer where there are fewer hosts."""
    return [block for part in spans(hosts, -(-hosts // parts), parts) for block in part]


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """What one process is told.

    scenario        its file; hosts, seed and dropout stand in place of the file's
    part            which of the `parts` of the fleet's hosts it plays
    repeats         noise and rounding come from the seed too, not from the operating system
    opendp_hosts    of its hosts draw noise by opendp
    state_dir       its ledger, 0700; truth_file gets one line of JSON per window
    log_dir         the embedded log, or None with kafka: a broker's host:port
    tasks           how many tasks it waits for before it may end
    tokens_file     a line with a join token for each of its hosts, 0600
    """

    name: str
    scenario: str
    hosts: int
    seed: int
    dropout: float
    part: int
    parts: int
    repeats: bool
    opendp_hosts: int
    state_dir: str
    log_dir: str | None
    log_group: str | None
    kafka: str | None
    truth_file: str
    leader_pk: str
    helper_pk: str
    n_min_at_least: int
    tasks: int
    tokens_file: str

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @property
    def played(self) -> Scenario:
        scenario = load(Path(self.scenario)).with_(hosts=self.hosts, seed=self.seed)
        return scenario.with_(dropout=replace(scenario.dropout, share=self.dropout))

    @property
    def span(self) -> Span:
        return parts_of(self.hosts, self.parts)[self.part]

    @property
    def transport(self) -> TransportSettings:
        folder = Path(self.log_dir) if self.log_dir else None
        kafka = KafkaSettings((self.kafka,)) if self.kafka else None
        return TransportTable(folder, self.log_group, kafka).settings


class MixedSampler:
    """The first hosts of every batch draw as live agents do, the others by the exact table."""

    def __init__(self, first: NoiseSampler, first_hosts: int, rest: NoiseSampler) -> None:
        self._first, self._first_hosts, self._rest = first, first_hosts, rest

    @property
    def seeded(self) -> bool:
        return self._first.seeded or self._rest.seeded

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        first = min(self._first_hosts, hosts)
        return np.concatenate(
            [self._first.sample(first, sigma_1024), self._rest.sample(hosts - first, sigma_1024)]
        )


def _held_until(windows: SimulatedWindows, hosts: list[Host]) -> Callable[[bytes], float]:
    """Tell until when the network holds a report back: of hosts that are late, a second too long.

    Returns     envelope of a report -> Unix time, 0 where it is not held back
    """
    index = {bytes(host.host_id): place for place, host in enumerate(hosts)}

    def held_until_s(envelope: bytes) -> float:
        report = Report.decode(unwrap(envelope, len(envelope))[1])
        late = windows.late_hosts.get(report.header.window)
        held = late is not None and index.get(report.host_id) in late.hosts
        return late.closes_s + 1.0 if late is not None and held else 0.0

    return held_until_s


def _samplers(config: SliceConfig) -> NoiseSampler:
    rest: NoiseSampler = TableSampler(os.urandom)
    if config.repeats:
        rest = SeededSampler(config.seed, f"noise/{config.part}")
    count = config.opendp_hosts
    return MixedSampler(OpenDpSampler(), count, rest) if count else rest


def play(
    config: SliceConfig, hosts: list[Host], fleet: SteadyFleet, stopping: Callable[[], bool]
) -> None:
    """Take part until every task's last window is sent, or until stopped."""
    with Path(config.truth_file).open("a", encoding="utf-8", buffering=1) as truths:

        def tell(truth: WindowTruth) -> None:
            line = {
                "series": truth.series,
                "window": truth.start_s,
                "hosts": truth.hosts,
                "sums": truth.sums.tolist(),
            }
            truths.write(json.dumps(line) + "\n")

        windows = SimulatedWindows(
            fleet,
            Catalogue.load(),
            (config.span,),
            tell,
            block_hosts=len(hosts),
            tasks=config.tasks,
            sends_late=True,
        )
        transport = MischievousTransport(
            open_transport(config.transport, Side.AGGREGATOR),
            stream(config.seed, "mischief", config.part),
            _held_until(windows, hosts),
            time,
        )
        pins = Pins(
            frozenset({bytes.fromhex(config.leader_pk)}),
            frozenset({bytes.fromhex(config.helper_pk)}),
        )
        repeated = SeededBytes(config.seed, f"rounding/{config.part}")
        LiveFleet(
            hosts,
            windows,
            transport,
            folder=Path(config.state_dir),
            name=config.name,
            rules=ParticipantRules(pins, Bounds(n_min_at_least=config.n_min_at_least), DEMO_DOMAIN),
            sampler=_samplers(config),
            spool_reports=16,
            rounding=repeated if config.repeats else None,
        ).run(stopping)


def announce(config: SliceConfig, hosts: list[Host], fleet: SteadyFleet) -> None:
    """Write the hosts' join requests to standard output. Raises TokenUnusable, OSError."""
    lines = Path(config.tokens_file).read_bytes().split()
    tokens = [parse_token(line, config.tokens_file) for line in lines]
    span = config.span
    gpus = gpus_of(fleet.inventory)[span.lo : span.hi]
    requests = [one.encode().hex() for one in vouched_requests(hosts, tokens, gpus)]
    sys.stdout.write(json.dumps({"name": config.name, "requests": requests}) + "\n")
    sys.stdout.flush()


def main() -> None:
    config = SliceConfig.read(Path(sys.argv[1]))
    hosts = new_hosts(config.span.hi - config.span.lo)
    # Its scenario may lie where the agents' user cannot read.
    fleet = SteadyFleet(config.played, Catalogue.load())
    announce(config, hosts, fleet)  # they are enrolled while this process prepares
    os.umask(0o027)
    prepare_transport(config.transport, Side.AGGREGATOR)
    drop_to(AGENT_USER)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    play(config, hosts, fleet, stop.is_set)


if __name__ == "__main__":
    with told():
        main()
