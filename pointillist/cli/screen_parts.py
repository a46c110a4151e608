"""Panels, tables and lines of `agent top`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from edge_agent.local.words import quantity, read_as
from pointillist.table import Column

FRAME: Final = 3
"""Rows of a panel around its table: two of the frame, one of the titles."""
LEAST_KERNELS: Final = 3
MOST_ROWS: Final = 40


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


def rows_panel(
    title: str, columns: Sequence[Column], rows: Sequence[Any], width: int, *,
    grows: str | None = None, in_all: int = 0, below: str = "", parts: Iterable[str] = (),
) -> Panel:  # fmt: skip
    """Give a panel of rows.

    in_all   how many there are, those that are not shown counted
    below    what the frame says, or as many of `parts` as there is room for
    """
    gone = left_out(columns, width)
    room = width - len(f"╰─ no room: {', '.join(gone)}; ─╯")
    if len(rows) < in_all:
        title = f"{title}, the busiest {len(rows)} of {in_all}"
    table = grid(columns, rows, width=width, grows=grows)
    return panel(title, table, gone, below or fitting(parts, room).strip())


def page_head(title: str, body: RenderableType, note: str) -> Panel:
    """Give the first panel of a page; its frame says the note."""
    head = panel(title, body)
    head.subtitle, head.subtitle_align = Text(note), "left"
    return head


def in_all(view: Mapping[str, Any], kind: str, left: str | None = None) -> int:
    """How many of a kind there are; the view leaves some out, and counts them as `left`."""
    return len(view.get(kind, ())) + int(view.get("left_out", {}).get(left or kind, 0))


def shortened(name: str, most: int) -> str:
    """Give a name of at most so many letters; one that was longer ends in a mark."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


_WORDS: Final = {
    "run_delay_ns": "threads wait for a CPU",
    "cgroup.run_delay_ns": "longest in cgroup",
    "switches": "context switches",
    "page_faults": "page faults",
    "irq_ns": "in interrupts",
    "device.total_ns": "disk requests take",
    "reclaim_direct_ns": "memory is reclaimed",
    "tcp_retransmits": "TCP retransmits",
    "peer.receive_bytes": "most is received from",
    "peer.send_bytes": "most is sent to",
}
"""Names of the kernel's sources, in the order in which they are shown."""
_LOST: Final = "_drops"
_MOST_OTHERS: Final = 3
_OWN_PANELS: Final = (
    "host_", "gpu.", "gpu_", "watched", "probes.", "pressure.", "collectives", "copies",
    "synchronisation_waits",
)  # fmt: skip

Value = Mapping[str, Any]


def value_lines(values: Iterable[Value]) -> list[str]:
    """Give a line to each value that tells something, the largest of its name.

    A source that has none of them has a line for each of its three largest names; what is left out
    is counted, and the last line says where it is shown.
    """
    largest = _largest(values)
    shown = [name for name in _WORDS if name in largest]
    shown += [name for name in largest if name.endswith(_LOST)]
    known = {largest[name]["source"] for name in _WORDS if name in largest}
    others = _others([value for name, value in largest.items() if name not in shown], known)
    lines = [_line(largest[name]) for name in shown] + [_line(value) for value in others]
    left = len(largest) - len(lines)
    if left:
        lines.append(f"and {left} more: agent history --kind metric, or --json")
    return lines


def _largest(values: Iterable[Value]) -> dict[str, Value]:
    best: dict[str, Value] = {}
    for value in values:
        name = str(value["name"])
        if name.startswith(_OWN_PANELS) or not value["last"]:
            continue
        if name not in best or value["last"] > best[name]["last"]:
            best[name] = value
    return best


def _others(values: list[Value], known: set[str]) -> list[Value]:
    taken: dict[str, list[Value]] = {}
    for value in sorted(values, key=lambda value: str(value["name"])):
        if value["source"] not in known:
            taken.setdefault(value["source"], []).append(value)
    return [value for of_source in taken.values() for value in of_source[:_MOST_OTHERS]]


def _line(value: Value) -> str:
    name = str(value["name"])
    words = _WORDS.get(name)
    if words is None and name.endswith(_LOST):
        words = f"records lost, {name.removesuffix(_LOST).replace('_', ' ')}"
    words = words or f"{value['source']}: {name.replace('_', ' ').replace('.', ' ')}"
    by, unit = read_as(value["unit"])
    return f"{' '.join(filter(None, (words, value['key'])))} {quantity(value['last'] / by, unit)}"
