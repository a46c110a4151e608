"""The accepted tasks of a process: which version of a series is current, what may replace it."""

from __future__ import annotations

from collections.abc import Iterable

from edge_agent.ledger.ledger_records import KnownSeries, LedgerView
from privacy.budget import WEEK_S
from wire.fields import TaskId
from wire.rejection import Reason, ReportRejected
from wire.task import Task

from .eligibility import fits_recovery, task_weight
from .epochs import PartyKeys
from .protocol_events import Withheld
from .task_check import Accepted, ParticipantRules, check_task


class Recovering(Exception):
    """A task that a recovered ledger may not take yet."""

    reason = Withheld.RECOVERING


class TaskBook:
    """Tasks by id, and the newest version of each series, over restarts too."""

    def __init__(self, rules: ParticipantRules, view: LedgerView) -> None:
        self._rules = rules
        self._freeze_until_s = view.freeze_until_s
        self._recovered = view.series
        self._known: dict[str, KnownSeries] = dict(view.series)
        self._tasks: dict[TaskId, Task] = {}
        self._current: dict[str, TaskId] = {}

    @property
    def current(self) -> dict[TaskId, Task]:
        """The newest version of each series."""
        return {task_id: self._tasks[task_id] for task_id in self._current.values()}

    @property
    def windows_s(self) -> dict[str, int]:
        """The cadence of every series that this host ever took."""
        return {name: known.window_s for name, known in self._known.items()}

    @property
    def longest_window_s(self) -> int:
        """The longest cadence of them; 0 before the first."""
        return max(self.windows_s.values(), default=0)

    def find(self, task_id: TaskId) -> Task | None:
        """Give an accepted task; superseded ones stay until their last window has passed."""
        return self._tasks.get(task_id)

    def take(self, signed: bytes, now_s: int) -> tuple[Accepted, KnownSeries] | None:
        """Check a signed task and keep it; None when it is kept already.

        Raises      ReportRejected, Recovering
        """
        accepted = check_task(
            signed,
            self._rules.pins,
            self._rules.bounds,
            now_s=now_s,
            domain_allowed=self._rules.serves,
            versions={name: known.version for name, known in self._known.items()},
            others=self._unfinished(now_s),
            gate=self._rules.gate,
            catalogue=self._rules.catalogue,
            catalogue_hash=self._rules.catalogue_hash,
        )
        if accepted.task_id in self._tasks:
            return None
        self._require_same_series(accepted)
        self._require_known(accepted.task, now_s)
        return accepted, self._keep(accepted, now_s)

    def _require_same_series(self, accepted: Accepted) -> None:
        task, known = accepted.task, self._known.get(accepted.task.series)
        if known is None:
            return
        if task.window_s != known.window_s:
            expected = f"{task.series} with windows of {known.window_s} s for life"
            raise ReportRejected(Reason.FIELD, expected, task.window_s)
        if task.version == known.version and known.task_id not in {b"", accepted.task_id}:
            expected = f"{task.series} version {task.version} as it was"
            raise ReportRejected(Reason.TASK_SUPERSEDED, expected, "other bytes")

    def _require_known(self, task: Task, now_s: int) -> None:
        """After a recovery: for two weeks nothing but what was known, at no larger weight."""
        if now_s < self._freeze_until_s and not fits_recovery(task, self._recovered):
            raise Recovering(
                f"series {task.series}: new or heavier within two weeks of a ledger's recovery"
            )

    def _keep(self, accepted: Accepted, now_s: int) -> KnownSeries:
        task_id, task = accepted.task_id, accepted.task
        known = KnownSeries(
            task.series, task.version, task_weight(task), task.window_s, bytes(task_id)
        )
        self._tasks[task_id] = task
        self._current[task.series] = task_id
        self._known[task.series] = known
        self._drop_ended(now_s)
        return known

    def _drop_ended(self, now_s: int) -> None:
        """Forget superseded tasks whose last open window has passed."""
        current = set(self._current.values())
        for task_id, task in list(self._tasks.items()):
            if task_id not in current and task.expiry + task.retention_s <= now_s:
                del self._tasks[task_id]

    def _unfinished(self, now_s: int) -> Iterable[Task]:
        """List the current tasks with windows in the present week: a past one keeps no weight."""
        return [
            task
            for task in self.current.values()
            if min(task.expiry, task.last_window + task.window_s) + WEEK_S > now_s
        ]

    def parties(self, now_s: int) -> list[PartyKeys]:
        """List the pairs of aggregators that some unfinished task reports to."""
        live = [t for t in self.current.values() if t.expiry > now_s]
        live = [t for t in live if t.last_window + t.window_s + t.lateness_s > now_s]
        return sorted({PartyKeys(t.leader_pk, t.helper_pk) for t in live})

    def longest_retention(self, parties: PartyKeys) -> int:
        """Give how long after its end an epoch with these parties may still be needed."""
        mine = [t for t in self.current.values() if (t.leader_pk, t.helper_pk) == parties]
        return max((task.retention_s for task in mine), default=0)
