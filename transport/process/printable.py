"""Names that others chose, as a terminal may show them: the one function that all views use."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Final

_MOST_NAMES: Final = 8
_LONGEST_NAME: Final = 40
_LONGEST_LINE: Final = 200


def printable(text: str) -> str:
    r"""Escape what a terminal would act on, and what is no text: ESC becomes `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(text: str) -> str:
    """Escape a text of several lines; ends of lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def listed(names: Collection[str], none: str = "none") -> str:
    """Say which names were found in somebody's file, in a line whatever their number and length."""
    told = ", ".join(printable(name)[:_LONGEST_NAME] for name in islice(names, _MOST_NAMES))
    more = len(names) - _MOST_NAMES
    return f"{told} and {more} more" if more > 0 else told or none


def first_line(error: Exception) -> str:
    """Say what a library found wrong with somebody's file, of which it may quote any bytes."""
    lines = str(error).splitlines()
    return printable(lines[0])[:_LONGEST_LINE] if lines else type(error).__name__


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
