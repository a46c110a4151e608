"""The application behind its guard: here without a login, elsewhere with TLS and tokens."""

from __future__ import annotations

import ipaddress
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from analytics.spent_budget import SeriesTask, tasks_in
from transport.files.private_files import read_secret
from transport.process.listening import listen
from transport.settings.config import OWN_NAMES, ListenRefused, is_address

from .access_tokens import SeriesOwners, TokenBook, read_tokens
from .application import application
from .guard import Guard, QueryRecord, RateLimit
from .page_answers import PageAnswers
from .page_list import PAGES
from .release_api import ReleaseRows, add_releases
from .release_gauges import ReleaseGauges, add_metrics
from .signed_chains import TranscriptFiles
from .store_watch import StoreWatch
from .transcripts import TranscriptAnswers, TranscriptChecker, add_transcript

DEFAULT_PORT: Final = 8765


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where the store is, and how the application is reached.

    rollups     folder of the store's roll-ups, which are made where they are lacking; the store
                itself is never written
    host, port  where to listen; port 0 takes a free one
    names       host names beside the address by which it is asked for, as a certificate has them
    cert_file, key_file   of TLS, PEM
    token_file  None: no login
    record_file who asked what and when; None: nothing is recorded
    task_dir    signed tasks, for what series spend of the budget; None: that is not said
    transcripts what both parties exported, to be verified; None: that is not said
    """

    store: Path
    rollups: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    names: tuple[str, ...] = ()
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    record_file: Path | None = None
    task_dir: Path | None = None
    owners: SeriesOwners = field(default_factory=SeriesOwners)
    transcripts: TranscriptFiles | None = None

    def tasks(self) -> list[SeriesTask]:
        """Read what series ask of the budget. Raises FileNotFoundError, ReportRejected."""
        return [] if self.task_dir is None else tasks_in(self.task_dir)

    @property
    def tls(self) -> bool:
        return self.cert_file is not None and self.key_file is not None

    @property
    def loopback(self) -> bool:
        """Whether this machine alone reaches it, under this machine's names."""
        return self._loopback_address() and not self.names

    @property
    def host_names(self) -> frozenset[str]:
        """Names that requests may be addressed to."""
        own = OWN_NAMES if self._loopback_address() else frozenset[str]()
        return frozenset(name.lower() for name in {*own, self._own_name, *self.names})

    @property
    def address(self) -> str:
        name = (self.names or (self._own_name,))[0]
        return f"{'https' if self.tls else 'http'}://{name}:{self.port}/"

    @property
    def _own_name(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def check(self, now_s: float) -> None:
        """Refuse to be reached from elsewhere without TLS and a token.

        Raises      ListenRefused, TokenFileRefused, OSError where others may read the key
        """
        if (self.cert_file is None) != (self.key_file is None):
            raise ListenRefused("TLS: expected a certificate and its key, got one of them")
        if self.key_file is not None:
            read_secret(self.key_file, 0)
        if self.loopback:
            return
        where = f"{self.host} is reached from other machines" if not self._loopback_address() else (
            f"the name {self.names[0]} leads others here"
        )  # fmt: skip
        if not self.tls:
            raise ListenRefused(f"{where}: expected TLS (--cert-file, --key-file), got none")
        if self.token_file is None or not any(
            token.expires_s > now_s for token in read_tokens(self.token_file)
        ):
            raise ListenRefused(f"{where}: expected a token that is in force, got none")

    def _loopback_address(self) -> bool:
        return is_address(self.host) and ipaddress.ip_address(self.host).is_loopback


_TOKEN_PER_S, _TOKEN_BURST = 10.0, 60
_LOCAL_PER_S, _LOCAL_BURST = 400.0, 1_000
"""A page is some five requests; at this machine all viewers share one address."""
_FAILURES_PER_S, _FAILURE_BURST = 1 / 6, 10
_CHOOSE: Final = "--listen HOST:PORT, port 0 for a free one"
_CONNECTIONS: Final = 2_000
_SWITCH_S: Final = 0.001
"""How long the thread that draws may hold the interpreter while an answer waits for it."""


def guarded(
    settings: WebSettings, watch: StoreWatch, record: QueryRecord, *, behind: bool = False
) -> ASGIApp:
    """Put the application of some settings behind its guard; see `PageAnswers` on `behind`."""
    local = settings.token_file is None
    per_s, burst = (_LOCAL_PER_S, _LOCAL_BURST) if local else (_TOKEN_PER_S, _TOKEN_BURST)
    answers = PageAnswers(watch, settings.owners, PAGES, behind=behind)
    app = application(answers)
    add_metrics(app, ReleaseGauges(watch, settings.owners))
    add_releases(app, ReleaseRows(watch, settings.owners))
    add_transcript(app, TranscriptAnswers(answers, TranscriptChecker(settings.transcripts)))
    return Guard(
        app,
        settings.host_names,
        None if settings.token_file is None else TokenBook(settings.token_file, time.time),
        record,
        RateLimit(per_s, burst, time.monotonic),
        RateLimit(_FAILURES_PER_S, _FAILURE_BURST, time.monotonic),
        tls=settings.tls,
    )


def serve(settings: WebSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal; `ready` is told the address that is listened on.

    Raises      ListenRefused, TokenFileRefused, AddressUnavailable
    """
    settings.check(time.time())
    record = QueryRecord(settings.record_file)
    watch = StoreWatch(settings.store, settings.rollups, tasks=settings.tasks())
    with listen(settings.host, settings.port, _CHOOSE, backlog=512) as taken:
        port = taken.getsockname()[1]
        config = uvicorn.Config(
            guarded(settings, watch, record, behind=True),
            log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            ssl_certfile=settings.cert_file, ssl_keyfile=settings.key_file, lifespan="off",
            limit_concurrency=_CONNECTIONS, timeout_keep_alive=30, ws="none",
        )  # fmt: skip
        sys.setswitchinterval(_SWITCH_S)
        watch.follow()
        ready(settings.address.replace(f":{settings.port}/", f":{port}/"))
        try:
            uvicorn.Server(config).run(sockets=[taken])
        finally:
            watch.close()
    record.close()
