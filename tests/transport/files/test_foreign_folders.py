"""Folders that another company filled: links, pipes, files that are not what their names say."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.enrolment import enrol_folder
from aggregator.enrolment.tasks import SignedFolder, TaskPlan, build_task
from aggregator.state.state_file import write_all_durably, write_durably
from pointillist.cli.helper_command import app as helper_app
from pointillist.cli.output import ExitCode
from tests.enrolment_kit import LEADER, plans_file, request
from tests.protocol_kit import T0, signing_key
from transport.files.keyfiles import write_signing_key
from transport.files.private_files import UnfitFile, read_bounded
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Signed
from wire.fields import NO_SIGNATURE

HELPER = signing_key("helper")
_MAKERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link in a circle": lambda path: path.symlink_to(path),
    "sparse giant": lambda path: _sparse(path, 1 << 40),
}


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def joins(tmp_path: Path) -> Path:
    """A request and its answer, which the Leader has signed and the Helper has not."""
    folder = tmp_path / "joins"
    folder.mkdir()
    (folder / "good.join").write_bytes(request(0).encode())
    made = enrol_folder(plans_file(tmp_path), folder, None, LEADER, now_s=T0)
    write_all_durably(made.answers)
    (tmp_path / "1.roster").write_bytes(made.roster)
    write_signing_key(tmp_path / "helper.key", HELPER)
    return folder


def countersign(folder: Path) -> tuple[int, dict[str, object], str]:
    keys = ["--key", str(folder.parent / "helper.key"), "--leader", LEADER.public_bytes.hex()]
    result = CliRunner().invoke(helper_app, ["countersign", str(folder), *keys, "--json"])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def signed_by_helper(content: bytes) -> bool:
    return Signed.decode(content, labels.ENTRY_ANSWER).sig_helper != NO_SIGNATURE


@pytest.mark.parametrize("kind", _MAKERS)
def test_what_is_no_file_is_never_waited_for(kind: str, tmp_path: Path) -> None:
    _MAKERS[kind](tmp_path / "x")
    with pytest.raises(UnfitFile):
        read_bounded(tmp_path / "x", 1000)


@pytest.mark.parametrize("kind", _MAKERS)
def test_request_that_is_no_file_is_named_and_keeps_nobody_out(kind: str, tmp_path: Path) -> None:
    (tmp_path / "good.join").write_bytes(request(0).encode())
    _MAKERS[kind](tmp_path / "bad.join")
    made = enrol_folder(plans_file(tmp_path), tmp_path, None, LEADER, now_s=T0)
    assert [Path(found.source).name for found in made.refused] == ["bad.join"]
    assert [path.name for path in made.answers] == ["good.entry"]


@pytest.mark.parametrize("kind", _MAKERS)
def test_answer_that_is_no_file_is_named_and_the_others_are_signed(kind: str, joins: Path) -> None:
    _MAKERS[kind](joins / "bad.entry")
    code, said, err = countersign(joins)
    assert (code, said["signed"]) == (ExitCode.REFUSED, {"task": 0, "roster": 0, "entry": 1})
    assert f"not signed: {joins}/bad.entry" in err
    assert signed_by_helper((joins / "good.entry").read_bytes())


@pytest.mark.parametrize("kind", _MAKERS)
def test_party_passes_over_what_is_no_file_in_its_folder(kind: str, tmp_path: Path) -> None:
    (tmp_path / "good.task").write_bytes(b"content")
    _MAKERS[kind](tmp_path / "bad.task")
    assert [path.name for path, _ in SignedFolder(tmp_path).new_files()] == ["good.task"]


def test_roster_among_the_answers_is_not_signed(joins: Path) -> None:
    """A roster is asked for by its name: a person compares its counts with what they were told."""
    roster = (joins.parent / "1.roster").read_bytes()
    for name in ("sly.entry", "sly.task"):
        (joins / name).write_bytes(roster)
    code, said, err = countersign(joins)
    assert (code, said["signed"]) == (ExitCode.REFUSED, {"task": 0, "roster": 0, "entry": 1})
    assert err.count("as its name says") == 2
    assert (joins / "sly.entry").read_bytes() == roster


def test_task_among_the_answers_is_told(joins: Path) -> None:
    first = int(time.time()) // 60 * 60
    plan = TaskPlan(
        series="minute", window_s=60, first_window=first, last_window=first + 60 * 20_000,
        weights={"kernel_mix": 100_000}, gpus_per_host=8, n_max=500, n_min=400, t=50,
        leader_pk=LEADER.public_bytes, helper_pk=HELPER.public_bytes, expiry=first + 10**8,
    )  # fmt: skip
    body = build_task(Catalogue.load(), plan).encode_body()
    signature = LEADER.sign(Signed(labels.TASK, body).unsigned())
    (joins / "sly.task").write_bytes(Signed(labels.TASK, body, signature).encode())
    code, said, err = countersign(joins)
    assert said["refused"] == []
    assert (code, said["signed"]) == (0, {"task": 1, "roster": 0, "entry": 1})
    assert "sly.task: minute of fleet, epsilon 2, n_min 400, t 50" in err


def test_name_of_a_file_cannot_forge_a_line(joins: Path) -> None:
    (joins / "a\nsigned: b\x1b[2J.entry").write_bytes(b"?")
    _, _, err = countersign(joins)
    (line,) = (line for line in err.splitlines() if "signed: b" in line)
    assert line.startswith("not signed:")
    assert line.isprintable()


def test_file_that_is_written_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Whoever fills the folder could else have root write over any file of this machine."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    writers: dict[str, Callable[[Path], None]] = {
        "a.entry": lambda path: write_all_durably({path: b"theirs"}),
        "b.entry": lambda path: write_durably(path, b"theirs"),
    }
    for name, write in writers.items():
        (tmp_path / f"{name}.new").symlink_to(victim)
        (tmp_path / name).symlink_to(victim)
        write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"theirs"
        assert not (tmp_path / name).is_symlink()
    assert victim.read_text() == "mine"
