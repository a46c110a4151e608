"""`pointillist keys`: makes usable keys, shows no secret, says which must not be used."""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pointillist.cli.keys_command import DAY_S, app
from pointillist.cli.output import CommandError, ExitCode
from pointillist.installation import default_folder, default_folders, samples
from privacy.signing import verify
from transport.files.keyfiles import KeyFileRefused
from wire.epoch import KeyAnnouncement


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def answer(*arguments: str) -> Any:
    result = keys(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> BaseException:
    result = keys(*arguments)
    assert result.exception is not None
    return result.exception


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for role in ("leader", "host"):
        assert keys("generate", role, "--folder", str(tmp_path)).exit_code == 0
    return tmp_path


def secrets_in(folder: Path) -> list[str]:
    texts = [path.read_text() for path in folder.rglob("*") if path.suffix in {".key", ".hpke"}]
    return [match for text in texts for match in re.findall(r"^seed (\w+)$", text, re.MULTILINE)]


def test_generated_keys_are_private_and_belong_to_their_role(folder: Path) -> None:
    users = {"leader": "pointillist-leader", "host": "pointillist-agent"}
    for role, user in users.items():
        status = (folder / role / "identity.key").stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        owner = pwd.getpwnam(user).pw_uid if os.geteuid() == 0 else os.geteuid()
        assert (status.st_uid, (folder / role).stat().st_uid) == (owner, owner)


def test_generate_never_replaces_a_key(folder: Path) -> None:
    before = (folder / "leader" / "identity.key").read_bytes()
    assert isinstance(refusal("generate", "leader", "--folder", str(folder)), KeyFileRefused)
    assert (folder / "leader" / "identity.key").read_bytes() == before


def test_generate_refuses_gpus_for_an_aggregator(tmp_path: Path) -> None:
    error = refusal("generate", "leader", "--gpu", "GPU-1", "--folder", str(tmp_path))
    assert isinstance(error, CommandError)
    assert error.code == ExitCode.USAGE


def test_show_gives_public_parts_and_no_secret(folder: Path) -> None:
    announced = keys("announce", "leader", "--folder", str(folder))
    text = keys("show", "--folder", str(folder)).output
    shown = answer("show", "--folder", str(folder))
    assert [row["kind"] for row in shown] == ["host", "hpke", "signing"]
    assert all(re.fullmatch(r"(\w{4}:){7}\w{4}", row["fingerprint"]) for row in shown)
    assert shown[0]["ledger_exists"] is False
    assert all(row["public_key"] in text for row in shown if row["kind"] != "hpke")
    secrets = secrets_in(folder)
    assert len(secrets) == 3
    for secret in secrets:
        assert secret not in announced.output + text + json.dumps(shown)


def test_announcement_is_signed_and_covers_its_day(folder: Path) -> None:
    arguments = ("announce", "leader", "--folder", str(folder), "--day", "2026-03-01")
    body = answer(*arguments)
    encoded = Path(body["announcement"]).read_bytes()
    announcement = KeyAnnouncement.decode(encoded)
    assert verify(announcement.party_pk, announcement.unsigned(), announcement.signature)
    assert announcement.not_before % DAY_S == 0
    assert announcement.not_after == announcement.not_before + DAY_S + 3900
    assert body["key_id"] == announcement.key_id.hex()
    answer(*arguments)
    assert Path(body["announcement"]).read_bytes() == encoded


def test_announce_refuses_a_day_that_is_none(folder: Path) -> None:
    error = refusal("announce", "leader", "--folder", str(folder), "--day", "yesterday")
    assert isinstance(error, CommandError)
    assert "expected YYYY-MM-DD" in str(error)


def test_roots_keys_lie_where_the_shipped_configurations_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for role in ("leader", "helper", "witness"):
        table = tomllib.loads(sample(f"{role}.toml"))[role]
        assert Path(table["key_dir"]) == default_folder(role) / role
    agent = tomllib.loads(sample("agent.toml"))["host"]
    assert Path(agent["key_file"]) == default_folder("host") / "host" / "identity.key"
    # No one backup takes the ledger and its fence, which lies beside the key.
    assert Path(agent["key_file"]).parts[1] != Path(agent["state_dir"]).parts[1]
    assert len(default_folders()) == 4


def sample(name: str) -> str:
    return next(one.path for one in samples() if one.name == name).read_text(encoding="utf-8")


def test_check_names_the_file_that_others_can_read(folder: Path) -> None:
    assert keys("check", "--folder", str(folder)).exit_code == 0
    loose = folder / "host" / "identity.key"
    loose.chmod(0o640)
    result = keys("check", "--folder", str(folder), "--json")
    assert isinstance(result.exception, CommandError)
    assert result.exception.code == ExitCode.REFUSED
    assert str(loose) in str(result.exception)
    rows = json.loads(result.stdout)
    assert ["error" in row for row in rows] == [True, False]


def test_show_of_a_named_file_fails_where_it_must_not_be_used(folder: Path) -> None:
    loose, good = (folder / role / "identity.key" for role in ("host", "leader"))
    loose.chmod(0o640)
    error = refusal("show", str(good), str(loose))
    assert isinstance(error, CommandError)
    assert error.code == ExitCode.REFUSED
    assert keys("show", "--folder", str(folder)).exit_code == 0


@pytest.mark.root
def test_check_refuses_a_key_that_belongs_to_another_role(folder: Path) -> None:
    path = folder / "leader" / "identity.key"
    os.chown(path, pwd.getpwnam("pointillist-agent").pw_uid, -1)
    error = refusal("check", str(path))
    assert isinstance(error, CommandError)
    assert error.code == ExitCode.REFUSED
