"""Serves this host's pages on loopback, to who may read the agent's files and to nobody else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_agent.config import AgentConfig, is_loopback
from pages.layout import ASSETS, PAGE_HEADERS, Screen, asset, asset_address, rendered
from transport.process.listening import LOOPBACKS, at, listen
from transport.settings.config import OWN_NAMES, ListenRefused, asked_name, listen_address
from wire.catalogue import Catalogue

from .host_pages import PAGES, HostPage, HostState, StateRefused, page_html, read_state
from .host_reading import HostReading
from .peer_owner import owner_of

DEFAULT_PORT: Final = 8766
_CHOOSE: Final = "--listen HOST:PORT, port 0 for a free one"
_NEWS_S: Final = 10
"""The agent writes its history so often: until then a page is the same for all who ask."""
_KEPT_PAGES: Final = 16
_CONNECTIONS: Final = 64

Owner = Callable[[tuple[str, int], tuple[str, int]], int | None]


class OwnerGuard:
    """Lets the owner alone in, by whose socket asks, under own names; sets the headers of pages."""

    def __init__(
        self, inner: ASGIApp, users: frozenset[int], owner: Owner, names: frozenset[str]
    ) -> None:
        self._inner, self._users, self._owner, self._names = inner, users, owner, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(PAGE_HEADERS)
            await send(message)

        refusal = await run_in_threadpool(self._refusal, scope)
        await (refusal or self._inner)(scope, receive, answered)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] not in {"GET", "HEAD"}:
            said = "expected GET or HEAD: nothing here is changed"
            return PlainTextResponse(f"{said}\n", 405, {"allow": "GET, HEAD"})
        if asked_name(Headers(scope=scope).get("host", "")) not in self._names:
            return PlainTextResponse("This is not the name of these pages.\n", 400)
        user = self._owner(scope["client"], scope["server"])
        if user is None or user not in self._users:
            said = "These pages are for the agent's own user, for root, and for who started them."
            return PlainTextResponse(f"{said}\n", 403)
        return None


def users_of_page() -> frozenset[int]:
    """Give who may look: who reads the agent's files, and who became root by sudo, while root."""
    asked = os.environ.get("SUDO_UID", "")
    by_sudo = {int(asked)} if os.geteuid() == 0 and asked.isdecimal() else set()
    return frozenset({0, os.geteuid(), *by_sudo})


def warm_up() -> None:
    """Read the files that pages are made of: another user may not reach them."""
    for name in ASSETS:
        asset(name)
    rendered(Screen("", ""))
    Catalogue.load()


def page_application(
    reading: HostReading, users: frozenset[int], owner: Owner = owner_of, host: str = LOOPBACKS[0]
) -> ASGIApp:
    """Make the application of one agent's pages, which listens at `host`; `users` may look."""
    routes = [
        Route("/", lambda _: RedirectResponse(f"/{PAGES[0].name}", 302)),
        Route("/static/{tag}/{name}", _static),
        *(Route(f"/{page.name}", _page(page, reading)) for page in PAGES),
    ]
    return OwnerGuard(Starlette(routes=routes), users, owner, OWN_NAMES | {host})


def page_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, HOST or :PORT, where pages listen on loopback. Raises ListenRefused."""
    host, port = listen_address(text, DEFAULT_PORT)
    if not is_loopback(host):
        raise ListenRefused(
            f"--listen: expected an address of loopback, such as 127.0.0.1 or [::1], got {text!r}: "
            "raw data stays on this host"
        )
    return host, port


def serve_pages(
    config: AgentConfig, users: frozenset[int], host: str, port: int, ready: Callable[[str], None]
) -> None:
    """Serve on loopback until a signal; `ready` is told the address. Raises AddressUnavailable."""
    with listen(host, port, _CHOOSE, backlog=64) as taken:
        settings = uvicorn.Config(
            page_application(HostReading(config), users, host=host),
            log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", limit_concurrency=_CONNECTIONS, timeout_keep_alive=30, ws="none",
        )  # fmt: skip
        ready(f"http://{at(host, taken.getsockname()[1])}/")
        uvicorn.Server(settings).run(sockets=[taken])


def _page(page: HostPage, reading: HostReading) -> Callable[[Request], Response]:
    @lru_cache(_KEPT_PAGES)
    def drawn(state: HostState, _since: int) -> tuple[bytes, str]:
        body = page_html(page, reading, state).encode()
        return body, f'"{sha256(body).hexdigest()[:24]}"'

    def answer(request: Request) -> Response:
        try:
            state = read_state(dict(request.query_params))
        except StateRefused as error:
            return PlainTextResponse(f"{error}\n", 422)
        body, tag = drawn(state, int(time.monotonic()) // _NEWS_S)
        # Raw data does not enter a browser's files.
        headers = {"cache-control": "no-store", "etag": tag}
        return Response(body, 200, headers, "text/html; charset=utf-8")

    return answer


def _static(request: Request) -> Response:
    name, tag = request.path_params["name"], request.path_params["tag"]
    if name not in ASSETS or asset_address(name) != f"/static/{tag}/{name}":
        return PlainTextResponse("There is no such file.\n", 404)
    headers = {"cache-control": "private, max-age=31536000, immutable"}
    return Response(asset(name), 200, headers, ASSETS[name])
