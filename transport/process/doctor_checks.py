"""What a doctor finds, and the one thing to do about it; nothing is left created or changed."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeVar

from . import unforeseen
from .foreign import libc
from .printable import printable
from .privileges import user_name, way_in, way_to_own

LONGEST: Final = 400

_REACH_S: Final = 2.0
_MOST_BROKERS: Final = 4
TIME_ERROR: Final = 5
TIMEX_BYTES: Final = 208
MAXERROR_AT: Final = 24
"""Offset of maxerror in struct timex: modes, offset and freq come before, 8 bytes each."""
_GOOD_ERROR_US: Final = 100_000
_NTP: Final = "start NTP or PTP: `systemctl enable --now systemd-timesyncd`"


class CheckVerdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    ABSENT = "absent"  # something is not there; the program runs without it
    UNMEASURED = "unmeasured"
    """A signed task asks for this, and nothing here measures it: zeros would be reported."""
    BROKEN = "broken"  # the program does not run, or does nothing, until this is put right


class Result(NamedTuple):
    """What a check gives: what is there, and the one thing to do, if any."""

    verdict: CheckVerdict
    found: str
    do: str | None = None


def ok(found: str) -> Result:
    return Result(CheckVerdict.OK, found)


def absent(found: str, do: str | None) -> Result:
    """The program runs without it; worth knowing."""
    return Result(CheckVerdict.ABSENT, found, do)


def broken(found: str, do: str | None) -> Result:
    """The program does not run, or does nothing, until this is put right."""
    return Result(CheckVerdict.BROKEN, found, do)


def not_writable(folder: Path, why: str = "") -> Result | None:
    """Say whose a folder is that this user cannot write."""
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    owner, user = folder.stat().st_uid, os.geteuid()
    do = f"chmod u+rwx {folder}" if owner == user else way_to_own(folder, owner, user)
    return broken(f"{folder} cannot be written by this user{why}", do)


def left_by_others(files: Iterable[Path]) -> Result | None:
    """Name a file that the program keeps, and that another user left: root by hand, say."""
    for file in sorted(files):
        if not file.is_file() or os.access(file, os.R_OK | os.W_OK):
            continue
        if (owner := file.lstat().st_uid) != os.geteuid():
            line = f"{file} is {user_name(owner)}'s, and cannot be written by this user"
            return broken(line, way_to_own(file, owner, os.geteuid()))
    return None


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's answer: the result of a check, by its group and name."""

    group: str
    name: str
    verdict: CheckVerdict
    found: str
    do: str | None = None


class Check(NamedTuple):
    """A check that stands by itself; None of it says that there is nothing to look at."""

    group: str
    name: str
    look: Callable[[], Result | None]


_Method = TypeVar("_Method", bound=Callable[[Any], Result | None])
_PLACES: Final[dict[object, tuple[str, str]]] = {}  # method -> the group and name of what it finds


def check(group: str, name: str) -> Callable[[_Method], _Method]:
    """Register a method as one of the checks of its class."""

    def register(method: _Method) -> _Method:
        _PLACES[method] = group, name
        return method

    return register


def examine(*subjects: object, failures: Iterable[type[Exception]] = ()) -> Iterator[Finding]:
    """Run checks; one that fails itself, by one of `failures` or unforeseen, is a finding."""
    known: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, *failures)
    for group, name, look in chain.from_iterable(map(_checks, subjects)):
        try:
            result = look()
        except PermissionError as error:
            line = f"{printable(str(error.filename))} cannot be read by this user"
            result = broken(line, way_in(error))
        except known as error:
            line = printable(str(error))[:LONGEST] or type(error).__name__
            result = broken(line, way_in(error) or f"look at {name} and try again")
        except Exception as error:  # noqa: BLE001  (the other checks go on)
            result = broken(unforeseen.line(error), "report that file")
        if result is not None:
            yield Finding(group, name, *result)


def _checks(subject: object) -> list[Check]:
    if isinstance(subject, Check):
        return [subject]
    methods = [one for one in vars(type(subject)).values() if isinstance(one, FunctionType)]
    return [Check(*_PLACES[one], partial(one, subject)) for one in methods if one in _PLACES]


def named(findings: Iterable[Finding], verdict: CheckVerdict) -> str:
    """Name what came out so, for the last line of an answer that may be longer than a screen."""
    return ", ".join(f.name for f in findings if f.verdict is verdict)


def worst(findings: Iterable[Finding]) -> CheckVerdict:
    found = {finding.verdict for finding in findings}
    order = (CheckVerdict.BROKEN, CheckVerdict.UNMEASURED, CheckVerdict.ABSENT)
    return next((verdict for verdict in order if verdict in found), CheckVerdict.OK)


def _clock() -> Result:
    """Ask the kernel whether it calls its clock disciplined, and how far that may be off."""
    timex = ctypes.create_string_buffer(TIMEX_BYTES)
    state = libc().adjtimex(timex)
    if state < 0:
        return absent(f"adjtimex: {os.strerror(ctypes.get_errno())}", _NTP)
    if state == TIME_ERROR:
        return absent("the kernel calls the clock unsynchronised", _NTP)
    maxerror = timex.raw[MAXERROR_AT : MAXERROR_AT + 8]
    maxerror_us = int.from_bytes(maxerror, "little", signed=True)
    if maxerror_us > _GOOD_ERROR_US:
        line = f"may be off by {maxerror_us / 1e6:.1f} s"
        return absent(line, "let NTP or PTP reach its server")
    return ok(f"synchronised, at most {maxerror_us / 1000:.0f} ms off")


CLOCK: Final = Check("host", "clock", _clock)


def way_out(section: Any) -> Check:
    """By a table [transport]: the embedded log's folder is there, or one of Kafka's brokers."""
    return Check("transport", "transport", partial(_transport, section))


def _transport(section: Any) -> Result:
    kafka = getattr(section, "kafka", None)
    if kafka is not None:
        return _brokers(kafka.bootstrap)
    folder = section.folder
    if not folder.is_dir():
        line = f"expected the log's folder {folder}, found none"
        return broken(line, "start the Leader of this log, or set transport.folder")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        line = f"{folder} cannot be written by this user"
        return broken(line, "put the agent's user into the log's group (transport.group)")
    for file in sorted(folder.iterdir()):
        if file.is_file() and not os.access(file, os.R_OK | os.W_OK):
            do = f"chmod g+rw {file}, whose group is transport.group; without one, chown it"
            return broken(f"{file} cannot be read and written by this user", do)
    return ok(f"embedded log {folder}")


def _brokers(bootstrap: Iterable[str]) -> Result:
    """Connect to the brokers in turn; one that answers is enough."""
    failures: list[str] = []
    for address in list(bootstrap)[:_MOST_BROKERS]:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S):
                return ok(f"Kafka: {address} answers")
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {error}")
    line = "Kafka: " + ("; ".join(failures) or "no broker is named")
    return broken(line, "check transport.kafka.bootstrap and the way to the broker")
