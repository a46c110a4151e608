"""Where the demo's frames are shown: a live screen on a terminal, one line a window elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .screen import Frame, render


class Stage:
    """Shows frames until left.

    quiet   show nothing at all: a script reads the JSON at the end
    """

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._on_screen = console.is_terminal and not quiet
        self._last = -1

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

    def say(self, text: str) -> None:
        """Show one line before there is anything to draw."""
        if self._on_screen:
            self._live.update(Text(text), refresh=True)
        elif not self._quiet:
            self._console.print(text)

    def show(self, frame: Frame) -> None:
        """Show a frame; without a terminal, a line for every new window."""
        if self._on_screen:
            self._live.update(render(frame, self._console.width), refresh=True)
        elif not self._quiet and frame.window != self._last:
            self._last = frame.window
            self._console.print(_line(frame), highlight=False, soft_wrap=True)


def _line(frame: Frame) -> str:
    if not frame.window:
        return f"{frame.roster:,} hosts enrolled, {frame.stage}"
    return (
        f"window {frame.window} of {frame.windows}: {frame.hosts:,} of {frame.roster:,} hosts, "
        f"epsilon {frame.epsilon_spent:.2f} of {frame.epsilon:g}"
    )
