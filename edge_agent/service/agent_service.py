"""What attends a running agent on its own host: history, live view, counters, systemd, reloads.
All of it is optional: whatever fails is logged once, and the agent goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import structlog

from collectors.boot_clock import ClockPoint, read_point
from collectors.interface import CountsLeftOut, SourceRegistry, UnavailableSource
from collectors.rounds import Drained
from edge_agent.agent_runtime import AgentRuntime, AgentStatus, Observer
from edge_agent.clock import Clock, SystemClock, point_of
from edge_agent.config import AgentConfig
from edge_agent.host_diagnosis import NAME as DIAGNOSIS
from edge_agent.host_diagnosis import Diagnosed, diagnosis_settings
from edge_agent.local.gathering import DeviceRows, Gathering
from edge_agent.local.history import History
from edge_agent.local.history_tables import HistoryUnavailable
from edge_agent.local.live_socket import LEVELS, LevelGate, LiveSocket
from edge_agent.local.local_rows import EventRow, Flattener, ReportRow, clean_name
from edge_agent.local.recent import Recent
from edge_agent.local.sent_view import report_views, unmeasured_event
from edge_agent.local.view_lines import HostView, pieces
from edge_agent.service.reload import Changed, change_sources
from edge_agent.unmeasured import Unmeasured, by_reason, clipped, unmeasured
from edge_agent.windows.window_accumulator import ClosedWindow, TaskWindows
from transport.process.listening import AddressUnavailable
from transport.process.supervision import MetricsServer, Notifier
from wire.catalogue import Catalogue
from wire.fields import TaskId
from wire.task import Task

from .reload import SelfStatus, metrics_port, reload

_CLOCK_EVERY_MS: Final = 60_000
_SETTLE_MS: Final = 60_000
_TELL_AGAIN_NS: Final = 3_600_000_000_000
SELF: Final = "agent"
"""The source of events about the agent itself."""


@dataclass(frozen=True, slots=True)
class Reloading:
    """How a reload is done: read the configuration, list the sources of one."""

    read: Callable[[], AgentConfig]
    sources_of: Callable[[AgentConfig], SourceRegistry]
    log_gate: LevelGate


class AgentService(Observer):
    def __init__(
        self,
        runtime: AgentRuntime,
        config: AgentConfig,
        absent: Sequence[UnavailableSource] = (),
        *,
        notifier: Notifier | None = None,
        reloading: Reloading | None = None,
        clock: Clock | None = None,
        version: str = "",
        settle: Callable[[], None] | None = None,
        exported: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Attend a runtime; `settle` gives back, a minute after, what taking up tasks left over."""
        self._settle, self._settle_ms = settle, 0
        self._runtime = runtime
        self._config = config
        self._absent = tuple(absent)
        self._notifier = notifier or Notifier()
        self._reloading = reloading
        self._clock = clock
        self._version, self._exported = version, exported
        self._log = structlog.get_logger("pointillist.agent")
        self._catalogue = Catalogue.load()
        self._flattener = Flattener(self._catalogue)
        self._devices = DeviceRows()
        self._recent = Recent()
        self._failures: Counter[str] = Counter()
        self._failing: dict[str, str] = {}
        self._reloads: Counter[str] = Counter()
        self._reload_wanted = False
        self._clock_ms = 0
        self._status: SelfStatus | None = None
        self._asked: tuple[tuple[TaskId, ...], tuple[str, ...]] = ((), ())
        self._unmeasured: dict[TaskId, list[Unmeasured]] = {}
        self._unmeasured_told: dict[str, tuple[dict[str, str], int]] = {}
        self._history = self._open_history()
        self._gathering = Gathering(self._flattener, self._recent, self._history)
        self._socket = self._open_socket()
        self._server = self._open_server()

    def request_reload(self) -> None:
        """Ask for a reload at the next step; safe from a signal handler."""
        self._reload_wanted = True

    # Observer -----------------------------------------------------------------------------------

    def started(self) -> None:
        """Tell systemd, and leave a mark in the history."""
        self._note_clock()
        running = ", ".join(self._runtime.status().sources) or "none"
        self._event("started", detail=f"version {self._version}; sources: {running}")
        for absence in self._absent:
            self._event("source_absent", absence.source, absence.reason)
        self._notifier.ready(f"sources: {running}")

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        rows = [
            *self._devices.rows(drained.name, drained.look),
            *self._failed(drained.name, drained.failure, now_boottime_ns),
        ]
        self._gathering.add(drained.name, drained.records, rows)
        self._gathering.withdraw(self._devices.withdrawn())

    def diagnosed(self, found: Diagnosed, now_boottime_ns: int) -> None:
        rows = list(self._failed(DIAGNOSIS, found.failure, now_boottime_ns))
        self._gathering.add(DIAGNOSIS, found.records, rows)

    def closed(self, window: ClosedWindow, now_boottime_ns: int) -> None:
        """Keep what was measured in a window that ended, for the owner alone."""
        task = self._runtime.tasks.get(window.task_id)
        if task is None:
            return
        row = window.rows[0]
        cells = tuple((place, int(row[place])) for place in np.flatnonzero(row).tolist())
        kept = ReportRow(
            now_boottime_ns, SELF, task.series, window.start_s, window.task_id.hex(), cells
        )
        self._gathering.add(SELF, (), [kept, *self._unmeasured_in(window, task, now_boottime_ns)])

    def _unmeasured_in(
        self, window: ClosedWindow, task: Task, now_boottime_ns: int
    ) -> Iterator[EventRow]:
        """Give what no source measured of a window, where that changed or was told an hour ago."""
        found = self._unmeasured.get(window.task_id, [])
        sections = {gap.section: gap.said for gap in found}
        before, at_ns = self._unmeasured_told.get(task.series_key, (None, 0))
        if sections != before or (sections and now_boottime_ns - at_ns >= _TELL_AGAIN_NS):
            self._unmeasured_told[task.series_key] = sections, now_boottime_ns
            yield unmeasured_event(now_boottime_ns, SELF, task, window.start_s, sections)

    def _look_for_unmeasured(self, status: AgentStatus) -> None:
        """Say what tasks ask and nothing measures, once for as long as it stays so."""
        tasks = dict(self._runtime.tasks)
        asked = (tuple(tasks), status.sources)
        if asked == self._asked:
            return
        self._asked = asked
        has_gpus = "devices" in status.sources or bool(self._config.host.models)
        for task_id, task in tasks.items():
            found = unmeasured(
                task, self._config, status.sources, self._absent, has_gpus=has_gpus,
                catalogue=self._catalogue,
            )  # fmt: skip
            scaled = clipped(task, self._config, self._catalogue)
            if scaled is not None and task_id not in self._unmeasured:
                self._log.warning("clipped", series=task.series, why=scaled)
            if found != self._unmeasured.get(task_id, []):
                for said, gaps in by_reason(found).items():
                    expected = all(gap.expected for gap in gaps)
                    say = self._log.info if expected else self._log.warning
                    names = [gap.section for gap in gaps]
                    say("not measured", series=task.series, sections=names, why=said)
            self._unmeasured[task_id] = found
        self._unmeasured = {task_id: self._unmeasured[task_id] for task_id in tasks}

    def _failed(self, name: str, failure: str | None, now_boottime_ns: int) -> Iterator[EventRow]:
        """Count a failure, and give it once for as long as it stays the same."""
        if failure is None:
            self._failing.pop(name, None)
            return
        self._failures[name] += 1
        if self._failing.get(name) != failure:
            yield EventRow("source_failed", "", failure, now_boottime_ns, name)
        self._failing[name] = failure

    def stepped(self, now_ms: int) -> None:
        self._notifier.alive()
        if self._reload_wanted:
            self._reload_wanted = False
            self._reload()
        if self._socket is not None:
            self._socket.serve(lambda: pieces(self.view()))
        self._gathering.step(now_ms)
        if not 0 < self._clock_ms - now_ms <= _CLOCK_EVERY_MS:
            self._clock_ms = now_ms + _CLOCK_EVERY_MS
            point = self._note_clock()
            if self._history is not None:
                self._history.trim(point)
        self._settle_ms = self._settle_ms or now_ms + _SETTLE_MS
        if self._settle is not None and now_ms >= self._settle_ms:
            self._settle()
            self._settle = None
        self._status = self._self_status()
        self._look_for_unmeasured(self._status.agent)

    def stopping(self) -> None:
        self._notifier.stopping()
        self._event("stopping")
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.close()
        self._gathering.flush()
        if self._history is not None:
            self._history.close()
        self._socket = self._server = self._history = None
        self._gathering = Gathering(self._flattener, self._recent, None)

    # What others see ----------------------------------------------------------------------------

    def view(self) -> HostView:
        self._gathering.fold()
        now_ms, windows = (self._clock or SystemClock()).unix_ms(), self._runtime.windows
        status = self._runtime.status()
        opened = windows.open_windows() if isinstance(windows, TaskWindows) else ()
        sends_ms = status.next_send_ms
        agent = {
            "sources": list(status.sources),
            "absent": [[absence.source, absence.reason] for absence in self._absent],
            "failing": dict(self._failing),
            "published": status.tally.published,
            "sealed": status.tally.sealed,
            "refused": dict(status.tally.refused),
            "spool_records": status.spool_records,
            "queued": status.queued,
            "next_send_s": None if sends_ms is None else max(0, sends_ms - now_ms) / 1000,
            "transport_up": status.transport_up,
        }
        return replace(
            self._recent.view(self._point()),
            agent=agent,
            models=dict(self._devices.models),
            gpu_use_not_told=self._devices.not_told,
            reports=tuple(report_views(opened, self._catalogue, now_ms)),
        )

    def self_status(self) -> SelfStatus | None:
        return self._status

    def _self_status(self) -> SelfStatus:
        dropped = Counter(self._flattener.dropped)
        if self._history is not None:
            dropped.update(self._history.dropped)
        return SelfStatus(
            agent=self._runtime.status(),
            failures=dict(self._failures),
            absent=tuple(absence.source for absence in self._absent),
            history_dropped=dict(dropped),
            reloads=dict(self._reloads),
            device_gaps=self._devices.gap_counts,
            left_out={
                source.name: dict(source.left_out)
                for source in self._runtime.sources
                if isinstance(source, CountsLeftOut)
            },
            exported=self._exported(),
            version=self._version,
        )

    # Parts --------------------------------------------------------------------------------------

    def _open_history(self) -> History | None:
        if not self._config.history.enabled:
            return None
        try:
            return History(self._config.history_file, self._config.history)
        except HistoryUnavailable as error:
            self._log.warning("no local history", error=str(error))
            return None

    def _open_socket(self) -> LiveSocket | None:
        try:
            return LiveSocket(self._config.live_socket)
        except OSError as error:
            self._log.warning("no live view", error=str(error))
            return None

    def _open_server(self) -> MetricsServer | None:
        section = self._config.metrics
        if not section.enabled:
            return None
        try:
            server = metrics_port(section.port, self.self_status)
        except AddressUnavailable as error:
            self._log.warning("no counters", error=str(error), do=error.hint)
            return None
        self._log.info("counters", address=server.place)
        return server

    def _reload(self) -> None:
        if self._reloading is None:
            return
        self._notifier.reloading()
        self._log.info("reload begins", sources=list(self._runtime.status().sources))
        done = reload(self._config, self._reloading.read)
        before, self._config = self._config, done.config
        gate = self._reloading.log_gate
        level = done.config.log.level if "log" in done.changed else gate.level
        gate.level = min(gate.level, level, key=LEVELS.index)  # until the reload's own line is out
        changed = None
        if done.error is None:
            changed = self._change_sources(self._reloading.sources_of, before)
        self._reloads[done.outcome] += 1
        say = self._log.warning if done.error or done.held_back else self._log.info
        say(
            "reloaded", outcome=done.outcome, changed=list(done.changed),
            needs_restart=list(done.held_back), error=done.error,
            started=list(changed.started) if changed else [],
            stopped=list(changed.stopped) if changed else [],
        )  # fmt: skip
        gate.level = level
        detail = done.error or ", ".join(done.changed + done.held_back)
        self._event("reloaded", done.outcome, detail)
        status = f"reload: {done.outcome}"
        self._notifier.ready(f"{status}: {clean_name(detail)}" if detail else status)

    def _change_sources(
        self, sources_of: Callable[[AgentConfig], SourceRegistry], before: AgentConfig
    ) -> Changed:
        old, new = sources_of(before), sources_of(self._config)
        missing = {absence.source for absence in self._absent}
        names = [name for name in old if name not in missing]
        running = dict(zip(names, self._runtime.sources, strict=True))
        changed = change_sources(running, old, new, self._runtime.replace_sources)
        changed = self._change_diagnosis(changed, before, tried_before=DIAGNOSIS not in missing)
        self._absent = changed.absent
        for name in changed.stopped:
            self._failing.pop(running[name].name if name in running else name, None)
        for absence in changed.absent:
            self._log.info("source absent", source=absence.source, reason=absence.reason)
            if absence.source not in missing:
                self._event("source_absent", absence.source, absence.reason)
        return changed

    def _change_diagnosis(
        self, changed: Changed, before: AgentConfig, *, tried_before: bool
    ) -> Changed:
        """As sources are changed: what runs with the same settings has learned, and goes on."""
        old, new = diagnosis_settings(before), diagnosis_settings(self._config)
        if old == new and tried_before:
            return changed
        running = old is not None and tried_before
        stopped = (*changed.stopped, DIAGNOSIS) if running else changed.stopped
        self._runtime.replace_diagnosis(None)
        made = None if new is None else new.start()
        if isinstance(made, UnavailableSource):
            return replace(changed, stopped=stopped, absent=(*changed.absent, made))
        if made is None:
            return replace(changed, stopped=stopped)
        self._runtime.replace_diagnosis(made)
        return replace(changed, stopped=stopped, started=(*changed.started, DIAGNOSIS))

    def _event(self, name: str, key: str = "", detail: str = "") -> None:
        row = EventRow(name, key, detail, (self._clock or SystemClock()).boottime_ns(), SELF)
        self._gathering.add(SELF, (), [row])

    def _note_clock(self) -> ClockPoint:
        point = self._point()
        if self._history is not None:
            self._history.note_clock(point)
        return point

    def _point(self) -> ClockPoint:
        return read_point() if self._clock is None else point_of(self._clock)
