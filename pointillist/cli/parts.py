"""Panels and tables of `agent top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pointillist.table import Column


def panel(title: str, body: RenderableType, left_out: Sequence[str] = (), below: str = "") -> Panel:
    """Give a body in a frame.

    left_out   columns that a narrow terminal has no room for: the frame names them
    below      what else the frame says
    """
    said = [f"no room: {', '.join(left_out)}"] if left_out else []
    subtitle = Text("; ".join([*said, *([below] if below else [])]), overflow="ellipsis")
    return Panel(
        body, title=title, title_align="left", padding=(0, 1),
        subtitle=subtitle or None, subtitle_align="left",
    )  # fmt: skip


def left_out(columns: Iterable[Column], width: int) -> list[str]:
    """Name the columns that a terminal of this width has no room for."""
    return [column.head for column in columns if column.from_width > width]


def fitting(parts: Iterable[str], room: int) -> str:
    """Join parts that fit into so many columns, each after two spaces."""
    said = ""
    for part in parts:
        if len(said) + 2 + len(part) > room:
            break
        said += f"  {part}"
    return said


def grid(
    columns: Sequence[Column], rows: Iterable[Any], *, width: int = 0, grows: str | None = None
) -> Table:
    """Lay out rows without lines; what a row tells is shown as text, never as markup.

    width   of the terminal: columns that need more are left out
    grows   head of the column that takes what room is left; None: none
    """
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim",
        expand=grows is not None,
    )  # fmt: skip
    shown = [column for column in columns if column.from_width <= width]
    for column in shown:
        justify: Any = "right" if column.right else "left"
        ratio = 1 if column.head == grows else None
        table.add_column(
            column.head, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio
        )
    for row in rows:
        table.add_row(*(Text(column.write(row)) for column in shown))
    return table


def shortened(name: str, most: int) -> str:
    """Give a name of at most so many letters; one that was longer ends in a mark."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
