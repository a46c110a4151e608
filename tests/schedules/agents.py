"""Agents of a schedule: the production loop, ledger and outbox, over a log in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import Record
from edge_agent.agent_runtime import AgentRuntime
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import (
    HostEntry,
    LedgerCorrupt,
    LedgerFull,
    LedgerMissing,
    LedgerRefused,
    LedgerRolledBack,
    SealedRecord,
)
from edge_agent.ledger.left_reports import LeftReport
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.roster_book import read_signed_past
from edge_agent.windows.window_accumulator import ClosedWindow
from privacy.noise_table import SeededBytes
from tests.agent_world import T0, LastNoise
from tests.schedules.machine import Crash, Machine, Process, copy_database
from tests.schedules.signed_world import rules, true_row, world
from tests.schedules.simulated_log import LogClient, SimulatedLog
from transport.interface import TransportUnavailable
from wire.fields import TaskId
from wire.task import CHECK_WORDS, Task

_BINDING: Final = b"machine"
Sealed = Callable[[Sequence[HostEntry], Sequence[SealedRecord], NDArray[np.int64]], None]
"""Told of reports about to be committed: entries, records, and the noise of each, int64[n, d]."""


class NotedLedger(Ledger):
    """The production ledger; what it is about to commit is told first."""

    noise: LastNoise
    sealed: Sealed

    def commit_sealed(
        self,
        entries: Sequence[HostEntry],
        records: Sequence[SealedRecord],
        now_s: int,
        keep_from_s: int = 0,
        left: Sequence[LeftReport] = (),
    ) -> tuple[int, ...]:
        self.sealed(entries, records, self.noise.last)
        return super().commit_sealed(entries, records, now_s, keep_from_s, left)

    def has_spent(self, host: bytes, window: int) -> bool:
        row = self._db.execute(
            "SELECT 1 FROM entries WHERE host = ? AND window_start = ?", (host, window)
        )
        return not self._db.in_transaction and row.fetchone() is not None


class TrueWindows:
    """Windows whose rows are known beforehand; a new version begins after the open window."""

    def __init__(self, hosts: Sequence[int]) -> None:
        self._hosts = tuple(hosts)
        self._open: list[tuple[TaskId, Task, int, int | None]] = []

    def open_task(self, task_id: TaskId, task: Task, now_s: int) -> None:
        """Begin with the window that holds the present, or behind that of an older version."""
        first = now_s // task.window_s * task.window_s
        ending = []
        for old_id, old, at_s, last_s in self._open:
            if last_s is None:
                first = at_s + task.window_s
            ending.append((old_id, old, at_s, at_s if last_s is None else last_s))
        self._open = [*ending, (task_id, task, first, None)]

    def next_end_s(self) -> int | None:
        return min((at_s + task.window_s for _, task, at_s, _ in self._open), default=None)

    def close_ended(self, now_s: int) -> Iterator[ClosedWindow]:
        for place, (task_id, task, begin_s, last_s) in enumerate(list(self._open)):
            at_s = begin_s
            while at_s + task.window_s <= now_s and (last_s is None or at_s <= last_s):
                self._open[place] = (task_id, task, at_s + task.window_s, last_s)
                if task.first_window <= at_s <= task.last_window:
                    rows = np.stack([true_row(host, at_s) for host in self._hosts])
                    yield ClosedWindow(task_id, at_s, rows, np.ones(len(rows), dtype=np.bool_))
                at_s += task.window_s
        self._open = [row for row in self._open if row[3] is None or row[2] <= row[3]]

    def restart(self, tasks: Mapping[TaskId, Task], now_s: int) -> None:
        self._open.clear()
        for task_id, task in tasks.items():
            self.open_task(task_id, task, now_s)

    def add(self, record: Record) -> None:
        """Nothing is measured."""

    def follow_clock(self) -> None:
        """Windows follow the wall clock anyway."""

    def persist(self) -> None:
        """Windows of a minute are lost with the process."""


class Agent(Process):
    """One agent's process and its files; some hosts may share one, as simulated hosts do."""

    def __init__(
        self, name: str, log: SimulatedLog, now: Callable[[], float], folder: Path, seed: int
    ) -> None:
        super().__init__(name, now)
        self.hosts: tuple[int, ...] = ()
        self.client = LogClient(log, self)
        self._folder, self._seed = folder, seed
        self._runtime: AgentRuntime | None = None
        self.ledger: NotedLedger | None = None
        self.sealed: Sealed = lambda *_told: None
        self._recovers = self._recovery_cut = False
        self.recovered_s = 0
        """What was spent before, a ledger that was lost may not tell; by its own clock."""

    @property
    def path(self) -> Path:
        """Its ledger; the fence lies beside the key."""
        return self._folder / f"{self.name}.ledger"

    @property
    def ids(self) -> list[bytes]:
        return [bytes(world().identities[host].host_id) for host in self.hosts]

    def turn(self, machine: Machine) -> None:
        """Start if it is down, else go round the loop once."""
        if self._now() < self.down_until_s:
            return
        try:
            with machine.running(self):
                if not self.alive:
                    self._start()
                elif self._runtime is not None:
                    self._runtime.step()
        except Crash:
            self.kill()
        except (LedgerRolledBack, LedgerMissing):
            self.kill()
            self._recovers = True
        except LedgerRefused as refusal:
            self.kill(10.0)
            # Half a ledger is what a recovery that was cut off leaves; nothing else may.
            self._recovers = self._recovery_cut and isinstance(refusal, LedgerCorrupt)

    def _start(self) -> None:
        self.lives += 1
        self.alive = True
        now_s = int(self.clock())
        self.ledger = ledger = self._open(now_s)
        self._recovery_cut = False
        life = f"{self.name}/{self.lives}"
        noise = LastNoise(self._seed, life)
        ledger.noise, ledger.sealed = noise, self.sealed
        identities = [world().identities[host] for host in self.hosts]
        random_bytes = SeededBytes(self._seed, f"{life}/keys")
        participant = Participant(identities, ledger.view(self.ids), noise, random_bytes, rules())
        self._runtime = AgentRuntime(
            participant, ledger, self.client, TrueWindows(self.hosts), (),
            clock=self, name=self.name, fault_point=self.point,
        )  # fmt: skip
        self._runtime.start()

    def _open(self, now_s: int) -> NotedLedger:
        if self._recovers:
            try:
                return self._recover(now_s)
            except (TransportUnavailable, LedgerFull) as fault:
                raise LedgerMissing("the operator calls it again") from fault
        return NotedLedger.open(*self._files, binding=_BINDING, fault_point=self.point)

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.path, self.path.with_suffix(".fence")

    def _recover(self, now_s: int) -> NotedLedger:
        pins, host = rules().pins, world().identities[self.hosts[0]].host_id
        past = read_signed_past(self.client, host, pins)
        self._recovers, self._recovery_cut, self.recovered_s = False, True, now_s
        return NotedLedger.recover(
            *self._files, hosts=self.ids, binding=_BINDING, now_s=now_s,
            signed_time_s=past.signed_time_s, known=past.known,
        )  # fmt: skip

    def enrol(self, hosts: Sequence[int]) -> None:
        self.hosts = tuple(hosts)
        ledger, fence = _new_ledger(self.hosts)
        self.path.write_bytes(ledger)
        self.path.with_suffix(".fence").write_bytes(fence)

    def let_go(self) -> None:
        if self.ledger is not None:
            self.ledger.close()
        self._runtime = self.ledger = None

    # Its clocks, as the loop reads them

    def unix_ms(self) -> int:
        return int(self.clock() * 1000)

    def boottime_ns(self) -> int:
        return int(self._now() * 1e9)

    def sleep_ms(self, span_ms: int) -> None:
        """Time passes between turns."""

    # Backups

    def back_up(self) -> None:
        """Copy the ledger, without the fence beside the key."""
        if self.path.exists():
            copy_database(self.path, self.path.with_suffix(".backup"))

    def restore(self) -> None:
        backup = self.path.with_suffix(".backup")
        if backup.exists():
            self.kill(10.0)
            copy_database(backup, self.path)


@cache
def _new_ledger(hosts: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Give the bytes of a new ledger of these hosts and of its fence: made once a process."""
    ids = [bytes(world().identities[host].host_id) for host in hosts]
    with TemporaryDirectory() as folder:
        path, fence = Path(folder) / "ledger", Path(folder) / "fence"
        Ledger.create(path, fence, hosts=ids, binding=_BINDING, now_s=T0).close()
        return path.read_bytes(), fence.read_bytes()


def noisy_vector(
    host: int, window: int, noise: NDArray[np.int64], quantum: int
) -> NDArray[np.int64]:
    """Return int64[d]: true steps and the drawn noise, check words of 1."""
    steps = np.ones(noise.size, dtype=np.int64)
    steps[CHECK_WORDS:] = true_row(host, window) // quantum
    return steps + noise
