"""The round benchmark runs the production parties and checks the sum that they release."""

from __future__ import annotations

from pathlib import Path

from bench.round import agent_costs
from bench.round_fleet import load_fleet
from bench.round_work import ARITHMETIC, arithmetic, floor, run_round


def test_bench_round_releases_the_sealed_sum_and_charges_every_stage(tmp_path: Path) -> None:
    fleet = load_fleet(40, tmp_path, part=20)
    opened, windows = run_round(fleet, 50, 2, tmp_path)
    assert opened.keys() >= {"leader.epochs", "helper.epochs", "leader.derive_keys"}
    assert len(windows) == 2
    for stages in windows:
        assert stages.keys() >= {*ARITHMETIC, "leader.decode", "leader.authenticate"}
        assert 0 < arithmetic(stages) < sum(stages.values())
    assert floor(40, 50) > 0


def test_bench_fleet_is_read_again_as_it_was_made(tmp_path: Path) -> None:
    made, read = (load_fleet(10, tmp_path, part=5) for _ in range(2))
    assert made.raw == read.raw
    assert len(made.first(3).hosts) == 3


def test_bench_agent_measures_a_report_and_its_noise(tmp_path: Path) -> None:
    costs = agent_costs(load_fleet(130, tmp_path, part=130), 50)
    assert 0 < costs["noise"] < costs["publish"]
