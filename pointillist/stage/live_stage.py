"""A live screen on a terminal and nothing of it elsewhere: what the demo and simulations share."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live


class LiveStage:
    """The frame of a stage; its children say what they show.

    quiet   show nothing at all: a script reads the JSON at the end
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False)
        self._on_screen = console.is_terminal and not quiet

    def __enter__(self) -> Self:
        if self._on_screen:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._on_screen:
            self._live.stop()
