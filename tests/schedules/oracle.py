"""What must hold of every schedule, whatever went wrong in it.

Every sealed report is in exactly one release, or in none with a counted reason; a released vector
is the true sum and the drawn noise of exactly its hosts; ledgers hold what was released; nobody
answers a window twice; both transcripts agree; and once faults end, windows are released again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from aggregator.leader.intake import Intake
from aggregator.protocol.interfaces import BatchKey, BatchReply, CommittedAnswer
from aggregator.protocol.released import ReleasedWindow
from edge_agent.ledger.ledger_records import HostEntry, SealedRecord
from tests.schedules.agents import Agent, noisy_vector
from tests.schedules.helpers import HelperProcess
from tests.schedules.leaders import LeaderProcess, key_of
from tests.schedules.machine import Process
from tests.schedules.signed_world import COHORT, QUANTUM, task_of, world
from transport.interface import Record
from wire.batch import SignedBatch, SignedShare
from wire.envelope import Kind, unwrap
from wire.rejection import ReportRejected
from wire.report import Report
from wire.topics import REPORTS


@dataclass(frozen=True, slots=True)
class SealedReport:
    """A report that an agent was about to commit, and what is in it: int64[d]."""

    host: bytes
    window: int
    task_id: bytes
    vector: NDArray[np.int64] = field(repr=False)
    value: bytes = field(repr=False)

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.task_id, COHORT, self.window)


@dataclass(frozen=True, slots=True)
class Committed:
    helper: str
    key: BatchKey
    series: str
    hosts: tuple[bytes, ...]


class Oracle:
    def __init__(self) -> None:
        self.problems: list[str] = []
        self.sealed: dict[bytes, SealedReport] = {}
        self.on_log: dict[bytes, float] = {}
        self.refused: dict[bytes, set[str]] = defaultdict(set)
        self.shares: dict[BatchKey, set[bytes]] = defaultdict(set)
        self.accepted: dict[BatchKey, frozenset[bytes]] = {}
        self.commits: list[Committed] = []
        self.answers: dict[tuple[int, bytes], set[bytes]] = defaultdict(set)
        self._numbers = {bytes(h.host_id): i for i, h in enumerate(world().identities)}

    def say(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    # What happens

    def note_sealed(
        self,
        agent: Agent,
        entries: Sequence[HostEntry],
        records: Sequence[SealedRecord],
        noise: NDArray[np.int64],
    ) -> None:
        """An agent is about to commit these; what a lost ledger may have spent is none of them."""
        for entry, record, drawn in zip(entries, records, noise, strict=True):
            report = Report.decode(unwrap(record.value, 1 << 20)[1])
            host, window = bytes(entry.host_id), entry.entry.start
            if window <= agent.recovered_s:
                self.say(f"window {window}: spent by a ledger that was recovered after it began")
            vector = noisy_vector(self._numbers[host], window, drawn, QUANTUM)
            self.sealed[report.header.report_id] = SealedReport(
                host, window, report.task_id, vector, record.value
            )

    def genuine(self, record: Record) -> Report | None:
        """The report of a record, where an agent sealed these very bytes."""
        report = report_of(record)
        sealed = None if report is None else self.sealed.get(report.header.report_id)
        return report if sealed is not None and sealed.value == record.value else None

    def note_append(self, by: Process | None, record: Record, now_s: float) -> None:
        """A record reaches the log; an agent's report only once its budget is spent durably."""
        genuine = self.genuine(record)
        if genuine is not None:
            self.on_log.setdefault(genuine.header.report_id, now_s)
        report = report_of(record)
        if isinstance(by, Agent) and by.ledger is not None and report is not None:
            host, window = bytes(report.host_id), report.header.window
            if not by.ledger.has_spent(host, window):
                self.say(f"window {window}: a report left before its budget was spent")

    def note_commit(self, newest: bool, helper: HelperProcess, answer: CommittedAnswer) -> None:
        if not newest:
            self.say(f"window {answer.key.window}: a Helper answered that had been succeeded")
        used = answer.used or b""
        hosts = tuple(used[at : at + 16] for at in range(0, len(used), 16))
        self.commits.append(Committed(helper.name, answer.key, answer.series, hosts))

    def note_share(self, helper: HelperProcess, signed_batch: bytes, reply: BatchReply) -> None:
        batch = SignedBatch.decode(signed_batch).batch
        key = BatchKey(batch.task_id, batch.cohort, batch.window)
        if helper.rolled_back:
            self.say(f"window {key.window}: a Helper answered that had been rolled back")
        self.shares[key].add(reply.share)
        accepted = SignedShare.decode(reply.share, batch.n, task_of(1).d).share.accepted
        for host in batch.entries["host_id"][accepted].tolist():
            self.answers[key.window, host].add(reply.share)
        ids = batch.entries["report_id"]
        self.accepted[key] = frozenset(ids[accepted].tolist())
        if sum(reply.cleared.values()) != batch.n - accepted.sum():
            self.say(f"window {key.window}: hosts were cleared without a counted reason")
        for report_id in ids[~accepted].tolist():
            self.refused[report_id].add("cleared")

    # What must hold

    def check_releases(self, leaders: Sequence[LeaderProcess], *, helper_copied: bool) -> None:
        """Windows are answered once, and released with exactly what their hosts sealed.

        helper_copied   a Helper's files were copied or put back: a verdict that no witness knows
                        may be made again, for it never left; without, none is made twice
        """
        for key, shares in self.shares.items():
            if len(shares) > 1:
                self.say(f"window {key.window}: {len(shares)} different answers")
        for (window, _), answers in self.answers.items():
            if len(answers) > 1:
                self.say(f"window {window}: a host counted in {len(answers)} answers that left")
        used: Counter[tuple[str, int, bytes]] = Counter()
        for commit in () if helper_copied else self.commits:
            used.update((commit.series, commit.key.window, host) for host in commit.hosts)
        for (_, window, _), times in used.items():
            if times > 1:
                self.say(f"window {window}: a host counted in {times} answers")
        vectors: dict[BatchKey, NDArray[np.int64]] = {}
        for leader in leaders:
            for problem in leader.store.differ:
                self.say(problem)
            for release in leader.store.written:
                self._check_release(release, vectors)
            self._check_settled(leader)

    def _check_release(
        self, release: ReleasedWindow, vectors: dict[BatchKey, NDArray[np.int64]]
    ) -> None:
        key = key_of(release)
        other = vectors.setdefault(key, release.vector)
        if not np.array_equal(other, release.vector):
            self.say(f"window {key.window}: two Leaders released it differently")
        ids = self.accepted.get(key)
        if ids is None:
            self.say(f"window {key.window}: released without an answer")
            return
        unknown = ids - self.sealed.keys()
        if unknown:
            self.say(f"window {key.window}: {len(unknown)} released reports that nobody sealed")
            return
        total = np.sum([self.sealed[i].vector for i in ids], axis=0)
        if release.n != len(ids) or not np.array_equal(total, release.vector):
            self.say(f"window {key.window}: released minus true is not the drawn noise")

    def _check_settled(self, leader: LeaderProcess) -> None:
        ends: dict[BatchKey, set[str]] = defaultdict(set)
        for key, how in leader.settled:
            ends[key].add(how)
        for key, found in ends.items():
            if len(found) > 1 and not leader.restored:
                self.say(f"window {key.window}: settled as {' and as '.join(sorted(found))}")

    def check_ledgers(self, agents: Sequence[Agent], leaders: Sequence[LeaderProcess]) -> None:
        owners = {host: agent for agent in agents for host in agent.ids}
        for key in {key_of(release) for leader in leaders for release in leader.store.written}:
            for report_id in self.accepted.get(key, frozenset()) & self.sealed.keys():
                report = self.sealed[report_id]
                agent = owners.get(report.host)
                if agent is None or agent.ledger is None or report.window < agent.recovered_s:
                    continue
                if not agent.ledger.has_spent(report.host, report.window):
                    self.say(f"window {key.window}: released, and a ledger does not hold it")

    def check_reports(self, leaders: Sequence[LeaderProcess], sent: dict[bytes, bool]) -> None:
        """Every report on the log is released or has a counted reason; what was sent is there.

        sent    report id -> whether its ledger says that the log has it
        """
        released = {
            report_id
            for leader in leaders
            for release in leader.store.written
            for report_id in self.accepted.get(key_of(release), frozenset())
        }
        suppressed = {key for leader in leaders for key, how in leader.settled if how != "released"}
        for report_id in self.on_log:
            report = self.sealed[report_id]
            counted = self.refused.get(report_id, set()) - {"duplicate"}
            if report_id not in released and not counted and report.key not in suppressed:
                self.say(f"window {report.window}: a report is in no release, and nobody says why")
        for report_id, says_sent in sent.items():
            if says_sent and report_id not in self.on_log:
                window = self.sealed[report_id].window
                self.say(f"window {window}: a report counts as sent, and the log never had it")


def report_of(record: Record) -> Report | None:
    """The report of a record; None for what is none."""
    if record.topic != REPORTS:
        return None
    try:
        kind, core = unwrap(record.value, 1 << 20)
        return Report.decode(core) if kind is Kind.REPORT else None
    except ReportRejected:
        return None


class WatchedIntake:
    """Notes of each record for which reason it was refused, whoever took it: stands before Intake.

    A reason is noted where the product counted one while it took the record.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self._refused = oracle, oracle.refused
        self._take, self._drop = Intake.take, Intake.drop_parked

    def take(self, intake: Intake, records: Iterable[Record], received_s: float) -> None:
        def noted() -> Iterator[Record]:
            for record in records:
                before = Counter(intake._rejected)
                yield record
                self._note(record, intake._rejected - before)

        self._take(intake, noted(), received_s)

    def drop_parked(self, intake: Intake, gone: object) -> None:
        waiting = [parked for reports in intake.parked.values() for parked in reports]
        before = Counter(intake._rejected)
        self._drop(intake, gone)  # type: ignore[arg-type]
        left = [parked for reports in intake.parked.values() for parked in reports]
        for parked in waiting:
            if parked not in left:
                self._note(parked.record, intake._rejected - before)

    def _note(self, record: Record, counted: Counter[str]) -> None:
        report = self._oracle.genuine(record) if counted else None
        if report is not None:
            self._refused[report.header.report_id] |= counted.keys()

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, stand_in in (
                (Intake, "take", _method(self.take)),
                (Intake, "drop_parked", _method(self.drop_parked)),
            ):
                stack.enter_context(patch.object(owner, name, stand_in))
            yield


def _method(stand_in: Callable[..., None]) -> Callable[..., None]:
    """A function that a class binds to its objects, as it does not with a bound method."""

    def bound(owner: object, *given: object) -> None:
        stand_in(owner, *given)

    return bound
