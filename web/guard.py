"""What stands before every request: host name, method, size, rate, token; and the headers after it.

Everything that is served is read by GET or HEAD and changes nothing, so there is no request that
another site could have a viewer's browser make to any effect; other methods are refused.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from threading import Lock
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.layout import PAGE_HEADERS
from transport.settings.config import asked_name

from .access_tokens import LOCAL, TokenBook, TokenFileRefused, Viewer

_MOST_VIEWERS = 10_000


class RateLimit:
    """Buckets of `burst`, by name; the one that was longest unused is dropped for a new one."""

    def __init__(self, per_s: float, burst: int, now: Callable[[], float]) -> None:
        self._per_s, self._burst, self._now = per_s, burst, now
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, name: str) -> bool:
        """Take one request out of a bucket; False where it is empty."""
        return self._left(name, 1.0) >= 0

    def spent(self, name: str) -> bool:
        """Say whether a bucket is empty, and take nothing."""
        return self._left(name, 0.0) < 1

    def _left(self, name: str, taken: float) -> float:
        with self._lock:
            left, at = self._buckets.pop(name, (float(self._burst), self._now()))
            now = self._now()
            left = min(self._burst, left + (now - at) * self._per_s) - taken
            self._buckets[name] = max(left, 0.0) if left < 0 else left, now
            while len(self._buckets) > _MOST_VIEWERS:
                self._buckets.popitem(last=False)
            return left


class QueryRecord:
    """Who asked what and when, in a file that only this user reads; None: nothing is recorded.

    A file that was moved away by rotation is begun anew.
    """

    def __init__(self, path: Path | None) -> None:
        self._handler: WatchedFileHandler | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._handler = WatchedFileHandler(path, encoding="utf-8")

    def note(
        self, viewer: Viewer | None, address: str, target: str, status: int, at_s: float
    ) -> None:
        """Record one request on a line; viewer None: nobody was let in."""
        if self._handler is None:
            return
        line = {
            "at": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"),
            "viewer": viewer.name if viewer else None,
            "role": viewer.role.value if viewer else None,
            "address": address,
            "asked": target,
            "status": status,
        }
        self._handler.handle(
            logging.LogRecord("query", logging.INFO, "", 0, json.dumps(line), None, None)
        )

    def close(self) -> None:
        if self._handler is not None:
            self._handler.close()


_TLS_HEADERS: Final = {"strict-transport-security": "max-age=31536000"}
_MOST_TARGET: Final = 2_048
_ASK: Final = {"www-authenticate": 'Basic realm="pointillist", charset="UTF-8"'}


class Guard:
    """An ASGI application around another; it sets `viewer` in the request's state.

    names      host names that requests may be addressed to, lower case, without ports: another
               site whose name is made to lead here is none of them
    book       tokens; None: everybody who reaches this server is at this machine
    """

    def __init__(
        self,
        inner: ASGIApp,
        names: frozenset[str],
        book: TokenBook | None,
        record: QueryRecord,
        requests: RateLimit,
        failures: RateLimit,
        *,
        tls: bool,
    ) -> None:
        self._inner, self._names, self._book, self._record = inner, names, book, record
        self._requests, self._failures = requests, failures
        self._headers = {**PAGE_HEADERS, **(_TLS_HEADERS if tls else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
            return
        if scope["type"] != "http":  # a WebSocket, which nothing here speaks
            return
        address = scope["client"][0] if scope.get("client") else ""
        told: dict[str, Any] = {"viewer": None, "status": 500}

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                told["status"] = message["status"]
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        try:
            refusal, told["viewer"] = self._judge(scope, address)
            if refusal is not None:
                await refusal(scope, receive, answered)
                return
            state = {**scope.get("state", {}), "viewer": told["viewer"]}
            # The server leaves the body of an answer to HEAD away.
            await self._inner({**scope, "method": "GET", "state": state}, receive, answered)
        finally:
            self._record.note(told["viewer"], address, _target(scope), told["status"], time.time())

    def _judge(self, scope: Scope, address: str) -> tuple[Response | None, Viewer | None]:
        headers = Headers(scope=scope)
        if asked_name(headers.get("host", "")) not in self._names:
            return _refused(421, "This server is not known by the name it was asked under."), None
        if scope["method"] not in {"GET", "HEAD"}:
            said = f"expected GET or HEAD, got {scope['method']}: nothing here is changed"
            return _refused(405, said, {"allow": "GET, HEAD"}), None
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > _MOST_TARGET:
            return _refused(414, f"expected an address of at most {_MOST_TARGET} bytes"), None
        if headers.get("sec-fetch-site") == "cross-site" and (
            headers.get("sec-fetch-mode") != "navigate"
        ):
            return _refused(403, "Another site's page may link here, and load nothing."), None
        return self._admitted(headers, address)

    def _admitted(self, headers: Headers, address: str) -> tuple[Response | None, Viewer | None]:
        viewer: Viewer | None = LOCAL
        if self._book is not None:
            if self._failures.spent(address):
                return _refused(429, "Too many tokens were refused.", {"retry-after": "60"}), None
            secret = _secret(headers.get("authorization", ""))
            try:
                viewer = self._book.viewer(secret) if secret else None
            except (TokenFileRefused, OSError):
                return _refused(503, "Tokens cannot be read now, so nobody is let in."), None
            if viewer is None:
                if secret:
                    self._failures.allows(address)
                said = "A token is needed, and none that is in force came."
                return _refused(401, said, _ASK), None
        if viewer is None or not self._requests.allows(address if viewer is LOCAL else viewer.name):
            return _refused(429, "Too many requests.", {"retry-after": "1"}), viewer
        return None, viewer


def _refused(status: int, said: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{said}\n", status, dict(headers or {}))


def _target(scope: Scope) -> str:
    """Path and query as they were asked, cut where they are longer than is served."""
    query: bytes = scope["query_string"]
    asked: bytes = scope.get("raw_path") or scope["path"].encode()
    return (asked + (b"?" + query if query else b""))[:_MOST_TARGET].decode("latin-1")


def _secret(header: str) -> str | None:
    """Read the token of `Authorization`: Bearer's, or the password of Basic, as browsers ask it."""
    kind, _, rest = header.partition(" ")
    if kind.lower() == "bearer":
        return rest.strip() or None
    if kind.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except ValueError:  # of base64, of text that is not ASCII, of UTF-8
            return ""
    return None
