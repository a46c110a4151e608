"""A folder of journals that cannot be lived through: the message names what is wrong with which."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.engine.journals import JournalError, load_journals


def test_folder_that_is_absent_a_file_or_empty_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"absent: expected a folder .* got nothing there"):
        load_journals(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"file: expected a folder .* got a file"):
        load_journals(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        JournalError, match=r"expected 1 to \d+ journals \(\*\.jsonl\) in it, got 0"
    ):
        load_journals(tmp_path / "empty")


def test_journal_without_a_whole_line_is_named_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{")
    with pytest.raises(JournalError, match=rf"{tmp_path}/a.jsonl: expected 1 to \d+ whole lines"):
        load_journals(tmp_path)
