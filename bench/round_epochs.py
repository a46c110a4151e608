"""What opened epochs cost an aggregator in memory, and how long a sealing key outlives its day."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregator.party.key_ring import DAY_S, KeyRing
from aggregator.protocol.admitted_epochs import AdmittedEpochs, Seal
from aggregator.protocol.directory import Directory
from aggregator.protocol.known_epochs import KnownEpoch
from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure
from bench.round_fleet import LEADER, PARTIES, T0
from edge_agent.protocol.epochs import EPOCH_LIFE_S, EPOCH_PERIOD_S
from pointillist.plan_file import default_plan
from transport.files.keyfiles import write_signing_key

HOSTS: Final = 100_000
SEALS: Final = {"leader": Seal.LEADER, "helper": Seal.HELPER}
LEAST_BYTES: Final = 16 + 32 + 32
"""An epoch's id, hash and key: less cannot answer a late report."""

ROTATE_EVERY_S: Final = 300
TURNOVER_HOURS: Final = 8
"""Hours that are played on after the first epochs are forgotten, as memory then comes back."""


def retention_s() -> int:
    """Seconds of the shipped plan's longest retention."""
    return max(task.retention_s for task in default_plan().tasks)


def fill_book(party: str, hosts: int) -> Part:
    """Keep hourly epochs of so many hosts as long as the shipped plan asks for, and weigh them.

    The epochs in force are asked for, and their keys derived for each task of the plan.
    """
    kept_s = retention_s()
    hours = -(-(kept_s + EPOCH_LIFE_S) // EPOCH_PERIOD_S) + TURNOVER_HOURS
    tasks = [os.urandom(32) for _ in default_plan().tasks]
    gc.collect()
    before = _resident_bytes()
    book = AdmittedEpochs(Directory(PARTIES), SEALS[party], lambda _kid: None)
    for hour in range(hours):
        begun_s = T0 + hour * EPOCH_PERIOD_S
        book.prune(begun_s, kept_s)
        for number in range(hosts):
            _open(book, number, hour, begun_s, tasks if hour >= hours - 2 else ())
    gc.collect()
    resident = _resident_bytes() - before
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


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def book_memory(party: str, hosts: int) -> Part:
    """Fill a party's book in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.round_epochs", "--fill", party, "--hosts", str(hosts)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    part: Part = json.loads(done.stdout)
    return part


def key_lives() -> Part:
    """Turn a key ring on disk for a week, as the Leader does; seconds of the second day's key."""
    start, made, gone = T0 // DAY_S * DAY_S, dict[str, int](), dict[str, int]()
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o700)
        write_signing_key(folder / "identity.key", LEADER)
        now_s = start
        ring = KeyRing(folder, lambda: now_s)
        for now_s in range(start, start + 7 * DAY_S, ROTATE_EVERY_S):
            ring.rotate(now_s, retention_s())
            there = {path.name for path in folder.glob("*.hpke")}
            for key in there - made.keys():
                made[key] = now_s
            for key in made.keys() - there - gone.keys():
                gone[key] = now_s
    second = sorted(made)[1]
    return {"secret_s": gone[second] - made[second], "after_s": gone[second] - start - 2 * DAY_S}


def measure(kept: Parts) -> Measured:
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
        each = book["bytes"] / book["epochs"]
        found.append(Figure(f"epoch_memory_gib_{party}", book["bytes"] / 2**30, "GiB"))
        found.append(Figure(f"epoch_bytes_{party}", each, "bytes an epoch"))
    return Measured(found)


def main() -> None:
    """Fill one book, for `book_memory`."""
    parser = argparse.ArgumentParser(prog="bench.round_epochs", description=__doc__)
    parser.add_argument("--fill", choices=sorted(SEALS), required=True)
    parser.add_argument("--hosts", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(fill_book(options.fill, options.hosts)))


if __name__ == "__main__":
    main()
