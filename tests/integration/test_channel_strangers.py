"""Who has no certificate holds few of a party's connections, and none for long."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from aggregator.party import channel
from aggregator.party.channel_address import ChannelAddress
from pointillist.broker.local import free_ports
from tests.certificate_kit import Authority
from tests.wait_kit import until

STRANGERS = 40


def ended(connection: socket.socket) -> bool:
    """Whether the other side has let it go."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    ("connections", "handshake_s", "left"), [(8, 600, 8), (STRANGERS * 2, 1, 0)]
)
def test_strangers_hold_few_connections_and_none_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connections: int, handshake_s: int, left: int
) -> None:
    monkeypatch.setattr(channel, "CONNECTIONS", connections)
    monkeypatch.setattr(channel, "HANDSHAKE_S", handshake_s)
    (port,) = free_ports(1)
    tls = Authority.make(tmp_path / "ca").issue("leader")
    nobody: Any = None  # no call comes through
    address = ChannelAddress(host_port=f"127.0.0.1:{port}", tls=tls)
    server = channel.serve(nobody, address, lambda _error: False, threading.Lock())
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(STRANGERS)]
    try:
        until(lambda: sum(map(ended, strangers)) >= STRANGERS - left)
        assert sum(map(ended, strangers)) == STRANGERS - left
    finally:
        for stranger in strangers:
            stranger.close()
        server.stop(0).wait()
