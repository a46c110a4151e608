"""The counters' port is open to every user of the host: none of them can use the agent up."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from edge_agent.agent_runtime import AgentStatus
from edge_agent.sending.effects import AgentTally
from edge_agent.service.reload import SelfStatus, metrics_port
from transport.process.supervision import MOST_READERS, MetricsServer

STATUS = SelfStatus(
    AgentStatus(
        sources=("host",), tally=AgentTally(published=3, sealed=2, epochs=1), spool_records=0,
        spool_bytes=0, queued=0, next_send_ms=None, transport_up=True,
    )
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = metrics_port(0, lambda: STATUS)
    yield made
    made.close()


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def test_metrics_connections_that_say_nothing_are_bounded_and_the_next_is_served(
    server: MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(10 * MOST_READERS):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
        assert "published_records_total 3.0" in _scrape(server.port)
        assert threading.active_count() - before <= MOST_READERS
    assert capfd.readouterr().err == ""


def test_metrics_requests_that_break_off_write_nothing_to_the_log(
    server: MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in (b"GET /metrics HTTP/1.1\r\n", b"\x1b[2J\r\n\r\n", b"GET / HTTP/9\r\nA"):
        with socket.create_connection(("127.0.0.1", server.port), 20) as reader:
            reader.sendall(text)
    assert "published_records_total 3.0" in _scrape(server.port)
    assert capfd.readouterr().err == ""
