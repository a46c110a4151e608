"""The pointillist command and the composition of a local fleet; `connect` reads releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analytics import connect as connect

__all__ = ["connect"]


def __getattr__(name: str) -> object:
    """Load the reader on first use: the command needs no pandas to say its help."""
    if name in __all__:
        import analytics

        return getattr(analytics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
