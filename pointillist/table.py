"""Tables of text that fit a terminal: no cell is cut, and a column that had no room is named."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len, chop_cells

_GAP: Final = "  "
_PIPE_COLUMNS: Final = 200
"""Where there is no terminal: a file may be wide."""

_PIECE: Final = re.compile(r"\S+?[_/,.:;<>-](?=\S)|\S+\s*|\s+")
"""What is left whole when a text is folded, where there is room: words, and parts of names."""

_NARROW: Final = 18
"""A folded column is not made narrower than this while others can leave."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a view: its head, and how it writes its cell of a row.

    right        numbers stand to the right
    folds        its texts may go over several lines
    leaves       the order in which columns leave a terminal that is too narrow; None: never
    from_width   columns of the terminal from which a panel shows it
    """

    head: str
    write: Callable[[Any], str] = str
    right: bool = False
    folds: bool = False
    leaves: int | None = None
    from_width: int = 0


@dataclass(slots=True)
class _Widths:
    """Of one column: what it takes now, and the least that it can do with."""

    now: int
    least: int


def terminal_columns() -> int:
    """Columns of the terminal, or of COLUMNS."""
    return shutil.get_terminal_size((_PIPE_COLUMNS, 24)).columns


def cells_of(columns: Sequence[Column], rows: Iterable[Any]) -> list[list[str]]:
    """Give what each column writes of each row."""
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
    if left_out:
        note = f"left out, as the terminal is narrow: {', '.join(left_out)}; {elsewhere}"
        lines += _folded(note, width)
    return lines


def laid_out(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    heads_fold: bool = True,
) -> tuple[list[str], list[str]]:
    """Give the lines of a table, and the heads of columns that had no room."""
    texts = [[column.head, *(row[at] for row in rows)] for at, column in enumerate(columns)]
    widths = [
        _widths(column, cells, heads_fold) for column, cells in zip(columns, texts, strict=True)
    ]
    kept = list(range(len(columns)))
    going = sorted(
        (column.leaves, at) for at, column in enumerate(columns) if column.leaves is not None
    )
    while going and _total([widths[at].least for at in kept]) > width:
        kept.remove(going.pop(0)[1])
    _shrink([(columns[at], widths[at]) for at in kept], width)
    lines = []
    for place in range(len(rows) + 1):
        folded = [_folded(texts[at][place], widths[at].now) for at in kept]
        for parts in zip_longest(*folded, fillvalue=""):
            cells = (
                _padded(part, widths[at].now, columns[at].right)
                for at, part in zip(kept, parts, strict=True)
            )
            lines.append(_GAP.join(cells).rstrip())
    return lines, [column.head for at, column in enumerate(columns) if at not in kept]


def _widths(column: Column, texts: Sequence[str], heads_fold: bool) -> _Widths:
    head, cells = texts[0], texts[1:]
    natural = max(map(cell_len, texts))
    longest = max(map(cell_len, cells), default=0)
    least = min(longest, max(_NARROW, _longest_piece(cells))) if column.folds else longest
    whole = head.split() if heads_fold else [head]
    return _Widths(natural, max(least, max(map(cell_len, whole), default=0)))


def _longest_piece(texts: Sequence[str]) -> int:
    return max((cell_len(p.rstrip()) for text in texts for p in _PIECE.findall(text)), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _shrink(columns: Sequence[tuple[Column, _Widths]], width: int) -> None:
    """Take columns from the widest that can give, down to a character of a folding one."""
    for hard in (False, True):
        while _total([widths.now for _, widths in columns]) > width:
            giving = [
                widths
                for column, widths in columns
                if widths.now > (1 if hard and column.folds else widths.least)
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
