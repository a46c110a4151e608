"""What a doctor found, as a table: a group's name, then a line for each check and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final

from pointillist.table import Column

if TYPE_CHECKING:
    from transport.process.doctor_findings import Finding

_STYLES: Final = {"ok": "green", "absent": "yellow", "unmeasured": "red", "broken": "red"}


def show_findings(findings: Sequence[Finding]) -> None:
    """Print the table; one finding of a group follows another."""
    from rich.console import Console

    from pointillist.table import table_text

    rows: list[tuple[str, Finding | None]] = []
    for at, finding in enumerate(findings):
        if not at or findings[at - 1].group != finding.group:
            rows.append((finding.group, None))
        rows.append((f"  {finding.name}", finding))
    console = Console()
    console.print(table_text(_COLUMNS, rows, console.width, "--json has them"))


def _of(write: Callable[[Finding], str]) -> Callable[[tuple[str, Finding | None]], str]:
    """Write what is of a finding, and nothing beside the name of a group."""
    return lambda row: "" if row[1] is None else write(row[1])


_COLUMNS: Final = (
    Column("", itemgetter(0), style=lambda row: "bold" if row[1] is None else ""),
    Column(
        "", _of(lambda finding: finding.verdict.value),
        style=_of(lambda finding: _STYLES[finding.verdict.value]),
    ),
    Column("found", _of(attrgetter("found")), folds=True),
    Column("what to do", _of(lambda finding: finding.do or ""), folds=True, below=True),
)  # fmt: skip
