"""Where moments are shown: a live screen on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console

from pointillist.stage.live_stage import LiveStage

from .simulation_screen import Moment, line, render

_EVERY_S: Final = 0.25
_LINE_EVERY_S: Final = 10.0


class SimulationStage(LiveStage):
    """Shows moments until left."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
        self._shown_s = 0.0

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
