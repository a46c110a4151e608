"""Folders that people and parties fill: what systems keep beside a file is not read as one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aggregator.enrolment.enrolment import read_requests
from aggregator.enrolment.tasks import SignedFolder
from analytics.spent_budget import tasks_in
from diagnosis.stragglers.trace import TraceRefused
from diagnosis.stragglers.trace_file import read_folder
from pointillist.fleet.party_card import FleetParty
from pointillist.fleet.party_setup import PartyFolder
from pointillist.judging.runs import RunRefused, run_paths
from simulator.engine.journals import JournalError, load_journals

APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(64)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What a copy to a foreign disk leaves beside each file, without the files."""
    for name in (
        "a.task", "a.roster", "a.entry", "a.join", "a.jsonl", "a.parquet", "r0.json", "r1.json.gz",
        "cards/acme.toml",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.with_name(f"._{path.name}").write_bytes(APPLE_DOUBLE)
    (tmp_path / "folder.task").mkdir()
    return tmp_path


def test_what_a_foreign_disk_keeps_beside_files_is_read_by_none_and_told_once(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    signed = SignedFolder(copied, entries=True)
    assert [list(signed.new_files()) for _ in range(2)] == [[], []]
    assert tasks_in(copied) == []
    assert read_requests(copied) == {}
    assert PartyFolder(copied).taken(FleetParty.OPERATOR) == []
    with pytest.raises(JournalError, match="got 0"):
        load_journals(copied)
    with pytest.raises(TraceRefused, match="got 0"):
        read_folder(copied)
    with pytest.raises(RunRefused, match="found none"):
        run_paths(copied)
    told = [record.getMessage() for record in caplog.records]
    for name in ("._a.task", "._a.join", "._a.jsonl", "._r1.json.gz", "._a.parquet", "folder.task"):
        assert sum(name in line for line in told) == 1
