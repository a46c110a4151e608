"""Where `agent top` gets the agent's part from: a running agent, or the sources themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from collectors.interface import SourceRegistry, UnavailableSource
from collectors.rounds import Rounds
from edge_agent.clock import Clock, SystemClock, point_of
from edge_agent.config import AgentConfig
from edge_agent.host_diagnosis import NAME as DIAGNOSIS
from edge_agent.host_diagnosis import DiagnosisSettings, HostDiagnosis, diagnosis_settings
from edge_agent.local.gathering import DeviceRows
from edge_agent.local.live_socket import LiveClient
from edge_agent.local.local_rows import Flattener, Row
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import document
from edge_agent.open_agent import sources_of
from wire.catalogue import Catalogue

_STALE_S: Final = 5.0
_DRAIN_NS: Final = 900_000_000
_POLL_S: Final = 0.05
NO_CONFIG: Final = "no configuration: this host's /proc alone (--config names one)"
NO_AGENT: Final = "no agent runs: its sources are read here, and nothing is about to leave"
BESIDE: Final = "beside the running agent"
OTHER_VERSION: Final = "the running agent is of another version: restart it, and its part is shown"


class Feed:
    """Gives the agent's part of the picture; this one has none."""

    note = NO_CONFIG

    def poll(self) -> None:
        """Take what has come; never waits."""

    def view(self) -> dict[str, Any] | None:
        return None

    def wait(self, seconds: float) -> None:
        """Poll until there is a view, or the time is over."""
        end = time.monotonic() + seconds
        self.poll()
        while self.view() is None and time.monotonic() < end and self.note != NO_CONFIG:
            time.sleep(_POLL_S)
            self.poll()


class AgentFeed(Feed):
    """Asks a running agent."""

    def __init__(self, client: LiveClient) -> None:
        self._client = client
        self._view: dict[str, Any] | None = None
        self._at = time.monotonic()
        self.note = BESIDE

    def poll(self) -> None:
        try:
            found = self._client.poll()
        except OSError as error:
            self.note = f"the agent does not answer: {error.strerror or error}"
            return
        if found is not None and "levels" not in found:
            self.note = OTHER_VERSION
        elif found is not None:
            self._view, self._at, self.note = found, time.monotonic(), BESIDE

    def view(self) -> dict[str, Any] | None:
        return self._view if time.monotonic() - self._at <= _STALE_S else None


class SourceFeed(Feed):
    """Runs sources in this process, and keeps nothing of what they say."""

    def __init__(
        self,
        registry: SourceRegistry,
        diagnosis: DiagnosisSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        running, absent = registry.start_all()
        self._rounds = Rounds(running)
        self._absent: list[UnavailableSource] = absent
        self._diagnosis: HostDiagnosis | None = None
        self._failing: dict[str, str] = {}
        made = None if diagnosis is None else diagnosis.start()
        if isinstance(made, UnavailableSource):
            self._absent.append(made)
        elif made is not None:
            self._diagnosis = made
            made.lack(self._rounds.lacking)
        self._recent, self._devices = Recent(), DeviceRows()
        self._flattener = Flattener(Catalogue.load())
        self._next_ns = 0
        self.note = NO_AGENT

    def poll(self) -> None:
        now_ns = self._clock.boottime_ns()
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _DRAIN_NS
        for drained in self._rounds.round(now_ns):
            if self._diagnosis is not None:
                self._diagnosis.take(drained)
            rows: list[Row] = list(self._flattener.rows(drained.name, drained.records))
            rows += self._devices.rows(drained.name, drained.look)
            self._recent.add(rows)
            self._recent.withdraw(self._devices.withdrawn())
        self._failing = dict(self._rounds.failing)
        if self._diagnosis is not None:
            found = self._diagnosis.look(now_ns)
            self._recent.add(self._flattener.rows(DIAGNOSIS, found.records))
            if found.failure is not None:
                self._failing[DIAGNOSIS] = found.failure

    def view(self) -> dict[str, Any] | None:
        agent = {
            "sources": [source.name for source in self._rounds.sources]
            + ([] if self._diagnosis is None else [DIAGNOSIS]),
            "absent": [[absence.source, absence.reason] for absence in self._absent],
            "failing": self._failing,
        }
        shown = replace(
            self._recent.view(point_of(self._clock)),
            agent=agent,
            models=dict(self._devices.models),
            gpu_use_not_told=self._devices.not_told,
        )
        return document(shown)

    def wait(self, seconds: float) -> None:
        """Two drains: the first sets the base of sources that count."""
        self.poll()
        time.sleep(min(seconds, _DRAIN_NS / 1e9 + _POLL_S))
        self.poll()

    def stop(self) -> None:
        if self._diagnosis is not None:
            self._diagnosis.close()
        self._rounds.stop()


@contextmanager
def open_feed(config: AgentConfig | None) -> Iterator[Feed]:
    """Choose: a running agent where one listens, else the sources, else nothing."""
    if config is None:
        yield Feed()
        return
    client = LiveClient(config.live_socket)
    try:
        client.poll()
    except OSError:
        own = SourceFeed(
            sources_of(config, Catalogue.load()), diagnosis_settings(config, keep=False)
        )
        try:
            yield own
        finally:
            own.stop()
        return
    try:
        yield AgentFeed(client)
    finally:
        client.close()
