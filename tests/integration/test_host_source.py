"""The host source on this very machine."""

import os
import socket
import time

import psutil
import pytest

from collectors.host.host_source import HostSource
from collectors.interface import SourceUnavailable
from wire.catalogue import Catalogue


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@pytest.fixture
def host() -> HostSource:
    source = HostSource()
    assert source.probe() is None
    source.start()
    assert list(source.drain(boottime_ns())) == []
    return source


def burn(cpu_s: float) -> None:
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        os.getpid()


def test_host_source_yields_every_cell_of_its_sections(host: HostSource) -> None:
    burn(0.4)
    now = boottime_ns()
    seen = list(host.drain(now))
    expected = {
        (section.name, coordinate.name)
        for section in Catalogue.load().sections
        if section.name.startswith("host_")
        for coordinate in section.coordinates
    }
    assert {(one.section, one.cell) for one in seen} == expected
    assert all(0 <= one.value <= 1_000_000 and one.boottime_ns < now for one in seen)
    values = {(one.section, one.cell): one.value for one in seen}
    cpu = sum(value for (section, _), value in values.items() if section == "host_cpu")
    # This process alone kept one CPU busy most of the time.
    assert values["host_cpu", "user"] + values["host_cpu", "system"] > 200_000 / (
        os.cpu_count() or 1
    )
    assert cpu <= 1_000_005
    assert 0 < values["host_memory", "used"] < 1_000_000


def test_host_source_calls_too_close_give_nothing(host: HostSource) -> None:
    burn(0.2)
    now = boottime_ns()
    assert list(host.drain(now))
    assert list(host.drain(now + 50_000_000)) == []


def other_bytes() -> int:
    """Bytes received and sent by everything but loopback."""
    nics = psutil.net_io_counters(pernic=True)
    return sum(n.bytes_recv + n.bytes_sent for name, n in nics.items() if name != "lo")


def test_host_source_leaves_loopback_out(host: HostSource) -> None:
    begun_ns, others = boottime_ns(), other_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            for _ in range(200):
                sender.sendall(bytes(200_000))
                left = 200_000
                while left:
                    left -= len(receiver.recv(left))
    burn(0.15)
    now_ns = boottime_ns()
    values = {one.cell: one.value for one in host.drain(now_ns)}
    # Millionths of 50 GB/s over the time since the first call; loopback alone carried 80 MB.
    counted = (values["receive"] + values["transmit"]) * 50_000 * (now_ns - begun_ns) / 1e9
    assert counted < 20_000_000 + 2 * (other_bytes() - others)


def test_host_source_not_started_is_unavailable() -> None:
    with pytest.raises(SourceUnavailable, match="not started"):
        list(HostSource().drain(1))
