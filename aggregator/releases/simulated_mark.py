"""The mark of a folder of releases that a simulation wrote: no fleet stands behind it.

A file beside the releases. Whoever shows numbers of the folder says what it says.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .public_files import make_public, public_folder, sync_folder

NAME: Final = "simulated.json"
FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20


class MarkUnreadable(ValueError):
    """A folder's mark says nothing that this version understands."""


@dataclass(frozen=True, slots=True)
class SimulatedMark:
    """What was simulated.

    fidelity        of the simulator's engine
    weeks           of the fleet's time, all of them
    fingerprint     of everything that the windows depend on
    done            periods that are written, as "series/period"
    """

    scenario: str
    plan: str
    hosts: int
    gpus: int
    fidelity: str
    seed: int
    weeks: float
    fingerprint: str
    done: tuple[str, ...] = ()

    @property
    def fleet(self) -> str:
        """Say in a few words what was simulated."""
        return (
            f"{self.hosts:,} hosts of the scenario {self.scenario}, seed {self.seed}, "
            f"fidelity {self.fidelity}"
        )

    @property
    def line(self) -> str:
        """Say it in a line for people."""
        return f"simulated: {self.fleet}; no fleet stands behind these numbers"


def read_mark(folder: str | os.PathLike[str]) -> SimulatedMark | None:
    """Read the mark of a folder of releases; None where a fleet made them.

    Raises      MarkUnreadable
    """
    path = Path(folder) / NAME
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"{_MOST_BYTES} bytes at most")
        content = json.loads(raw)
        if content.pop("format") != FORMAT:
            raise ValueError(f"format {FORMAT}")
        return SimulatedMark(**content | {"done": tuple(content["done"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkUnreadable(f"{path}: expected the mark of a simulation: {error}") from None


def write_mark(folder: Path, mark: SimulatedMark) -> None:
    """Write it whole, durably."""
    public_folder(folder)
    partial = folder / f".{NAME}.partial"
    partial.write_text(json.dumps({"format": FORMAT, **asdict(mark)}, indent=1) + "\n")
    make_public(partial)
    partial.replace(folder / NAME)
    sync_folder(folder)
