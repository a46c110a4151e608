"""A small HTTP port for a program's own health and counters, which strangers cannot block."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Lock, Thread
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

LOOPBACK: Final = "127.0.0.1"
MOST_READERS: Final = 16
_READER_S: Final = 5
_LEAVE_S: Final = 1.0


class _Server(ThreadingMixIn, WSGIServer):
    """A thread to a scrape: a slow reader holds nobody up, and many of them do not add up.

    Any user may connect and say nothing: whoever came first makes room for who comes next.
    """

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

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002
        return


class HttpPort:
    """Serves one WSGI application from a thread of its own."""

    def __init__(self, port: int, application: WSGIApplication, address: str = LOOPBACK) -> None:
        """Listen; port 0 takes a free one. Raises OSError when the port is taken."""
        self._address = address
        self._server = make_server(
            address, port, application, server_class=_Server, handler_class=_Quiet
        )
        self._closing = False
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        # The thread sleeps until somebody connects.
        here = LOOPBACK if ip_address(self._address).is_unspecified else self._address
        with contextlib.suppress(OSError), socket.create_connection((here, self.port), 1):
            pass
        self._thread.join(5)
        self._server.server_close()

    def _serve(self) -> None:
        """Answer who comes; unlike `serve_forever` it does not wake up twice a second to look."""
        while not self._closing:
            self._server.handle_request()
