"""Where moments are shown: a live screen on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live

from .screen import Moment, line, render

_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 10.0


class Stage:
    """Shows moments until left.

    quiet   show nothing at all: a script reads the JSON at the end
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._on_screen = console.is_terminal and not quiet
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False)
        self._shown_s = 0.0

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

    def show(self, moment: Moment) -> None:
        """Show a moment; the last one always, others as often as an eye or a log wants them."""
        now = time.monotonic()
        every = _EVERY_S if self._on_screen else _LINE_EVERY_S
        if self._quiet or (now - self._shown_s < every and moment.settled < moment.due):
            return
        self._shown_s = now
        if self._on_screen:
            self._live.update(render(moment, self._console.width), refresh=True)
        else:
            self._console.print(line(moment), highlight=False, soft_wrap=True)
