"""The faults that tests put real parts through: `fault_cases.toml`.

`make test-all` runs every case. A case names points of the code, and a test of it that reaches none
of them fails. `python -m tests.fault_cases` writes the table of docs/faults.md.

A point is `module:Class.method`; with ` raises Error`, when that leaves it; with ` returns Value`,
when it gives that; with ` of word`, when it is called with that word; or `role@step`: where a
process was killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.settings.config import read_table


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault.

    role      whose part fails
    fault     what happens, in a few words
    points    where its tests reach the code; each is reached by at least one of them
    """

    name: str
    role: str
    fault: str
    points: tuple[str, ...]


_TABLE: Final = read_table(Path(__file__).with_suffix(".toml"))
STEPS: Final[Mapping[str, tuple[str, ...]]] = {k: tuple(v) for k, v in _TABLE["steps"].items()}
"""Where a process is killed, by its role; `standby`: a Leader on one of two machines."""


def _points(killed: str) -> list[str]:
    role = "leader" if killed == "standby" else killed
    return [f"{role}@{step}" for step in STEPS[killed]]


CASES: Final = tuple(
    FaultCase(
        row["name"], row["role"], row["fault"],
        tuple(_points(row["killed"]) if "killed" in row else row["points"]),
    )
    for row in _TABLE["case"]
)  # fmt: skip

_PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
_BEGIN: Final = "<!-- cases -->"
_END: Final = "<!-- /cases -->"


def case(name: str) -> FaultCase:
    """Find a case.

    Raises      KeyError
    """
    return {one.name: one for one in CASES}[name]


def table() -> Iterator[str]:
    yield "| case | role | what happens |"
    yield "|---|---|---|"
    for one in CASES:
        yield f"| `{one.name}` | {one.role} | {one.fault} |"


def written(page: str) -> str:
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    return f"{before}{_BEGIN}\n\n" + "\n".join(table()) + f"\n\n{_END}{after}"


if __name__ == "__main__":
    _PAGE.write_text(written(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
