"""The pages, in the order of the navigation; the first one that a role may open is its first."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from .page_shape import Page

NAMES: Final = (
    "fleet",
    "applications",
    "kernels",
    "causes",
    "faults",
    "privacy",
    "pipeline",
)
"""Each is the `PAGE` of a module `pages_NAME`."""

PAGES: Final[tuple[Page, ...]] = tuple(
    import_module(f"{__package__}.pages_{name}").PAGE for name in NAMES
)
