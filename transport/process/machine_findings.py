"""What every program needs of its machine: a clock that is right, and a way to the log."""

from __future__ import annotations

import ctypes
import os
import socket
from typing import Any, Final

from .doctor_findings import CheckVerdict, Finding
from .foreign import libc

_REACH_S: Final = 2.0
_MOST_BROKERS: Final = 4
TIME_ERROR: Final = 5
TIMEX_BYTES: Final = 208
MAXERROR_AT: Final = 24
"""Offset of maxerror in struct timex: modes, offset and freq come before, 8 bytes each."""
_GOOD_ERROR_US: Final = 100_000
_NTP: Final = "start NTP or PTP: `systemctl enable --now systemd-timesyncd`"


def clock() -> Finding:
    """Ask the kernel whether the wall clock is disciplined, and how far it may be off."""
    timex = ctypes.create_string_buffer(TIMEX_BYTES)
    state = libc().adjtimex(timex)
    if state < 0:
        line = f"adjtimex: {os.strerror(ctypes.get_errno())}"
        return Finding("host", "clock", CheckVerdict.ABSENT, line, _NTP)
    maxerror_us = int.from_bytes(timex.raw[MAXERROR_AT : MAXERROR_AT + 8], "little", signed=True)
    if state == TIME_ERROR:
        line = "the kernel calls the clock unsynchronised"
        return Finding("host", "clock", CheckVerdict.ABSENT, line, _NTP)
    if maxerror_us > _GOOD_ERROR_US:
        line = f"may be off by {maxerror_us / 1e6:.1f} s"
        return Finding(
            "host", "clock", CheckVerdict.ABSENT, line, "let NTP or PTP reach its server"
        )
    line = f"synchronised, at most {maxerror_us / 1000:.0f} ms off"
    return Finding("host", "clock", CheckVerdict.OK, line)


def log_finding(section: Any) -> Finding:
    """Check the way out: the embedded log's folder, or that a broker answers."""
    kafka = getattr(section, "kafka", None)
    if kafka is not None:
        return _brokers(list(kafka.bootstrap))
    folder = section.folder
    if not folder.is_dir():
        line = f"expected the log's folder {folder}, found none"
        return _no_way_out(line, "start the Leader of this log, or set transport.folder")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        line = f"{folder} cannot be written by this user"
        return _no_way_out(line, "put the agent's user into the log's group (transport.group)")
    return Finding("transport", "transport", CheckVerdict.OK, f"embedded log {folder}")


def _brokers(bootstrap: list[str]) -> Finding:
    """Connect to the brokers in turn; one that answers is enough."""
    failures: list[str] = []
    for address in bootstrap[:_MOST_BROKERS]:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S):
                return Finding(
                    "transport", "transport", CheckVerdict.OK, f"Kafka: {address} answers"
                )
        except (OSError, ValueError) as error:
            failures.append(f"{address}: {error}")
    line = "Kafka: " + ("; ".join(failures) or "no broker is named")
    return _no_way_out(line, "check transport.kafka.bootstrap and the way to the broker")


def _no_way_out(found: str, do: str) -> Finding:
    return Finding("transport", "transport", CheckVerdict.BROKEN, found, do)
