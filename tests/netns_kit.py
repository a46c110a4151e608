"""Network namespaces, root's to make: at the far end of a link, and one whose loopback is IPv6."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.child_kit import in_child

_CLONE_NEWNET = 0x40000000
NEAR, FAR = "10.231.7.1", "10.231.7.2"


@dataclass(frozen=True)
class Link:
    """Two hosts: this one at `NEAR`, and the namespace at `FAR`."""

    name: str

    def far(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """What is sent is lost; no connection is told."""
        ip_call("link", "set", self.name, "down")

    def mend(self) -> None:
        ip_call("link", "set", self.name, "up")


@contextmanager
def linked() -> Iterator[Link]:
    link = Link(f"plst{os.urandom(3).hex()}")
    peer = f"{link.name}f"
    ip_call("netns", "add", link.name)
    try:
        ip_call("link", "add", link.name, "type", "veth", "peer", "name", peer, "netns", link.name)
        ip_call("addr", "add", f"{NEAR}/30", "dev", link.name)
        ip_call("-n", link.name, "addr", "add", f"{FAR}/30", "dev", peer)
        ip_call("-n", link.name, "link", "set", "lo", "up")
        ip_call("-n", link.name, "link", "set", peer, "up")
        link.mend()
        yield link
    finally:
        ip_call("netns", "del", link.name)


@contextmanager
def only_ipv6() -> Iterator[str]:
    """A namespace that has ::1 and no other address; give its name."""
    name = f"plst{os.urandom(3).hex()}"
    ip_call("netns", "add", name)
    try:
        ip_call("-n", name, "link", "set", "lo", "up")
        ip_call("-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo")
        yield name
    finally:
        ip_call("netns", "del", name)


def inside(name: str, call: Callable[[], object]) -> Any:
    """Call something in a child of this process, in a namespace; give what it gave, by JSON."""

    def enter() -> object:
        with Path(f"/run/netns/{name}").open("rb") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return call()

    return in_child(enter)


def ip_call(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
