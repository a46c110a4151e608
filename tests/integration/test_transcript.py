"""The transcript: sound as kept, and any altered link is named."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aggregator.state.state_file import StateUnusable
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from pointillist.cli.output import CommandError
from pointillist.cli.root import command
from tests.transcript_kit import WORLD, alter, flip, sign_and_export


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path]:
    files = sign_and_export(tmp_path)
    return files.leader, files.helper


def problems(leader: Path, helper: Path) -> list[str]:
    both = read_transcript(leader), read_transcript(helper)
    return verify_transcripts(both[0], both[1], WORLD.parties).problems


def test_kept_transcripts_agree(exported: tuple[Path, Path]) -> None:
    assert problems(*exported) == []


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda links: links.pop(1), "chain is broken"),
        (lambda links: links.pop(), "no such release, nor a later one"),
        (lambda links: links[1].update(release=flip(links[1]["release"], 300)), "signature"),
        (lambda links: links[1].update(batch_hash="00" * 32), "another batch"),
        (lambda links: links[0].update(reports="00" * 32), "different reports"),
    ],
)
def test_altered_transcript_is_named(
    change: Callable[[list[Any]], object], told: str, side: int, exported: tuple[Path, Path]
) -> None:
    alter(exported[side], change)
    assert any(told in problem for problem in problems(*exported))


def test_release_that_is_gone_from_the_middle_is_not_laid_to_an_older_export(
    exported: tuple[Path, Path],
) -> None:
    alter(exported[1], lambda links: links.pop(1))
    assert not any("nor a later one" in problem for problem in problems(*exported))


def test_other_files_are_no_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(StateUnusable, match="transcript"):
        read_transcript(path)


@pytest.mark.parametrize(
    ("party", "change"),
    [
        ("helper", f"UPDATE answers SET rejections = '{'[' * 100_000}'"),
        ("helper", "UPDATE answers SET rejections = '5'"),
        ("leader", "UPDATE windows SET series = x'00'"),
        ("leader", "UPDATE windows SET \"window\" = 'soon'"),
        ("helper", "UPDATE chain SET cohort = x'01'; UPDATE answers SET cohort = x'01'"),
    ],
    ids=["nested", "no object", "series", "window", "cohort"],
)
def test_state_whose_values_are_of_another_kind_is_refused(
    party: str, change: str, tmp_path: Path
) -> None:
    sign_and_export(tmp_path, windows=1)
    path = tmp_path / f"{party}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    with pytest.raises(StateUnusable, match="expected a party's state, got"):
        read_transcript(path)


def test_party_that_says_it_is_the_other_is_refused(exported: tuple[Path, Path]) -> None:
    """Its link of a report would stand for the other party's, which may lack it."""
    leader, helper = exported
    document = json.loads(helper.read_text(encoding="utf-8"))
    helper.write_text(json.dumps(document | {"party": "leader"}), encoding="utf-8")
    keys = "--leader", WORLD.parties.leader_pk.hex(), "--helper", WORLD.parties.helper_pk.hex()
    for second in (helper, leader):
        with pytest.raises(CommandError, match=r"transcript of the Helper, .* of: 'leader'"):
            command()(
                ["leader", "transcript", "verify", str(leader), str(second), *keys],
                standalone_mode=False,
            )


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n)"
NAMES = "task_id, series, cohort, window, state, batch, share, reason, entry"
LONG = "hex(zeroblob(9999))"
COLUMNS = "x'00' AS task_id, 'minute' AS series, 0 AS cohort, i AS window, x'00' AS entry"


@pytest.mark.parametrize(
    "schema",
    [
        f"CREATE VIEW windows AS {ENDLESS} SELECT {COLUMNS}, 'released' AS state FROM n",
        f"CREATE TABLE chain (entry); CREATE VIEW answers AS {ENDLESS} SELECT {COLUMNS} FROM n",
        f"CREATE TABLE windows ({NAMES} GENERATED ALWAYS AS (replace({LONG}, '0', {LONG})))",
    ],
    ids=["windows", "answers", "column"],
)
def test_state_of_a_stranger_that_works_its_rows_out_is_refused(
    schema: str, tmp_path: Path
) -> None:
    """A file of one page would keep its reader busy for ever."""
    path = tmp_path / "leader.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema)
    with pytest.raises(StateUnusable, match="expected the state of a Leader or Helper"):
        read_transcript(path)


PAGE_BYTES = 4096
CELLS = 300


def pages_that_name_one(path: Path, levels: int) -> None:
    """Make a table's tree of pages whose every cell names the same page below: 300^levels rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA page_size = {PAGE_BYTES}; CREATE TABLE windows ({NAMES}); "
            "CREATE TABLE room (x); INSERT INTO windows (state) VALUES ('')"
        )
        connection.executemany("INSERT INTO room VALUES (zeroblob(4000))", [()] * 2 * levels)
        connection.commit()
        root = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'windows'"
        ).fetchone()[0]
    content = path.read_bytes()
    pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
    below, pages[-1] = len(pages), pages[root - 1]
    for place in [*range(len(pages) - 1, len(pages) - levels, -1), root]:
        cells = struct.pack(">IB", below, 1) * CELLS
        starts = range(PAGE_BYTES - len(cells), PAGE_BYTES, 5)
        head = struct.pack(">BHHHBI", 5, 0, CELLS, starts[0], 0, below)
        head += struct.pack(f">{CELLS}H", *starts)
        pages[place - 1] = head.ljust(PAGE_BYTES - len(cells), b"\0") + cells
        below = place
    path.write_bytes(b"".join(pages))


def test_state_of_a_stranger_whose_pages_never_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages_that_name_one(tmp_path / "leader.sqlite", 2)
    assert read_transcript(tmp_path / "leader.sqlite").links == ()
    (tmp_path / "leader.sqlite").unlink()
    pages_that_name_one(tmp_path / "leader.sqlite", 8)
    monkeypatch.setattr("aggregator.transcripts.transcript.MOST_STEPS", 3_000_000)
    with pytest.raises(StateUnusable, match="interrupted"):
        read_transcript(tmp_path / "leader.sqlite")
