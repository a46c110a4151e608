"""A Leader that reads slowly, and one that has a double."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.protocol.released import ReleasedWindow
from tests.fault_fleet import STEP_S, FaultFleet, NotingStore
from tests.outage_kit import HOSTS, leader_config
from transport.factory import Side, open_transport
from transport.interface import Consumer, Record, Transport
from wire.topics import REPORTS


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    made = FaultFleet(tmp_path, windows=2)
    yield made
    made.close()


class SlowLog:
    """A log that gives the Leader a record of reports a poll, while `slow`."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.slow = inner, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def consumer(self, group: str, topics: Sequence[str]) -> SlowConsumer:
        return SlowConsumer(self._inner.consumer(group, topics), self)


class SlowConsumer:
    """Takes one record at a time."""

    def __init__(self, inner: Consumer, log: SlowLog) -> None:
        self._inner, self._log = inner, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, most: int, timeout_s: float) -> list[Record]:
        return self._inner.poll(1 if self._log.slow else most, timeout_s)


class SlowFleet(FaultFleet):
    """A fleet whose Leader reads slowly."""

    def leader_log(self, log: Transport) -> Transport:
        self.slow = SlowLog(super().leader_log(log))
        return cast("Transport", self.slow)


@pytest.mark.fault_case("consumer-slow")
def test_leader_that_reads_windows_behind_releases_each_whole(tmp_path: Path) -> None:
    fleet = SlowFleet(tmp_path, windows=2, lateness_s=45)
    # One report each five seconds: when the lateness ends, nine or so of a window's ten are read.
    verdict = fleet.finish(after_s=200)
    fleet.close()
    assert (verdict.windows, verdict.released, verdict.lost) == (2, 2 * HOSTS, {})


class MirroredLog:
    """The log as another site mirrors it: read in a group of its own, and one host is lacking."""

    def __init__(self, inner: Transport, lacking: bytes) -> None:
        self._inner, self._lacking = inner, lacking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def consumer(self, group: str, topics: Sequence[str]) -> MirroredConsumer:
        return MirroredConsumer(self._inner.consumer(f"mirror-{group}", topics), self._lacking)


class MirroredConsumer:
    """Leaves a host's reports out."""

    def __init__(self, inner: Consumer, lacking: bytes) -> None:
        self._inner, self._lacking = inner, lacking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, most: int, timeout_s: float) -> list[Record]:
        records = self._inner.poll(most, timeout_s)
        return [r for r in records if not (r.topic == REPORTS and r.key == self._lacking)]


class SecondLeader:
    """A Leader with the first one's keys and a state of its own."""

    def __init__(self, fleet: FaultFleet, folder: Path) -> None:
        folder.mkdir()
        config = leader_config(fleet.folder, fleet.world.helper.pk, folder)
        config = replace(config, database=folder / "r.duckdb", releases_dir=folder / "releases")
        self._fleet, self.written = fleet, list[ReleasedWindow]()
        self._store = NotingStore(config, self.written)
        self._log = open_transport(config.transport, Side.AGGREGATOR)
        log = MirroredLog(self._log, fleet.world.host_ids[0])
        self.shell = LeaderRuntime(
            config, cast("Transport", log), self._store,
            helper=fleet.helper_port(), clock=fleet.party_clock("leader"), pause=lambda _s: None,
        )  # fmt: skip

    def step(self) -> None:
        self.shell._turn()
        self.shell._calls.wait()

    def close(self) -> None:
        self.shell._end()
        self._store.close()
        self._log.close()


@pytest.fixture
def second(fleet: FaultFleet, tmp_path: Path) -> Iterator[SecondLeader]:
    made = SecondLeader(fleet, tmp_path / "second")
    yield made
    made.close()


@pytest.mark.fault_case("two-leaders")
def test_second_leader_by_mistake_gets_no_second_sum(
    fleet: FaultFleet, second: SecondLeader
) -> None:
    """It asks about other hosts; what it did not get has its reason, in its own record."""
    while fleet.now_s() < fleet.end_s + 100:
        fleet.step()
        second.step()
        fleet.stepped.sleep_ms(round(1000 * STEP_S))
    verdict = fleet.judge()
    assert (verdict.windows, verdict.released, verdict.lost) == (2, 2 * HOSTS, {})
    assert second.written == []
    assert second.shell._leader.suppressed == {"answered_otherwise": 2}
