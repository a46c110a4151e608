"""Root gives files to roles, and no link of a role's user leads it elsewhere."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.party.channel import prepare_socket_folder
from pointillist.cli.keys_command import app
from pointillist.fleet.party_files import make_folder
from transport.files.private_files import give, set_folder
from transport.process.privileges import HELPER_USER, ensure_users

FOLDER_MAKERS: list[Callable[[Path], object]] = [
    lambda path: set_folder(path, 0o700),
    lambda path: make_folder(path, 0o700, HELPER_USER),
    lambda path: prepare_socket_folder(path / "helper.sock", None, None),
]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """Somebody else's folder, to which `link` leads; it must stay as it is."""
    folder = tmp_path / "target"
    folder.mkdir()
    folder.chmod(0o751)
    (tmp_path / "link").symlink_to(folder)
    before = folder.stat()
    yield folder
    after = folder.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid, before.st_gid, before.st_mode,
    )  # fmt: skip


@pytest.mark.parametrize("make", FOLDER_MAKERS)
def test_folder_that_is_a_link_is_refused(target: Path, make: Callable[[Path], object]) -> None:
    with pytest.raises(NotADirectoryError):
        make(target.with_name("link"))


@pytest.mark.root
def test_link_itself_is_given_and_not_what_it_leads_to(target: Path) -> None:
    ensure_users()
    link = target.with_name("link")
    give(link, HELPER_USER)
    assert link.lstat().st_uid == pwd.getpwnam(HELPER_USER).pw_uid


@pytest.mark.root
def test_rotated_key_is_the_roles_own_before_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role's user may put a link in place of any name in its folder, at any time."""
    runner, user = CliRunner(), pwd.getpwnam(HELPER_USER).pw_uid
    folder = tmp_path / "helper"
    assert runner.invoke(app, ["generate", "helper", "--folder", str(tmp_path)]).exit_code == 0
    other = tmp_path / "other"
    other.touch()
    link_to = Path.hardlink_to

    def swapped(path: Path, partial: Path) -> None:
        link_to(path, partial)
        assert path.stat().st_uid == user
        path.unlink()
        path.symlink_to(other)

    monkeypatch.setattr(Path, "hardlink_to", swapped)
    assert runner.invoke(app, ["rotate", "helper", "--folder", str(tmp_path)]).exit_code == 0
    assert other.stat().st_uid == os.geteuid()
    assert [path.is_symlink() for path in folder.glob("*.hpke")] == [True]


@pytest.mark.root
def test_announcement_is_not_written_through_a_link(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["generate", "helper", "--folder", str(tmp_path)]).exit_code == 0
    other = tmp_path / "other"
    other.write_bytes(b"not theirs")
    placed = tmp_path / "helper" / "2026-03-01.announcement"
    placed.symlink_to(other)
    words = ["announce", "helper", "--folder", str(tmp_path), "--day", "2026-03-01"]
    assert runner.invoke(app, words).exit_code == 0
    assert other.read_bytes() == b"not theirs"
    assert stat.S_ISREG(placed.lstat().st_mode)
