"""The application behind its guard, served until it is told to stop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from transport.process.listening import listen

from .access_tokens import TokenBook
from .application import application
from .guard import Guard, GuardRules
from .page_answers import PageAnswers
from .page_list import PAGES
from .query_record import QueryRecord
from .rate_limit import RateLimit
from .release_api import add_releases
from .release_gauges import ReleaseGauges, add_metrics
from .served_rows import ReleaseRows
from .store_watch import StoreWatch
from .transcript_answers import TranscriptAnswers
from .transcript_checker import TranscriptChecker
from .transcript_page import add_transcript
from .web_settings import WebSettings

_TOKEN_PER_S, _TOKEN_BURST = 10.0, 60
_LOCAL_PER_S, _LOCAL_BURST = 400.0, 1_000
"""A page is some five requests; at this machine all viewers share one address."""
_FAILURES_PER_S, _FAILURE_BURST = 1 / 6, 10
_CHOOSE: Final = "--listen HOST:PORT, port 0 for a free one"
_CONNECTIONS: Final = 2_000
_SWITCH_S: Final = 0.001
"""How long the thread that draws may hold the interpreter while an answer waits for it."""


def guarded(
    settings: WebSettings,
    watch: StoreWatch,
    record: QueryRecord,
    *,
    behind: bool = False,
) -> ASGIApp:
    """Put the application of some settings behind its guard; see `PageAnswers` on `behind`."""
    local = settings.token_file is None
    per_s, burst = (_LOCAL_PER_S, _LOCAL_BURST) if local else (_TOKEN_PER_S, _TOKEN_BURST)
    rules = GuardRules(
        settings.host_names,
        None if settings.token_file is None else TokenBook(settings.token_file, time.time),
        record,
        RateLimit(per_s, burst, time.monotonic),
        RateLimit(_FAILURES_PER_S, _FAILURE_BURST, time.monotonic),
        tls=settings.tls,
    )
    answers = PageAnswers(watch, settings.owners, PAGES, behind=behind)
    app = application(answers)
    add_metrics(app, ReleaseGauges(watch, settings.owners, watch.tasks))
    add_releases(app, ReleaseRows(watch, settings.owners))
    add_transcript(app, TranscriptAnswers(answers, TranscriptChecker(settings.transcripts)))
    return Guard(app, rules)


def serve(settings: WebSettings, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address once it is listened on.

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
