"""What 100,000 reports cost both aggregators, and one report its agent: make bench-round.

Beside it, what opened epochs cost an aggregator in memory, and how long a sealing key outlives its
day.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import psutil

from aggregator.party.key_ring import DAY_S, KeyRing
from aggregator.protocol.directory import Directory
from aggregator.protocol.epochs import AdmittedEpochs, KnownEpoch, Seal
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from bench.round_fleet import (
    GPUS,
    LEADER,
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
from edge_agent.ledger.ledger_records import HostSpending, LedgerView
from edge_agent.protocol.epochs import EPOCH_LIFE_S, EPOCH_PERIOD_S
from edge_agent.protocol.participant import Participant
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
from edge_agent.protocol.task_check import Bounds, ParticipantRules, Pins
from pointillist.plan_file import default_plan
from privacy.noise_table import LiveSampler
from transport.files.keyfiles import write_signing_key

HOSTS: Final = 100_000
SMALL: Final = 1_000
SMALL_ROUNDS: Final = 15
FLOOR_HOSTS: Final = 10_000
REPEATS: Final = 200
SEALS: Final = {"leader": Seal.LEADER, "helper": Seal.HELPER}
LEAST_BYTES: Final = 16 + 32 + 32
"""An epoch's id, hash and key: less cannot answer a late report."""
ROTATE_EVERY_S: Final = 300
TURNOVER_HOURS: Final = 8
"""Hours that are played on after the first epochs are forgotten, as memory then comes back."""


def measure(kept: Parts) -> Measured:
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
    derive = sum(part["epochs"][f"{party}.derive_keys"] for party in SEALS)
    return float(sum(part["stages"].values()) + derive)


def figures(parts: Mapping[str, Part]) -> list[Figure]:
    wide, narrow, opened = parts["100k-d10000"], parts["100k-d1000"], parts["epochs-floor"]
    small = [parts[name] for name in ("1k-d1000", "1k-d1000-again")]
    small_s = statistics.mean(total(part) / part["hosts"] for part in small)
    epochs_s = sum(narrow["epochs"][f"{party}.epochs"] for party in SEALS)
    epochs_floor_s = opened["core_s"] * narrow["hosts"] / opened["hosts"]
    agent, both = parts["agent"], "core-s an hour, both aggregators"
    found = [
        Figure("core_seconds_100k_d1000", total(narrow), "core-s", 10.0, narrow["floor"]),
        Figure("core_seconds_100k_d10000", total(wide), "core-s", None, wide["floor"]),
        Figure("epoch_core_seconds_100k", epochs_s, both, 30.0, epochs_floor_s),
        Figure("cost_growth_1k_to_100k", total(narrow) / narrow["hosts"] / small_s, "ratio", 1.15),
        Figure("publish_us_per_report_d1000", agent["publish"], "CPU-us"),
        Figure("agent_noise_us_d1000", agent["noise"], "CPU-us"),
    ]
    for part in (narrow, wide):
        over = arithmetic(part["stages"]) / part["floor"]
        found.append(Figure(f"arithmetic_over_floor_d{part['d']}", over, "ratio", 2.0, 1.0))
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
    view = LedgerView((HostSpending(host.host_id, (), 0, ()),))
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


def retention_s() -> int:
    return max(task.retention_s for task in default_plan().tasks)


def fill_book(party: str, hosts: int) -> Part:
    """Keep hourly epochs of so many hosts as long as the shipped plan asks for, and weigh them.

    The epochs in force are asked for, and their keys derived for each task of the plan.
    """
    kept_s = retention_s()
    hours = -(-(kept_s + EPOCH_LIFE_S) // EPOCH_PERIOD_S) + TURNOVER_HOURS
    tasks = [os.urandom(32) for _ in default_plan().tasks]
    gc.collect()
    before = psutil.Process().memory_info().rss
    book = AdmittedEpochs(Directory(PARTIES), SEALS[party], lambda _kid: None)
    for hour in range(hours):
        begun_s = T0 + hour * EPOCH_PERIOD_S
        book.prune(begun_s, kept_s)
        for number in range(hosts):
            _open(book, number, hour, begun_s, tasks if hour >= hours - 2 else ())
    gc.collect()
    resident = psutil.Process().memory_info().rss - before
    return {"hosts": hosts, "epochs": len(book), "bytes": resident}


def _open(
    book: AdmittedEpochs, number: int, hour: int, begun_s: int, tasks: Sequence[bytes]
) -> None:
    host, epoch_id, end_s = number.to_bytes(16, "big"), os.urandom(16), begun_s + EPOCH_LIFE_S
    epoch = KnownEpoch(host, epoch_id, os.urandom(32), begun_s, end_s, hour, False, os.urandom(32))
    book.remember(epoch)
    known = book.find(host, epoch_id)
    assert known is not None
    for task_id in tasks:
        known.box_key(task_id) if book.seal is Seal.LEADER else known.keys_of_helper(task_id)


def book_memory(party: str, hosts: int) -> Part:
    """Fill a party's book in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as alone:
        return alone.apply(fill_book, (party, hosts))


def key_lives() -> Part:
    """Turn a key ring on disk for a week, as the Leader does; seconds of the second day's key."""
    start, made, gone = T0 // DAY_S * DAY_S, dict[str, int](), dict[str, int]()
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o700)
        write_signing_key(folder / "identity.key", LEADER)
        now_s = start
        ring = KeyRing(folder)
        for now_s in range(start, start + 7 * DAY_S, ROTATE_EVERY_S):
            ring.rotate(now_s, retention_s())
            there = {path.name for path in folder.glob("*.hpke")}
            for key in there - made.keys():
                made[key] = now_s
            for key in made.keys() - there - gone.keys():
                gone[key] = now_s
    second = sorted(made)[1]
    return {"secret_s": gone[second] - made[second], "after_s": gone[second] - start - 2 * DAY_S}


def epoch_books(kept: Parts) -> Measured:
    """Fill both parties' books, and turn a key ring."""
    hosts = kept.scaled(HOSTS)
    lives = kept.get("key-lives", key_lives)
    books = {
        party: kept.get(f"book-{party}", partial(book_memory, party, hosts)) for party in SEALS
    }
    worst = max(books.values(), key=lambda book: book["bytes"])
    floor = worst["epochs"] * LEAST_BYTES / 2**30
    unit = "GiB, the aggregator that needs more"
    found = [
        Figure("key_lifetime_days", lives["after_s"] / DAY_S, "days after the key's own day", 1.5),
        Figure("key_secret_days", lives["secret_s"] / DAY_S, "days from making to destruction"),
        Figure("epoch_memory_gib_100k_hosts", worst["bytes"] / 2**30, unit, 1.0, floor),
        Figure("epochs_kept_per_host", worst["epochs"] / hosts, "epochs"),
    ]
    for party, book in books.items():
        found.append(Figure(f"epoch_memory_gib_{party}", book["bytes"] / 2**30, "GiB"))
    return Measured(found)
