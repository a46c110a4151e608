"""Keys that change under a running agent: a Helper's, and its own; budget and records go on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge_agent.config import TrustSection
from edge_agent.ledger.ledger_db import read_view
from edge_agent.ledger.left_reports import read_left
from edge_agent.local.sent_view import SentReport, sent_reports
from edge_agent.membership import rekey
from edge_agent.open_agent import this_machine
from privacy.signing import SigningKey
from tests.agent_live import Surroundings, announce, demo_task, surroundings
from tests.agent_world import T0, Party
from transport.files.keyfiles import HostKey, write_host_key
from wire.envelope import unwrap
from wire.report import Report
from wire.topics import REPORTS, TOPICS

WINDOW_S = 4
MAX_BYTES = {topic.name: topic.max_bytes for topic in TOPICS}


def reported(made: Surroundings) -> list[tuple[bytes, int]]:
    """Task and window of each report on the log, in the order of windows."""
    cores = (unwrap(found.value, MAX_BYTES[REPORTS])[1] for found in made.records(REPORTS))
    found = [(bytes(report.task_id), report.header.window) for report in map(Report.decode, cores)]
    return sorted(found, key=lambda row: row[1])


def test_agent_reports_to_the_next_helper_and_no_window_to_both(tmp_path: Path) -> None:
    made = surroundings(tmp_path, window_s=WINDOW_S)
    world, former = made.world, made.world.helper
    helper = Party()
    both = TrustSection(frozenset({world.leader.pk}), frozenset({former.pk, helper.pk}))
    made.config = replace(made.config, trust=both)
    made.run(T0, T0 + 6 * WINDOW_S)
    before = reported(made)
    world.helper = helper
    changed_s = T0 + 10 * WINDOW_S
    task = demo_task(world, window_s=WINDOW_S, windows=1000)
    announce(made, [replace(task, version=2, first_window=changed_s)], roster_version=2)
    made.run(changed_s, changed_s + 8 * WINDOW_S)
    after = reported(made)[len(before) :]
    assert len(before) >= 4
    assert len(after) >= 4
    assert len({task_id for task_id, _ in before}) == 1
    assert {task_id for task_id, _ in after}.isdisjoint(task_id for task_id, _ in before)
    windows = [window for _, window in (*before, *after)]
    assert len(set(windows)) == len(windows)
    view = read_view(made.config.ledger_file)
    assert [entry.start for entry in view.hosts[0].entries] == windows, "one ledger has them all"
    assert view.series[made.task.series_key].version == 2


def sent(made: Surroundings) -> list[SentReport]:
    ledger = made.config.ledger_file
    return sent_reports(read_view(ledger), read_left(ledger))


def test_owner_reads_reports_of_an_earlier_key_once_and_what_they_cost(tmp_path: Path) -> None:
    made = surroundings(tmp_path, window_s=WINDOW_S)
    made.run(T0, T0 + 6 * WINDOW_S)
    before = sent(made)
    binding = this_machine(made.config)
    write_host_key(tmp_path / "next.key", HostKey(SigningKey.generate(), binding))
    rekey(made.config, tmp_path / "next.key", binding, T0 + 100)
    assert len(before) >= 4
    assert sent(made) == before
    assert before[-1].budget is not None
    assert before[-1].budget.share > 0
