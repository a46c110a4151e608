"""`pointillist diagnosis`: from a folder of recordings to figures and to groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diagnosis.frames.recording import write_recording
from pointillist.cli.diagnosis import app
from pointillist.cli.output import CommandError
from pointillist.judging.groups import load_groups
from tests.diagnosis_runs_kit import made_up_run

pytestmark = pytest.mark.slow


def run(*words: object) -> Result:
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def test_evaluate_judges_the_hand_rules_by_held_out_runs(folder_of_recordings: Path) -> None:
    told = json.loads(run("evaluate", folder_of_recordings, "--json").stdout)
    assert told["tables"]["shipped"] == "hand rules"
    figures = {figure["name"]: figure["value"] for figure in told["figures"]}
    assert figures["accuracy_heldout"] >= 0.8
    held_out = told["tables"]["split"]["held_out"]
    assert figures["heldout_faults"] == sum(not name.startswith("calm") for name in held_out)
    said = run("evaluate", folder_of_recordings).stdout
    assert f"macro_f1_heldout {figures['macro_f1_heldout']:g} F1" in " ".join(said.split())
    assert "gpu_fault_f1 absent: no GPU fault is recorded" in " ".join(said.split())


def test_groups_are_found_and_keep_the_name_that_a_person_gave(
    folder_of_recordings: Path, tmp_path: Path
) -> None:
    file = tmp_path / "groups.json"
    words = ("groups", folder_of_recordings, "--out", file)
    found = json.loads(run(*words, "--json").stdout)
    assert sum(row["spikes"] for row in found) >= 2
    for row in found:
        assert all(one["recording"] and one["at_s"] > 0 for one in row["members"])
        assert all(abs(one["spreads"]) >= 4 and one["words"] for one in row["signals"])
    said = run("name", file, found[0]["group"], "stopped by hand").stdout
    assert f"{found[0]['group']} is now 'stopped by hand'" in said
    assert "found again, it keeps the name" in said
    run(*words)
    assert "stopped by hand" in {group.name for group in load_groups(file)}


def test_groups_take_recordings_without_labels(tmp_path: Path) -> None:
    write_recording(tmp_path / "night.parquet", made_up_run("night", None).frames, {})
    found = run("groups", tmp_path, "--out", tmp_path / "groups.json")
    assert "No unknown spike" in found.stdout
    with pytest.raises(CommandError, match="expected recordings that name"):
        run("evaluate", tmp_path)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("evaluate", "{}"), "expected recordings"),
        (("groups", "{}", "--out", "{}/text.txt"), "expected recordings"),
        (("name", "{}/text.txt", "group-1", "x"), "/text.txt: expected a file of groups"),
        (("name", "{}/absent.json", "group-1", "x"), "a file of groups"),
    ],
)
def test_wrong_input_is_named(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("no JSON")
    with pytest.raises(CommandError, match=named):
        run(*(word.format(tmp_path) for word in words))
