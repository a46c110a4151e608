"""The parties, a room each, what their processes stand on, and releases with their readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aggregator.releases.releases import read_causes as read_causes
    from aggregator.releases.releases import read_releases as read_releases

__all__ = ["read_causes", "read_releases"]


def __getattr__(name: str) -> object:
    """Load the readers on first use: pandas and DuckDB have no place in the Helper's process."""
    if name in __all__:
        from aggregator.releases import releases

        return getattr(releases, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
