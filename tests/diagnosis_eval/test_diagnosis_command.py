"""`pointillist diagnosis`: from a folder of recordings to a model, groups, and a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diagnosis.detect.model_file import dump_model, load_model
from diagnosis.frames.recording import write_recording
from pointillist.cli.diagnosis import _KINDS, app
from pointillist.cli.diagnosis_text import taught_lines
from pointillist.cli.output import CommandError
from pointillist.teaching.learning import KINDS
from tests.diagnosis_runs_kit import made_up_run

pytestmark = pytest.mark.slow


def run(*words: object) -> Result:
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(scope="session")
def taught_model(folder_of_recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.json"
    words = ("train", folder_of_recordings, "--kind", "logistic", "--out", path, "--no-judge")
    told = json.loads(run(*words, "--json").stdout)
    assert told["held_out"] > 0
    assert told["left_out"] is None
    return path


def test_train_says_how_good_the_model_is_beside_the_hand_rules(
    folder_of_recordings: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model.json"
    said = run("train", folder_of_recordings, "--kind", "logistic", "--out", out).stdout
    assert f"{out}: model logistic " in said
    assert "runs by cause: cpu_contention 2, memory_pressure 2, disk_io 2" in said
    assert "runs held out: they taught nothing" in said
    assert "judged by 8 teaching runs, each by a model taught without it (6 faults" in said
    assert "this kind of model  macro-F1" in said
    assert "the hand rules      macro-F1" in said


def test_train_warns_where_hand_rules_do_better() -> None:
    judged = {
        "macro_f1": 0.41, "accuracy": 0.4, "rules_macro_f1": 0.83, "rules_accuracy": 0.9,
        "runs": 8, "faults": 8, "rules_are_better": True, "causes_of_one_run": ["disk_io"],
    }  # fmt: skip
    answer = {
        "model": "forest 1", "file": "m.json", "bytes": 1, "examples": 9, "runs": 8,
        "runs_by_cause": {"disk_io": 1}, "held_out": 1, "left_out": judged,
    }  # fmt: skip
    said = taught_lines(answer)
    assert "WARNING: the hand rules do as well or better on these runs." in said
    assert "one run alone teaches disk_io" in said
    nothing = judged | {"macro_f1": None}
    assert "nothing shows that this model is better" in taught_lines(answer | {"left_out": nothing})
    assert "WARNING" not in taught_lines(
        answer | {"left_out": judged | {"rules_are_better": False}}
    )


def test_kinds_of_the_command_are_those_that_can_be_learned() -> None:
    assert set(_KINDS) == set(KINDS)


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
    document = json.loads(taught_model.read_text(encoding="utf-8"))
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
    for row in found:
        assert all(one["recording"] and one["at_s"] > 0 for one in row["members"])
        assert all(abs(one["spreads"]) >= 4 and one["words"] for one in row["signals"])
    said = run("name", file, found[0]["group"], "stopped by hand").stdout
    assert "agents tell it with their `unknown`" in said
    out = tmp_path / "again.json"
    words = ("train", folder_of_recordings, "--kind", "logistic", "--groups", file, "--no-judge")
    run(*words, "--out", out)
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
        (("evaluate", "{}", "--model", "{}/text.txt"), "text.txt: expected JSON"),
        (("name", "{}/text.txt", "group-1", "x"), "/text.txt: expected a file of groups"),
        (("name", "{}/absent.json", "group-1", "x"), "a file of groups"),
    ],
)
def test_wrong_input_is_named(words: tuple[str, ...], named: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("no JSON")
    with pytest.raises(CommandError, match=named):
        run(*(word.format(tmp_path) for word in words))
