"""Panels and tables of `agent top`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table


def panel(title: str, body: RenderableType) -> Panel:
    """Give a body in a frame."""
    return Panel(body, title=title, title_align="left", padding=(0, 1))


def plain_table(*columns: tuple[str, str], expand: int | None = None) -> Table:
    """Give a table without lines; each column a title and a side, "l" or "r".

    expand   index of the column that takes what room is left; None: none
    """
    table = Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim",
        expand=expand is not None,
    )  # fmt: skip
    for number, (title, side) in enumerate(columns):
        justify: Any = "right" if side == "r" else "left"
        ratio = 1 if number == expand else None
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", ratio=ratio)
    return table


def shortened(name: str, most: int) -> str:
    """Give a name of at most so many letters; one that was longer ends in a mark."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
