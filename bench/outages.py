"""How many windows an outage of Kafka costs, with a real broker, real agents and a real clock.

`make bench-outages`. Ten agents, noise included, a Leader with its store and a Helper work on one
broker, which is killed for 1, 30 and 150 s. Each outage is kept in bench/.cache when it is
done; a run that was cut off goes on after the last one. ARGS="--fresh" begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pandas as pd
import structlog

from aggregator.releases.releases import windows_without_an_end
from bench.record import CACHE, Figure, commit, merge_result
from edge_agent.clock import SystemClock
from pointillist.broker.local import LocalBroker
from privacy.noise_live import LiveSampler
from tests.kafka_kit import fresh_prefix, plain_settings
from tests.outage_kit import HOSTS, OutageFleet
from transport.opening import TransportTable

OUTAGES_S: Final = (1, 30, 150)
WINDOW_S: Final = 15
BEFORE: Final = 3
"""Windows before the outage."""
AFTER_S: Final = 75
"""Agents are back within 60 s; a window more."""
PATIENCE_S: Final = 120
CHECKPOINTS: Final = CACHE / "outages"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an outage of so many seconds cost.

    covered     windows whose reports were due while the broker was away
    released    of those
    endless     windows that were neither released nor suppressed with a reason
    delay_s     from the broker's return to the last release of a covered window
    """

    outage_s: int
    windows: int
    covered: int
    released: int
    endless: int
    delay_s: float


def main(arguments: list[str]) -> None:
    """Measure, print a table, write bench/results/outages.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure what is kept again")
    fresh = parser.parse_args(arguments).fresh
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    outcomes = [kept(outage_s, fresh) for outage_s in OUTAGES_S]
    for one in outcomes:
        print(
            f"{one.outage_s:4d} s away: {one.released} of {one.covered} windows released, the last "
            f"{one.delay_s:.0f} s after the broker's return; {one.endless} without an end"
        )
    covered, released = (sum(getattr(one, name) for one in outcomes) for name in _COUNTED)
    longest = outcomes[-1]
    merge_result(
        "outages",
        "make bench-outages",
        [
            Figure(
                "windows_released_after_outage_percent", 100 * released / covered, "percent", 100
            ),
            Figure("windows_covered_by_outages", covered, "windows"),
            Figure("windows_without_an_end", sum(one.endless for one in outcomes), "windows", 0),
            Figure("release_delay_after_150_s_outage", longest.delay_s, "s"),
        ],
    )


_COUNTED: Final = ("covered", "released")


def kept(outage_s: int, fresh: bool) -> Outcome:
    """The outcome of this commit, measured now or before."""
    path = CHECKPOINTS / f"{commit()}-{outage_s}.json"
    if not fresh and path.exists():
        return Outcome(**json.loads(path.read_text()))
    with tempfile.TemporaryDirectory(prefix="pointillist-outage-") as folder:
        outcome = measure(Path(folder), outage_s)
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(outcome)))
    return outcome


def measure(folder: Path, outage_s: int) -> Outcome:
    """Live through one outage."""
    windows = BEFORE + -(-(outage_s + AFTER_S) // WINDOW_S)
    with LocalBroker(folder / "kafka") as broker:
        running = broker.start()
        log = TransportTable(kafka=plain_settings(running, fresh_prefix()))
        clock = SystemClock()
        fleet = OutageFleet(
            folder,
            log,
            window_s=WINDOW_S,
            windows=windows,
            lateness_s=5,
            clock=clock,
            first=int(time.time()) // WINDOW_S * WINDOW_S + 3 * WINDOW_S,
            sampler=lambda _number: LiveSampler(os.urandom),
        )
        with ExitStack() as stack:
            stack.callback(fleet.close)
            with living(fleet):
                names = fleet.windows()
                # Killed as the reports of a window begin to leave.
                wait_until(lambda: time.time() >= names[BEFORE] + WINDOW_S)
                broker.kill()
                killed_s = time.time()
                time.sleep(outage_s)
                broker.start()
                back_s = time.time()
                deadline_s = names[-1] + WINDOW_S + PATIENCE_S
                wait_until(lambda: len(fleet.ends()) >= windows or time.time() > deadline_s)
            return judged(fleet, outage_s, killed_s, back_s)


def judged(fleet: OutageFleet, outage_s: int, killed_s: float, back_s: float) -> Outcome:
    """Count, as a reader of the store does."""
    ends, names = fleet.ends(), fleet.windows()
    due = [one for one in names if killed_s - 1 <= one + WINDOW_S <= back_s]
    starts = pd.to_datetime(due, unit="s")
    covered = ends[ends.window_start.isin(starts)]
    released = covered[covered.outcome == "released"]
    last = released.settled_at.max() if len(released) else pd.Timestamp(back_s, unit="s")
    lost = len(windows_without_an_end(fleet.folder / "releases")) + len(names) - len(ends)
    return Outcome(
        outage_s,
        len(names),
        len(due),
        len(released),
        lost,
        max(0.0, last.timestamp() - back_s),
    )


@contextmanager
def living(fleet: OutageFleet) -> Iterator[None]:
    """Let every agent and the Leader run, each in a thread, as their commands do."""
    stopping = threading.Event()

    def turn() -> None:
        while not stopping.is_set():
            fleet.leader._turn()  # noqa: SLF001 - the loop of `run`, which would end the shell too

    threads = [threading.Thread(target=turn, daemon=True)]
    threads += [
        threading.Thread(target=_live, args=(fleet, number, stopping), daemon=True)
        for number in range(HOSTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60)


def _live(fleet: OutageFleet, number: int, stopping: threading.Event) -> None:
    agent = fleet.agent(number)
    while not stopping.is_set():
        agent.step()
        stopping.wait(agent.pause_ms() / 1000)
    agent.close()


def wait_until(holds: Callable[[], bool]) -> None:
    """Look four times a second."""
    while not holds():
        time.sleep(0.25)


if __name__ == "__main__":
    main(sys.argv[1:])
