"""What systemd wants to hear: ready, reloading, stopping, and that the loop still turns."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

_SEND_S: Final = 0.1
_PINGS_PER_PERIOD: Final = 4


def _monotonic_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Notifier:
    """Speaks sd_notify's datagrams; where nobody asked for them it does nothing."""

    def __init__(
        self,
        address: str | None = None,
        watchdog_us: int = 0,
        monotonic_us: Callable[[], int] = _monotonic_us,
    ) -> None:
        """Take the socket's address ("@..." for an abstract one) and the watchdog's period."""
        self._address = address
        self._watchdog_us = watchdog_us
        self._monotonic_us = monotonic_us
        self._pinged_us: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Notifier:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID as sd_notify(3) has them."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and not address.startswith(("/", "@")):
            address = None
        pid = environment.get("WATCHDOG_PID", str(os.getpid()))
        period = environment.get("WATCHDOG_USEC", "0")
        mine = pid == str(os.getpid()) and period.isdecimal()
        return cls(address, int(period) if mine else 0)

    def ready(self, status: str) -> None:
        """Say that the program works, at start and after a reload."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Say that a reload begins."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={self._monotonic_us()}")

    def stopping(self) -> None:
        """Say that the program ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Tell that the loop went round: at most four times a period."""
        if not self._watchdog_us:
            return
        now_us = self._monotonic_us()
        least_us = self._watchdog_us // _PINGS_PER_PERIOD
        if self._pinged_us is None or now_us - self._pinged_us >= least_us:
            self._pinged_us = now_us
            self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(_SEND_S)
                out.sendto(message.encode(), name)
        except OSError:
            return  # systemd away is no reason to stop; its watchdog says so itself
