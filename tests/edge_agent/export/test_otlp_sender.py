"""A collector that is away, slow, refuses or is killed: bounded, counted, never waited for."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from collectors.devices.device_port import DeviceReading, Field
from edge_agent.config import OtlpSection
from edge_agent.export import otlp
from edge_agent.export.host_numbers import NO_WORKLOAD, GpuNow, HostSnapshot
from edge_agent.export.otlp import MessageWriter, OtlpSender
from tests.export_kit import collector, read_taken, tls_collector
from tests.monitoring_kit import free_port
from tests.wait_kit import until


def snapshot(number: int) -> HostSnapshot:
    reading = DeviceReading(0, "GPU-1", "H100", 0, 1, {Field.POWER: number * 1_000})
    return HostSnapshot(number, (GpuNow(reading, NO_WORKLOAD, ()),), ())


def numbers(taken: list[ExportMetricsServiceRequest]) -> list[int]:
    """Which snapshots were taken, by the time they are of."""
    return [
        request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].time_unix_nano
        for request in taken
    ]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(otlp, "_LONGEST_PAUSE_S", 0.05)


@pytest.fixture
def sending() -> Iterator[Callable[..., OtlpSender]]:
    made: list[OtlpSender] = []

    def make(endpoint: str, **settings: Any) -> OtlpSender:
        section = OtlpSection(enabled=True, endpoint=endpoint, **settings)
        made.append(OtlpSender(section, MessageWriter({"host.name": "node7"}, "1")))
        return made[-1]

    yield make
    for sender in made:
        sender.close()


Sending = Callable[..., OtlpSender]


def test_messages_arrive_in_order_with_a_token(sending: Sending, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o640)
    with collector() as (made, address):
        sender = sending(address, token_file=token)
        for number in (1, 2, 3):
            sender.offer(snapshot(number))
        until(lambda: len(made.taken) == 3)
    assert numbers(made.taken) == [1, 2, 3]
    assert made.headers[0]["authorization"] == "Bearer open sesame"
    until(lambda: sender.counts == {"sent": 3})


def test_a_collector_that_is_away_gets_what_fits_once_it_is_there(sending: Sending) -> None:
    port = free_port()
    sender = sending(f"http://127.0.0.1:{port}", most_waiting=4)
    for number in range(1, 11):
        sender.offer(snapshot(number))
        assert sender.waiting <= 4
    with collector(port) as (made, _):
        until(lambda: 10 in numbers(made.taken))
    found = numbers(made.taken)
    assert found == sorted(set(found))
    assert set(found) >= {8, 9, 10}
    until(lambda: sum(sender.counts.values()) == 10)
    assert sender.counts["crowded_out"] == 10 - len(found)


def test_a_collector_that_hangs_holds_nobody_up(sending: Sending) -> None:
    with collector() as (made, address):
        made.hold.clear()
        sender = sending(address, most_waiting=3, timeout_s=60)
        sender.offer(snapshot(0))
        until(lambda: made.asked == 1)
        for number in range(1, 101):  # a loop that waited would end in the test's own timeout
            sender.offer(snapshot(number))
        assert sender.waiting == 3
        assert sender.counts == {"crowded_out": 97}
        made.hold.set()
        until(lambda: numbers(made.taken) == [0, 98, 99, 100])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_collector_that_asks_for_patience_is_asked_again(sending: Sending, status: int) -> None:
    with collector() as (made, address):
        made.answers = [
            (status, {}),
            (status, {"retry-after": "0"}),
            (status, {"retry-after": "x"}),
        ]
        sender = sending(address)
        sender.offer(snapshot(1))
        until(lambda: sender.counts == {"sent": 1})
    assert (made.asked, numbers(made.taken)) == (4, [1])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 500])
def test_what_a_collector_refuses_is_dropped_and_counted(sending: Sending, status: int) -> None:
    with collector() as (made, address):
        made.answers = [(status, {})]
        sender = sending(address)
        sender.offer(snapshot(1))
        sender.offer(snapshot(2))
        until(lambda: sender.counts == {"refused": 1, "sent": 1})
    assert numbers(made.taken) == [2]


def test_points_that_a_collector_leaves_out_are_counted(sending: Sending) -> None:
    with collector() as (made, address):
        made.left_out = 1
        sender = sending(address)
        sender.offer(snapshot(1))
        until(lambda: sender.counts == {"partly_refused": 1})


def test_numbers_follow_no_redirect_and_no_proxy(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (elsewhere, there), collector() as (made, address):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, there)
        made.answers = [(307, {"location": f"{there}/v1/metrics"})]
        sender = sending(address)
        sender.offer(snapshot(1))
        sender.offer(snapshot(2))
        until(lambda: sender.counts == {"refused": 1, "sent": 1})
        assert elsewhere.asked == 0


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff", b"\n"])
def test_an_unusable_token_sends_nothing(
    sending: Sending, tmp_path: Path, content: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    token.chmod(0o600)
    with collector() as (made, address):
        sender = sending(address, token_file=token, most_waiting=1)
        sender.offer(snapshot(1))
        sender.offer(snapshot(2))
        token.write_text("good")
        until(lambda: bool(made.taken))
    assert made.headers[0]["authorization"] == "Bearer good"
    assert "two" not in capfd.readouterr().out + capfd.readouterr().err


def test_a_certificate_of_nobody_is_refused(sending: Sending, tmp_path: Path) -> None:
    with tls_collector(tmp_path) as (made, address, authority):
        stranger = sending(address, most_waiting=1)
        stranger.offer(snapshot(1))
        known = sending(address, ca_file=authority)
        known.offer(snapshot(2))
        until(lambda: known.counts == {"sent": 1})
        until(lambda: stranger._away == "SSLError")
    assert numbers(made.taken) == [2]
    assert stranger.counts == {}


def start(port: int, file: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.export_kit", str(port), str(file)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://")
    return process


def test_a_collector_that_is_killed_comes_back_to_what_waited(
    sending: Sending, tmp_path: Path
) -> None:
    file, port = tmp_path / "taken", free_port()
    sender = sending(f"http://127.0.0.1:{port}")
    for life in range(2):
        process = start(port, file)
        try:
            for number in range(10 * life + 1, 10 * life + 6):
                sender.offer(snapshot(number))
            sent = 5 + 10 * life
            until(lambda: sender.counts.get("sent", 0) >= sent)  # noqa: B023
            until(lambda: len(read_taken(file)) >= sent)  # noqa: B023
        finally:
            process.kill()
            process.wait(30)
        for number in range(10 * life + 6, 10 * life + 11):
            sender.offer(snapshot(number))
    with collector(port) as (made, _):
        until(lambda: 20 in numbers(made.taken))
    found = numbers(read_taken(file)) + numbers(made.taken)
    assert found == list(range(1, 21)), "nothing is lost while there is room, and none comes twice"


def test_a_message_that_breaks_is_counted_and_the_next_is_sent(
    sending: Sending, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = MessageWriter.write

    def breaks_once(writer: MessageWriter, taken: HostSnapshot) -> bytes:
        if taken.unix_ns == 1:
            raise RuntimeError("a user's secret name")
        return write(writer, taken)

    monkeypatch.setattr(MessageWriter, "write", breaks_once)
    with collector() as (made, address):
        sender = sending(address)
        sender.offer(snapshot(1))
        sender.offer(snapshot(2))
        until(lambda: sender.counts == {"broken": 1, "sent": 1})
    assert numbers(made.taken) == [2]
    said = capfd.readouterr()
    assert "a user's secret name" not in said.out + said.err


def test_what_a_collector_says_is_not_in_the_log(
    sending: Sending, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("urllib3").setLevel(logging.NOTSET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = sending(f"http://127.0.0.1:{server.getsockname()[1]}")
        sender.offer(snapshot(1))
        with server.accept()[0] as taken:
            taken.recv(1 << 16)
            taken.sendall(b"HTTP/1.1 200 OK\r\nx: y\r\nno \x1b[2J header\r\n\r\n\r\n")
        until(lambda: sum(sender.counts.values()) or sender._away)
    said = capfd.readouterr()
    assert "\x1b[2J" not in said.out + said.err + caplog.text
    assert "header" not in caplog.text


def test_closing_waits_for_nobody(sending: Sending) -> None:
    with collector() as (made, address):
        made.hold.clear()
        sender = sending(address, timeout_s=60)
        sender.offer(snapshot(1))
        until(lambda: made.asked == 1)
        sender.close()  # a close that waited would end in the test's own timeout
        assert made.taken == []
