"""The framer of this host, what it takes of a drain, and the rate of this host's slowest link."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from collectors.devices.device_port import DeviceReading
from collectors.records.activity import Record
from collectors.rounds import Drained

from .cgroups import CgroupPressure
from .framer import Framer

_LOOK_NS: Final = 10_000_000_000
"""Asking a driver for its speed takes the kernel's lock on all links: not every second."""
_MOST_LINKS: Final = 64
_BYTES_PER_MBIT: Final = 125_000
_LOOPBACK: Final = "lo"

_GETQDISC: Final = 38
_NEWQDISC: Final = 36
_DONE: Final = 3
_ERROR: Final = 2
_DUMP_REQUEST: Final = 0x1 | 0x300
_MESSAGE: Final = struct.Struct("=IHHII")
_TRAFFIC: Final = struct.Struct("=BxxxiIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_KIND: Final = 1
_OPTIONS: Final = 2
_TBF_PARMS: Final = 1
_TBF_RATE64: Final = 4
_RATE_AT: Final = 8
"""Offset of the rate in struct tc_ratespec, which struct tc_tbf_qopt begins with."""
_MOST_BYTES: Final = 1 << 20
_TYPE_MASK: Final = 0x3FFF


class LinkRate:
    """Looks every 10 s; an extra of the framer. What cannot be read is absent."""

    def __init__(
        self,
        folder: Path = Path("/sys/class/net"),
        shapers: Callable[[], dict[int, int]] | None = None,
    ) -> None:
        self._folder = folder
        self._shapers = shapers or shaped_rates
        self._looked_ns: int | None = None
        self._found: dict[str, float] = {}

    def __call__(self, now_ns: int) -> dict[str, float]:
        """Give `link_bytes_per_s`, or nothing."""
        if self._looked_ns is None or now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            rates = list(self._rates())
            self._found = {"link_bytes_per_s": float(min(rates))} if rates else {}
        return dict(self._found)

    def _rates(self) -> Iterator[int]:
        try:
            links = sorted(self._folder.iterdir())[:_MOST_LINKS]
            shaped = self._shapers()
        except OSError:
            return
        for link in links:
            if link.name == _LOOPBACK or _text(link / "operstate") != "up":
                continue
            index = _number(link / "ifindex")
            speed = _number(link / "speed")
            told = [speed * _BYTES_PER_MBIT] if speed is not None and speed > 0 else []
            told += [shaped[index]] if index in shaped else []
            if told:
                yield min(told)


def shaped_rates() -> dict[int, int]:
    """Ask the kernel for the token buckets of this network namespace: bytes/s by interface index.

    Raises  OSError
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.settimeout(0.2)
        body = _TRAFFIC.pack(0, 0, 0, 0, 0)
        length = _MESSAGE.size + len(body)
        route.send(_MESSAGE.pack(length, _GETQDISC, _DUMP_REQUEST, 1, 0) + body)
        answers = b""
        while len(answers) < _MOST_BYTES:
            answers += route.recv(1 << 16)
            if _ended(answers):
                break
    return dict(parse_shapers(answers))


def parse_shapers(answers: bytes) -> Iterator[tuple[int, int]]:
    """Read a dump of queueing disciplines; what does not fit is passed over."""
    for kind, body in _messages(answers):
        if kind != _NEWQDISC or len(body) < _TRAFFIC.size:
            continue
        index = _TRAFFIC.unpack_from(body)[1]
        attributes = _attributes(body[_TRAFFIC.size :])
        if attributes.get(_KIND, b"").rstrip(b"\0") != b"tbf":
            continue
        options = _attributes(attributes.get(_OPTIONS, b""))
        if len(options.get(_TBF_RATE64, b"")) == struct.calcsize("=Q"):
            yield index, struct.unpack("=Q", options[_TBF_RATE64])[0]
        elif len(options.get(_TBF_PARMS, b"")) >= _RATE_AT + 4:
            yield index, struct.unpack_from("=I", options[_TBF_PARMS], _RATE_AT)[0]


def _messages(answers: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _MESSAGE.size <= len(answers):
        length, kind, *_ = _MESSAGE.unpack_from(answers, at)
        if length < _MESSAGE.size or at + length > len(answers):
            return
        yield kind, answers[at + _MESSAGE.size : at + length]
        at += -(-length // 4) * 4


def _ended(answers: bytes) -> bool:
    return any(kind in {_DONE, _ERROR} for kind, _ in _messages(answers))


def _attributes(body: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _TYPE_MASK] = body[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(64).decode("ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def host_framer(watch: Sequence[str] = (), *, faults: bool = False) -> Framer:
    """Make a framer that also asks this host for link rates and the pressure of cgroups.

    watch    patterns of cgroups that are subjects whatever they do
    faults   a source of hardware faults runs
    """
    pressure = CgroupPressure.of_host()
    return Framer(watch=watch, extras=(LinkRate(),), faults=faults, pressure=pressure)


class DrainSink(Protocol):
    """The side of a `Framer` on which records come in."""

    def take(self, records: Iterable[Record]) -> None: ...

    def look(self, readings: Iterable[DeviceReading]) -> None: ...


def take_drain(framer: DrainSink, drained: Drained) -> None:
    """Hand a drain on; a stale look is none."""
    framer.take(drained.records)
    if drained.look is not None:
        framer.look(drained.look.devices)
