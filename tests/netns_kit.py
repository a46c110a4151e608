"""A network namespace at the far end of a link that a test takes down: root's to make."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

NEAR, FAR = "10.231.7.1", "10.231.7.2"


@dataclass(frozen=True)
class Link:
    """Two hosts: this one at `NEAR`, and the namespace at `FAR`."""

    name: str

    def far(self, command: Sequence[str]) -> list[str]:
        """Give the command that runs one at the far end."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """What is sent is lost; no connection is told."""
        ip_call("link", "set", self.name, "down")

    def mend(self) -> None:
        ip_call("link", "set", self.name, "up")


@contextmanager
def linked() -> Iterator[Link]:
    """A link for one test."""
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


def ip_call(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
