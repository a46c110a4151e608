"""Spark's driver on a log that was made anew, or has lost its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.spark.spark_runtime import TURNS_A_LOOK, StreamEnded
from aggregator.spark.sum_store import SumStore
from tests.protocol_kit import T0, WINDOW_S, World, build_world, open_epochs, true_sum
from tests.reader_kit import HOSTS, after, give_epochs, honest_bytes, reports_of, what_came
from tests.spark_kit import Checkpoint, SparkDriver, SparkFleet
from transport.interface import Noted


@pytest.fixture
def world() -> World:
    world = build_world(HOSTS)
    open_epochs(world)
    return world


def speak(driver: SparkDriver) -> None:
    for _ in range(TURNS_A_LOOK):
        driver.speak()


@pytest.mark.parametrize("name", ["another", "log"])
def test_log_that_is_another_or_shorter_is_read_from_its_start(
    world: World, tmp_path: Path, name: str
) -> None:
    """A window of the log before keeps its sum; one report cannot be taken out of it again."""
    fleet = SparkFleet(world, tmp_path / "s")
    driver = fleet.drive()
    give_epochs(fleet)
    windows = [T0 + number * WINDOW_S for number in range(3)]
    fleet.publish(honest_bytes(world, windows[0]), after(windows[0]))
    fleet.publish(reports_of(world, windows[1]), after(windows[1]))
    fleet.quiesce()
    fleet.group.records.clear()
    fleet.group.next = [0] * len(fleet.group.next)
    driver.log.name = name
    again = honest_bytes(world, windows[2])
    fleet.publish(again * (3 if name == "another" else 0), after(windows[2]))  # it has passed ours
    with pytest.raises(StreamEnded, match="made anew" if name == "another" else "ends at 0"):
        speak(driver)
    driver = fleet.drive(Checkpoint("another"), name=name)
    fleet.publish(again, after(windows[2]))
    fleet.quiesce()
    known = next(iter(fleet.leader.directory.tasks.values()))
    for at_s in (windows[2] + WINDOW_S + 30, known.over_s(windows[1]) + 1):
        fleet.close_slowly(at_s)
    released = {window: (vector, n) for window, _batch, _entry, vector, n in what_came(fleet)}
    assert released == {
        window: (true_sum(world, world.hosts, window).tolist(), HOSTS)
        for window in (windows[0], windows[2])
    }
    assert fleet.leader.rejected[Noted.ANEW.value] == 1
    assert driver.store.positions == dict(enumerate(fleet.group.next))


def test_partitions_that_are_added_begin_another_query(world: World, tmp_path: Path) -> None:
    """One that runs reads those that it began with. What is sent again by others counts once."""
    fleet = SparkFleet(world, tmp_path / "s")
    driver = fleet.drive()
    give_epochs(fleet)
    first = honest_bytes(world, T0)
    fleet.publish(first, after(T0))
    fleet.quiesce()
    fleet.group.next += [0, 0]
    added = len(fleet.group.next)
    with pytest.raises(StreamEnded, match=f"has {added} partitions, read are {added - 2}"):
        driver.speak()
    driver = fleet.drive(driver.checkpoint)
    fleet.publish(first, after(T0))
    assert all(fleet.group.next[-2:])
    fleet.quiesce()
    assert driver.store.positions == dict(enumerate(fleet.group.next))
    fleet.close_slowly(T0 + WINDOW_S + 30)
    released = [(window, vector, n) for window, _batch, _entry, vector, n in what_came(fleet)]
    assert released == [(T0, true_sum(world, world.hosts, T0).tolist(), HOSTS)]
    assert fleet.leader.rejected == {"duplicate": HOSTS}


def test_store_of_an_earlier_program_is_taken_over(tmp_path: Path) -> None:
    store = SumStore(tmp_path / "sums.sqlite")
    store.put([], source=("q", 3), positions={0: 7})
    store._db.execute("DROP TABLE log")
    store.close()
    again = SumStore(tmp_path / "sums.sqlite")
    assert (again.log, again.positions) == ("", {0: 7})
    again.begin_at({0: 0, 1: 5}, "an id")
    again.close()
    third = SumStore(tmp_path / "sums.sqlite")
    assert (third.log, third.positions) == ("an id", {0: 7, 1: 5})
    third.close()
