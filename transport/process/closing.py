"""What is closed at the end of a `with` block, whatever happened in it, and in bounded time."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self


class Closing(ABC):
    """Gives itself to a `with` block and closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything that this object opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def close_within(timeout_s: float, close: Callable[[], object]) -> bool:
    """Close something that may never end; what has not ended by then is left to a daemon thread.

    Returns     whether it ended
    Raises      what closing raised
    """
    failures: list[Exception] = []

    def work() -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failures.append(error)

    thread = threading.Thread(target=work, name="closing", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if failures:
        raise failures[0]
    return not thread.is_alive()
