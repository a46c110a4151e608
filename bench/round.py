"""What 100,000 reports cost both aggregators, and one report its agent: make bench-round."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np

from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from bench.round_fleet import (
    GPUS,
    PARTIES,
    T0,
    WINDOW_S,
    Fleet,
    announcements,
    load_fleet,
    make_roster,
    make_task,
)
from bench.round_work import arithmetic, epoch_floor, floor, run_round
from edge_agent.ledger.ledger_records import HostView, LedgerView
from edge_agent.protocol.participant import Participant, ParticipantRules
from edge_agent.protocol.protocol_events import (
    CommitEpochs,
    CommitSealed,
    EpochDue,
    Event,
    KeysAnnounced,
    LedgerCommitted,
    RosterReceived,
    TaskReceived,
    WindowClosed,
)
from edge_agent.protocol.task_check import Bounds, Pins
from privacy.noise_live import LiveSampler

HOSTS: Final = 100_000
SMALL: Final = 1_000
SMALL_ROUNDS: Final = 15
FLOOR_HOSTS: Final = 10_000
REPEATS: Final = 200
EPOCH_STAGES: Final = ("leader.epochs", "helper.epochs")
DERIVE: Final = ("leader.derive_keys", "helper.derive_keys")


def measure(kept: Parts) -> Measured:
    """Measure what is missing."""
    hosts = kept.scaled(HOSTS)
    fleet = load_fleet(hosts)
    # The agents' objects are not the aggregators': keep them out of their garbage collections.
    gc.collect()
    gc.freeze()
    small, middle = fleet.first(min(SMALL, hosts)), fleet.first(min(FLOOR_HOSTS, hosts))
    parts = {"agent": kept.get("agent", lambda: dict(agent_costs(fleet, 1000)))}
    # A shared machine's speed drifts: the small fleet is measured on both sides of the large one.
    for name, of, d, rounds in (
        ("1k-d1000", small, 1000, SMALL_ROUNDS), ("100k-d1000", fleet, 1000, 3),
        ("1k-d1000-again", small, 1000, SMALL_ROUNDS), ("100k-d10000", fleet, 10_000, 1),
    ):  # fmt: skip
        parts[name] = kept.get(name, partial(measure_round, of, d, rounds))
    parts["epochs-floor"] = kept.get(
        "epochs-floor", lambda: {"core_s": epoch_floor(middle), "hosts": len(middle.hosts)}
    )
    return Measured(figures(parts))


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
    wide, narrow, opened = parts["100k-d10000"], parts["100k-d1000"], parts["epochs-floor"]
    small_us = statistics.mean(per_report(parts[name]) for name in ("1k-d1000", "1k-d1000-again"))
    epochs_s = sum(narrow["epochs"][stage] for stage in EPOCH_STAGES)
    epochs_floor_s = opened["core_s"] * narrow["hosts"] / opened["hosts"]
    agent, both = parts["agent"], "core-s an hour, both aggregators"
    found = [
        Figure("core_seconds_100k_d1000", total(narrow), "core-s", 10.0, narrow["floor"]),
        Figure("core_seconds_100k_d10000", total(wide), "core-s", None, wide["floor"]),
        Figure("epoch_core_seconds_100k", epochs_s, both, 30.0, epochs_floor_s),
        Figure("cost_growth_1k_to_100k", per_report(narrow) / small_us, "ratio", 1.15),
        Figure("publish_us_per_report_d1000", agent["publish"], "CPU-us"),
        *(Figure(f"agent_{k}_us_d1000", v, "CPU-us") for k, v in agent.items()),
        Figure("us_per_report_1k_d1000", small_us, "core-us"),
        Figure("us_per_report_100k_d1000", per_report(narrow), "core-us"),
    ]
    for part in (narrow, wide):
        over = arithmetic(part["stages"]) / part["floor"]
        found.append(Figure(f"arithmetic_over_floor_d{part['d']}", over, "ratio", 2.0, 1.0))
        for stage, seconds in sorted((part["stages"] | part["epochs"]).items()):
            name = stage.replace(".", "_")
            found.append(Figure(f"{name}_s_100k_d{part['d']}", seconds, "core-s"))
    return found


def agent_costs(fleet: Fleet, d: int) -> dict[str, float]:
    """Median CPU microseconds per report.

    publish     a live agent, batch of one, its noise included: a window's raw row to sealed bytes
    noise       its noise alone
    """
    # A fleet's task: noise of one host among 100,000, not of a fleet of one.
    _, task, signed = make_task(len(fleet.hosts), d)
    rng = np.random.default_rng(1)
    rows = rng.multinomial(GPUS * WINDOW_S * 1000, np.full(d - 2, 1 / (d - 2)), size=1)
    live, sigma = LiveSampler(os.urandom), task.sigma_vector_1024()
    return {
        "publish": _publish(fleet, d, signed, rows),
        "noise": _median(lambda: live.sample(1, sigma)),
    }


def _publish(fleet: Fleet, d: int, signed: bytes, rows: np.typing.NDArray[np.int64]) -> float:
    host = fleet.hosts[0]
    pins = Pins(frozenset({PARTIES.leader_pk}), frozenset({PARTIES.helper_pk}))
    view = LedgerView((HostView(host.host_id, (), 0, ()),))
    rules = ParticipantRules(pins, Bounds(n_min_at_least=1))
    participant = Participant([host], view, LiveSampler(os.urandom), os.urandom, rules)

    def tell(event: Event) -> None:
        for effect in participant.handle(event):
            assert not hasattr(effect, "reason"), f"expected no refusal, got {effect}"
            if isinstance(effect, CommitEpochs | CommitSealed):
                tell(LedgerCommitted(effect.token, (1,)))

    tell(TaskReceived(signed, T0))
    tell(RosterReceived(make_roster(fleet, [d]), T0))
    tell(KeysAnnounced(announcements(), T0))
    tell(EpochDue(T0))
    (task_id,) = participant.tasks
    present = np.ones(1, dtype=np.bool_)
    starts = iter(range(T0, T0 + WINDOW_S * 10_000, WINDOW_S))

    def window() -> None:
        start = next(starts)
        # One epoch serves them all: the clock stands still at the first window's end.
        tell(WindowClosed(task_id, start, rows, present, max(T0, start) + WINDOW_S))

    return _median(window, 50)


def _median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median CPU time in microseconds, the first call left out."""
    work()
    spent = []
    for _ in range(repeats):
        started = time.process_time_ns()
        work()
        spent.append((time.process_time_ns() - started) / 1000)
    return statistics.median(spent)
