"""What a program tells whoever watches over it, how it closes, logs, and believes its clock."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Lock, Thread
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import WSGIApplication

import structlog
from structlog.typing import Processor

from .listening import at, family_of, loopback, refusal

_SEND_S: Final = 0.1
_PINGS_PER_PERIOD: Final = 4


def _monotonic_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class Notifier:
    """Speaks sd_notify's datagrams; where nobody asked for them it does nothing."""

    def __init__(self, address: str | None = None, watchdog_us: int = 0) -> None:
        """Take the socket's address ("@..." for an abstract one) and the watchdog's period."""
        self._address = address
        self._watchdog_us = watchdog_us
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
        self._send(f"RELOADING=1\nMONOTONIC_USEC={_monotonic_us()}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Tell that the loop went round: at most four times a period."""
        if not self._watchdog_us:
            return
        now_us = _monotonic_us()
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


MOST_READERS: Final = 16
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (nothing is bound here)
_READER_S: Final = 5
_LEAVE_S: Final = 1.0


class _Server(ThreadingMixIn, WSGIServer):
    """A thread to a scrape; one that says nothing makes room for the next, the oldest first."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._room = BoundedSemaphore(MOST_READERS)
        self._readers: list[socket.socket] = []
        self._changing = Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            with self._changing, contextlib.suppress(OSError, IndexError):
                self._readers[0].shutdown(socket.SHUT_RDWR)
            if not self._room.acquire(timeout=_LEAVE_S):
                self.shutdown_request(request)
                return
        with self._changing:
            self._readers.append(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        with self._changing, contextlib.suppress(ValueError):
            self._readers.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a reader that breaks off is no event, and could fill the log."""


class _Quiet(WSGIRequestHandler):
    """Says nothing of who scraped."""

    timeout = _READER_S

    def get_environ(self) -> dict[str, Any]:
        """Add both ends' missing halves, which tell whose connection it is."""
        own = {"LOCAL_ADDR": str(self.connection.getsockname()[0])}
        return super().get_environ() | own | {"REMOTE_PORT": str(self.client_address[1])}

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002
        return


class MetricsServer:
    """Serves one WSGI application from a thread of its own."""

    def __init__(
        self, port: int, application: WSGIApplication, choose: str, address: str = ""
    ) -> None:
        """Listen, on loopback unless named; port 0: a free one. Raises AddressUnavailable."""
        self._address = address or loopback()
        kind = type("_Server", (_Server,), {"address_family": family_of(self._address)})
        try:
            self._server: WSGIServer = make_server(
                self._address, port, application, server_class=kind, handler_class=_Quiet
            )
        except OSError as error:
            raise refusal(error, self._address, port, choose) from error
        self._closing = False
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def place(self) -> str:
        """Where it listens, host:port."""
        return at(self._address, self.port)

    def close(self) -> None:
        self._closing = True
        # The thread sleeps until somebody connects.
        bound = str(self._server.server_address[0])
        here = _REACHED_AT.get(bound, bound)
        with contextlib.suppress(OSError), socket.create_connection((here, self.port), 1):
            pass
        self._thread.join(5)
        self._server.server_close()

    def _serve(self) -> None:
        """Answer requests; unlike `serve_forever` it does not wake up twice a second to look."""
        while not self._closing:
            self._server.handle_request()


class Closing(ABC):
    """Gives itself to a `with` block and closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that this object opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def close_within(timeout_s: float, close: Callable[[], object]) -> bool:
    """Close; what has not ended by then goes on in a daemon thread. Gives whether it ended."""
    failures: list[Exception] = []

    def work() -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failures.append(error)

    thread = threading.Thread(target=work, name="closing", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failures:
        raise failures[0]
    return not thread.is_alive()


def log_to_stderr(*gates: Processor) -> None:
    """Write words where stderr is a terminal, else JSON lines; `gates` run first on each."""
    terminal = sys.stderr.isatty()
    # Values with their escapes, for some are a stranger's; a traceback without its variables.
    words = structlog.dev.ConsoleRenderer(
        colors=not os.environ.get("NO_COLOR"),
        repr_native_str=True,
        exception_formatter=structlog.dev.plain_traceback,
    )
    structlog.configure(
        processors=[
            *gates,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%SZ" if terminal else "iso", utc=True),
            words if terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


STEP_MS: Final = 60_000
"""A wall clock that moves further against the boot clock was stepped; less is discipline."""

BELIEVED_AFTER_MS: Final = 600_000
"""NTP mends a glitch within a few polls of 64 s; whoever sets a clock on purpose leaves it so."""


class SteadyOffset:
    """Unix time whose steps are believed once they have stood for ten minutes of boot time.

    Until then it goes on by the boot clock, so that a glitch is never seen. One within ten minutes
    of the machine's start is NTP's, which has come only now: it is believed at once.
    """

    def __init__(self, unix_ms: int, boot_ms: int) -> None:
        self._offset_ms = unix_ms - boot_ms
        self._step: tuple[int, int] | None = None
        """When a step was first seen, by the boot clock, and the offset that it made."""

    def believed_ms(self, unix_ms: int, boot_ms: int) -> int:
        """Take a reading of both clocks; give the Unix time that is believed."""
        offset_ms, step = unix_ms - boot_ms, self._step
        near = abs(offset_ms - self._offset_ms) <= STEP_MS
        if near or boot_ms < BELIEVED_AFTER_MS:
            self._offset_ms, self._step = offset_ms, None
        elif step is None or abs(offset_ms - step[1]) > STEP_MS:
            self._step = boot_ms, offset_ms
        elif boot_ms - step[0] >= BELIEVED_AFTER_MS:
            self._offset_ms, self._step = offset_ms, None
        return boot_ms + self._offset_ms

    @property
    def stepped(self) -> bool:
        """Whether the last reading was of a step that is not believed yet."""
        return self._step is not None


def boot_s() -> float:
    """Seconds since the machine started, suspended ones too; nobody sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyTime:
    """Unix seconds, by a `SteadyOffset`; any thread may ask."""

    def __init__(
        self, unix_s: Callable[[], float] = time.time, boot_s: Callable[[], float] = boot_s
    ) -> None:
        self._unix_s, self._boot_s = unix_s, boot_s
        self._began_s = boot_s()
        self._steady = SteadyOffset(int(unix_s() * 1000), int(self._began_s * 1000))

    def __call__(self) -> float:
        unix_ms, boot_ms = int(self._unix_s() * 1000), int(self._boot_s() * 1000)
        return self._steady.believed_ms(unix_ms, boot_ms) / 1000

    @property
    def stepped(self) -> bool:
        return self._steady.stepped

    @property
    def stood(self) -> bool:
        """Whether ten minutes have gone by, in which a clock wrong at the start was put right.

        Nothing is destroyed for its age before: what is gone is gone.
        """
        return 1000 * (self._boot_s() - self._began_s) >= BELIEVED_AFTER_MS


def has_stood(clock: Callable[[], float]) -> bool:
    return not isinstance(clock, SteadyTime) or clock.stood
