"""`pointillist diagnosis`: from a folder of recordings to a model, groups, and a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edge_agent.diagnosis.model_file import dump_model, load_model
from edge_agent.frames.recording import write_recording
from pointillist.cli.diagnosis import app
from pointillist.cli.output import CommandError
from tests.diagnosis_runs_kit import made_up_run


def run(*words: object) -> Result:
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(scope="session")
def taught_model(folder_of_recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.json"
    told = json.loads(
        run("train", folder_of_recordings, "--kind", "logistic", "--out", path, "--json").stdout
    )
    assert told["held_out"] > 0
    return path


def test_train_writes_a_model_that_an_agent_loads(taught_model: Path) -> None:
    model = load_model(taught_model)
    assert model is not None
    assert model.title.startswith("logistic ")


def test_evaluate_judges_the_given_model_beside_the_others(
    folder_of_recordings: Path, taught_model: Path, tmp_path: Path
) -> None:
    for path in folder_of_recordings.glob("*-stress-*.parquet"):
        (tmp_path / path.name).symlink_to(path)
    found = run("evaluate", tmp_path, "--model", taught_model, "--json")
    told = json.loads(found.stdout)
    names = [row["method"] for row in told["tables"]["methods"]]
    assert names[0] == "3-sigma"
    assert names[-1].startswith("shipped: logistic ")
    assert told["tables"]["shipped"] == names[-1]


def test_evaluate_refuses_a_model_that_its_judges_taught(
    folder_of_recordings: Path, taught_model: Path, tmp_path: Path
) -> None:
    for path in folder_of_recordings.glob("disk_io-stress-*.parquet"):
        (tmp_path / path.name).symlink_to(path)
    document = json.loads(taught_model.read_text())
    assert "disk_io-stress-middle" not in document["training"]["runs"]
    document["training"]["runs"].append("disk_io-stress-middle")
    model = tmp_path / "model.json"
    model.write_bytes(dump_model(document))
    with pytest.raises(CommandError, match="1 of the 1 that judge it, as disk_io-stress-middle"):
        run("evaluate", tmp_path, "--model", model, "--json")


def test_groups_are_found_named_and_taught(
    folder_of_recordings: Path, taught_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "groups.json"
    found = json.loads(
        run("groups", folder_of_recordings, "--out", file, "--model", taught_model, "--json").stdout
    )
    assert sum(row["spikes"] for row in found) >= 2
    run("name", file, found[0]["group"], "stopped by hand")
    out = tmp_path / "again.json"
    run("train", folder_of_recordings, "--kind", "logistic", "--groups", file, "--out", out)
    model = load_model(out)
    assert model is not None
    assert "stopped by hand" in {group.name for group in model.groups}
    assert not any(name.startswith("unnamed") for name in model.runs)
    run("name", file, "stopped by hand", "disk_io")
    run("train", folder_of_recordings, "--kind", "logistic", "--groups", file, "--out", out)
    model = load_model(out)
    assert model is not None
    assert any(name.startswith("unnamed") for name in model.runs), "held out, and taught by hand"


def test_groups_take_recordings_without_labels(tmp_path: Path) -> None:
    write_recording(tmp_path / "night.parquet", made_up_run("night", None).frames, {})
    found = run("groups", tmp_path, "--out", tmp_path / "groups.json")
    assert "No unknown spike" in found.stdout
    with pytest.raises(CommandError, match="expected recordings that name"):
        run("train", tmp_path, "--out", tmp_path / "model.json")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("train", "{}", "--out", "{}/m.json", "--kind", "oracle"), "--kind"),
        (("train", "{}", "--out", "{}/m.json", "--open-set", "x"), "--open-set"),
        (("train", "{}", "--out", "{}/m.json"), "recordings"),
        (("evaluate", "{}", "--model", "{}/absent.json"), "a model"),
        (("name", "{}/absent.json", "group-1", "x"), "a file of groups"),
    ],
)
def test_wrong_input_is_named(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=named):
        run(*(word.format(tmp_path) for word in words))
