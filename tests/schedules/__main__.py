"""Play schedules: `python -m tests.schedules --help`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.parts import Parts
from bench.record import CACHE, commit
from tests.schedules.campaign import MOST_SEEDS, find_bug, play_blocks, problems_of, shortest
from tests.schedules.planted import PLANTED
from tests.schedules.schedule import Schedule, draw_schedule

_ABOUT = """Play schedules of faults against agents, Leader and Helper, in one process and
with simulated time. A schedule that fails is made as short as it gets, printed with its seed,
and written where --keep says. Blocks that ended are kept in bench/.cache: a run cut off goes on."""


def main(arguments: list[str]) -> int:
    """Play; 1 where something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=_ABOUT)
    parser.add_argument("--schedules", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="play this one again, and tell of it")
    parser.add_argument("--keep", type=Path, help="folder for the shortest failing schedules")
    parser.add_argument("--planted", action="store_true", help="look for each planted bug")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument("--json", action="store_true", help="the result for a machine")
    asked = parser.parse_args(arguments)
    if asked.planted:
        found = _planted(range(asked.first, asked.first + MOST_SEEDS))
        return _report(asked.json, {"found": found}, all(at is not None for at in found.values()))
    if asked.seed is not None:
        return _one(draw_schedule(asked.seed), asked)
    return _many(asked)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _planted(seeds: range) -> dict[str, int | None]:
    found = {}
    for bug in PLANTED:
        found[bug.name] = find_bug(bug, seeds)
        _say(f"{bug.name}: {found[bug.name]}")
    return found


def _many(asked: argparse.Namespace) -> int:
    kept = Parts(CACHE / "schedules" / commit()[:12], asked.fresh, lambda _name, _part: None)
    played, cpu_s = 0, 0.0
    failed: list[int] = []
    for _, block in play_blocks(kept, asked.first, asked.schedules):
        played, cpu_s = played + block.schedules, cpu_s + block.cpu_s
        for seed in block.failed:
            failed.append(seed)
            _tell(draw_schedule(seed), asked.keep)
    result = {"schedules": played, "failed": failed, "cpu_s": round(cpu_s, 1)}
    return _report(asked.json, result, not failed)


def _one(schedule: Schedule, asked: argparse.Namespace) -> int:
    problems = problems_of(schedule)
    if problems:
        _tell(schedule, asked.keep)
    else:
        _say(str(schedule))
    return _report(asked.json, {"seed": schedule.seed, "problems": problems}, not problems)


def _tell(schedule: Schedule, keep: Path | None) -> None:
    short = shortest(schedule)
    _say(f"{short}")
    for problem in problems_of(short):
        _say(f"  -> {problem}")
    _say(f"  replay: python -m tests.schedules --seed {schedule.seed}")
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"seed-{schedule.seed}.json").write_text(short.to_json() + "\n")


def _report(as_json: bool, result: dict[str, object], good: bool) -> int:
    print(json.dumps(result) if as_json else ", ".join(f"{k} {v}" for k, v in result.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
