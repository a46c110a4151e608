"""Where runs keep their results: on a disk that is read-only or full, and two in one second."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pointillist.cli.output import CommandError, ExitCode
from pointillist.cli.simulate import keep, new_run_folder
from pointillist.play.demo_fleet import RunFolders
from tests.closed_kit import REPOSITORY, may_mount, mounted

pytestmark = pytest.mark.slow

MOUNTABLE = pytest.mark.skipif(not may_mount(), reason="needs root that may mount")
EXPERIMENT = REPOSITORY / "docs" / "experiments" / "report.toml"

_KEEP = """
import sys
from pathlib import Path
from pointillist.play.demo_fleet import RunFolders
from pointillist.cli.simulate import keep

def write(folder):
    (folder / "small").write_bytes(b"x" * 1000)
    (folder / "large").write_bytes(b"x" * 300_000)
    return folder

folder = Path(sys.argv[1], "run")
folder.mkdir()
written, problem = keep(write, folder)
print(problem)
names = sorted(path.name for path in written.iterdir()) if written else None
print(names, folder.exists())
"""


def kept_on(folder: Path, temporary: Path) -> str:
    """What becomes of results on a disk of 64 KiB; `temporary` may be on it as well."""
    mounts = [
        f"mkdir {folder}; mount -t tmpfs -o size=64k tmpfs {folder}",
        f"export TMPDIR={temporary}",
    ]
    command = mounted(mounts, [sys.executable, "-c", _KEEP, folder])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.root
@MOUNTABLE
def test_results_that_a_full_disk_does_not_take_are_kept_elsewhere(tmp_path: Path) -> None:
    said, found = kept_on(tmp_path / "full", tmp_path).splitlines()
    where = re.fullmatch(
        rf"{tmp_path}/full/run: No space left on device; the files are in (\S+) instead", said
    )
    assert where is not None, said
    assert {path.name for path in Path(where[1]).iterdir()} == {"small", "large"}
    assert found == "['large', 'small'] False"


@pytest.mark.root
@MOUNTABLE
def test_results_that_no_disk_takes_are_said_to_be_lost_as_files(tmp_path: Path) -> None:
    full = tmp_path / "full"
    said, found = kept_on(full, full).splitlines()
    no_room = "No space left on device"
    assert said == f"{full}/run: {no_room}, and {full}: {no_room}; no file was kept"
    assert found == "None False"


def test_results_are_kept_where_they_were_asked_for(tmp_path: Path) -> None:
    written, problem = keep(lambda folder: (folder / "file").write_text("whole"), tmp_path)
    assert (written, problem) == (5, None)
    assert (tmp_path / "file").read_text() == "whole"


@pytest.mark.root
@MOUNTABLE
@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--out", ["demo"]),
        ("--out", ["simulate", "steady"]),
        ("--out", ["experiment", str(EXPERIMENT)]),
    ],
    ids=["demo", "simulate", "experiment"],
)
def test_read_only_checkout_names_the_option_in_one_sentence(
    tmp_path: Path, option: str, command: list[str]
) -> None:
    mounts = [f"mount -t tmpfs -o ro tmpfs {tmp_path}", f"cd {tmp_path}"]
    done = subprocess.run(
        mounted(mounts, [sys.executable, "-m", "pointillist", *command]),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == ExitCode.USAGE
    expected = f"pointillist: {option}: expected a folder that results can be written to, got "
    assert done.stderr.startswith(expected)
    assert done.stderr.endswith(": Read-only file system\n")
    assert done.stderr.count("\n") == 1


def test_demo_folders_of_several_roles_are_open_whatever_the_umask() -> None:
    before = os.umask(0o077)
    try:
        folders = RunFolders.make(embedded=False)
    finally:
        os.umask(before)
    shared = (folders.releases, folders.truth, folders.signed, folders.logs)
    modes = [folder.stat().st_mode & 0o777 for folder in (folders.helper, *shared)]
    folders.remove()
    assert modes == [0o700, 0o755, 0o755, 0o755, 0o755]


def test_runs_of_one_second_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _format: "20260101-000000")
    names = [new_run_folder(tmp_path / "runs", "demo", "--out").name for _ in range(3)]
    assert names == [f"demo-20260101-000000{more}" for more in ("", "-2", "-3")]


def test_run_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(CommandError, match="--out: expected a folder") as refusal:
        new_run_folder(tmp_path / "runs", "demo", "--out")
    assert refusal.value.code == ExitCode.USAGE
