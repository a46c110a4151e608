"""Serves this host's pages on loopback, to who may read the agent's files and to nobody else."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_agent.config import AgentConfig
from pages.layout import ASSETS, Screen, asset, asset_address, rendered
from pages.page_headers import PAGE_HEADERS
from wire.catalogue import Catalogue

from .host_pages import PAGES, HostPage, HostState, StateRefused, page_html, read_state
from .host_reading import HostReading
from .peer_owner import owner_of

ADDRESS: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8766
_NAMES: Final = (ADDRESS, "localhost")
"""Another site whose name is made to lead here is none of them."""
_NEWS_S: Final = 10
"""The agent writes its history so often: until then a page is the same for all who ask."""
_KEPT_PAGES: Final = 16
_CONNECTIONS: Final = 64

Owner = Callable[[tuple[str, int], tuple[str, int]], int | None]


class OwnerGuard:
    """Lets the owner alone in, by the user whose socket asks; sets the headers of pages."""

    def __init__(self, inner: ASGIApp, users: frozenset[int], owner: Owner = owner_of) -> None:
        self._inner, self._users, self._owner = inner, users, owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
        user = self._owner(scope["client"], scope["server"])
        if user is None or user not in self._users:
            said = "These pages are for the agent's own user, for root, and for who started them."
            return PlainTextResponse(f"{said}\n", 403)
        return None


def users_of_page() -> frozenset[int]:
    """Give who may look: who reads the agent's files anyway, and who became root by sudo.

    Call it before root is given up.
    """
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
    reading: HostReading, users: frozenset[int], owner: Owner = owner_of
) -> ASGIApp:
    """Make the application of one agent's pages; `users` may look."""
    routes = [
        Route("/", lambda _: RedirectResponse(f"/{PAGES[0].name}", 302)),
        Route("/static/{tag}/{name}", _static),
        *(Route(f"/{page.name}", _page(page, reading)) for page in PAGES),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=_NAMES, www_redirect=False)
    return OwnerGuard(Starlette(routes=routes, middleware=[hosts]), users, owner)


def serve_pages(
    config: AgentConfig, users: frozenset[int], port: int, ready: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address once it is listened on.

    Raises      OSError where the port is taken
    """
    with socket.create_server((ADDRESS, port), backlog=64) as taken:
        settings = uvicorn.Config(
            page_application(HostReading(config), users),
            log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", limit_concurrency=_CONNECTIONS, timeout_keep_alive=30, ws="none",
        )  # fmt: skip
        ready(f"http://{ADDRESS}:{taken.getsockname()[1]}/")
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
