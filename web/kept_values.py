"""Values that cost time to make, kept by key: each is made by one thread, the rest wait for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
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


class Patient(Generic[_T]):
    """Gives the newest value in time, else the one before while the newest is made.

    Whoever asks every few seconds gets the newest at the next time, and never waits for it.

    patience_s   how long anybody waits for a newer value
    """

    def __init__(self, patience_s: float, threads: int = 1) -> None:
        self._patience_s = patience_s
        self._lock = Lock()
        self._making: dict[Hashable, Future[_T]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="pages")

    def get(self, key: Hashable, before: _T, make: Callable[[], _T]) -> _T:
        """Give what `make` gives, if it does in time, else `before`; raises what it raises."""
        with self._lock:
            making = self._making.get(key)
            future = making or self._making.setdefault(key, self._pool.submit(make))
        if making is None:
            # Outside the lock: what is done already calls back at once.
            future.add_done_callback(lambda _: self._made(key))
        try:
            return future.result(self._patience_s)
        except TookTooLong:
            return before

    def close(self) -> None:
        """Wait for what is being made, and make nothing more."""
        self._pool.shutdown()

    def _made(self, key: Hashable) -> None:
        with self._lock:
            self._making.pop(key, None)
