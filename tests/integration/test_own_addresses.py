"""Addresses of this machine that are listened on: without IPv4 too, and where they are taken."""

from __future__ import annotations

import os
import pwd
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from aggregator.party.config import HttpAddress
from aggregator.party.health import Health
from edge_agent.config import AgentConfig
from edge_agent.export.host_numbers import HostSnapshot
from edge_agent.export.scrape import scrape_port, users_of_scrape
from edge_agent.host_page.page_server import page_address, serve_pages
from edge_agent.service.doctor import AgentState
from edge_agent.service.reload import metrics_port
from pointillist.broker.local import free_ports
from pointillist.broker.properties import Ports
from pointillist.cli import main
from tests.child_kit import as_user
from tests.config_kit import parse_config
from tests.netns_kit import inside, only_ipv6
from transport.process.doctor_checks import examine
from transport.process.listening import AddressUnavailable, holder, listen, loopback
from transport.settings.config import ListenRefused, listen_address
from web.web_server import WebSettings, serve

KEY = "ab" * 32


@pytest.fixture
def config(tmp_path: Path) -> AgentConfig:
    return parse_config(
        f'[host]\nkey_file = "{tmp_path}/host.key"\nstate_dir = "{tmp_path}"\n'
        f'[transport]\nfolder = "{tmp_path}/log"\n'
        f'[trust]\nleaders = ["{KEY}"]\nhelpers = ["{"cd" * 32}"]\n'
    )


def nothing() -> HostSnapshot:
    return HostSnapshot(1, (), ())


def fetched(address: str) -> int:
    with urllib.request.urlopen(address, timeout=20) as answer:
        answer.read()
        return int(answer.status)


def served(begin: Callable[[Callable[[str], None]], None]) -> str:
    """Begin a server that runs until its process ends; give the address that it tells."""
    told: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=begin, args=(told.put,), daemon=True).start()
    return told.get(timeout=20)


@pytest.mark.root
def test_pages_and_counters_are_served_where_loopback_has_no_ipv4(
    tmp_path: Path, config: AgentConfig
) -> None:
    users, _ = users_of_scrape(())

    def listened() -> dict[str, Any]:
        assert loopback() == "::1"
        store = WebSettings(tmp_path / "none", tmp_path / "rollups", loopback(), 0)
        host, port = page_address("localhost:0")
        pair = free_ports(1)[0], 2
        counters = metrics_port(0, lambda: None)
        scrape = scrape_port(0, users, nothing, "node7")
        health = Health("leader", ()).serve(HttpAddress(0))
        web = served(lambda ready: serve(store, ready))
        own = served(
            lambda ready: serve_pages(config, frozenset({os.geteuid()}), host, port, ready)
        )
        asked = {
            "web": f"{web}fleet", "agent web": f"{own}host",
            "counters": f"http://{counters.place}/metrics",
            "scrape": f"http://{scrape.place}/metrics", "health": f"http://{health.place}/healthz",
        }  # fmt: skip
        return {
            **{name: fetched(address) for name, address in asked.items()},
            "addresses": all(address.startswith("http://[::1]:") for address in asked.values()),
            "kafka": Ports(*pair, host=loopback()).at(1),
        }

    with only_ipv6() as name:
        assert inside(name, listened) == {
            "web": 200, "agent web": 200, "counters": 200, "scrape": 200, "health": 200,
            "addresses": True, "kafka": "[::1]:1",
        }  # fmt: skip


def test_taken_port_says_who_listens_there_and_what_picks_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        asked = ["web", "--store", str(tmp_path), "--listen", f"127.0.0.1:{port}"]
        monkeypatch.setattr(sys, "argv", ["pointillist", *asked])
        with pytest.raises(SystemExit, match="4"):
            main()
        said = " ".join(capsys.readouterr().err.split())
        assert "Errno" not in said
        name = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
        user = pwd.getpwuid(os.geteuid()).pw_name
        whose = f"process {os.getpid()} ({name}) of user {user}"
        assert f"127.0.0.1:{port} is taken: {whose} listens there" in said
        assert "take another: --listen HOST:PORT, port 0 for a free one" in said
        places: tuple[tuple[str, Callable[[], object]], ...] = (
            ("metrics.port", lambda: metrics_port(port, lambda: None)),
            ("export.prometheus.port", lambda: scrape_port(port, frozenset(), nothing, "node7")),
            (
                "port of [http] in helper.toml",
                lambda: Health("helper", ()).serve(HttpAddress(port)),
            ),
        )
        for choose, take in places:
            with pytest.raises(AddressUnavailable, match=f"{port} is taken: process") as refused:
                take()
            assert choose in refused.value.hint


def test_doctor_says_who_has_the_port_of_the_counters(config: AgentConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = replace(config, metrics=replace(config.metrics, enabled=True, port=port))
        found = next(one for one in examine(AgentState(taken)) if one.name == "counters")
    assert f"{port} is taken: process {os.getpid()}" in found.found
    assert "metrics.port" in str(found.do)


@pytest.mark.root
def test_port_of_another_users_process_is_told_by_its_user() -> None:
    """An ordinary user may not look into another's process; the kernel's table names the user."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def look() -> str:
            other.close()  # the child has it, too
            return holder(port)

        said = as_user(1234, look)
    assert said == "a process of user root"


@pytest.mark.parametrize(
    ("address", "said"),
    [("203.0.113.7:0", "203.0.113.7 is no address of this machine"),
     ("[2001:db8::7]:0", "2001:db8::7 is no address of this machine")],
)  # fmt: skip
def test_address_of_another_machine_is_said_to_be_none_of_this(address: str, said: str) -> None:
    host, port = listen_address(address, 0)
    with pytest.raises(AddressUnavailable, match=said):
        listen(host, port, "--listen HOST:PORT", 1)


def test_pages_of_a_host_listen_on_loopback_alone() -> None:
    asked = ("127.0.0.1:80", "[::1]:81", "localhost", ":82", "127.0.0.2:83")
    assert [page_address(text) for text in asked] == [
        ("127.0.0.1", 80), ("::1", 81), ("127.0.0.1", 8766), ("127.0.0.1", 82), ("127.0.0.2", 83),
    ]  # fmt: skip
    for text in ("0.0.0.0:80", "[::]", "192.0.2.1:80"):
        with pytest.raises(ListenRefused, match="expected an address of loopback"):
            page_address(text)
