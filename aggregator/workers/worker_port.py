"""The coordinator as a worker sees it."""

from __future__ import annotations

from typing import Protocol

from .desk import Reply
from .words import Word


class CoordinatorUnavailable(Exception):
    """The coordinator cannot be reached or did not answer in time; the word is said again."""


class CoordinatorPort(Protocol):
    """One coordinator; `Desk` in the same process, or a channel to it."""

    def exchange(self, worker: str, sequence: int, word: Word) -> Reply:
        """As `Desk.exchange`.

        Raises      CoordinatorUnavailable: the word was taken or not
        """
        ...
