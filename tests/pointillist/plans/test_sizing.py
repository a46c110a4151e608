"""The sizing model: what a report costs becomes cores, partitions and bytes of a fleet."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isclose
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pointillist.cli.output import CommandError
from pointillist.cli.plan_command import size_app as app
from pointillist.plan_file import DEFAULT_PATH
from pointillist.sizing import Cost, Costs, TaskLoad, fit, shipped_costs, size_of

COSTS = Costs(Cost(10, 0.01), Cost(5, 0.01), Cost(2, 0.002), epoch_us=300)
MINUTE = TaskLoad(1000, 60)


def test_fit_finds_the_line_that_costs_lie_on() -> None:
    found = fit([(500, 15.0), (1000, 20.0), (2000, 30.0)])
    assert isclose(found.report_us, 10)
    assert isclose(found.word_us, 0.01)


def test_fit_of_one_width_is_refused() -> None:
    with pytest.raises(ValueError, match="two widths"):
        fit([(1000, 20.0), (1000, 21.0)])


def test_size_counts_reports_and_epochs_at_half_a_core_each() -> None:
    size = size_of(60_000, [MINUTE], COSTS)
    # 1,000 reports/s x 20 us, and 16.7 epochs/s x 300 us, on cores that are half busy.
    assert isclose(size.leader_cores, 2 * (0.020 + 0.005))
    assert isclose(size.helper_cores, 2 * (0.015 + 0.005))
    assert isclose(size.broker_cores, 3 * 2 * 0.004)
    assert isclose(size.log_bytes_a_second, 1000 * (4144 + 8))
    assert isclose(size.log_bytes_kept, 1000 * (4144 + 8) * 86_400 * 14 * 3)
    assert (size.fleets, size.brokers) == (1, 3)


def test_size_adds_the_tasks_of_a_plan() -> None:
    """An hour's task of 3,000 words weighs as a minute's would of which one in sixty came."""
    minute, both = (
        size_of(60_000, tasks, COSTS) for tasks in ([MINUTE], [MINUTE, TaskLoad(3000, 3600)])
    )
    assert isclose(both.reports_a_second - minute.reports_a_second, 60_000 / 3600)
    assert isclose(both.leader_cores - minute.leader_cores, 2 * 60_000 / 3600 * 40e-6)
    assert isclose(both.leader_bytes - minute.leader_bytes, 60_000 * 3000 * 4)


def test_hosts_beyond_a_core_of_a_role_are_divided_among_fleets() -> None:
    large = size_of(6_000_000, [MINUTE], COSTS)
    assert isclose(large.leader_cores, 5.0)
    assert isclose(large.helper_cores, 4.0)
    assert (large.fleets, large.brokers) == (5, 25)


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))


def test_shipped_costs_say_what_was_measured_and_where() -> None:
    costs = shipped_costs()
    one = costs.one
    assert all(role.of(2000) > 0 for role in (one.leader, one.helper, one.broker))
    assert one.epoch_us > 0
    assert costs.error_percent.keys() == {"leader", "helper", "broker"}
    assert costs.source.keys() == {"date", "commit", "device", "command"}


def test_command_sizes_the_shipped_plan_by_the_shipped_costs() -> None:
    costs = shipped_costs()
    found = json.loads(run("--gpus", "100001", "--json").output)
    assert found["hosts"] == 12_501  # the last GPU has a host of its own
    tasks = [TaskLoad(**task) for task in found["tasks"]]
    assert [task.window_s for task in tasks] == [60, 86_400, 604_800, 4_838_400]
    assert found["size"] == asdict(size_of(12_501, tasks, costs.one))


def test_command_says_in_words_what_is_needed_and_where_it_comes_from() -> None:
    said = run("--gpus", "1000000", "--gpus-per-host", "4").output
    for part in (
        "1,000,000 GPUs on 250,000 hosts, plan default",
        "3 copies of each record",
        "14 days kept",
        shipped_costs().source["device"],
        "the model is off by: leader",
    ):
        assert part in said


def test_command_divides_hosts_that_are_too_many_for_one_leader() -> None:
    size = size_of(5_000_000, [TaskLoad(2134, 60)], shipped_costs().one)
    said = " ".join(run("--gpus", "40000000").output.split())
    assert size.fleets > 1
    assert f"fleets {size.fleets}, hosts divided among them" in said
    assert "fleets" not in run("--gpus", "100000").output


def test_command_refuses_a_plan_without_a_helper(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(DEFAULT_PATH.read_text().replace('"masked"', '"local"'))
    refused = run("--gpus", "1000", "--plan", str(plan)).exception
    assert isinstance(refused, CommandError)
    assert "expected a plan of scheme masked, got local" in str(refused)
