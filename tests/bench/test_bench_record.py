"""Benches are run by name and in parts, and figures of several commands share a result file."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from bench import parts, record
from bench.__main__ import BENCHES
from bench.parts import Measured, Parts, run_parts
from bench.record import ROOT, Figure, merge_result
from bench.suite import figures


def test_merged_figures_leave_those_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    merge_result("suite", "make test", [Figure("make_test_seconds", 700.0, "s", 900.0)])
    merge_result("suite", "make bench-first-release", [Figure("first", 50.0, "s", 60.0)])
    path = merge_result("suite", "make bench-first-release", [Figure("first", 40.0, "s", 60.0)])
    document = json.loads(path.read_text())
    values = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert values == {"make_test_seconds": 700.0, "first": 40.0}
    assert list(document["merged"]) == ["make bench-first-release"]


def test_first_release_is_judged_by_the_median_and_tells_the_worst() -> None:
    told = figures([{"released": seconds} for seconds in (30.0, 80.0, 40.0)])
    assert [(one.value, one.goal) for one in told] == [(40.0, 60.0), (80.0, 60.0)]


def told(kept: Parts) -> Measured:
    """Stand for a part whose hosts scale, and of which one thing is wrong."""
    found = kept.get("counted", lambda: {"hosts": kept.scaled(10)})
    print(f"writes {kept.writes}")
    return Measured([Figure("hosts", found["hosts"], "hosts")], {"rows": [1]}, "alone", ("lost",))


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str) -> int:
    monkeypatch.setattr(record, "RESULTS", folder)
    monkeypatch.setattr(parts, "CACHE", folder / "cache")
    monkeypatch.setattr(parts, "ROOT", folder)
    monkeypatch.setattr(sys, "argv", ["bench", "hosts", *options])
    return run_parts("hosts", {"first": f"{__name__}:told", "second": f"{__name__}:told"}, None)


def test_part_alone_is_written_and_what_is_wrong_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, tmp_path, "--part", "second") == 1
    document = json.loads((tmp_path / "hosts.json").read_text())
    assert document["command"] == "make bench-hosts ARGS='--part second'"
    assert document["figures"][0]["value"] == 10
    assert document["tables"] == {"rows": [1]}
    assert document["device"].endswith("; alone")


@pytest.mark.parametrize("option", [("--scale", "0.1"), ("--try",)])
def test_trial_writes_no_result(
    option: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, tmp_path, *option) == 1
    assert not (tmp_path / "hosts.json").exists()
    assert "writes False" in capsys.readouterr().out


def test_part_that_was_kept_is_not_measured_again_but_at_another_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, tmp_path, "--part", "first")
    run(monkeypatch, tmp_path, "--part", "first")
    assert "counted: kept from an earlier run" in capsys.readouterr().out
    run(monkeypatch, tmp_path, "--part", "first", "--scale", "0.1")
    shown = capsys.readouterr().out
    assert "kept from an earlier run" not in shown
    assert re.search(r"hosts +1\.000", shown)


def test_every_bench_is_a_function_that_is_there_and_every_target_names_one() -> None:
    for place in (place for of in BENCHES.values() for place in of.values()):
        module, _, function = place.partition(":")
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert (function or "measure") in named, place
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"-m bench ([a-z-]+)", makefile)) == set(BENCHES)
