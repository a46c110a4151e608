"""kill -9 of a live agent at every step of its way to the log, and what the next start finds.

The agent is a real process with its real ledger and log; only its clock is stepped, so that an
hour passes in a moment. It is forked rather than started afresh to save the imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.ledger_records import LedgerBusy, SealedRecord
from edge_agent.local.history_read import HistoryReader
from edge_agent.open_agent import this_machine
from edge_agent.service.agent_service import AgentService
from tests.agent_live import SteppedClock, Surroundings, killing, run_until, surroundings
from tests.agent_world import T0, epochs, open_report, reports
from tests.fault_cases import STEPS
from transport.interface import Record
from wire.epoch import Epoch
from wire.report import Report
from wire.topics import EPOCHS, REPORTS

pytestmark = pytest.mark.slow

_FORK = multiprocessing.get_context("fork")


def run_and_die(made: Surroundings, point: str, hit: int) -> None:
    """Run the agent in a child until the fault point kills it."""
    child = _FORK.Process(target=made.run, args=(T0, T0 + 60, killing(point, hit)))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("hit", [1, 3])
@pytest.mark.parametrize("point", STEPS["agent"])
def test_agent_killed_counts_no_window_twice(tmp_path: Path, point: str, hit: int) -> None:
    made = surroundings(tmp_path)
    first_try = 1 if point == "runtime:epoch-sealed" else hit
    run_and_die(made, point, first_try)
    before = made.records()
    spooled = _spooled(made)
    made.run(T0 + 60, T0 + 80)
    after = made.records()
    _check_log_against_ledger(made, after)
    _check_nothing_was_altered(before, after)
    # What was sealed before the kill has left after it, the same bytes.
    assert {r.value for r in after} >= set(spooled)
    assert len({r.value for r in after if r.topic == REPORTS}) >= 4


def _spooled(made: Surroundings) -> list[bytes]:
    """Read the spool as the killed process left it."""
    ledger = Ledger.open(
        made.config.ledger_file,
        made.config.fence_file,
        binding=this_machine(made.config),
    )
    values = [one.record.value for one in ledger.spooled()]
    ledger.close()
    return values


def _check_log_against_ledger(made: Surroundings, records: list[Record]) -> None:
    """A window on the log is one report, paid for, and opens; every payment is on the log."""
    sealed = reports_of(records)
    by_window = defaultdict(set)
    for report in sealed:
        by_window[report.header.window].add(report.encode())
    assert all(len(versions) == 1 for versions in by_window.values())
    spent = [e.start for e in read_view(made.config.ledger_file).hosts[0].entries]
    assert sorted(by_window) == spent
    by_id = {e.header.epoch_id: e for e in epochs_of(records)}
    for report in sealed:
        opened = open_report(made.world, by_id[report.epoch_id], report)
        assert opened[:2].tolist() == [1, 1]
    counters = [e.header.ledger_ctr for e in by_id.values()]
    assert len(set(counters)) == len(counters)


def _check_nothing_was_altered(before: list[Record], after: list[Record]) -> None:
    """The log only grew; an epoch or report that came twice came with the same bytes."""
    place = {(r.topic, r.partition, r.offset): r.value for r in after}
    assert all(place[r.topic, r.partition, r.offset] == r.value for r in before)
    values = defaultdict(set)
    for record in after:
        if record.topic == EPOCHS:
            values[record.key].add(record.value)
    assert all(len(versions) == 1 for versions in values.values())


def reports_of(records: list[Record]) -> list[Report]:
    return reports(_sealed(records, REPORTS))


def epochs_of(records: list[Record]) -> list[Epoch]:
    return epochs(_sealed(records, EPOCHS))


def _sealed(records: list[Record], topic: str) -> list[SealedRecord]:
    return [SealedRecord(r.topic, r.key, r.value, 0, 0) for r in records if r.topic == topic]


def _run_and_die_at(made: Surroundings, start_s: int, end_s: int) -> None:
    """Run as `agent run` does, with what attends it; no step more is taken than that time has."""
    clock = SteppedClock(start_s)
    runtime = made.agent(clock)
    runtime.observe(AgentService(runtime, made.config, clock=clock))
    run_until(runtime, clock, end_s)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("into_the_window_s", [1, 2, 3])
def test_agent_killed_in_a_window_loses_that_window_alone(
    tmp_path: Path, into_the_window_s: int
) -> None:
    made = surroundings(tmp_path, window_s=4)
    end = T0 + 16 + into_the_window_s
    child = _FORK.Process(target=_run_and_die_at, args=(made, T0, end))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    made.run(end + 1, T0 + 60)
    windows = [report.header.window for report in reports_of(made.records())]
    assert len(windows) == len(set(windows))
    assert set(range(T0, T0 + 56, 4)) - set(windows) <= {T0 + 16}
    with HistoryReader(made.config.history_file) as reader:
        assert [row["name"] for row in reader.rows("event")] == ["started", "unmeasured"]


def test_agent_killed_releases_its_lock(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    with pytest.raises(LedgerBusy):
        made.agent(SteppedClock(T0))
    run_until(runtime, clock, T0 + 5)
    runtime.close()
    made.run(T0 + 5, T0 + 6)
