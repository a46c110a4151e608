"""Where the demo's frames are shown: a live screen on a terminal, one line a window elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pointillist.stage.cell_tables import families, readable, with_error
from pointillist.stage.live_stage import LiveStage

from .demo_screen import DemoScreen, render


class DemoStage(LiveStage):
    """Shows frames until left."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
        self._last = -1

    def say(self, text: str) -> None:
        """Show one line before there is anything to draw."""
        if self._on_screen:
            self._live.update(Text(text), refresh=True)
        elif not self._quiet:
            self._console.print(text)

    def show(self, frame: DemoScreen) -> None:
        """Show a frame; without a terminal, a line for every new window."""
        if self._on_screen:
            self._live.update(render(frame, self._console.width), refresh=True)
        elif not self._quiet and frame.window != self._last:
            self._last = frame.window
            self._console.print(_line(frame), highlight=False, soft_wrap=True)


def _line(frame: DemoScreen) -> str:
    if not frame.window:
        return f"{frame.roster:,} hosts enrolled, {frame.stage}"
    above = [view for view in families(frame.latest) if not view.below_noise]
    numbers = "".join(f"{readable(view.cell)} {with_error(view)} %, " for view in above[:1])
    return (
        f"window {frame.window} of {frame.windows}: {numbers}{frame.hosts:,} of {frame.roster:,} "
        f"hosts, epsilon {frame.epsilon_spent:.2f} of {frame.epsilon:g}"
    )
