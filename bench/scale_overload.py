"""Twice the windows that fit, on real parts: how many are released whole, in how much memory.

A broker, a Leader and a Helper as processes. Reports of all windows lie on the log by turns, so
that every window has begun before the first is complete, and the Leader may hold half of them.
When they have ended, one more window comes: the time to its release says that it has recovered.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.leader.leader_runtime import LeaderShell
from aggregator.party.config import DeadLetterQuota, Quotas
from aggregator.protocol.released import SuppressedWindow
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from bench.round_fleet import T0, WINDOW_S, Fleet, load_fleet, make_roster, make_task
from bench.scale_hour import HourLog, Message, sealed
from bench.scale_roles import (
    PATIENCE_S,
    SPAWN,
    NotingStore,
    Round,
    RunningClock,
    prepare,
    run_helper,
)
from pointillist.broker.local import BrokerOptions, LocalBroker
from transport.kafka.kafka_frame import KafkaSettings
from transport.opening import Side, open_transport

HOSTS: Final = 2000
D: Final = 1000
WINDOWS: Final = 8
FIT: Final = WINDOWS // 2
ROW_BYTES: Final = 4 * D


class EndingStore(NotingStore):
    """Notes releases, and of suppressed windows why."""

    def suppress(self, suppressed: SuppressedWindow) -> None:
        """Note the reason."""
        with (self._path.parent / "suppressed").open("a") as file:
            file.write(f"{suppressed.reason}\n")


@dataclass(frozen=True, slots=True)
class Bounded:
    """A round whose Leader may hold so many bytes of masked vectors."""

    round: Round
    window_bytes: int


def run_leader(asked: Bounded) -> None:
    """What the Leader's process does."""
    quotas = Quotas(window_bytes=asked.window_bytes, dead_letters=DeadLetterQuota())
    config = replace(asked.round.leader, quotas=quotas)
    store = EndingStore(asked.round.folder / "released")
    with open_transport(config.transport, Side.AGGREGATOR) as log:
        shell = LeaderShell(config, log, store, clock=asked.round.clock)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


def window_reports(fleet: Fleet, number: int) -> list[Message]:
    """The sealed reports of one window."""
    return sealed(fleet, D, [T0 + number * WINDOW_S])[len(fleet.hosts) :]


def lines_of(path: Path) -> list[str]:
    """The lines of a file that may not be there yet."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds. Raises RuntimeError after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"expected {what} within {PATIENCE_S:g} s, got none")
        time.sleep(0.05)


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def run_overloaded(bootstrap: str, fit: int) -> Part:
    """Offer WINDOWS by turns to a Leader that may hold `fit` of them, then one more."""
    fleet = load_fleet(HOSTS, CACHE / "scale-fleet", part=500)
    log = KafkaSettings((bootstrap,), prefix=f"overload-{fit}-{int(time.time())}.")
    with TemporaryDirectory(prefix="plst-") as name:
        folder, clock = Path(name), RunningClock(T0 + WINDOWS * WINDOW_S + 2)
        asked = Round(folder, log, clock)
        prepare(make_task(HOSTS, D)[2], make_roster(fleet, [D]), asked)
        by_turns = zip(*(window_reports(fleet, number) for number in range(WINDOWS)), strict=True)
        written = HourLog(log)
        written.write(sealed(fleet, D, []))
        written.write([report for turn in by_turns for report in turn])
        asked = replace(asked, clock=RunningClock(T0 + WINDOWS * WINDOW_S + 2))
        helper = SPAWN.Process(target=run_helper, args=(asked,))
        bounded = Bounded(asked, fit * HOSTS * ROW_BYTES + 1)
        leader = SPAWN.Process(target=run_leader, args=(bounded,))
        for party in (helper, leader):
            party.start()
        released, suppressed = folder / "released", folder / "suppressed"

        def ended() -> int:
            return len(lines_of(released)) + len(lines_of(suppressed))

        try:
            wait_for(f"{WINDOWS} windows to end", lambda: ended() == WINDOWS)
            assert leader.pid is not None
            peak = peak_mib(leader.pid)
            last = window_reports(fleet, WINDOWS)
            wait_for("the next window's end", lambda: asked.clock() > T0 + (WINDOWS + 1) * WINDOW_S)
            begun_s = time.monotonic()
            written.write(last)
            wait_for("a release after the overload", lambda: ended() == WINDOWS + 1)
            recovered_s = time.monotonic() - begun_s
            wait_for("a status", asked.leader.status_file.exists)
            status = json.loads(asked.leader.status_file.read_text())
        finally:
            for party in (helper, leader):
                party.terminate()
                party.join(20)
        hosts = [int(line.split()[1]) for line in lines_of(released)]
        return {
            "whole": sum(n == HOSTS for n in hosts[:-1]),
            "in_part": sum(n != HOSTS for n in hosts),
            "suppressed": lines_of(suppressed),
            "rejected": status["rejected"],
            "peak_mib": peak,
            "recovered_s": recovered_s,
        }


def figures(bounded: Part, free: Part) -> list[Figure]:
    """Name what was found."""
    refused = sum(reason == "overload" for reason in bounded["suppressed"])
    return [
        Figure("overload_windows_offered", WINDOWS, "windows, twice those that fit"),
        Figure("overload_windows_released_whole", bounded["whole"], "windows", FIT),
        Figure("overload_windows_refused_whole", refused, "windows"),
        Figure("overload_windows_released_in_part", bounded["in_part"], "windows", 0),
        Figure("overload_leader_peak_mib", bounded["peak_mib"], "MiB, half of the windows fit"),
        Figure("overload_leader_peak_mib_all_fit", free["peak_mib"], "MiB, all windows fit"),
        Figure("overload_next_release_s", bounded["recovered_s"], "s from reports to release"),
    ]


def measure(kept: Parts) -> Measured:
    """Offer the windows to a Leader that may hold half of them, and to one that may hold all."""
    options = BrokerOptions(heap_mib=1024, quick=False)
    with TemporaryDirectory() as folder, LocalBroker(Path(folder) / "kafka", options) as broker:
        bootstrap = broker.start(print).bootstrap
        bounded = kept.get("overload_half", partial(run_overloaded, bootstrap, FIT))
        free = kept.get("overload_all", partial(run_overloaded, bootstrap, 2 * WINDOWS))
    return Measured(figures(bounded, free))
