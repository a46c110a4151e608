"""A store is what a Leader wrote: what else lies in it changes no number, and is told once."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import time
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.releases import packs
from aggregator.releases.compaction import Compaction
from aggregator.releases.releases import query
from aggregator.releases.store import Store
from aggregator.releases.window_files import NoStore, WindowTwice
from aggregator.state.state_file import StorageUnavailable
from analytics import connect
from analytics.rollup_files import SettledHours
from pointillist.cli import query as query_command
from tests.aggregator.releases.pack_kit import noisy, suppressed
from tests.aggregator.releases.release_kit import CATALOGUE
from transport.files.own_names import passed_over

DAY_S = 86_400
SINGLES = "series=minutes/date=1970-01-09"
PACK = "packed/series=minutes/period=1970-W01/generation=000002"
COUNTS = """
SELECT (SELECT count(*) FROM released) AS released, (SELECT count(*) FROM windows) AS windows,
    (SELECT count(*) FROM causes) AS causes
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days in a pack, and one of single files."""
    root = tmp_path_factory.mktemp("pristine")
    with Store(root / "store.duckdb", root / "releases", CATALOGUE) as store:
        for seed, start in enumerate((0, DAY_S, 8 * DAY_S, 8 * DAY_S + 60)):
            store.write(noisy(seed, start))
            store.suppress(suppressed(start + 600))
    Compaction(root / "releases").run(date(1970, 1, 9))
    return root / "releases"


OTHER_NAMES = (
    "._{name}", ".DS_Store", "Thumbs.db", "desktop.ini", "{name}~", ".{name}.swp", "#{name}#",
    ".nfs00000000deadbeef00000001", "{stem} (1).parquet", "{name}.bak", "{name}.part",
    "{stem} - Copy.parquet", "{stem}.sync-conflict-20261127-120000-ABCDEFG.parquet",
    "{stem} (conflicted copy 2026-11-27).parquet", "19700109T000000Z-c0.PARQUET", "copy.parquet",
    "19700109T000000Z-c00.parquet", "19700109T000000Z-c0-v1.parquet", "\udcff.parquet",
    "19700109T006000Z-c0.parquet", "19700109T000000Z-c-1.parquet",
)  # fmt: skip


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "releases"))


def counted(folder: Path) -> tuple[object, ...]:
    """Count by every reader: rows, and windows by hour for roll-ups."""
    (rows,) = query(COUNTS, folder).itertuples(index=False, name=None)
    return *map(int, rows), dict(SettledHours.of(folder).counts)


def litter(folder: Path) -> list[Path]:
    """Leave what tools, systems and people leave, at each level of a folder; give where."""
    single = next((folder / SINGLES).iterdir())
    name, made = single.name, []

    def put(path: Path, content: bytes = b"no Parquet") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        made.append(path)

    for other in OTHER_NAMES:
        put(folder / SINGLES / other.format(name=name, stem=single.stem), single.read_bytes())
    put(folder / SINGLES / "19700111T000000Z-c0.parquet")  # of another day
    for level in ("", "series=minutes", "packed", "packed/series=minutes", "suppressed"):
        put(folder / level / "f\udcfcr.txt")  # bytes that are no text
    for kept in (
        "series=minutes/date=1970-01-09.bak", "series=minutes/date=1970-1-9", "Series=minutes",
        "series=minutes/date=19700109", "series=minutes (1)", "backup/series=minutes", "lost+found",
        "packed/series=minutes/period=1970-W01.old", "packed/series=minutes/period=1970-W54",
        "packed/series=minutes/period=1970-w01", f"{PACK}~", f"{PACK[:-6]}3", "suppressed.old",
    ):  # fmt: skip
        made.append(
            folder / kept.split("/series")[0] if kept.startswith("backup") else folder / kept
        )
        (folder / kept).mkdir(parents=True)
        shutil.copy2(single, folder / kept)
    odd = folder / SINGLES / "19700109T000100Z-c7.parquet"  # a folder with a file's name
    odd.mkdir()
    link = folder / SINGLES / "19700109T000100Z-c8.parquet"
    link.symlink_to("nowhere")
    circle = folder / SINGLES / "19700109T000100Z-c6.parquet"
    circle.symlink_to(circle)
    pipe = folder / SINGLES / "19700109T000100Z-c9.parquet"
    os.mkfifo(pipe)
    put(folder / "date=1970-01-09", b"")
    put(folder / "packed/series=minutes/period=1970-W03", b"")
    return [*made, odd, link, circle, pipe]


def test_litter_at_each_level_changes_no_number_and_is_told_once(
    folder: Path, pristine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = litter(folder)
    caplog.set_level(logging.WARNING)
    assert counted(folder) == counted(pristine)
    assert set(passed_over(folder)) == set(left)
    assert all(caplog.text.count(f" {name}") for name in (".DS_Store", "date=1970-01-09.bak"))
    caplog.clear()
    counted(folder)
    assert caplog.text == ""
    shown = CliRunner().invoke(query_command.store_app, ["show", str(folder), "--json"])
    (other,) = [row for row in json.loads(shown.stdout) if row["kind"] == "passed over"]
    assert other["files"] == len(left)
    Compaction(folder).run(date(1970, 1, 20))
    assert counted(folder) == counted(pristine)
    assert all(os.path.lexists(path) for path in left)


@pytest.mark.parametrize(
    ("right", "again"),
    [
        (f"{SINGLES}/19700109T000000Z-c0.parquet", f"{SINGLES}/19700109T000000Z-c1.parquet"),
        # Sorted before what it is a copy of.
        (f"{SINGLES}/19700109T000100Z-c0.parquet", f"{SINGLES}/19700109T000030Z-c0.parquet"),
        (
            f"{SINGLES}/19700109T000000Z-c0.parquet",
            "series=minutes/date=1970-01-08/19700109T000000Z-c0.parquet",
        ),
        (
            "suppressed/series=minutes/date=1970-01-09/19700109T001000Z-c0-v1.parquet",
            "suppressed/series=minutes/date=1970-01-09/19700109T001000Z-c0-v2.parquet",
        ),
        (SINGLES, SINGLES.replace("minutes", "minutes.bak")),
        (PACK, PACK.replace("1970-W01", "1969-W52")),
        (PACK, PACK.replace("minutes", "minutes.bak")),
    ],
    ids=[
        "another cohort", "another moment", "another day", "another version", "another series",
        "pack of another week", "pack of another series",
    ],
)  # fmt: skip
def test_two_files_of_one_window_are_refused_with_which_to_remove(
    folder: Path, right: str, again: str
) -> None:
    source, target = folder / right, folder / again
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = shutil.copytree if source.is_dir() else shutil.copy2
    copy(source, target)
    if (right, again) != (PACK, PACK.replace("minutes", "minutes.bak")):
        for path in source.iterdir() if source.is_dir() else [source]:
            path.chmod(0o640)  # changed after its copy, as in a store that was copied as a whole
    for asked in (
        partial(query, COUNTS, folder),
        partial(Compaction(folder).run, date(1970, 1, 20)),
    ):
        with pytest.raises(WindowTwice) as refused:
            asked()
        said = re.fullmatch(
            r"(.*): (.*) and (.*) hold one window twice: remove (.*)", str(refused.value)
        )
        assert said is not None
        assert source in {(kept := Path(said[1], said[2])), kept.parent}
        assert target in {(gone := Path(said[1], said[4])), gone.parent}
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    query(COUNTS, folder)


def test_a_leader_with_a_window_twice_packs_nothing_says_so_and_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path / "store.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.write(noisy(1, 0))
        single = tmp_path / "releases/series=minutes/date=1970-01-01/19700101T000000Z-c0.parquet"
        (single.parent / f".{single.name}.partial").mkdir()  # with a name of ours
        shutil.copy2(single, single.with_name("19700101T000100Z-c0.parquet"))
        with pytest.raises(StorageUnavailable, match="hold one window twice: remove 19700101T0001"):
            tidied(store, 8 * DAY_S)
        store.write(noisy(2, 8 * DAY_S))
        assert single.exists()
    with Store(tmp_path / "store.duckdb", tmp_path / "releases", CATALOGUE) as store:
        store.repair()


def tidied(store: Store, now_s: float) -> None:
    for _ in range(6_000):
        store.tidy(now_s)
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["missing", "a file", "empty", "a volume", "others", "polluted"])
def test_a_folder_that_is_no_store_is_an_error_and_a_new_store_is_none(
    kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    if kind == "a file":
        folder.write_text("no folder")
    elif kind != "missing":
        folder.mkdir()
    if kind == "a volume":
        (folder / "lost+found").mkdir()
    elif kind == "others":
        (folder / "notes.txt").write_text("nothing of a fleet\n")
        (folder / "series.parquet").touch()
    elif kind == "polluted":
        (folder / "rollups").mkdir()
        (folder / "rollups" / ".coarse").touch()
    runner = CliRunner()
    for app, words in (
        (query_command.app, ["SELECT 1", "--store"]),
        (query_command.app, ["--check", "--store"]),
        (query_command.store_app, ["show"]),
        (query_command.store_app, ["compact"]),
    ):
        said = str(runner.invoke(app, [*words, str(folder)]).exception)
        assert str(folder) in said
        if kind not in {"missing", "a file"}:
            found = "notes.txt, series.parquet" if kind == "others" else "nothing"
            assert "expected a Leader's folder of releases" in said
            assert f"found {found}" in said
    if kind in {"missing", "a file"}:
        return
    with pytest.raises(NoStore):
        connect(folder)
    packs.mark_new(folder)  # as a Leader does when it starts
    assert counted(folder) == (0, 0, 0, {})


def test_a_damaged_file_with_a_name_of_ours_is_named(folder: Path) -> None:
    damaged = folder / SINGLES / "19700109T000500Z-c0.parquet"
    for content in (b"", b"PAR1"):
        damaged.write_bytes(content)
        shown = CliRunner().invoke(
            query_command.app, ["SELECT count(*) FROM released", "--store", str(folder)]
        )
        assert damaged.name in str(shown.exception)
