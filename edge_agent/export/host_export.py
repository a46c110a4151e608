"""An observer of the agent that exports this host's raw numbers; whatever fails is left out."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import structlog

from collectors.rounds import Drained
from edge_agent.agent_runtime import Observer
from edge_agent.clock import Clock, SystemClock
from edge_agent.config import ExportSection
from transport.process.listening import AddressUnavailable
from transport.process.supervision import MetricsServer

from .host_numbers import HostNumbers, HostSnapshot
from .otlp import MessageWriter, OtlpSender
from .scrape import scrape_port, users_of_scrape


class HostExport(Observer):
    def __init__(
        self,
        settings: ExportSection,
        *,
        version: str = "",
        clock: Clock | None = None,
        hostname: str | None = None,
        numbers: HostNumbers | None = None,
    ) -> None:
        """Begin; made after root was given up."""
        self._settings, self._clock = settings, clock or SystemClock()
        self._hostname = socket.gethostname() if hostname is None else hostname
        self._log = structlog.get_logger("pointillist.agent")
        self._numbers = numbers or HostNumbers()
        self._broken = ""
        self._due_ms = 0
        self._port = self._open_port()
        self._sender = self._open_sender(version)

    @property
    def port(self) -> int | None:
        return self._port.port if self._port else None

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages for the collector, by what became of them; nothing measured."""
        return self._sender.counts if self._sender else {}

    def snapshot(self) -> HostSnapshot:
        return self._numbers.snapshot(self._clock.unix_ms() * 1_000_000, self._clock.boottime_ns())

    def drained(self, drained: Drained, now_boottime_ns: int) -> None:
        """Take a drain; what breaks is told by its kind alone, and the agent goes on."""
        try:
            self._numbers.take(drained, now_boottime_ns)
        except Exception as error:  # noqa: BLE001 (no export may end an agent)
            self._break(error)

    def stepped(self, now_ms: int) -> None:
        """Hand a snapshot to the sender when it is due; also after a clock that was ahead."""
        if self._sender is None or 0 < self._due_ms - now_ms <= self._every_ms:
            return
        self._due_ms = now_ms + self._every_ms
        self._sender.offer(self.snapshot())

    def stopping(self) -> None:
        if self._port is not None:
            self._port.close()
        if self._sender is not None:
            self._sender.close()
        self._port = None

    @property
    def _every_ms(self) -> int:
        return self._settings.otlp.every_s * 1_000

    def _break(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind != self._broken:
            self._log.warning("export broken", error=kind)
        self._broken = kind

    def _open_port(self) -> MetricsServer | None:
        section = self._settings.prometheus
        if not section.enabled:
            return None
        users, missing = users_of_scrape(section.readers)
        if missing:
            self._log.warning("readers are no users of this host", readers=list(missing))
        try:
            port = scrape_port(section.port, users, self.snapshot, self._hostname)
        except AddressUnavailable as error:
            self._log.warning("no export", error=str(error), do=error.hint)
            return None
        self._log.info("export", address=port.place)
        return port

    def _open_sender(self, version: str) -> OtlpSender | None:
        section = self._settings.otlp
        if not section.enabled:
            return None
        resource = {
            "host.name": self._hostname,
            "service.name": "pointillist-agent",
            "service.version": version,
        }
        return OtlpSender(section, MessageWriter(resource, version))
