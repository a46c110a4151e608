"""The Helper's processes of a schedule: one, a twin on its state, a clone on another machine."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from aggregator.helper.helper import Helper
from aggregator.helper.helper_runtime import HelperRunner
from aggregator.helper.helper_state import FencedOut, HelperState
from aggregator.protocol.directory import Directory
from aggregator.protocol.interfaces import (
    BatchReply,
    CommittedAnswer,
    HelperStatus,
    HelperUnavailable,
    ReleaseReply,
    TaskSeen,
)
from aggregator.state.state_file import StateUnusable, StorageUnavailable
from aggregator.witness import chain as helper_links
from aggregator.witness.chain import RollbackSeen, WitnessedChain, WitnessUnavailable
from tests.agent_world import T0
from tests.aggregator.witness.witness_kit import MemoryStand
from tests.schedules.machine import Crash, Machine, Process, copy_database
from tests.schedules.signed_world import parties, signed_roster, signed_task, world
from wire.fields import KeyId, key_id


class NotedHelperState(HelperState):
    """The production state; each commit is told once it is durable."""

    on_commit: Callable[[CommittedAnswer], None]

    def commit(self, answer: CommittedAnswer, closed_s: int) -> None:
        super().commit(answer, closed_s)
        self.on_commit(answer)


class HelperProcess(Process):
    """One process of a Helper and the folder of its state.

    rolled_back   its files were put back, and no operator has said so
    put_back      they were once: numbers of its fence came twice, and tell no longer who is newest
    """

    def __init__(
        self, name: str, now: Callable[[], float], folder: Path, witness: MemoryStand
    ) -> None:
        super().__init__(name, now)
        self.folder, self._stand = folder, witness
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tasks = [1]
        self.rolled_back = self.after_restore = self.put_back = False
        self.stopped = False
        self.fence = 0
        self.state: NotedHelperState | None = None
        self.runner: HelperRunner | None = None
        self.helper: Helper | None = None
        self.on_commit: Callable[[HelperProcess, CommittedAnswer], None] = (
            lambda _process, _answer: None
        )

    @property
    def files(self) -> tuple[Path, Path]:
        return self.folder / "helper.sqlite", self.folder / "helper.fence"

    def turn(self, machine: Machine) -> None:
        """Start if it is down and may; else do what is owed."""
        if self.stopped or self._now() < self.down_until_s:
            return
        try:
            with machine.running(self):
                if not self.alive:
                    self._start()
                elif self.helper is not None:
                    self.helper.store_owed()
        except Crash:
            self.kill()
        except StorageUnavailable:
            if self.runner is None:
                self.kill(5.0)
        except WitnessUnavailable:
            self.kill(5.0)
        except (FencedOut, StateUnusable, RollbackSeen):
            self.kill()
            self.stopped = True

    def _start(self) -> None:
        self.lives += 1
        self.alive = True
        own = world().helper
        state = self.state = NotedHelperState(*self.files, self.clock(), linked_as=own.pk)
        self.fence = state.fence
        state.on_commit = lambda answer: self.on_commit(self, answer)
        chain = WitnessedChain(state, self._stand.open(own.signing))
        if self.after_restore:
            chain.after_restore(self.clock())
            self.after_restore = self.rolled_back = False
        directory = Directory(parties())
        pairs = {key_id(own.hpke.public_bytes): own.hpke}
        self.helper = Helper(
            directory, own.signing, lambda kid: pairs.get(KeyId(kid)), state,
            ledger_counters=state.counters(), seen_epochs=state.epochs(), checkpoint=self.point,
        )  # fmt: skip
        directory.add_roster(signed_roster())
        for version in self.tasks:
            self.helper.learn(TaskSeen(signed_task(version), T0, at_start=True))
        self.runner = HelperRunner(self.helper, self.clock, helper_pk=own.pk, settle=chain.settle)

    def learn(self, version: int) -> None:
        if version not in self.tasks:
            self.tasks.append(version)
            if self.helper is not None:
                self.helper.learn(TaskSeen(signed_task(version), self.clock()))

    def let_go(self) -> None:
        if self.state is not None:
            self.state.close()
        self.state = self.runner = self.helper = None

    # Backups

    def back_up(self) -> None:
        for path in self.files:
            if not path.exists():
                return
        copy_database(self.files[0], self.folder / "backup.sqlite")
        shutil.copy(self.files[1], self.folder / "backup.fence")

    def restore(self, *, fence_too: bool) -> None:
        backup = self.folder / "backup.sqlite"
        if not backup.exists():
            return
        self.kill(10.0)
        copy_database(backup, self.files[0])
        if fence_too:
            shutil.copy(self.folder / "backup.fence", self.files[1])
        self.rolled_back, self.put_back = self.is_behind(), True

    def is_behind(self) -> bool:
        """Whether its state lacks links that the witness holds, or has others."""
        held = self._stand.chains.get(world().helper.pk, [])
        if not held:
            return False
        with closing(sqlite3.connect(self.files[0])) as db:
            return not helper_links.holds(db, held[-1].head())


class Channel:
    """The way from a Leader to whichever Helper answers; a `HelperPort`.

    cut           nothing passes
    lose_replies  so many of the next calls are answered, and the answer is lost
    """

    def __init__(self, machine: Machine, route: Callable[[], HelperProcess]) -> None:
        self._machine, self._route = machine, route
        self.cut = False
        self.lose_replies = 0
        self.on_share: Callable[[HelperProcess, bytes, BatchReply], None] = lambda *_told: None
        self.on_signed: Callable[[HelperProcess, bytes], None] = lambda *_told: None

    @contextmanager
    def _call(self) -> Iterator[tuple[HelperProcess, HelperRunner]]:
        helper = self._route()
        if self.cut or helper.cut_off or helper.runner is None:
            raise HelperUnavailable("away")
        try:
            with self._machine.running(helper):
                yield helper, helper.runner
        except Crash:
            helper.kill()
            raise HelperUnavailable("it fell") from None
        except (StorageUnavailable, WitnessUnavailable) as error:
            raise HelperUnavailable("it waits") from error
        except (FencedOut, StateUnusable, RollbackSeen) as error:
            helper.kill()
            helper.stopped = not isinstance(error, StateUnusable)
            raise HelperUnavailable("it stopped") from error
        if self.lose_replies:
            self.lose_replies -= 1
            raise HelperUnavailable("the answer was lost")

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        with self._call() as (_, runner):
            runner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        with self._call() as (helper, runner):
            reply = runner.submit_batch(signed_batch, epochs_complete=epochs_complete)
            if reply.share:
                self.on_share(helper, signed_batch, reply)
        return reply

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        with self._call() as (helper, runner):
            reply = runner.submit_release(entry, vector)
            if reply.entry:
                self.on_signed(helper, reply.entry)
        return reply

    def status(self) -> HelperStatus:
        raise NotImplementedError
