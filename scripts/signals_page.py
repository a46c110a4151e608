"""Write the table of signals into docs/diagnosis-signals.md."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from diagnosis.frames.signals import SIGNALS, Hurts, Scope

PAGE = Path(__file__).parents[1] / "docs" / "diagnosis-signals.md"
MARK = "<!-- signals -->"
HURTS = {Hurts.UP: "more", Hurts.DOWN: "less", Hurts.EITHER: "either"}


def table() -> str:
    """Give the page's tables, one per group, in the order of signals.toml."""
    lines: list[str] = []
    for group, signals in groupby(SIGNALS.values(), key=lambda one: one.group):
        lines += [
            "",
            f"### {group}",
            "",
            "| signal | unit | of | hurts | what |",
            "|---|---|---|---|---|",
        ]
        for one in signals:
            scopes = ", ".join(scope for scope in Scope if scope in one.scopes)
            hurts = HURTS[one.hurts] + (", fine" if one.fine else "")
            lines.append(
                f"| `{one.name}` | {one.unit or 'number'} | {scopes} | {hurts} | {one.about} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(MARK) + len(MARK)] + "\n" + table(), encoding="utf-8")


if __name__ == "__main__":
    main()
