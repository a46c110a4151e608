"""Values that cost time to make, kept by key: each is made by one thread, the rest wait for it.

Or nobody waits: what is asked for behind is made by a thread of its own, for whoever asks next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class KeptValues(Generic[_T]):
    """Values by key; the least used are dropped beyond so many bytes.

    most      bytes
    weigh     gives a value's bytes
    """

    def __init__(self, most: int, weigh: Callable[[_T], int]) -> None:
        self._most, self._weigh, self._bytes = most, weigh, 0
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, _T] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Give the value of a key, making it where it is not kept; what `make` raises is raised."""
        if (kept := self.find(key)) is not None:
            return kept
        with self._alone(key):
            if (kept := self.find(key)) is not None:
                return kept
            value = make()
            self._keep(key, value)
            return value

    def find(self, key: Hashable) -> _T | None:
        """Give the value of a key, or None where it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def drop(self, key: Hashable) -> None:
        """Let the value of a key go, if it is kept."""
        with self._lock:
            if key in self._kept:
                self._bytes -= self._weigh(self._kept.pop(key))

    @contextmanager
    def _alone(self, key: Hashable) -> Iterator[None]:
        with self._lock:
            lock = self._making.setdefault(key, Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _keep(self, key: Hashable, value: _T) -> None:
        with self._lock:
            self._kept[key] = value
            self._bytes += self._weigh(value)
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= self._weigh(self._kept.popitem(last=False)[1])


class MadeBehind:
    """Has what is asked for made by one thread, in order; what waits is not asked for twice."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._asked: set[Hashable] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pages")

    def ask(self, key: Hashable, make: Callable[[], object]) -> None:
        """Have it made; what it raises is for whoever waits for it another time."""
        with self._lock:
            if key in self._asked:
                return
            self._asked.add(key)
        self._pool.submit(self._made, key, make)

    def close(self) -> None:
        """Wait for what is asked for, and make nothing more."""
        self._pool.shutdown()

    def _made(self, key: Hashable, make: Callable[[], object]) -> None:
        # What is asked for from here on may be newer than what is made now.
        with self._lock:
            self._asked.discard(key)
        make()
