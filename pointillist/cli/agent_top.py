"""`pointillist agent top`: this host, live. What it shows is raw and never leaves the host."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .output import JsonFlag, emit

if TYPE_CHECKING:
    from edge_agent.config import AgentConfig
    from edge_agent.local.proc_view import HostSampler
    from edge_agent.service.feed import Feed

_EPILOG: Final = """Examples:

pointillist agent top   q or Ctrl-C ends it, t shows GPU time, g GPU calls, h the host

pointillist agent top --gpu-time   begin with GPU time

pointillist agent top --once   one picture, also without a terminal

pointillist agent top --json | jq .processes"""

_FIRST_S: Final = 0.5
_MOST_PROCESSES: Final = 60
"""On a screen, which shows as many as it has rows for."""
_ANSWER_S: Final = 3.0
_POLL_S: Final = 0.1
_END_KEYS: Final = frozenset({b"q", b"Q", b"\x1b", b""})
_NEXT_PAGE: Final = b"\t"
_Pressed = Callable[[float, Callable[[], None]], bytes | None]


class TopPage(StrEnum):
    """What a screen is full of."""

    HOST = "host"
    TIME = "time"
    CALLS = "calls"


_KEYS: Final = {b"h": TopPage.HOST, b"g": TopPage.CALLS, b"t": TopPage.TIME}

app = typer.Typer()


@app.command(epilog=_EPILOG)
def top(
    config: AgentConfigOption = None,
    interval: Annotated[float, typer.Option(help="Seconds between pictures.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    gpu_time: Annotated[
        bool, typer.Option("--gpu-time", help="Begin with the page of GPU time.")
    ] = False,
    gpu_calls: Annotated[
        bool, typer.Option("--gpu-calls", help="Begin with the page of GPU calls.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Show this host live: what is slow and why, CPU, processes, disk, network, GPUs, next report.

    Key t: GPU time by GPU, program and kernel, and what of it is not measured. Key g: GPU calls by
    kernel and process, copies, collectives, and what the probes cost.

    Beside a running agent it shows what that agent measures and is about to report, with the
    noise that the report will carry. Without one it runs the configured sources itself.
    """
    from rich.console import Console

    from edge_agent.local.proc_view import HostSampler
    from edge_agent.local.view_lines import HostView, document
    from edge_agent.service.feed import open_feed

    from .top_screen import picture, warm_up

    warm_up()  # while this process can still reach all of its libraries
    loaded = _configured(config)
    with open_feed(loaded) as feed:
        on_screen = not (once or json) and sys.stdout.isatty()
        sampler = HostSampler(processes=_MOST_PROCESSES) if on_screen else HostSampler()
        if on_screen:
            page = TopPage.TIME if gpu_time else TopPage.CALLS if gpu_calls else TopPage.HOST
            _live(sampler, feed, interval, page)
            return
        time.sleep(min(interval, _FIRST_S))
        feed.wait(_ANSWER_S)
        host, view = sampler.view(), feed.view()
        if json:
            emit({**(view or document(HostView())), "host": host, "note": feed.note}, True)
        else:
            console = Console()
            console.print(picture(host, view, feed.note, console.width))


def _configured(path: Path | None) -> AgentConfig | None:
    """Read the configuration and become the agent's user; without a file look at /proc alone."""
    if path is None and not DEFAULT_CONFIG.exists():
        return None
    loaded = agent_file.load_file(path or DEFAULT_CONFIG)
    agent_file.become_agent(loaded)
    return loaded


def _live(sampler: HostSampler, feed: Feed, interval: float, page: TopPage) -> None:
    from rich.console import Console
    from rich.live import Live

    from .calls_screen import calls_page
    from .gpu_time_screen import gpu_time_page
    from .top_screen import screen

    console = Console()
    with _keys() as pressed:
        key = pressed(min(interval, _FIRST_S), feed.poll)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            host = sampler.view()
            while key not in _END_KEYS:
                page = _page(key, page)
                if key is None:  # a key changes the page; a picture of nothing would be its rates
                    host = sampler.view()
                match page:
                    case TopPage.HOST:
                        picture = screen(host, feed.view(), feed.note, console.size)
                    case TopPage.CALLS:
                        picture = calls_page(feed.view(), feed.note, console.size)
                    case TopPage.TIME:
                        picture = gpu_time_page(feed.view(), feed.note, console.size)
                live.update(picture, refresh=True)
                key = pressed(interval, feed.poll)


def _page(key: bytes | None, page: TopPage) -> TopPage:
    """Give the page that is to be shown after a key."""
    if key == _NEXT_PAGE:
        pages = list(TopPage)
        return pages[(pages.index(page) + 1) % len(pages)]
    return page if key is None else _KEYS.get(key.lower(), page)


@contextmanager
def _keys() -> Iterator[_Pressed]:
    """Take keys as they are pressed, and give the terminal back as it was."""
    descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None

    def pressed(seconds: float, poll: Callable[[], None]) -> bytes | None:
        """Wait for the next picture; give the key that ends the wait, None when the time did."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            poll()
            waits = [descriptor] if descriptor is not None else []
            ready, _, _ = select.select(waits, [], [], min(left, _POLL_S))
            if ready:
                return os.read(ready[0], 64)
        return None

    if descriptor is None:
        yield pressed
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
