"""An outage of the log costs no window, and every window that a task names ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aggregator.leader.intake import LEADER_GROUP
from aggregator.releases.releases import windows_without_an_end
from tests.agent_world import T0
from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS, OutageFleet
from transport.embedded.embedded import EmbeddedLog
from transport.factory import TransportTable
from wire.topics import TOPICS

WINDOW_S = 1200
Start = Callable[..., OutageFleet]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a fleet on the embedded log."""
    with ExitStack() as stack:

        def begin(window_s: int, windows: int, first: int | None = None) -> OutageFleet:
            log = TransportTable(tmp_path / "log")
            fleet = OutageFleet(tmp_path, log, window_s=window_s, windows=windows, first=first)
            stack.callback(fleet.close)
            return fleet

        yield begin


@pytest.mark.slow
@pytest.mark.parametrize(("outage_s", "windows"), [(1, 3), (30, 4), (150, 6)])
def test_outage_of_the_log_costs_no_window(start: Start, outage_s: int, windows: int) -> None:
    fleet = start(window_s=60, windows=windows)
    fleet.run_to(fleet.first + 118)
    fleet.line.cut = True
    fleet.run_to(fleet.first + 118 + outage_s)
    fleet.line.cut = False
    fleet.run_to(fleet.first + windows * 60 + 100)
    ends = fleet.ends()
    assert list(ends.outcome) == ["released"] * windows
    assert set(ends.n_hosts) == {10}
    assert windows_without_an_end(fleet.folder / "releases").empty


@pytest.mark.release
@pytest.mark.parametrize(("hours", "lost"), [(6, 0), (7, 3)])
def test_outage_of_hours_costs_what_is_past_the_retention_and_says_so(
    start: Start, hours: int, lost: int
) -> None:
    """Reports older than six hours expire on the hosts; their windows end all the same."""
    windows = 3 * hours + 3
    fleet = start(window_s=WINDOW_S, windows=windows)
    fleet.run_to(fleet.first + WINDOW_S + 60, step_s=20)
    fleet.line.cut = True
    fleet.run_to(fleet.first + WINDOW_S + 60 + hours * 3600, step_s=60)
    fleet.line.cut = False
    fleet.run_to(fleet.first + windows * WINDOW_S + 200, step_s=20)
    ends = fleet.ends()
    after = windows - 1 - lost
    assert list(ends.outcome) == ["released"] + ["suppressed"] * lost + ["released"] * after
    assert list(ends.n_hosts[1 : 1 + lost]) == [0] * lost
    assert windows_without_an_end(fleet.folder / "releases").empty


@pytest.mark.release
def test_outage_over_midnight_leaves_hosts_with_the_next_days_keys(start: Start) -> None:
    """Sealing keys are a day's; nothing comes from the log while that day begins."""
    fleet = start(window_s=WINDOW_S, windows=18, first=T0 + 21 * 3600)
    fleet.run_to(fleet.first, step_s=900)
    fleet.run_to(fleet.first + WINDOW_S + 20, step_s=20)
    fleet.line.cut = True
    sent = [agent.tally.published for agent in fleet.agents]
    fleet.run_to(T0 + 26 * 3600 + 1800, step_s=240)
    assert [agent.tally.published for agent in fleet.agents] == sent
    fleet.line.cut = False
    fleet.run_to(fleet.first + 18 * WINDOW_S + 200, step_s=20)
    assert list(fleet.ends().outcome) == ["released"] * 18


@pytest.mark.release
@pytest.mark.fault_case("day-outage")
def test_outage_of_a_day_loses_what_expired_on_the_hosts_and_counts_it(tmp_path: Path) -> None:
    """Reports older than six hours are given up by their hosts, which say so; the rest comes."""
    windows = 26
    fleet = FaultFleet(tmp_path, window_s=3600, windows=windows)
    fleet.run_to(fleet.first + 3610, step_s=60)
    fleet.line.cut = True
    fleet.run_to(fleet.first + 3610 + 86_400, step_s=600)
    fleet.line.cut = False
    fleet.run_to(fleet.end_s + 300, step_s=30)
    verdict = fleet.judge()
    fleet.close()
    sealed = verdict.released + sum(verdict.lost.values())
    assert verdict.lost == {"expired": sealed - verdict.released}
    assert verdict.released == 10 * verdict.windows
    assert 1 + 6 <= verdict.windows < windows - 12


@pytest.mark.fault_case("reader-lingers")
def test_partitions_that_dead_readers_still_hold_are_waited_for(tmp_path: Path) -> None:
    """They read nothing; until their leases end a quarter of all hosts is heard."""
    fleet = FaultFleet(tmp_path)
    fleet.run_to(fleet.first, step_s=STEP_S)
    with EmbeddedLog(tmp_path / "log", lease_s=3600) as log:
        readers = [log.consumer(LEADER_GROUP, [topic.name for topic in TOPICS]) for _ in range(2)]
        fleet.run_to(fleet.end_s + 100, step_s=STEP_S)
        # That all hosts write to the one partition of four that it holds happens once in a million.
        assert fleet.leader._leader.admitted < 3 * HOSTS
        assert "log_away" in str(fleet.leader._status()["troubles"])
        assert not fleet.written
        for reader in readers:
            reader.close()
    verdict = fleet.finish(after_s=200)
    fleet.close()
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
