"""Benchmarks in parts: each is kept as it ends, so that a cut-off run goes on where it was."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.record import CACHE, ROOT, Figure, commit, device, merge_result

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a part found: numbers, and tables whose rows are JSON's types.

    beside  what ran beside it, for whoever reads where it was measured
    wrong   what is not as it must be: it is said, and the command fails
    """

    figures: Sequence[Figure]
    tables: Part = field(default_factory=dict)
    beside: str = ""
    wrong: Sequence[str] = ()


def _print_part(name: str, part: Part) -> None:
    print(f"{name}: {json.dumps(part)[:400]}", flush=True)


class Parts:
    """Results of finished parts, one file each.

    scale   1: as the figures want it; less: a trial that is so much shorter
    writes  results are written, so that what is written beside them may be too
    """

    def __init__(
        self,
        folder: Path,
        fresh: bool,
        say: Callable[[str, Part], None] = _print_part,
        scale: float = 1.0,
        writes: bool = True,
    ) -> None:
        self._folder, self._fresh, self._say = folder, fresh, say
        self.scale, self.writes = scale, writes
        folder.mkdir(parents=True, exist_ok=True)

    def scaled(self, usual: int, least: int = 1) -> int:
        """Give a number of hosts, rounds or seconds at this scale."""
        return max(least, round(usual * self.scale))

    def get(self, name: str, measure: Callable[[], Part]) -> Part:
        """Return a part, measured now unless an earlier run of this commit has it."""
        if (begun := self.begun(name)) is not None:
            print(f"{name}: kept from an earlier run")
            return begun
        print(f"{name}: ...", flush=True)
        part = measure()
        self.keep(name, part)
        self._say(name, part)
        return part

    def begun(self, name: str) -> Part | None:
        """Return what an earlier run of this commit kept of a part by itself."""
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() and not self._fresh else None

    def keep(self, name: str, part: Part) -> None:
        path = self._folder / f"{name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(part, indent=1))
        partial.replace(path)


def run_parts(
    name: str,
    modules: Mapping[str, str],
    about: str | None,
    results: Mapping[str, str] | None = None,
) -> int:
    """Measure the parts that the command line names; write figures and tables into results.

    name        of the bench, of its folder in bench/.cache, and of its result file
    modules     part -> a module with `measure(kept) -> Measured`, or module:function, in this order
    about       what `--help` says
    results     part -> another result file
    Returns     1 where something that was measured is not as it must be, else 0
    """
    parser = argparse.ArgumentParser(
        prog=f"bench {name}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=modules, help="measure this one alone")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1: a tenth; writes no result")
    parser.add_argument("--try", dest="trial", action="store_true", help="write no result")
    options = parser.parse_args(sys.argv[2:])
    of_scale = "" if options.scale == 1 else f"-{options.scale:g}"
    folder = CACHE / name / f"{commit()[:12]}{of_scale}"
    writes = options.scale == 1 and not options.trial
    kept = Parts(folder, options.fresh, scale=options.scale, writes=writes)
    wrong: list[str] = []
    for part, place in modules.items():
        if options.part not in {None, part}:
            continue
        module, _, function = place.partition(":")
        found = getattr(importlib.import_module(module), function or "measure")(kept)
        wrong += found.wrong
        for figure in found.figures:
            goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
            print(f"  {figure.name:52} {figure.value:12.3f} {figure.unit}{goal}", flush=True)
        if not writes:
            continue
        result = (results or {}).get(part, name.replace("-", "_"))
        command = f"make bench-{name}" + f" ARGS='--part {part}'" * (len(modules) > 1)
        where = "; ".join(filter(None, (device(), found.beside)))
        path = merge_result(result, command, found.figures, where, found.tables)
        print(f"wrote {path.relative_to(ROOT)}")
    print("".join(f"{line}\n" for line in wrong), end="", file=sys.stderr)
    return 1 if wrong else 0
