"""Viewers of the web application: how long they wait, while the store grows beneath them.

Each looks at a page with choices of their own and asks for it again every five seconds by the tag
that they hold, as a page's script does. The server is a process of its own. Once a minute a window
is released, as the Leader's store writes it, and every page is drawn again. Server and viewers
share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import calendar
import itertools
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import httpx
import numpy as np
import psutil

from aggregator.releases import packs
from aggregator.releases.store import Store
from analytics import connect
from bench.parts import Measured, Part, Parts
from bench.record import CACHE, Figure
from bench.year_store import FOLDER, QUERY_GOAL_MS, Year, on_days, query_ms, write_year
from wire.catalogue import Catalogue

ROLLUPS: Final = CACHE / "web" / "rollups"
HOURS_QUESTION: Final = """
SELECT period_start, share, share_low, share_high FROM hours
WHERE series = 'minute' AND section = 'kernel_mix' AND cell = 'gpu_time/gemm' ORDER BY period_start
"""
"""The typical question of the part `store`, asked of roll-ups."""
VIEWERS: Final = 200
EVERY_S: Final = 5.0
SECONDS: Final = 180.0
NEW_WINDOW_S: Final = 60.0
AFTER_NEW_S: Final = 20.0
"""So long after a new window an answer counts as one of the store's change: all pages are drawn
anew meanwhile."""
P95_GOAL_MS: Final = 100.0
_SPANS: Final = ("day", "week", "eight_weeks", "hour", "year")
_MODELS: Final = ("all", "H100", "A100", "B200")
_MEASURES: Final = ("gpu_time", "launch_share")
_OTHER_PAGES: Final = ("applications", "privacy", "pipeline")
_FLEET_PAGES: Final = 4
"""Of five viewers so many look at the Fleet page."""
_DAYS: Final = 4
"""Last days that viewers choose beside the newest, a week apart."""
_ADDRESS: Final = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(slots=True)
class Waits:
    """What viewers saw.

    ms          of each answer
    after_s     since the newest window was released, as each was asked
    codes       answers by code
    """

    ms: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    released_s: float = -math.inf

    def p95_ms(self, *, changing: bool) -> float:
        """Give the 95th percentile of the answers soon after a new window, or of the others."""
        soon = np.array(self.after_s) < AFTER_NEW_S
        return float(np.percentile(np.array(self.ms)[soon == changing], 95))


def paths(count: int, last: date) -> list[str]:
    """Give each viewer an address of their own: first those of the newest numbers.

    last    the newest day that a viewer chooses
    """
    days = ["", *(f"&until={last - timedelta(weeks=back)}" for back in range(_DAYS))]
    fleet = (
        f"/fleet?span={span}&measure={measure}&model={model}{day}"
        for day, measure, model, span in itertools.product(days, _MEASURES, _MODELS, _SPANS)
    )
    others = (
        f"/{page}?span={span}{day}"
        for day, span, page in itertools.product(days, _SPANS, _OTHER_PAGES)
    )
    found = [
        next(fleet if at % (_FLEET_PAGES + 1) < _FLEET_PAGES else others) for at in range(count)
    ]
    assert len(set(found)) == count
    return found


@contextmanager
def served(store: Path, rollups: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve a store by a process of its own; give its address once it has read the store."""
    command = [
        *(sys.executable, "-m", "pointillist", "web", "--listen", "127.0.0.1:0"),
        *("--store", str(store), "--rollups", str(rollups)),
        *("--record", str(rollups.parent / "queries.jsonl")),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = _ADDRESS.search(process.stdout.readline())
            assert address is not None
            while httpx.get(f"{address[0]}/api/v1/store").json()["state"] == "loading":
                time.sleep(0.5)
            yield address[0], psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def growing(store: Path, seconds: float) -> Iterator[Callable[[], None]]:
    """Give what releases the minute after the newest; those minutes are gone afterwards."""
    days = [pack.days[1] for pack in packs.all_packs(store)]
    first_s = calendar.timegm((max(days) + timedelta(days=1)).timetuple())
    windows = Year().minutes(first_s, int(seconds / NEW_WINDOW_S) + 2)
    with tempfile.TemporaryDirectory(dir=CACHE) as own:
        with Store(Path(own) / "leader.duckdb", store, Catalogue.load()) as opened:
            yield lambda: opened.write(next(windows))
        for single in list(packs.all_singles(store)):
            single.path.unlink()


async def viewers(
    address: str, release: Callable[[], None], looked_at: Sequence[str], seconds: float
) -> Waits:
    """Let viewers look for a time at pages that were opened before, spread over a round.

    release     makes the store grow by a window
    looked_at   the address of each viewer
    """
    waits = Waits()
    count = len(looked_at)
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as client:
        for path in looked_at:
            (await client.get(path)).raise_for_status()
        until_s = time.monotonic() + seconds
        looking = (_viewer(client, path, until_s, waits) for path in looked_at)
        await asyncio.gather(_grow(release, until_s, waits), *looking)
    return waits


async def _grow(release: Callable[[], None], until_s: float, waits: Waits) -> None:
    while time.monotonic() < until_s:
        await asyncio.to_thread(release)
        waits.released_s = time.monotonic()
        await asyncio.sleep(min(NEW_WINDOW_S, max(until_s - time.monotonic(), 0)))


async def _viewer(client: httpx.AsyncClient, path: str, until_s: float, waits: Waits) -> None:
    tag = ""
    await asyncio.sleep(random.uniform(0, EVERY_S))
    while (began := time.monotonic()) < until_s:
        answer = await client.get(path, headers={"if-none-match": tag})
        waits.ms.append(1e3 * (time.monotonic() - began))
        waits.after_s.append(began - waits.released_s)
        waits.codes[answer.status_code] += 1
        tag = answer.headers.get("etag", tag)
        await asyncio.sleep(max(EVERY_S - (time.monotonic() - began), 0))


def scrapes(address: str) -> tuple[float, int]:
    """Scrape the metrics: median milliseconds of a scrape, and its bytes."""
    with httpx.Client(base_url=address, timeout=60) as client:
        size = len(client.get("/metrics").content)
        return query_ms(lambda: client.get("/metrics").raise_for_status()), size


def look(store: Path, rollups: Path, count: int = VIEWERS, seconds: float = SECONDS) -> Part:
    """Serve a store to viewers; give percentiles of their waits, and CPU."""
    with connect(store, rollups=rollups) as fleet:
        query = query_ms(lambda: fleet.sql(HOURS_QUESTION))
        last = fleet.newest("family", "day")["period_start"].max().date()
    # A copy: roll-ups remember windows that are gone, and the next run releases them again.
    with (
        tempfile.TemporaryDirectory(dir=CACHE) as own_folder,
        growing(store, seconds) as release,
        served(store, shutil.copytree(rollups, Path(own_folder) / "rollups")) as (address, server),
    ):
        scrape_ms, scraped = scrapes(address)
        asyncio.run(viewers(address, lambda: None, paths(count, last), 0.0))
        before, own = server.cpu_times(), time.process_time()
        waits = asyncio.run(viewers(address, release, paths(count, last), seconds))
        after, own = server.cpu_times(), time.process_time() - own
        resident = server.memory_info().rss
    p50, p95, p99 = np.percentile(waits.ms, (50, 95, 99))
    wrong = sum(number for code, number in waits.codes.items() if code not in {200, 304})
    used_s = after.user + after.system - before.user - before.system
    return {
        "p50_ms": float(p50), "p95_ms": float(p95), "p99_ms": float(p99), "answers": len(waits.ms),
        "p95_changing_ms": waits.p95_ms(changing=True),
        "p95_still_ms": waits.p95_ms(changing=False),
        "most_ms": max(waits.ms), "redrawn": waits.codes[200], "wrong": wrong,
        "server_core_percent": 100 * used_s / seconds, "viewers_core_percent": 100 * own / seconds,
        "server_mib": resident / 2**20, "query_ms": query, "scrape_ms": scrape_ms,
        "scrape_kib": scraped / 1024,
    }  # fmt: skip


def figures(part: Part) -> list[Figure]:
    """Give what `look` found as figures."""
    answers, of_core = part["answers"], "% of one core"
    soon = f"ms, of answers in the {AFTER_NEW_S:g} s after a new window"
    return [
        Figure("fleet_page_p50_ms_200_viewers", part["p50_ms"], "ms"),
        Figure("fleet_page_p95_ms_200_viewers", part["p95_ms"], on_days("ms"), P95_GOAL_MS),
        Figure("fleet_page_p95_ms_200_viewers_changing", part["p95_changing_ms"], soon),
        Figure("fleet_page_p95_ms_200_viewers_still", part["p95_still_ms"], "ms, of all others"),
        Figure("fleet_page_p99_ms_200_viewers", part["p99_ms"], "ms"),
        Figure("fleet_page_longest_ms_200_viewers", part["most_ms"], "ms"),
        Figure("viewers_answers", answers, "answers"),
        Figure("viewers_answers_refused", part["wrong"], "answers", 0.0),
        Figure("viewers_pages_new_percent", 100 * part["redrawn"] / answers, "% of answers"),
        Figure("web_server_core_percent", part["server_core_percent"], of_core),
        Figure("web_viewers_core_percent", part["viewers_core_percent"], of_core),
        Figure("web_server_mib", part["server_mib"], "MiB"),
        Figure("year_query_ms", part["query_ms"], on_days("ms"), QUERY_GOAL_MS),
        Figure("metrics_scrape_ms", part["scrape_ms"], "ms"),
        Figure("metrics_scrape_kib", part["scrape_kib"], "KiB"),
    ]


def measure(kept: Parts) -> Measured:
    """Measure on the year of minute windows, writing it where it is not there yet."""

    def part() -> Part:
        write_year(FOLDER)
        return look(FOLDER, ROLLUPS)

    return Measured(figures(kept.get("load", part)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bench.web_load", description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("rollups", type=Path)
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    print(look(options.store, options.rollups, options.viewers, options.seconds))
