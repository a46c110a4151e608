"""`pointillist agent web`: this host's own pages, on loopback alone."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from transport.process.privileges import drop_to
from transport.settings.config import ListenRefused

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .output import (
    ConfigOption,
    ExitCode,
    JsonFlag,
    OpenFlag,
    examples,
    open_page,
    reported,
    say,
    started,
)

_EPILOG: Final = examples("""
pointillist agent web --open   as the agent's user, or as root by sudo
pointillist agent web --listen localhost:0   a free port; the address is printed
ssh -L 8766:127.0.0.1:8766 HOST pointillist agent web   from elsewhere: through your own login""")

app = typer.Typer()


@app.command(epilog=_EPILOG)
def web(
    config: ConfigOption = DEFAULT_CONFIG,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where to listen, on loopback; port 0 takes a free one."
        ),
    ] = "localhost:8766",
    port: Annotated[
        int | None,
        typer.Option(help="The port alone; it stands above --listen's.", min=0, max=65_535),
    ] = None,
    open_: OpenFlag = False,
    json: JsonFlag = False,
) -> None:
    """Look at this host in a browser: how busy, GPU calls, diagnoses, health, what was sent.

    It reads what the agent keeps, beside it or without it, and changes nothing. Raw data stays on
    this host: the pages are on loopback alone, and answer the agent's user, root and whoever
    started them by sudo. As root it becomes the agent's user first.
    """
    from edge_agent.host_page.page_server import page_address, serve_pages, users_of_page, warm_up

    with reported(ExitCode.USAGE, ListenRefused):
        host, chosen = page_address(listen)
    loaded = agent_file.load_file(config)
    users = users_of_page()
    warm_up()  # while this process can still reach all of its files
    os.umask(0o077)
    with reported(ExitCode.USAGE, LookupError):
        dropped = drop_to(loaded.host.user)

    def ready(address: str) -> None:
        if json:
            started({"address": address, "runs_as": dropped.user})
        else:
            say(f"{address}   shows this host to its owner; Ctrl-C ends it")
        if open_:
            open_page(address)

    with reported(ExitCode.UNAVAILABLE, OSError):
        serve_pages(loaded, users | {os.geteuid()}, host, chosen if port is None else port, ready)
