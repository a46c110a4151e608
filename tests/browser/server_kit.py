"""Servers that a browser can reach: the application in a thread, and the command as a process."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import httpx
import uvicorn

from web.access_tokens import SeriesOwners
from web.guard import QueryRecord
from web.store_watch import StoreWatch
from web.web_server import WebSettings, guarded

_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")


@contextmanager
def served(
    store: Path,
    *,
    token_file: Path | None = None,
    owners: SeriesOwners | None = None,
    now: Callable[[], float] = time.time,
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[str]:
    """Serve a store by a thread, whose clock is `now`; give the address.

    certificate   by TLS: files of a certificate for localhost, and of its key
    """
    cert_file, key_file = certificate or (None, None)
    settings = WebSettings(
        store, store.parent / "rollups", token_file=token_file, owners=owners or SeriesOwners()
    )
    watch = StoreWatch(store, settings.rollups, now)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        app = guarded(settings, watch, QueryRecord(None))
        config = uvicorn.Config(
            app, log_level="critical", lifespan="off", ssl_certfile=cert_file, ssl_keyfile=key_file
        )
        server = uvicorn.Server(config)
        thread = Thread(target=lambda: server.run(sockets=[taken]), name="pages")
        thread.start()
        try:
            port = taken.getsockname()[1]
            yield f"https://localhost:{port}" if certificate else f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
            watch.close()


@contextmanager
def command(
    store: Path, folder: Path, listen: str = "127.0.0.1:0"
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `pointillist web` over a store; give its address and process."""
    asked = [
        *(sys.executable, "-m", "pointillist", "web", "--listen", listen),
        *("--store", str(store), "--rollups", str(folder / "rollups")),
        *("--record", str(folder / "queries.jsonl")),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(asked, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            found = _ADDRESS.search(process.stdout.readline())
            assert found is not None
            yield found[0], process
        finally:
            process.kill()


def wait_until_read(address: str, *, until_filled: bool = False) -> None:
    """Wait until a server has read its store, or seen that it is no longer empty."""
    yet = {"loading", "empty"} if until_filled else {"loading"}
    while httpx.get(f"{address}/api/v1/store", timeout=60).json()["state"] in yet:
        time.sleep(0.05)
