"""Enrolment at size: tokens, answers and tasks of many hosts by one command each."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.enrolment import enrol_folder
from pointillist.cli.helper_command import app as helper_app
from pointillist.cli.operator_command import app as operator_app
from pointillist.cli.output import CommandError, ExitCode
from tests.enrolment_kit import LEADER, operator_key, plans_file, request
from tests.protocol_kit import T0, signing_key
from transport.files.keyfiles import write_signing_key
from transport.files.private_files import read_token
from wire import labels
from wire.envelope import Signed
from wire.fields import NO_SIGNATURE

HELPER = signing_key("helper")
HOSTS = 5


@pytest.fixture
def joins(tmp_path: Path) -> Path:
    """Answers that the Leader has signed and the Helper has not."""
    folder = tmp_path / "joins"
    folder.mkdir()
    for number in range(HOSTS):
        (folder / f"{number}.join").write_bytes(request(number).encode())
    made = enrol_folder(plans_file(tmp_path), folder, None, LEADER, now_s=T0)
    for path, answer in made.answers.items():
        path.write_bytes(answer)
    write_signing_key(tmp_path / "helper.key", HELPER)
    return folder


def countersign(folder: Path, *files: Path) -> tuple[int, dict[str, object], str]:
    keys = ["--key", str(folder / "helper.key"), "--leader", LEADER.public_bytes.hex(), "--json"]
    result = CliRunner().invoke(helper_app, ["countersign", *map(str, files), *keys])
    return result.exit_code, json.loads(result.stdout or "{}"), result.stderr


def signed_by_helper(file: Path) -> bool:
    signed = Signed.decode(file.read_bytes(), labels.ENTRY_ANSWER)
    return signed.sig_helper != NO_SIGNATURE


def test_every_answer_of_a_folder_is_countersigned_by_one_command(
    joins: Path, tmp_path: Path
) -> None:
    code, said, _ = countersign(tmp_path, joins)
    assert (code, said) == (0, {"signed": {"task": 0, "roster": 0, "entry": HOSTS}, "refused": []})
    assert all(signed_by_helper(file) for file in joins.glob("*.entry"))
    assert {file.stat().st_mode & 0o044 for file in joins.glob("*.entry")} == {0o044}
    assert countersign(tmp_path, joins)[1]["signed"] == {"task": 0, "roster": 0, "entry": 0}


def test_what_was_signed_can_be_read_by_the_roles_it_is_for(joins: Path, tmp_path: Path) -> None:
    """Root signs, and the Leader's user reads: files of 0600 stopped it from taking any up."""
    before = os.umask(0o022)
    try:
        countersign(tmp_path, joins)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in joins.glob("*.entry")} == {0o644}


def test_answer_that_is_refused_is_named_and_the_others_are_signed(
    joins: Path, tmp_path: Path
) -> None:
    forged = joins / "2.entry"
    genuine = Signed.decode(forged.read_bytes(), labels.ENTRY_ANSWER)
    other = signing_key("another leader").sign(genuine.unsigned())
    forged.write_bytes(Signed(genuine.label, genuine.body, other).encode())
    (joins / "damaged.entry").write_bytes(b"?")
    code, said, err = countersign(tmp_path, joins)
    assert (code, said["signed"]) == (ExitCode.REFUSED, {"task": 0, "roster": 0, "entry": 4})
    assert f"not signed: {forged}: roster_signature" in err
    assert f"not signed: {joins}/damaged.entry" in err
    assert not signed_by_helper(forged)


def test_one_target_for_several_files_is_refused_before_any_is_signed(
    joins: Path, tmp_path: Path
) -> None:
    keys = ["--key", str(tmp_path / "helper.key"), "--leader", LEADER.public_bytes.hex()]
    out = ["--out", str(tmp_path / "one")]
    result = CliRunner().invoke(helper_app, ["countersign", str(joins), *keys, *out])
    assert isinstance(result.exception, CommandError)
    assert not any(signed_by_helper(file) for file in joins.glob("*.entry"))


def vouch(folder: Path, names: str) -> tuple[CommandError | None, Path]:
    write_signing_key(folder / "acme.key", operator_key("acme"))
    (folder / "names.txt").write_text(names)
    options = ["--key", str(folder / "acme.key"), "--name", "acme", "--plan", "fleet"]
    options += ["--leader", LEADER.public_bytes.hex(), "--hosts", str(folder / "names.txt")]
    tokens = folder / "tokens"
    result = CliRunner().invoke(operator_app, ["vouch", *options, "--folder", str(tokens)])
    failed = result.exception if isinstance(result.exception, CommandError) else None
    return failed, tokens


def test_list_of_hosts_becomes_a_token_each(tmp_path: Path) -> None:
    failed, tokens = vouch(tmp_path, "gpu-001\ngpu-002.example\n")
    assert failed is None
    made = sorted(tokens.iterdir())
    assert [path.name for path in made] == ["gpu-001.token", "gpu-002.example.token"]
    assert len({read_token(path).voucher.voucher_id for path in made}) == 2
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}


@pytest.mark.parametrize("names", ["../etc/passwd", "-x", "a\na", "a" * 300, ""])
def test_list_that_names_no_host_makes_no_token(names: str, tmp_path: Path) -> None:
    failed, _ = vouch(tmp_path, names)
    assert failed is not None
    assert failed.code == ExitCode.USAGE
    assert not list(tmp_path.rglob("*.token"))
