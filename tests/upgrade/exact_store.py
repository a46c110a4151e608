"""Write a Leader's store by the tree that this runs in: FOLDER, hosts, and 1 to have it packed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from aggregator.protocol.released import Capacity, ReleasedWindow, SuppressedWindow
from aggregator.releases.compaction import Compaction
from aggregator.releases.release_files import utc
from aggregator.releases.store import Store
from analytics import connect
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, noise, true_steps
from wire.task import Task

DAY = 2_900 * 604_800


def as_before(task: Task) -> Task:
    """The task as the older code made it, by the catalogue that it had."""
    former = getattr(CATALOGUE, "former", None)
    if former is None:
        return task
    known = [former.section(spec.name) for spec in task.sections]
    sections = (
        replace(spec, section_id=section.id, length=section.length)
        for spec, section in zip(task.sections, known, strict=True)
    )
    return replace(task, sections=tuple(sections), catalogue_hash=former.hash)


def release(hosts: int, start: int) -> ReleasedWindow:
    """A window of hosts of two models, and one of a third; of one vector for every number."""
    task = as_before(make_task(domain="fleet", start=DAY))
    vector = true_steps(task, 12_000, {})
    vector[task.slices()["incidents"].stop - 1] = 64 * 90  # what hosts left out
    vector += noise(task, 12_000, np.random.default_rng(start))
    vector[:2] = hosts
    models = [((2, 8),)] * (hosts - 3_001) + [((1, 8),)] * 3_000 + [((5, 8),)]
    return ReleasedWindow(
        bytes(32), task, 0, start, hosts, vector, {"late": 2}, start + 61.0, start + 62.5,
        Capacity.of(models),
    )  # fmt: skip


def main(folder: Path, hosts: int, packed: bool) -> None:
    with Store(folder / "store.duckdb", folder / "releases", CATALOGUE) as store:
        for start in (DAY, DAY + 60):
            store.write(release(hosts, start))
        kept_back = ("every-kind", 0, DAY + 120, 60, 1, "n_min", hosts - 4_500, 10_000)
        store.suppress(SuppressedWindow(*kept_back, DAY + 190.0))
    if packed:
        Compaction(folder / "releases").run(utc(DAY + 86_400).date())
    with connect(folder / "releases") as fleet:
        fleet.sql("SELECT count(*) FROM hours")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")
