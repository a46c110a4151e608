"""SIGHUP: what changed is stopped and started, the rest goes on; a wrong file changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog
from structlog.testing import LogCapture, capture_logs

from collectors.interface import SourceRegistry
from collectors.records.activity import Record
from edge_agent.config import AgentConfig, LogSection, ReplaySection, SourcesSection
from edge_agent.local.live_socket import LevelGate
from edge_agent.sending.outbox import BEAT_MS
from edge_agent.service.agent_service import AgentService, Reloading
from tests.agent_live import SteppedClock, surroundings
from tests.agent_world import T0
from transport.settings.config import ConfigError


class _Source:
    """One that notes what is done to it, in one list with its fellows."""

    def __init__(self, name: str, deeds: list[str], why_absent: str | None = None) -> None:
        self.name, self._deeds, self._why = name, deeds, why_absent

    def probe(self) -> str | None:
        return self._why

    def start(self) -> None:
        self._deeds.append(f"start {self.name}")

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        self._deeds.append(f"drain {self.name}")
        return []

    def stop(self) -> None:
        self._deeds.append(f"stop {self.name}")


class _Reloaded:
    """An agent with three sources of the configuration: host, ebpf by loader, one replay each."""

    def __init__(self, folder: Path) -> None:
        made = surroundings(folder)
        self.deeds: list[str] = []
        self.missing: set[str] = set()
        self.clock = SteppedClock(T0)
        sources = SourcesSection(ebpf=True, replay=(ReplaySection(Path("a")),))
        self.config = self.found = replace(made.config, sources=sources)
        self.error: str | None = None
        self.runtime = made.agent(self.clock)
        running, absent = self.registry(self.config).start_all()
        self.runtime.replace_sources(running)
        self.gate = LevelGate("info")
        again = Reloading(self.read, self.registry, self.gate)
        self.service = AgentService(
            self.runtime, self.config, absent, reloading=again, clock=self.clock
        )
        self.runtime.observe(self.service)
        self.runtime.start()
        self.deeds.clear()

    def registry(self, config: AgentConfig) -> SourceRegistry:
        made = SourceRegistry()
        section = config.sources
        if section.host:
            made.register("host", lambda: self.make("host"))
        if section.ebpf:
            made.register("ebpf", lambda: self.make(f"ebpf-{section.loader}"), section.loader)
        for number, one in enumerate(section.replay):
            made.register(f"replay-{number}", partial(self.make, f"trace-{one.path}"), one)
        return made

    def make(self, name: str) -> _Source:
        why = "not on this host" if name in self.missing else None
        return _Source(name, self.deeds, why)

    def read(self) -> AgentConfig:
        if self.error:
            raise ConfigError(self.error)
        return self.found

    def reload(self, **changes: object) -> list[str]:
        """Send the signal; give what was done to sources, and then which are drained."""
        if changes:
            section = replace(self.found.sources, **changes)  # type: ignore[arg-type]
            self.found = replace(self.found, sources=section)
        self.service.request_reload()
        self.deeds.clear()
        self.clock.now_ms += 100
        self.runtime.step()
        self.clock.now_ms += 2_000
        self.runtime.step()
        return self.deeds


@pytest.fixture
def agent(tmp_path: Path) -> Iterable[_Reloaded]:
    made = _Reloaded(tmp_path)
    for _ in range(2):  # the first epoch leaves on the next beat, and measuring waits for it
        made.runtime.step()
        made.clock.now_ms += BEAT_MS
    yield made
    made.runtime.close()


def test_reload_restarts_only_the_source_that_changed(agent: _Reloaded) -> None:
    deeds = agent.reload(loader="bcc")
    assert deeds == [
        "stop ebpf-auto", "start ebpf-bcc", "drain host", "drain ebpf-bcc", "drain trace-a",
    ]  # fmt: skip


def test_reload_adds_and_removes_beside_what_runs_on(agent: _Reloaded) -> None:
    more = (ReplaySection(Path("a")), ReplaySection(Path("b")))
    assert agent.reload(ebpf=False, replay=more)[:2] == ["stop ebpf-auto", "start trace-b"]
    assert agent.reload(replay=())[:2] == ["stop trace-a", "stop trace-b"]
    assert [source.name for source in agent.runtime.sources] == ["host"]


def test_reload_without_a_change_touches_nothing(agent: _Reloaded) -> None:
    assert agent.reload() == ["drain host", "drain ebpf-auto", "drain trace-a"]


def test_reload_says_that_it_begins_and_what_changed(agent: _Reloaded) -> None:
    with capture_logs() as logs:
        agent.reload(loader="bcc")
    begins, reloaded = (line for line in logs if line["event"].startswith("reload"))
    assert (begins["event"], reloaded["event"]) == ("reload begins", "reloaded")
    assert begins["sources"] == ["host", "ebpf-auto", "trace-a"]
    assert (reloaded["changed"], reloaded["started"], reloaded["stopped"]) == (
        ["sources"], ["ebpf"], ["ebpf"],
    )  # fmt: skip


def test_reload_that_raises_the_log_level_still_says_so(agent: _Reloaded) -> None:
    heard, processors = LogCapture(), structlog.get_config()["processors"]
    before = [*processors]
    processors[:] = [agent.gate, heard]
    try:
        agent.found = replace(agent.found, log=LogSection("error"))
        agent.reload()
        agent.reload()
    finally:
        processors[:] = before
    said = [line["event"] for line in heard.entries if line["event"].startswith("reload")]
    assert said == ["reload begins", "reloaded"], "the second one is done in silence"
    assert agent.gate.level == "error"


def test_reload_asks_again_for_what_was_absent(agent: _Reloaded) -> None:
    agent.missing.add("ebpf-bcc")
    assert "start ebpf-bcc" not in agent.reload(loader="bcc")
    assert agent.service.view().agent["absent"] == [["ebpf", "not on this host"]]
    agent.missing.clear()
    assert agent.reload()[0] == "start ebpf-bcc"
    assert agent.service.view().agent["absent"] == []


def test_reload_of_a_wrong_file_keeps_everything_and_says_why(agent: _Reloaded) -> None:
    agent.error = "sources.loader: expected one of auto, libbpf, bcc, got perf"
    with capture_logs() as logs:
        deeds = agent.reload(loader="bcc")
    assert deeds == ["drain host", "drain ebpf-auto", "drain trace-a"]
    (said,) = [line for line in logs if line["event"] == "reloaded"]
    assert said["outcome"] == "refused"
    assert said["error"] == agent.error
    events = agent.service.view().events
    assert agent.error in {event["detail"] for event in events}
