"""Frames of this host from sources that run in this process, where there is no agent to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from edge_agent.sources.ebpf import EbpfSource
from edge_agent.sources.host import HostSource
from edge_agent.sources.port import Absence, Source, SourceRegistry, SourceUnavailable, guarded
from edge_agent.sources.pressure import PressureSource

from .cgroup_pressure import CgroupPressure
from .frame import Frame
from .framer import Framer
from .lacking import lacking
from .links import LinkRate

EVERY_NS: Final = 1_000_000_000
_NS_PER_S: Final = 1e9


def host_registry(loader: str = "auto") -> SourceRegistry:
    """List the sources that need no GPU: eBPF, pressure, host."""
    registry = SourceRegistry()
    registry.register("ebpf", lambda: EbpfSource(loader), loader)
    registry.register("pressure", PressureSource)
    registry.register("host", HostSource)
    return registry


def host_framer(watch: Sequence[str] = (), *, faults: bool = False) -> Framer:
    """Make a framer that also asks this host for link rates and the pressure of cgroups.

    watch    patterns of cgroups that are subjects whatever they do
    faults   a source of hardware faults runs
    """
    pressure = CgroupPressure.of_host()
    return Framer(watch=watch, extras=(LinkRate(),), faults=faults, pressure=pressure)


class LiveFrames:
    """Runs sources and gives a frame a second; a context, at whose end the sources stop.

    registry   the sources; those that this host lacks are in `absent`, each with its reason
    framer     what makes frames of their records
    """

    def __init__(self, registry: SourceRegistry, framer: Framer | None = None) -> None:
        self._registry = registry
        self.framer = framer or host_framer()
        self.running: Sequence[Source] = ()
        self.absent: Sequence[Absence] = ()
        self.failing: dict[str, str] = {}
        """Sources whose last drain failed, and why."""
        self.cpu_ns = 0
        """What the drains and frames cost so far: CPU time of this thread."""

    def __enter__(self) -> Self:
        self.running, self.absent = self._registry.start_all()
        self.framer.lack(lacking(self.running))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for source in self.running:
            source.stop()
        self.running = ()

    def frame(self, now_ns: int | None = None) -> Frame | None:
        """Drain every source once; the first call sets the base and gives nothing."""
        now_ns = boottime_ns() if now_ns is None else now_ns
        begun_ns = time.thread_time_ns()
        for source in self.running:
            try:
                self.framer.take(guarded(source, now_ns))
                self.failing.pop(source.name, None)
            except SourceUnavailable as error:
                self.failing[source.name] = str(error)
            latest = getattr(source, "latest", None)
            sweep = latest(now_ns) if latest is not None else None
            if sweep is not None:
                self.framer.look(sweep.devices)
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


def boottime_ns() -> int:
    """Read the clock of frames."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
