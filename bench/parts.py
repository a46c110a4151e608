"""Benchmarks in parts: each is kept as it ends, so that a cut-off run goes on where it was."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import CACHE, Figure, commit, merge_result

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


def run_parts(
    result: str,
    modules: Mapping[str, str],
    about: str | None,
    also: Callable[[Measured], None] = lambda _found: None,
) -> None:
    """Measure the parts that the command line names, and write the figures of each into a result.

    modules     part -> a module with `measure(kept) -> Measured`, in this order
    about       what `--help` says
    also        is given each part whose figures were written
    """
    parser = argparse.ArgumentParser(prog=f"bench.{result}", description=about)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=modules, help="measure this one alone")
    parser.add_argument("--try", dest="trial", action="store_true", help="write no result")
    options = parser.parse_args()
    kept = Parts(CACHE / result / commit()[:12], options.fresh)
    for name, module in modules.items():
        if options.part not in {None, name}:
            continue
        found = importlib.import_module(module).measure(kept)
        if not options.trial:
            merge_result(result, f"make bench-{result} ARGS='--part {name}'", found.figures)
            also(found)
        for figure in found.figures:
            goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
            print(f"  {figure.name:52} {figure.value:12.3f} {figure.unit}{goal}")
