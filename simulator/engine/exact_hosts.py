"""The simulated hosts of one process: production participants in blocks around one ledger.

A window is one transaction of the ledger for all of them; a live agent keeps its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_records import SealedRecord, SpoolLimits
from edge_agent.protocol import protocol_events as events
from edge_agent.protocol.epochs import Host
from edge_agent.protocol.participant import Participant
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from simulator.fleet.hosts import FleetState
from simulator.simulated_hosts import hosts_ledger, new_hosts, participant_of
from transport.factory import Side, TransportSettings, open_transport
from transport.interface import Producer, Transport
from wire.epoch import KeyAnnouncement
from wire.fields import TaskId
from wire.task import CHECK_WORDS, DEMO_DOMAIN, Task

from .blocks import Drawn, Span
from .interface import EngineSettings
from .worker_pool import BlockHosts

_SPOOL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class HostPapers:
    """What both parties have signed, and what a host pins: all a host is ever told."""

    tasks: tuple[bytes, ...]
    roster: bytes
    announcements: tuple[KeyAnnouncement, ...]
    leader_pk: bytes
    helper_pk: bytes
    n_min: int
    now_s: int


@dataclass(slots=True)
class Sent:
    """What one process's hosts did in a window.

    sent        records that are on the log: reports, with the epochs that they needed
    held        reports of hosts whose network is slow; `send_late` lets them go
    withheld    reason -> hosts that published nothing
    """

    truth: NDArray[np.int64]
    sent: int = 0
    held: int = 0
    withheld: dict[str, int] = field(default_factory=dict)
    stage_s: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Block:
    span: Span
    hosts: list[Host]
    participant: Participant


class ExactHosts(BlockHosts):
    def __init__(
        self,
        number: int,
        spans_: tuple[Span, ...],
        settings: EngineSettings,
        folder: Path,
        transport: TransportSettings,
        tamper: Callable[[Transport], Transport] | None = None,
    ) -> None:
        super().__init__(spans_, settings, "agent.")
        self._spans, self._folder = spans_, folder / f"hosts-{number}"
        self._hosts = {span.block: new_hosts(span.hi - span.lo) for span in spans_}
        opened = open_transport(transport, Side.AGGREGATOR)
        self._log: Transport = opened if tamper is None else tamper(opened)
        self._producer: Producer
        self._ledger: Ledger
        self._blocks: list[_Block] = []
        self._late: list[tuple[int, SealedRecord]] = []

    def public_keys(self) -> list[bytes]:
        return [host.signing_key.public_bytes for hosts in self._hosts.values() for host in hosts]

    def take(self, papers: HostPapers) -> None:
        self._producer = self._log.producer()
        hosts = [host for block in self._hosts.values() for host in block]
        self._folder.mkdir(parents=True, mode=0o700)
        limits = SpoolLimits(8 * len(hosts), _SPOOL_BYTES)
        self._ledger = hosts_ledger(self._folder, hosts, papers.now_s, limits)
        pins = Pins(frozenset({papers.leader_pk}), frozenset({papers.helper_pk}))
        most = Bounds().n_max_at_most
        bounds = Bounds(n_min_at_least=papers.n_min, n_max_at_most=max(most, 2 * papers.n_min))
        rules = ParticipantRules(pins, bounds, DEMO_DOMAIN)
        for span in self._spans:
            self._blocks.append(self._start(span, rules, papers))

    def _start(self, span: Span, rules: ParticipantRules, papers: HostPapers) -> _Block:
        hosts, random = self._hosts[span.block], self._random
        participant = participant_of(hosts, self._ledger, random, rules, random.rounding)
        block = _Block(span, hosts, participant)
        refused: Counter[str] = Counter()
        for signed in papers.tasks:
            self._tell(block, events.TaskReceived(signed, papers.now_s), refused)
        self._tell(block, events.RosterReceived(papers.roster, papers.now_s), refused)
        self._tell(block, events.KeysAnnounced(papers.announcements, papers.now_s), refused)
        if refused:
            raise ValueError(f"hosts refuse the papers of their own simulation: {dict(refused)}")
        return block

    def window(self, task_id: TaskId, task: Task, state: FleetState, now_s: int) -> Sent:
        """Close one window of every host, commit it once, and send what is not held back."""
        done = Sent(np.zeros(task.d - CHECK_WORDS, dtype=np.int64))
        refused: Counter[str] = Counter()
        with self._lap:
            done.sent += self._open_epochs(now_s, refused)
            sealed = []
            for block, drawn in zip(
                self._blocks, self._rows.draw(task, state, done.truth), strict=True
            ):
                self._lap("rows")
                self._random.begin(task.series, state.start_s, block.span.block)
                closed = events.WindowClosed(
                    task_id, state.start_s, drawn.rows, drawn.present, now_s
                )
                commits = self._tell(block, closed, refused)
                sealed += [
                    (block, drawn, commit)
                    for commit in commits
                    if isinstance(commit, events.CommitSealed)
                ]
                self._lap("seal")
            self._spend(sealed, now_s, done)
        done.withheld, done.stage_s = dict(refused), self._lap.take()
        return done

    def _open_epochs(self, now_s: int, refused: Counter[str]) -> int:
        """Open the epochs that are due, in one transaction, and send them; give how many."""
        due: list[tuple[_Block, events.CommitEpochs]] = []
        for block in self._blocks:
            effects = self._tell(block, events.EpochDue(now_s), refused)
            due += [
                (block, effect) for effect in effects if isinstance(effect, events.CommitEpochs)
            ]
        self._lap("epochs")
        if not due:
            return 0
        records = [record for _, commit in due for record in commit.records]
        openings = [opening for _, commit in due for opening in commit.openings]
        ids = self._ledger.commit_epochs(openings, records, now_s)
        self._lap("ledger")
        committed = self._committed([(block, commit) for block, commit in due], ids, refused)
        return self._send(committed)

    def _spend(
        self, sealed: Sequence[tuple[_Block, Drawn, events.CommitSealed]], now_s: int, done: Sent
    ) -> None:
        """Commit one window of all blocks at once; then send, and forget what was sent."""
        if not sealed:
            return
        self._lap("seal")
        entries = [entry for _, _, commit in sealed for entry in commit.entries]
        records = [record for _, _, commit in sealed for record in commit.records]
        keep_from_s = min(commit.keep_from_s for _, _, commit in sealed)
        ids = self._ledger.commit_sealed(entries, records, now_s, keep_from_s)
        self._lap("ledger")
        late = {
            bytes(block.hosts[host].host_id)
            for block, drawn, _ in sealed
            for host in np.flatnonzero(drawn.present & drawn.late).tolist()
        }
        published = self._committed(
            [(block, commit) for block, _, commit in sealed], ids, Counter()
        )
        # A report's key is its host's id.
        self._late = [(spool_id, record) for spool_id, record in published if record.key in late]
        done.held = len(self._late)
        done.sent += self._send([pair for pair in published if pair[1].key not in late])

    def _committed(
        self,
        commits: Sequence[tuple[_Block, events.CommitEpochs | events.CommitSealed]],
        ids: Sequence[int],
        refused: Counter[str],
    ) -> list[tuple[int, SealedRecord]]:
        """Tell every block that its part of the commit is durable; give what may leave now."""
        leaving: list[tuple[int, SealedRecord]] = []
        at = 0
        for block, commit in commits:
            own = tuple(ids[at : at + len(commit.records)])
            at += len(own)
            for effect in self._tell(block, events.LedgerCommitted(commit.token, own), refused):
                if isinstance(effect, events.Publish):
                    leaving += zip(effect.spool_ids, effect.records, strict=True)
        return leaving

    def _send(self, leaving: Sequence[tuple[int, SealedRecord]]) -> int:
        """Put records on the log; what the log holds is forgotten in one transaction."""
        if not leaving:
            return 0
        for _, record in leaving:
            self._producer.send(record.topic, record.key, record.value)
        self._producer.flush()
        self._lap("publish")
        self._ledger.forget([spool_id for spool_id, _ in leaving])
        self._lap("ledger")
        return len(leaving)

    def send_late(self) -> int:
        late, self._late = self._late, []
        with self._lap:
            return self._send(late)

    def _tell(
        self, block: _Block, event: events.Event, refused: Counter[str]
    ) -> list[events.Effect]:
        rest: list[events.Effect] = []
        for effect in block.participant.handle(event):
            match effect:
                case events.Refuse():
                    refused[effect.reason.value] += max(effect.hosts, 1)
                case events.TaskAccepted():
                    self._ledger.remember_series([effect.known])
                case _:
                    rest.append(effect)
        return rest

    def close(self) -> None:
        for held in ("_producer", "_ledger"):
            if (opened := getattr(self, held, None)) is not None:
                opened.close()
        self._log.close()
