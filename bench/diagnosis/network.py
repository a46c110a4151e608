"""Two hosts on one machine: network namespaces, a link with a rate between them, and its faults."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bench.record import ROOT

PREFIX: Final = "plbench-"
"""Namespaces of the bench: what is left over is found, and deleted, by this name alone."""
LINK_MTU: Final = 9000
LINK_MBIT: Final = 1000
_BURST: Final = "64kb"
_LATENCY: Final = "20ms"
# Classic BPF as a direct action: load a random word, drop (TC_ACT_SHOT) below a bound, else pass.
_DROP_BELOW: Final = "4,32 0 0 4294963256,53 1 0 {bound},6 0 0 2,6 0 0 0"


def command(*words: str) -> str:
    """Run ip or tc; returns what it printed.

    Raises      RuntimeError with its complaint
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"expected `{' '.join(words)}` to work: {done.stderr.strip()[-300:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a link: a device in a namespace of its own."""

    namespace: str
    device: str
    address: str

    def tc(self, *words: str) -> str:
        return command("tc", "-n", self.namespace, *words)

    def set_rate(self, mbit: float) -> None:
        rate = ("rate", f"{round(mbit * 1000)}kbit", "burst", _BURST, "latency", _LATENCY)
        self.tc("qdisc", "replace", "dev", self.device, "root", "handle", "1:", "tbf", *rate)

    def set_loss(self, share: float) -> None:
        """Lose this share of the packets that arrive here; 0 loses none."""
        device = ("dev", self.device)
        if share == 0:
            self.tc("qdisc", "del", *device, "clsact")
            return
        bytecode = _DROP_BELOW.format(bound=round(share * 2**32))
        self.tc("qdisc", "replace", *device, "clsact")
        program = ("bpf", "da", "bytecode", bytecode)
        self.tc("filter", "replace", *device, "ingress", "pref", "1", *program)

    def packets_lost(self) -> int:
        """Packets that arrived since loss was set, and were dropped."""
        queues = json.loads(self.tc("-s", "-j", "qdisc", "show", "dev", self.device))
        return sum(int(row["drops"]) for row in queues if row["kind"] == "clsact")

    def bytes_moved(self) -> int:
        show = command("ip", "-n", self.namespace, "-s", "-j", "link", "show", self.device)
        counters = json.loads(show)[0]["stats64"]
        return int(counters["rx"]["bytes"]) + int(counters["tx"]["bytes"])


class Link:
    """Two namespaces and the link between them; both ends send at the link's rate."""

    def __init__(self, index: int = 0) -> None:
        self.near = Port(f"{PREFIX}{index}a", f"plb{index}a", f"10.117.{index}.1")
        self.far = Port(f"{PREFIX}{index}b", f"plb{index}b", f"10.117.{index}.2")
        self.ports = (self.near, self.far)
        ends = []
        for port in self.ports:
            command("ip", "netns", "add", port.namespace)
            ends.append((port.device, "netns", port.namespace, "mtu", str(LINK_MTU)))
        command("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for port in self.ports:
            inside = ("ip", "-n", port.namespace)
            command(*inside, "addr", "add", f"{port.address}/24", "dev", port.device)
            for device in ("lo", port.device):
                command(*inside, "link", "set", device, "up")
        for port, other in ((self.near, self.far), (self.far, self.near)):
            _know(port, other)
            port.set_rate(LINK_MBIT)

    def close(self) -> None:
        """Delete both namespaces, and with them devices, addresses and queues."""
        remove({port.namespace for port in self.ports})


def _know(port: Port, other: Port) -> None:
    """Fix the other's hardware address, so that a lossy link loses no question about it."""
    show = command("ip", "-n", other.namespace, "-j", "link", "show", other.device)
    address = str(json.loads(show)[0]["address"])
    neighbour = (other.address, "lladdr", address, "dev", port.device, "nud", "permanent")
    command("ip", "-n", port.namespace, "neigh", "replace", *neighbour)


def ours() -> set[str]:
    names = [line.split()[0] for line in command("ip", "netns", "list").splitlines() if line]
    return {name for name in names if name.startswith(PREFIX)}


def remove(names: Iterable[str]) -> None:
    """Delete those of these namespaces of the bench that are there."""
    for name in ours().intersection(names):
        command("ip", "netns", "del", name)


def remove_all() -> int:
    """Delete the bench's namespaces; returns how many there were."""
    found = ours()
    remove(found)
    return len(found)
