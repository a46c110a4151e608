"""Frames of this host from sources that run in this process, where there is no agent to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Self

from collectors.boot_clock import boottime_ns
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.host.host_source import HostSource
from collectors.host.pressure import PressureSource
from collectors.port import Absence, Source, SourceRegistry
from collectors.rounds import Rounds
from transport.process.supervision import Closing

from .frame import Frame
from .framer import Framer
from .host_framer import host_framer, take_drain
from .signals import lacking

EVERY_NS: Final = 1_000_000_000
_NS_PER_S: Final = 1e9


def host_registry(loader: str = "auto") -> SourceRegistry:
    """List the sources that need no GPU: eBPF, pressure, host."""
    registry = SourceRegistry()
    registry.register("ebpf", lambda: EbpfSource(loader), loader)
    registry.register("pressure", PressureSource)
    registry.register("host", HostSource)
    return registry


class LiveFrames(Closing):
    """Runs sources and gives a frame a second; a context, at whose end the sources stop.

    registry   the sources; those that this host lacks are in `absent`, each with its reason
    framer     what makes frames of their records
    """

    def __init__(self, registry: SourceRegistry, framer: Framer | None = None) -> None:
        self._registry = registry
        self.framer = framer or host_framer()
        self._rounds = Rounds()
        self.absent: Sequence[Absence] = ()
        self.cpu_ns = 0
        """What the drains and frames cost so far: CPU time of this thread."""

    def __enter__(self) -> Self:
        running, self.absent = self._registry.start_all()
        self._rounds = Rounds(running)
        self.framer.lack(lacking(self._rounds.lacking))
        return self

    def close(self) -> None:
        """Stop the sources."""
        self._rounds.stop()
        self._rounds = Rounds()

    @property
    def running(self) -> Sequence[Source]:
        """What is drained, in this order."""
        return self._rounds.sources

    @property
    def failing(self) -> dict[str, str]:
        """Sources whose last drain failed, and why."""
        return self._rounds.failing

    def frame(self, now_ns: int | None = None) -> Frame | None:
        """Drain every source once; the first call sets the base and gives nothing."""
        now_ns = boottime_ns() if now_ns is None else now_ns
        begun_ns = time.thread_time_ns()
        for drained in self._rounds.round(now_ns):
            take_drain(self.framer, drained)
        frame = self.framer.frame(now_ns)
        self.cpu_ns += time.thread_time_ns() - begun_ns
        return frame

    def frames(self, until: Callable[[], bool] = lambda: False) -> Iterator[Frame]:
        """Give a frame a second, on a grid of whole seconds from now on, until told to end."""
        due_ns = boottime_ns()
        while not until():
            frame = self.frame()
            if frame is not None:
                yield frame
            due_ns = max(due_ns + EVERY_NS, boottime_ns())
            time.sleep(max(0, due_ns - boottime_ns()) / _NS_PER_S)
