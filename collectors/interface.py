"""What every source of measurements offers to the agent, and the place where sources are listed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .records.activity import Record


class SourceUnavailable(Exception):
    """The world failed a source: one line says what was expected and what came."""


class Source(Protocol):
    """One way to see what this host does. No method blocks for long: a shell calls them in turn."""

    @property
    def name(self) -> str:
        """Short name for logs and counters."""

    def probe(self) -> str | None:
        """Say in one line why this source is absent on this host, or None when it can start."""

    def start(self) -> None:
        """Open what is needed. Raises SourceUnavailable."""

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        """Yield what was measured up to now and not handed out before. Raises SourceUnavailable."""

    def stop(self) -> None:
        """Release everything; a second call does nothing."""


SourceFactory = Callable[[], Source]


@dataclass(frozen=True, slots=True)
class UnavailableSource:
    """A source that will not run, and the line that says why."""

    source: str
    reason: str


@runtime_checkable
class ReportsAbsences(Protocol):
    """A source that works also where this host lacks a part of it."""

    @property
    def absent(self) -> Sequence[UnavailableSource]:
        """Parts that are missing, once started."""


@runtime_checkable
class CountsLeftOut(Protocol):
    """A source that counts what it had to leave out."""

    @property
    def left_out(self) -> Mapping[str, int]:
        """How often, by reason, since the start."""


@runtime_checkable
class TriesOut(Protocol):
    """A source whose start would attach to other programs, or take an agent's place."""

    def try_out(self) -> Sequence[UnavailableSource]:
        """Load what `start` does, attach nothing, give lacking parts. Raises SourceUnavailable."""


class SourceRegistry:
    """Sources by name, in the order they are asked: a new source is one `register` call."""

    def __init__(self) -> None:
        self._factories: dict[str, SourceFactory] = {}
        self._settings: dict[str, Hashable] = {}

    def register(self, name: str, factory: SourceFactory, settings: Hashable = None) -> None:
        """Add a source, and what it is made from. Raises ValueError when the name is taken."""
        if name in self._factories:
            raise ValueError(f"a source named {name!r} is registered already")
        self._factories[name] = factory
        self._settings[name] = settings

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def make(self, name: str) -> Source:
        """Make one source without starting it. Raises KeyError for a name that is not there."""
        return self._factories[name]()

    def settings(self, name: str) -> Hashable:
        """Give what a source is made from. Raises KeyError for a name that is not there."""
        return self._settings[name]

    def start(self, name: str) -> Source | UnavailableSource:
        """Make and start one source, or say why this host lacks it."""
        source = self.make(name)
        try:
            reason = source.probe()
            if reason is None:
                source.start()
                return source
        except Exception as error:  # noqa: BLE001 (what breaks is one source)
            with suppress(Exception):
                source.stop()
            told = isinstance(error, SourceUnavailable)
            reason = str(error) if told else broken(source.name, error)
        return UnavailableSource(name, reason)

    def start_all(self) -> tuple[list[Source], list[UnavailableSource]]:
        """Start every source that this host has; the others come back with their reason."""
        made = [self.start(name) for name in self._factories]
        absent = [source for source in made if isinstance(source, UnavailableSource)]
        return [source for source in made if not isinstance(source, UnavailableSource)], absent


def guarded(source: Source, now_boottime_ns: int) -> Iterator[Record]:
    """Drain; what breaks is a SourceUnavailable by its kind alone: texts may hold users' names."""
    try:
        yield from source.drain(now_boottime_ns)
    except SourceUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 (see above)
        raise SourceUnavailable(broken(source.name, error)) from None


def broken(name: str, error: Exception) -> str:
    """Say in one line what broke; the error's own text may hold names that users chose."""
    return f"{name}: broken by {type(error).__name__}"
