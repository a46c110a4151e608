"""`make bench-round`: what 100,000 reports cost both aggregators, and one report its agent.

Each part is kept in bench/.cache as it ends, under the commit it measured; a cut-off run goes on
with the parts that are missing. `--fresh` measures all of them again.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Mapping
from typing import Final

from bench.parts import Part, Parts
from bench.record import CACHE, Figure, commit, write_result
from bench.round_agent import agent_costs
from bench.round_epochs import measure_epochs
from bench.round_fleet import Fleet, load_fleet
from bench.round_work import arithmetic, epoch_floor, floor, run_round

HOSTS: Final = 100_000
SMALL: Final = 1_000
SMALL_ROUNDS: Final = 15
COMMAND: Final = "make bench-round"
EPOCH_STAGES: Final = ("leader.epochs", "helper.epochs")
DERIVE: Final = ("leader.derive_keys", "helper.derive_keys")


def measure_round(fleet: Fleet, d: int, rounds: int) -> Part:
    """One fleet size and vector length: stages of the median window, floors before and after."""
    n = len(fleet.hosts)
    repeats = max(1, SMALL_ROUNDS * SMALL // n)
    before = [floor(n, d) for _ in range(repeats)]
    epochs, windows = run_round(fleet, d, rounds, CACHE)
    after = [floor(n, d) for _ in range(repeats)]
    ordered = sorted(windows, key=lambda stages: sum(stages.values()))
    return {
        "hosts": n,
        "d": d,
        "epochs": epochs,
        "stages": ordered[(len(ordered) - 1) // 2],
        "floor": statistics.mean([statistics.median(before), statistics.median(after)]),
    }


def total(part: Part) -> float:
    """Core-seconds of one window at both aggregators, with its keys derived for the first time."""
    stages: dict[str, float] = part["stages"]
    epochs: dict[str, float] = part["epochs"]
    return sum(stages.values()) + sum(epochs[stage] for stage in DERIVE)


def per_report(part: Part) -> float:
    """Core-microseconds per report."""
    hosts: int = part["hosts"]
    return 1e6 * total(part) / hosts


def figures(parts: Mapping[str, Part]) -> list[Figure]:
    """What the parts say, the named figures first."""
    wide, narrow, small = parts["100k-d10000"], parts["100k-d1000"], parts["1k-d1000"]
    # A shared machine's speed drifts: the small fleet is measured on both sides of the large one.
    small_us = statistics.mean([per_report(small), per_report(parts["1k-d1000-again"])])
    middle, agent = parts["10k-d1000"], parts["agent"]
    found = [
        Figure("core_seconds_100k_d1000", total(narrow), "core-s", 10.0, narrow["floor"]),
        Figure("core_seconds_100k_d10000", total(wide), "core-s", None, wide["floor"]),
        Figure(
            "epoch_core_seconds_100k",
            sum(narrow["epochs"][stage] for stage in EPOCH_STAGES),
            "core-s an hour, both aggregators",
            30.0,
            parts["epochs-floor"]["core_s"] * HOSTS / parts["epochs-floor"]["hosts"],
        ),
        *(
            Figure(
                f"arithmetic_over_floor_d{part['d']}",
                arithmetic(part["stages"]) / part["floor"],
                "ratio",
                2.0,
                1.0,
            )
            for part in (narrow, wide)
        ),
        Figure("cost_growth_1k_to_100k", per_report(narrow) / small_us, "ratio", 1.15),
        Figure("publish_us_per_report_d1000", agent["publish"], "CPU-us"),
    ]
    found += [Figure(f"agent_{k}_us_d1000", v, "CPU-us") for k, v in agent.items()]
    found += [
        Figure(f"us_per_report_{name}_d1000", cost, "core-us")
        for name, cost in (
            ("1k", small_us),
            ("10k", per_report(middle)),
            ("100k", per_report(narrow)),
        )
    ]
    for part in (narrow, wide):
        for stage, seconds in sorted((part["stages"] | part["epochs"]).items()):
            name = stage.replace(".", "_")
            found.append(Figure(f"{name}_s_100k_d{part['d']}", seconds, "core-s"))
    return found


def _print_part(name: str, part: Part) -> None:
    if name == "epochs-floor":
        print(f"{name}: {part['core_s']:.2f} core-s for {part['hosts']:,} hosts")
        return
    if "stages" not in part:
        print(f"{name}: " + ", ".join(f"{k} {v:,.0f} us" for k, v in part.items()))
        return
    stages = ", ".join(f"{k} {v:.3f}" for k, v in sorted(part["stages"].items()))
    ratio = arithmetic(part["stages"]) / part["floor"]
    print(f"{name}: {total(part):.2f} core-s, arithmetic {ratio:.2f} x its floor; {stages}")


def main() -> None:
    """Measure what is missing, then write bench/results/round.json."""
    parser = argparse.ArgumentParser(prog="bench.round", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--hosts", type=int, default=HOSTS, help="a smaller fleet writes nothing")
    parser.add_argument("--epochs", action="store_true", help="memory and key lives alone")
    options = parser.parse_args()
    hosts: int = options.hosts
    if options.epochs:
        measure_epochs(hosts)
        return
    fleet = load_fleet(hosts)
    # The agents' objects are not the aggregators': keep them out of their garbage collections.
    gc.collect()
    gc.freeze()
    small, middle = fleet.first(min(SMALL, hosts)), fleet.first(min(10 * SMALL, hosts))
    kept = Parts(CACHE / "round" / f"{commit()[:12]}-{hosts}", options.fresh, _print_part)
    parts = {
        "agent": kept.get("agent", lambda: dict(agent_costs(fleet, 1000))),
        "1k-d1000": kept.get("1k-d1000", lambda: measure_round(small, 1000, SMALL_ROUNDS)),
        "10k-d1000": kept.get("10k-d1000", lambda: measure_round(middle, 1000, 3)),
        "100k-d1000": kept.get("100k-d1000", lambda: measure_round(fleet, 1000, 3)),
        "1k-d1000-again": kept.get(
            "1k-d1000-again", lambda: measure_round(small, 1000, SMALL_ROUNDS)
        ),
        "epochs-floor": kept.get(
            "epochs-floor", lambda: {"core_s": epoch_floor(middle), "hosts": len(middle.hosts)}
        ),
        "100k-d10000": kept.get("100k-d10000", lambda: measure_round(fleet, 10_000, 1)),
    }
    found = figures(parts)
    if hosts == HOSTS:
        print(f"wrote {write_result('round', COMMAND, found)}")
        measure_epochs(hosts)
    for figure in found[:7]:
        goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
        print(f"  {figure.name:32} {figure.value:10.3f} {figure.unit}{goal}")


if __name__ == "__main__":
    main()
