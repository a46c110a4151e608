"""Benchmarks in parts: each is kept as it ends, so that a cut-off run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import Figure

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a part found: numbers, and tables whose rows are JSON's types."""

    figures: Sequence[Figure]
    tables: Part = field(default_factory=dict)


def _print_part(name: str, part: Part) -> None:
    print(f"{name}: {json.dumps(part)[:400]}", flush=True)


class Parts:
    """Results of finished parts, one file each."""

    def __init__(
        self, folder: Path, fresh: bool, say: Callable[[str, Part], None] = _print_part
    ) -> None:
        self._folder, self._fresh, self._say = folder, fresh, say
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, measure: Callable[[], Part]) -> Part:
        """Return a part, measured now unless an earlier run of this commit has it."""
        path = self._folder / f"{name}.json"
        if path.exists() and not self._fresh:
            part: Part = json.loads(path.read_text())
            print(f"{name}: kept from an earlier run")
            return part
        print(f"{name}: ...", flush=True)
        part = measure()
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(part, indent=1))
        partial.replace(path)
        self._say(name, part)
        return part
