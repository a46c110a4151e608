"""Names that others chose, as a terminal may show them: the one function that all views use."""

from __future__ import annotations


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


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
