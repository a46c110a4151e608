"""`pointillist plan`: the numbers a script reads, the text a person reads, and its refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pointillist.cli.output import CommandError, ExitCode
from pointillist.cli.plan_command import app
from pointillist.plan_file import DEFAULT_PATH

WORKED = [
    *("--hosts", "12500", "--window", "60", "--epsilon", "2"),
    *("--n-min", "10000", "--sections", "10"),
]


def run(*arguments: str) -> str:
    wide = {"COLUMNS": "200"}
    result = CliRunner(env=wide).invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def figures(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return found


def refusal(*arguments: str) -> CommandError:
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, CommandError)
    return result.exception


def test_worked_default_has_its_keys() -> None:
    got = figures(*WORKED)
    wanted = {
        "sigma_total": 903.16,
        "sigma_local": 9.6552,
        "sigma_released": 1079.48,
        "error_percent_minute": 8.636,
        "error_percent_hour": 1.115,
        "error_percent_day": 0.2276,
        "error_percent_week": 0.0860,
    }
    assert {name: got[name] for name in wanted} == pytest.approx(wanted, rel=3e-4)
    assert got["operator_cap_hosts"] == 5000
    assert got["weekly_indicator_hosts"] == pytest.approx(21.5, abs=0.05)
    assert got["collusion_epsilon"]["week"] == pytest.approx(737, abs=0.5)
    assert got["report_bytes"] == 144 + 4 * 602


def test_text_says_what_the_numbers_do_not_protect_against() -> None:
    text = run(*WORKED)
    for said in (
        "Treat that as no protection",
        "8 hosts of one person 20.3",
        "Operator cap: 5,000",
    ):
        assert said in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_default_plan_is_shown_without_options() -> None:
    text = run()
    assert "kernel_mix_by_model" in text
    seen = next(line for line in text.splitlines() if "applications_seen" in line)
    assert " 64.3" in seen
    assert "hosts a window" in text
    assert max(map(len, text.splitlines())) <= 100
    assert figures()["tasks"][0]["sections"][0]["error_percent"]["minute"] == pytest.approx(
        8.04, abs=0.01
    )


def test_another_roster_brings_its_own_bounds() -> None:
    got = figures("--hosts", "1000")
    assert (got["n_min"], got["t"], got["h"]) == (800, 100, 700)
    assert figures("--hosts", "12500")["t"] == 1250


def test_plan_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(DEFAULT_PATH.read_text().replace('"default"', '"mine"', 1))
    assert figures("--plan", str(path))["plan"] == "mine"


def test_local_scheme_sends_wider_words() -> None:
    got = figures(*WORKED, "--scheme", "local")
    assert got["report_bytes"] == 144 + 8 * 602
    assert got["error_percent_hour"] == pytest.approx(104, abs=0.5)
    assert got["collusion_epsilon"] == {}
    assert "no Helper" in run(*WORKED, "--scheme", "local")


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        (["--n-min", "2000"], "honest hosts"),
        (["--n-min", "12501"], "n_min"),
        (["--t", "100"], "corrupted hosts"),
        (["--t", "5001"], "honest hosts"),
        (["--epsilon", "101"], "epsilon"),
        (["--scheme", "prio3"], "scheme"),
        (["--hosts", "100000000"], "modulus"),
    ],
)
def test_plan_that_breaks_a_bound_is_refused_by_name(arguments: list[str], bound: str) -> None:
    error = refusal("--sections", "10", *arguments)
    assert error.code == ExitCode.REFUSED
    assert bound in str(error)


def test_wrong_input_is_not_a_refusal(tmp_path: Path) -> None:
    assert refusal("--sections", "10", "--epsilon", "two").code == ExitCode.USAGE
    assert refusal("--plan", "x.toml", "--sections", "3").code == ExitCode.USAGE
    path = tmp_path / "mine.toml"
    path.write_text(DEFAULT_PATH.read_text().replace("kernel_mix =", "kernel_mixx =", 1))
    error = refusal("--plan", str(path))
    assert error.code == ExitCode.USAGE
    assert "kernel_mixx" in str(error)


def test_text_keeps_columns_apart_and_contradicts_itself_at_no_size() -> None:
    text = run("--hosts", "10")
    rows = [line.split() for line in text.splitlines() if line.startswith("  kernel_mix_by_model")]
    assert [len(row) for row in rows] == [9]
    assert " 0 an hour" not in text
    assert " 0.0 a window" not in text


def test_text_speaks_of_causes_only_where_the_plan_counts_hosts() -> None:
    assert "Llama 3" in run("--hosts", "12500")
    without = run(*WORKED)
    assert "Llama 3" not in without
    assert "indicators" not in without


def test_plan_says_in_short_what_its_size_shows_and_warns_where_that_is_nothing() -> None:
    enough, few = (" ".join(run("--hosts", hosts).split()) for hosts in ("12500", "40"))
    assert "In short: the standard error of kernel_mix is 8 % over a minute, 1 % ov" in enough
    assert "WARNING" not in enough
    assert "WARNING: what is released over a day is mere noise." in few


def test_short_plan_keeps_what_it_shows_and_what_it_does_not_protect_against() -> None:
    whole, short = run("--hosts", "12500"), run("--hosts", "12500", "--short")
    assert set(short.splitlines()) < set(whole.splitlines())
    for part in ("In short:", "Cohort:", "If Leader and Helper collude"):
        assert part in short
    assert "sigma_total" not in short
