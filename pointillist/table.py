"""Tables of text that fit a terminal: no cell is cut, and a column that had no room is named."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

_GAP: Final = "  "
_PIPE_COLUMNS: Final = 200
"""Where there is no terminal: a file may be wide."""

_PIECE: Final = re.compile(
    r"`[^`]+`[^\s\w]*\s*|--[a-z]\S*\s*|\d{4}-\d\d-\d\d\s*|\d\d:\d\d\S*\s*|\S+?[_/,.:;<>-](?=\S)|\S+\s*|\s+"
)
"""What is left whole when a text is folded, where there is room: commands in backticks, words,
options, dates, times of day, and parts of names."""

_NARROW: Final = 18
"""A folded column is not made narrower than this while others can leave."""
_INDENT: Final = "    "
"""Before texts that stand below their row."""
_LEAST: Final = 6
"""Nor narrower than this at all: below it, each cell has a line of its own."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view: its head, and how it writes its cell of a row.

    right        numbers stand to the right
    folds        its texts may go over several lines
    below        they stand on lines of their own below the row where they have no room beside it
    leaves       the order in which columns leave a terminal that is too narrow; None: never
    at_least     columns that it takes where there is room, so that tables below each other align
    from_width   columns of the terminal from which a panel shows it
    style        of its cell of a row, as rich names it
    """

    head: str
    write: Callable[[Any], str] = str
    right: bool = False
    folds: bool = False
    below: bool = False
    leaves: int | None = None
    at_least: int = 0
    from_width: int = 0
    style: Callable[[Any], str] | None = None


@dataclass(slots=True)
class _Widths:
    """Of one column: what it takes now, and the least that it can do with."""

    now: int
    least: int


_Parts = list[tuple[int, str]]
"""A line: places of columns, and what stands there, as wide as the column."""


def terminal_columns(pipe: int = _PIPE_COLUMNS) -> int:
    """Columns of the terminal, or of COLUMNS; `pipe` where there is neither."""
    return shutil.get_terminal_size((pipe, 24)).columns


def cells_of(columns: Sequence[Column], rows: Iterable[Any]) -> list[list[str]]:
    return [[column.write(row) for column in columns] for row in rows]


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    elsewhere: str = "--json has them",
) -> list[str]:
    """Lay out cells under their heads; the last line names what was left out, if anything was.

    elsewhere   where to find what was left out
    """
    lines, left_out = laid_out(columns, rows, width)
    return [*lines, *note_lines(left_out, width, elsewhere)]


def table_text(columns: Sequence[Column], rows: Sequence[Any], width: int, elsewhere: str) -> Text:
    """Give the same of what columns write of rows, for a rich console, heads and cells in style."""
    cells, text = cells_of(columns, rows), Text(no_wrap=True)
    placed, left_out = _placed(columns, cells, width, heads_fold=True)
    for row, line in placed:
        for number, (at, part) in enumerate(line):
            style = columns[at].style
            drawn = "bold" if row is None else "" if style is None else style(rows[row])
            text.append(_GAP if number else "").append(part, drawn)
        text.rstrip()
        text.append("\n")
    for note in note_lines(left_out, width, elsewhere):
        text.append(f"{note}\n", "dim")
    text.rstrip()
    return text


def note_lines(left_out: Sequence[str], width: int, elsewhere: str) -> list[str]:
    if not left_out:
        return []
    note = f"left out, as the terminal is narrow: {', '.join(left_out)}; {elsewhere}"
    return _folded(note, width)


def laid_out(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, *, heads_fold: bool = True
) -> tuple[list[str], list[str]]:
    placed, left_out = _placed(columns, rows, width, heads_fold=heads_fold)
    return [_GAP.join(part for _, part in line).rstrip() for _, line in placed], left_out


def value_lines(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """Give `name  value` lines; values go on below themselves, and no word of them is broken."""
    pairs = list(pairs)
    beside = max((cell_len(name) for name, _ in pairs), default=0) + len(_GAP)
    lines = []
    for name, value in pairs:
        first, later = f"{name:<{beside}}", " " * beside
        lines += textwrap.wrap(
            value, max(width, beside + _NARROW), initial_indent=first, subsequent_indent=later,
            break_long_words=False, break_on_hyphens=False,
        ) or [first.rstrip()]  # fmt: skip
    return lines


def _placed(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, *, heads_fold: bool
) -> tuple[list[tuple[int | None, _Parts]], list[str]]:
    """Give each line with its row, None for the heads, and the heads of what had no room."""
    texts = [[column.head, *(row[at] for row in rows)] for at, column in enumerate(columns)]
    widths = [
        _widths(column, cells, heads_fold) for column, cells in zip(columns, texts, strict=True)
    ]
    kept = list(range(len(columns)))
    going = sorted(
        (column.leaves, at) for at, column in enumerate(columns) if column.leaves is not None
    )
    below = [at for at in kept if columns[at].below]
    if below and _total([column.now for column in widths]) > width:
        kept = [at for at in kept if at not in below]
    else:
        below = []
    while going and _total([widths[at].least for at in kept]) > width:
        kept.remove(going.pop(0)[1])
    _shrink([(columns[at], widths[at]) for at in kept], width)
    left_out = [c.head for at, c in enumerate(columns) if at not in (*kept, *below)]
    if _total([widths[at].now for at in kept]) > width:
        every = sorted((*kept, *below))
        return _records([texts[at] for at in every], every, width), left_out
    lines: list[tuple[int | None, _Parts]] = []
    for place in range(len(rows) + 1):
        folded = [_folded(texts[at][place], widths[at].now) for at in kept]
        for parts in zip_longest(*folded, fillvalue=""):
            cells = [
                (at, _padded(part, widths[at].now, columns[at].right))
                for at, part in zip(kept, parts, strict=True)
            ]
            lines.append((place - 1 if place else None, cells))
        for at in below if place else ():
            under = _folded(texts[at][place], width - len(_INDENT)) if texts[at][place] else ()
            lines += [(place - 1, [(at, f"{_INDENT}{part}")]) for part in under]
    return lines, left_out


def _records(
    texts: Sequence[Sequence[str]], kept: Sequence[int], width: int
) -> list[tuple[int | None, _Parts]]:
    """Give a line to each cell, below each other: where not even narrow columns have room."""
    heads = max(cell_len(cells[0]) for cells in texts)
    lines: list[tuple[int | None, _Parts]] = []
    for row in range(len(texts[0]) - 1):
        if row:
            lines.append((row, []))
        for at, cells in zip(kept, texts, strict=True):
            room = max(width - heads - len(_GAP), 1)
            for number, part in enumerate(_folded(cells[row + 1], room)):
                head = _padded("" if number else cells[0], heads, right=False)
                lines.append((row, [(at, f"{head}{_GAP}{part}")]))
    return lines


def _widths(column: Column, texts: Sequence[str], heads_fold: bool) -> _Widths:
    head, cells = texts[0], texts[1:]
    natural = max(*map(cell_len, texts), column.at_least)
    longest = max(map(cell_len, cells), default=0)
    least = min(longest, max(_NARROW, _longest_piece(cells))) if column.folds else longest
    whole = head.split() if heads_fold else [head]
    return _Widths(natural, max(least, max(map(cell_len, whole), default=0)))


def _longest_piece(texts: Sequence[str]) -> int:
    return max((cell_len(p.rstrip()) for text in texts for p in _PIECE.findall(text)), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shrink(columns: Sequence[tuple[Column, _Widths]], width: int) -> None:
    for hard in (False, True):
        while _total([widths.now for _, widths in columns]) > width:
            giving = [
                widths
                for column, widths in columns
                if widths.now > min(widths.least, _LEAST if hard and column.folds else width)
            ]
            if not giving:
                break
            widest = max(giving, key=lambda widths: widths.now)
            widest.now -= 1


def _folded(text: str, width: int) -> list[str]:
    """Fold a text into lines of at most so many columns; not a character is lost."""
    lines = [""]
    for piece in _PIECE.findall(text):
        if cell_len(lines[-1] + piece.rstrip()) > width and lines[-1]:
            lines.append("")
        if cell_len(piece.rstrip()) <= width:
            lines[-1] += piece
        else:
            lines[-1:] = chop_cells(piece, width)
    return [line.rstrip() for line in lines]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
