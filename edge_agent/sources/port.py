"""What every source of measurements offers to the agent, and the place where sources are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from edge_agent.activity import Record


class SourceUnavailable(Exception):
    """The world failed a source: one line says what was expected and what came."""


class Source(Protocol):
    """One way to see what this host does. No method blocks for long: a shell calls them in turn."""

    @property
    def name(self) -> str:
        """Short name for logs and counters."""
        ...

    def probe(self) -> str | None:
        """Say in one line why this source is absent on this host, or None when it can start."""
        ...

    def start(self) -> None:
        """Open what is needed. Raises SourceUnavailable."""
        ...

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        """Yield what was measured up to now and not handed out before. Raises SourceUnavailable."""
        ...

    def stop(self) -> None:
        """Release everything; a second call does nothing."""
        ...


SourceFactory = Callable[[], Source]


@dataclass(frozen=True, slots=True)
class Absence:
    """A source that will not run, and the line that says why."""

    source: str
    reason: str


class SourceRegistry:
    """Sources by name, in the order they are asked: a new source is one `register` call."""

    def __init__(self) -> None:
        self._factories: dict[str, SourceFactory] = {}

    def register(self, name: str, factory: SourceFactory) -> None:
        """Add a source. Raises ValueError when the name is taken."""
        if name in self._factories:
            raise ValueError(f"a source named {name!r} is registered already")
        self._factories[name] = factory

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def make(self, name: str) -> Source:
        """Make one source without starting it. Raises KeyError for a name that is not there."""
        return self._factories[name]()

    def start_all(self) -> tuple[list[Source], list[Absence]]:
        """Start every source that this host has; the others come back with their reason."""
        running: list[Source] = []
        absent: list[Absence] = []
        for name, factory in self._factories.items():
            source = factory()
            reason = source.probe() or _failure_to_start(source)
            if reason is None:
                running.append(source)
            else:
                absent.append(Absence(name, reason))
        return running, absent


def _failure_to_start(source: Source) -> str | None:
    try:
        source.start()
    except SourceUnavailable as error:
        source.stop()
        return str(error)
    return None
