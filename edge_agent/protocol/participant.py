"""The agent's side of the protocol as a pure state machine over a batch of hosts, one on a live
agent: no clock, socket, file or thread; randomness is a parameter but for HPKE's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np
from numpy.typing import NDArray

from edge_agent.ledger.ledger_records import EpochOpening, HostEntry, LedgerView, SealedRecord
from edge_agent.windows.encode import encode_rows
from privacy.budget import Entry, keep_from
from privacy.noise import NoiseSampler
from wire.envelope import OVERHEAD_BYTES, Kind, wrap
from wire.fields import KEY_ANNOUNCED_AHEAD_S, TaskId
from wire.rejection import ReportRejected
from wire.report import report_length
from wire.task import DEMO_DOMAIN, Task
from wire.topics import EPOCHS, REPORTS, epoch_key, report_key

from . import eligibility
from .epochs import EpochBook, Host, HostEpoch, HpkeDirectory, PartyKeys, open_epoch
from .protocol_events import (
    CommitEpochs,
    CommitFailed,
    CommitSealed,
    Effect,
    EpochDue,
    Event,
    KeysAnnounced,
    LedgerCommitted,
    Publish,
    Refuse,
    RememberRoster,
    RosterReceived,
    SignedTimeSeen,
    TaskAccepted,
    TaskReceived,
    Token,
    WindowClosed,
    Withheld,
)
from .roster_book import RosterBook
from .seal_report import Sealing, noise_fault, seal_reports
from .task_check import ParticipantRules

_FORGET_EVERY_S: Final = 3600


@dataclass(slots=True)
class _Pending:
    """What a commit will change once it is durable."""

    parties: PartyKeys | None = None
    now_s: int = 0
    epochs: list[tuple[int, HostEpoch]] = field(default_factory=list)
    keep_from_s: int = 0
    spent: list[tuple[int, Entry]] = field(default_factory=list)
    records: Sequence[SealedRecord] = ()


class Participant:
    """A batch of hosts taking part in their tasks."""

    def __init__(
        self,
        hosts: Sequence[Host],
        view: LedgerView,
        sampler: NoiseSampler,
        random_bytes: Callable[[int], bytes],
        rules: ParticipantRules,
        *,
        rounding_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        """Take the hosts and what they spent.
        rounding_bytes  rounding and indicators; a repeatable stream is for the domain demo alone
        Raises          ValueError for seeded randomness outside the demo
        """
        if [h.host_id for h in hosts] != [v.host_id for v in view.hosts]:
            raise ValueError("the ledger's view must list the hosts in their order")
        if rules.domain != DEMO_DOMAIN and (sampler.seeded or rounding_bytes is not None):
            raise ValueError("seeded noise protects nobody: it is for the domain demo alone")
        self._hosts = tuple(hosts)
        # The entries live in the budget book alone, so that what it prunes is freed.
        self._resume_after_s = view.resume_after_s
        self._sampler = sampler
        self._random_bytes = random_bytes
        self._rounding_bytes = rounding_bytes or random_bytes
        self._rules = rules
        self._tasks = eligibility.TaskBook(rules, view)
        self._keys = HpkeDirectory(rules.pins)
        ids = tuple(h.host_id for h in hosts)
        self._rosters = RosterBook(rules.pins, ids, weekly=not rules.demo)
        self._rosters.recall(view.rosters)
        self._budget = eligibility.BudgetBook([v.entries for v in view.hosts], view.kept_from_s)
        self._epochs = EpochBook(
            len(hosts),
            [v.epoch_ctr for v in view.hosts],
            [list(v.epochs_opened) for v in view.hosts],
        )
        self.longest_report: int | None = None
        """What the log takes, enveloped; None: not known."""
        self._pending: dict[Token, _Pending] = {}
        self._token = 0

    @property
    def tasks(self) -> dict[TaskId, Task]:
        """The accepted tasks, newest version of each Leader's series."""
        return self._tasks.current

    def handle(self, event: Event) -> list[Effect]:
        """Take one event and give what the runtime must do, in this order."""
        match event:
            case TaskReceived():
                return self._on_task(event)
            case RosterReceived():
                return self._on_roster(event)
            case KeysAnnounced():
                return self._on_keys(event)
            case EpochDue():
                return self._on_epoch_due(event)
            case WindowClosed():
                return self._on_window(event)
            case LedgerCommitted():
                return self._on_committed(event)
            case CommitFailed():
                return self._on_failed(event)
            case _:
                assert_never(event)

    # Tasks, rosters, keys ---------------------------------------------------------------------

    def _on_task(self, event: TaskReceived) -> list[Effect]:
        try:
            taken = self._tasks.take(event.signed, event.now_s)
        except ReportRejected as refusal:
            return [Refuse(refusal.reason, 0, str(refusal))]
        except eligibility.Recovering as refusal:
            return [Refuse(refusal.reason, len(self._hosts), str(refusal))]
        if taken is None:
            return []
        accepted, known = taken
        return [TaskAccepted(accepted.task_id, accepted.task, known, event.signed)]

    def _on_roster(self, event: RosterReceived) -> list[Effect]:
        try:
            known = self._rosters.add(event.signed, self._tasks.windows_s)
        except ReportRejected as refusal:
            return [Refuse(refusal.reason, 0, str(refusal))]
        return [] if known is None else [RememberRoster(known)]

    def _on_keys(self, event: KeysAnnounced) -> list[Effect]:
        effects: list[Effect] = []
        for key in event.announcements:
            try:
                signed_s = key.not_before - KEY_ANNOUNCED_AHEAD_S
                if self._keys.add(key) and signed_s <= event.now_s:
                    effects.append(SignedTimeSeen(signed_s))
            except ReportRejected as refusal:
                effects.append(Refuse(refusal.reason, 0, str(refusal)))
        return effects

    # Epochs -----------------------------------------------------------------------------------

    def _on_epoch_due(self, event: EpochDue) -> list[Effect]:
        effects: list[Effect] = []
        self._epochs.erase_ended(event.now_s)
        for parties in self._tasks.parties(event.now_s):
            effects += self._open_epochs(parties, event.now_s)
        return effects

    def _open_epochs(self, parties: PartyKeys, now_s: int) -> list[Effect]:
        due = self._epochs.due(parties, now_s)
        if not due:
            return []
        keys = self._keys.sealing_keys(parties, now_s)
        if keys is None:
            return [Refuse(Withheld.NO_HPKE_KEY, len(due), "no announced key in force")]
        roster = self._rosters.in_force(parties, now_s)
        if roster is None:
            return [Refuse(Withheld.NO_ROSTER, len(due), "no roster in force")]
        rostered = [host for host in due if roster.plans.get(self._hosts[host].host_id)]
        begins = {host: self._epochs.begins_s(parties, host, now_s) for host in rostered}
        may = [host for host in rostered if self._epochs.may_open(host, begins[host])]
        effects: list[Effect] = []
        if len(may) < len(rostered):
            late = len(rostered) - len(may)
            effects.append(Refuse(Withheld.EPOCH_RATE, late, "12 epochs within an hour"))
        if not may:
            return effects
        pending, openings = _Pending(parties, now_s), []
        records = []
        for host in may:
            ctr = self._epochs.count(host, begins[host])
            identity = self._hosts[host]
            epoch, sealed = open_epoch(
                identity, keys, roster.version, ctr, begins[host], self._random_bytes
            )
            pending.epochs.append((host, epoch))
            openings.append(EpochOpening(identity.host_id, ctr, begins[host]))
            key = epoch_key(identity.host_id, epoch.header.epoch_id)
            expires_s = epoch.header.not_after + self._tasks.longest_retention(parties)
            records.append(
                SealedRecord(EPOCHS, key, wrap(Kind.EPOCH, sealed), now_s * 1000, expires_s)
            )
        pending.records = records
        self._epochs.pending[parties] = len(may)
        return [*effects, CommitEpochs(self._issue(pending), openings, records, now_s)]

    # Windows ----------------------------------------------------------------------------------

    def _on_window(self, event: WindowClosed) -> list[Effect]:
        present = [int(host) for host in np.flatnonzero(event.present)]
        task = self._tasks.find(event.task_id)
        if task is None:
            return [Refuse(Withheld.TASK_UNKNOWN, len(present), "no such task was accepted")]
        why = eligibility.window_fault(task, event, self._resume_after_s)
        if why is None and not self._budget.remembers(event.window_start_s):
            why = Withheld.FORGOTTEN
        length = report_length(task.d, task.scheme) + OVERHEAD_BYTES
        if why is None and self.longest_report is not None and length > self.longest_report:
            why = Withheld.RECORD_TOO_LARGE
        if why is not None:
            return [Refuse(why, len(present), f"{task.series} window {event.window_start_s}")]
        effects: list[Effect] = []
        hosts = self._ready(task, event, present, effects)
        if not hosts:
            return effects
        candidate = eligibility.window_entry(task, event.window_start_s)
        may = self._budget.may_spend([host for host, _ in hosts], candidate)
        kept = [pair for pair, ok in zip(hosts, may, strict=True) if ok]
        if len(kept) < len(hosts):
            out = len(hosts) - len(kept)
            effects.append(Refuse(Withheld.BUDGET, out, f"{task.series}: the week is spent"))
        if kept:
            effects += self._seal(task, event, candidate, kept)
        return effects

    def _ready(
        self, task: Task, event: WindowClosed, present: list[int], effects: list[Effect]
    ) -> list[tuple[int, Sealing]]:
        """Give the hosts that may report, with cohort and epoch; count the others by reason."""
        parties = PartyKeys(task.leader_pk, task.helper_pk)
        roster = self._rosters.in_force(parties, event.window_start_s)
        if roster is None:
            effects.append(Refuse(Withheld.NO_ROSTER, len(present), "no roster in force"))
            return []
        ready: list[tuple[int, Sealing]] = []
        series = task.series_key
        withheld: Counter[Withheld] = Counter()
        for host in present:
            found = eligibility.host_readiness(
                task,
                event,
                roster.plans.get(self._hosts[host].host_id),
                roster.crowds,
                self._epochs.epoch(parties, host),
                spent=self._budget.spent(host, series, event.window_start_s, event.now_s),
            )
            if isinstance(found, Withheld):
                withheld[found] += 1
            else:
                cohort, epoch = found
                ready.append((host, Sealing(self._hosts[host].host_id, cohort, epoch)))
        detail = f"{task.series} window {event.window_start_s}"
        effects += [Refuse(why, count, detail) for why, count in withheld.items()]
        return ready

    def _seal(
        self, task: Task, event: WindowClosed, candidate: Entry, hosts: list[tuple[int, Sealing]]
    ) -> list[Effect]:
        rows = event.rows[[host for host, _ in hosts]]
        noisy = self._noisy(task, rows)
        if isinstance(noisy, str):
            return [Refuse(Withheld.NOISE_FAULT, len(hosts), noisy)]
        sealings = [sealing for _, sealing in hosts]
        start_s = event.window_start_s
        sealed = seal_reports(
            event.task_id, task.scheme, start_s, sealings, noisy, self._random_bytes
        )
        end_s = start_s + task.window_s
        offsets_ms = eligibility.draw_offsets_ms(task.window_s, len(hosts), self._random_bytes)
        records = [
            SealedRecord(
                REPORTS,
                report_key(sealing.host_id),
                wrap(Kind.REPORT, report),
                end_s * 1000 + offset_ms,
                min(end_s + task.retention_s, task.expiry),
            )
            for sealing, report, offset_ms in zip(sealings, sealed, offsets_ms, strict=True)
        ]
        keep_from_s = self._keep_from(event.now_s)
        spent = [(host, candidate) for host, _ in hosts]
        pending = _Pending(keep_from_s=keep_from_s, spent=spent, records=records)
        for host, entry in pending.spent:
            self._budget.spend(host, entry)
        entries = [HostEntry(sealing.host_id, candidate) for sealing in sealings]
        return [CommitSealed(self._issue(pending), entries, records, event.now_s, keep_from_s)]

    def _keep_from(self, now_s: int) -> int:
        """Give the time from which on entries are kept: any window of a known series needs them."""
        keep_from_s = keep_from(now_s, self._tasks.longest_window_s)
        kept_from_s = self._budget.kept_from_s
        return keep_from_s if keep_from_s >= kept_from_s + _FORGET_EVERY_S else kept_from_s

    def _noisy(self, task: Task, rows: NDArray[np.int64]) -> NDArray[np.int64] | str:
        """Encode the rows and add each host's share of the noise; say why for unusable noise."""
        steps = encode_rows(task, rows, self._rounding_bytes)
        hosts = rows.shape[0]
        noise = self._sampler.sample(hosts, task.sigma_vector_1024())
        fault = noise_fault(task, noise, hosts, seeded=self._sampler.seeded)
        if fault is not None:
            return fault
        steps += noise
        return steps

    # Commits and publishing -------------------------------------------------------------------

    def _issue(self, pending: _Pending) -> Token:
        self._token += 1
        token = Token(self._token)
        self._pending[token] = pending
        return token

    def _on_committed(self, event: LedgerCommitted) -> list[Effect]:
        pending = self._pending.pop(event.token)
        self._budget.forget_before(pending.keep_from_s)
        if pending.parties is not None:
            self._epochs.install(pending.parties, pending.epochs)
        return [Publish(event.spool_ids, pending.records)]

    def _on_failed(self, event: CommitFailed) -> list[Effect]:
        pending = self._pending.pop(event.token)
        for host, entry in pending.spent:
            self._budget.take_back(host, entry)
        if pending.parties is not None:
            self._epochs.take_back(pending.parties, pending.epochs, pending.now_s)
        return [Refuse(event.why, len(pending.records), "the commit was rolled back")]
