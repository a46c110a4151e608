"""What is closed at the end of a `with` block, whatever happened in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
