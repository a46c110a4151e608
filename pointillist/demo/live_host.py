"""This host as one live agent of the demo: the production agent, a throw-away identity.

Started as `python -m pointillist.demo.live_host agent.toml ids.jsonl`; the ids of the reports that
it sends are written down so that the demo can look for them in both parties' transcripts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TextIO

from edge_agent.config import load_config
from edge_agent.live import open_agent
from edge_agent.service.agent_service import AgentService
from transport.opening import Side, open_transport, prepare_transport
from transport.port import ForwardingTransport, Producer, Transport
from transport.process.privileges import AGENT_USER, drop_to
from wire.envelope import unwrap
from wire.report import Report
from wire.task import DEMO_DOMAIN
from wire.topics import REPORTS


class NotedProducer:
    """Notes the ids of the reports that pass."""

    def __init__(self, inner: Producer, notes: TextIO) -> None:
        self._inner = inner
        self._notes = notes

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        """Queue one record, and note its report id."""
        if topic == REPORTS:
            report = Report.decode(unwrap(value, len(value))[1])
            line = {"window": report.header.window, "report_id": report.header.report_id.hex()}
            self._notes.write(json.dumps(line) + "\n")
        self._inner.send(topic, key, value)

    def flush(self) -> None:
        """Make what was sent durable."""
        self._inner.flush()

    def close(self) -> None:
        """Let go."""
        self._inner.close()


class NotedTransport(ForwardingTransport):
    """A transport whose producers note report ids."""

    def __init__(self, inner: Transport, notes: TextIO) -> None:
        super().__init__(inner)
        self._notes = notes

    def producer(self) -> Producer:
        """Give a producer that notes."""
        return NotedProducer(self.inner.producer(), self._notes)


def main() -> None:
    """Run until a signal comes."""
    config, notes = load_config(Path(sys.argv[1])), Path(sys.argv[2])
    version = metadata.version("pointillist")
    os.umask(0o027)
    prepare_transport(config.transport.settings, Side.AGENT)
    drop_to(AGENT_USER, keep_caps=config.sources.capabilities)
    with notes.open("a", encoding="utf-8", buffering=1) as file:
        log = open_transport(config.transport.settings, Side.AGENT)
        shell, absent = open_agent(config, domain=DEMO_DOMAIN, transport=NotedTransport(log, file))
        shell.observe(AgentService(shell, config, absent, version=version))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: shell.stop())
        for absence in absent:
            sys.stderr.write(f"{absence.source}: {absence.reason}\n")
        shell.run()


if __name__ == "__main__":
    main()
