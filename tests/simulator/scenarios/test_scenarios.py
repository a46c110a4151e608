"""Scenario files: the shipped ones, and what is refused with which words."""

from __future__ import annotations

import pickle
import re
import tomllib
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pointillist.plan_file import load_plan
from simulator.fleet.fleet_model import FleetModel
from simulator.scenario import (
    FOLDER,
    Adversaries,
    Applications,
    Dropout,
    FailSlow,
    Faults,
    FlashCrowd,
    FleetLoad,
    Jobs,
    Scenario,
    ScenarioError,
    Shape,
    Upgrades,
    load,
    names,
    parse,
)
from tests.window_kit import CATALOGUE

PLANS = Path("pointillist/plans")
LEAST: dict[str, Any] = {"format": 1, "name": "least", "hosts": 100, "duration_s": 60}

TABLES = (
    Scenario, Shape, FleetLoad, Jobs, Applications, FlashCrowd, Faults, FailSlow, Upgrades, Dropout,
    Adversaries,
)  # fmt: skip
COUNTS = {
    "seed", "hosts", "gpus", "numbered", "largest_gpus", "lemon_quarantine_faults", "operators",
    "guesser_hosts",
}  # fmt: skip
UNITS = re.compile(
    r"_(s|minutes|hours?|utc|share|speed|spread|gpus|faults|per_day|node_days|scale|drop|amplitude)$"
)


def test_scenarios_eight_are_shipped_and_valid() -> None:
    assert names() == (
        "adversaries", "eight_weeks", "faulty_month", "flash_crowd", "operator_500",
        "practice", "steady",
        "ten_percent_load",
    )  # fmt: skip
    for name in names():
        scenario = load(name)
        assert scenario.name == name
        assert scenario.about
        assert load_plan(PLANS / f"{scenario.plan}.toml").name == scenario.plan
        small = FleetModel(scenario.scaled(hosts=60), CATALOGUE)
        state = small.at(scenario.start_s, 60)
        assert state.hosts == 60


def test_scenario_windows_of_every_length_begin_at_its_start() -> None:
    for name in names():
        for window_s in (60, 3_600, 86_400, 604_800, 4_838_400):
            assert load(name).start_s % window_s == 0


def test_scenario_least_file_has_defaults_and_scales() -> None:
    scenario = parse(LEAST | {"start": datetime(2026, 2, 12, tzinfo=UTC)})
    assert scenario.start_s == 1_770_854_400
    assert scenario.end_s == scenario.start_s + 60
    larger = scenario.scaled(hosts=1_000)
    assert larger.gpus == 8_000
    assert larger.faults is scenario.faults
    assert scenario.hosts == 100
    weighed = parse(LEAST | {"applications": {"shares": {"benchmark": 1}}})
    assert pickle.loads(pickle.dumps(weighed)) == weighed  # a sweep sends it to other processes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format: expected 1, got 2"),
        ({"hots": 3}, r"hots: unknown key \(did you mean 'hosts'\?\); expected one of name, "),
        ({"load": {"busy_shar": 0.5}}, r"load\.busy_shar: unknown key \(did you mean 'busy_sha"),
        ({"hosts": 0}, "hosts: expected an integer from 1 to 1,000,000, got 0"),
        ({"hosts": 1.5}, "hosts: expected an integer from 1 to 1,000,000, got 1.5"),
        ({"hosts": True}, "hosts: expected an integer from 1 to 1,000,000, got true"),
        ({"name": 3}, "name: expected text like .*, got 3"),
        ({"name": "a/b"}, r'name: expected text like \[a-z0-9\].*, got "a/b"'),
        ({"load": {"busy_share": 1.5}}, "load.busy_share: expected a number from 0 to 0.98"),
        ({"load": 3}, "load: expected a table, got 3"),
        (
            {"fidelity": "exakt"},
            r"expected one of auto, exact, .* got \"exakt\" \(did you mean 'ex",
        ),
        ({"shape": [{"gpus": 8}]}, r"shape\[0\]\.gpu_model: expected text in quotes, got nothing"),
        ({"shape": []}, r"shape: expected an array of 1 to 1,024, got \[\]"),
        ({"operators": [1, -1]}, "operators: expected shares above 0"),
        ({"operators": 3}, "operators: expected an array of 1 to 1,024, got 3"),
        ({"adversaries": {"lies": ["repla"]}}, r"lies\[0\]: .* \(did you mean 'replay'\?\)"),
        ({"applications": {"shares": {"a": -1}}}, "shares.a: expected a number from 0 up, got -1"),
        ({"applications": {"shares": 3}}, "shares: expected a table, got 3"),
        ({"fail_slow": {"enabled": 1}}, "fail_slow.enabled: expected true or false, got 1"),
        ({"start": "2026-02-12"}, "start: expected a time with its zone"),
        ({"start": datetime(2026, 2, 12, 0, 0, 1, tzinfo=UTC)}, "multiple of step_s = 60, got 177"),
    ],
)
def test_scenario_error_says_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        parse(LEAST | change)


def test_scenario_missing_key_and_missing_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"duration_s: expected an integer .*, got nothing"):
        parse({"format": 1, "name": "x", "hosts": 1})
    with pytest.raises(ScenarioError, match=r"one of adversaries, .* \(did you mean 'steady'\?\)"):
        load("stedy")
    with pytest.raises(ScenarioError, match="No such file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("format = ", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"broken\.toml: expected TOML"):
        load(broken)
    named = tmp_path / "named.toml"
    named.write_text((FOLDER / "steady.toml").read_text().replace("[load]", "[lod]"))
    with pytest.raises(ScenarioError, match=r"named.toml: lod: unknown key \(did you mean 'load'"):
        load(named)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [{"gpu_model": "H900"}]}, "expected one of V100, .* got 'H900'"),
        ({"jobs": {"sizes": "titan"}}, "jobs.sizes: expected one of seren, .* got 'titan'"),
        ({"jobs": {"durations": "titan"}}, "jobs.durations: expected one of .*alibaba_2023"),
        ({"applications": {"shares": {"chess": 1}}}, "expected names out of .* got 'chess'"),
        ({"applications": {"shares": {"rendering": 0}}}, "got 'rendering'"),
        ({"applications": {"flash_crowd": {"application": "chess"}}}, "got 'chess'"),
    ],
)
def test_scenario_names_of_other_tables_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        FleetModel(parse(LEAST | change), CATALOGUE)


def test_scenario_page_names_every_key_and_its_example_is_one() -> None:
    page = Path("docs/scenario-file.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_0-9]+)`", page))
    keys = {
        {"start_s": "start"}.get(one.name, one.name) for table in TABLES for one in fields(table)
    }
    keys -= {"shapes", "load", "jobs", "applications", "faults", "fail_slow", "upgrades"}
    assert keys - {"dropout", "adversaries", "flash_crowd"} <= named
    for table in TABLES:
        for one in fields(table):
            if one.metadata.get("choices"):
                assert ", ".join(one.metadata["choices"]) in page
    example = page.split("```toml\n")[1].split("```")[0]
    assert parse(tomllib.loads(example)).operators == (3.0, 1.0)


def test_scenario_numbers_carry_their_unit_in_their_name() -> None:
    for table in TABLES:
        assert is_dataclass(table)
        for one in fields(table):
            if one.type in {"int", "float"} and one.name not in COUNTS | {"share", "slowdown"}:
                assert UNITS.search(one.name), f"{table.__name__}.{one.name} has no unit"
                assert one.metadata.keys() >= {"low", "high"}, f"{one.name} has no bounds"
