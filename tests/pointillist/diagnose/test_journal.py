"""The journal of diagnoses: whole lines, bounded, followed while it grows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge_agent.journal import LEAST_BYTES, Journal, follow_lines, older, read_lines


def test_journal_keeps_lines_in_order_and_below_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    journal = Journal(path, LEAST_BYTES)
    lines = [f"{number:05d}-{'x' * 200}".encode() for number in range(2_000)]
    for line in lines:
        journal.append(line)
    journal.close()
    kept = list(read_lines(path))
    assert kept == lines[-len(kept) :]
    assert LEAST_BYTES // 3 < path.stat().st_size + older(path).stat().st_size <= LEAST_BYTES
    assert path.stat().st_mode & 0o777 == 0o600


def test_journal_goes_on_after_a_line_that_a_crash_cut(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    path.write_bytes(b"first\nhalf a li")
    journal = Journal(path, LEAST_BYTES)
    journal.append(b"second")
    journal.close()
    assert list(read_lines(path)) == [b"first", b"half a li", b"second"]


def test_journal_refuses_what_is_not_one_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "diagnoses.jsonl", LEAST_BYTES)
    with pytest.raises(ValueError, match="one line"):
        journal.append(b"two\nlines")


def test_journal_reader_passes_over_an_endless_line(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    path.write_bytes(b"first\n" + b"x" * 300_000 + b"\nlast\n")
    assert list(read_lines(path)) == [b"first", b"last"]


def test_journal_is_followed_over_a_turn_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    journal = Journal(path, LEAST_BYTES)
    journal.append(b"before anyone looked")
    written = [f"{number:05d}-{'x' * 400}".encode() for number in range(300)]
    waiting = iter(written)

    def write_one() -> bool:
        line = next(waiting, None)
        if line is not None:
            journal.append(line)
        return line is not None

    assert list(follow_lines(path, write_one)) == written
    assert older(path).exists()


def test_journal_goes_on_once_a_failed_turn_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    journal = Journal(path, LEAST_BYTES)
    line = b"x" * (LEAST_BYTES // 2 - 10)
    journal.append(line)
    older(path).mkdir()  # nothing can take its place
    for _ in range(2):
        with pytest.raises(OSError, match="directory"):
            journal.append(line)
    older(path).rmdir()
    journal.append(b"again")
    journal.append(line)
    journal.close()
    assert list(read_lines(path)) == [line, b"again", line]


def test_journal_loses_one_line_alone_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "diagnoses.jsonl", LEAST_BYTES)
    write = os.write
    journal.append(b"first")
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", lambda file, line: write(file, line[:3]))
        with pytest.raises(OSError, match="No space"):
            journal.append(b"second")
    journal.append(b"third")
    journal.append(b"fourth")
    journal.close()
    assert list(read_lines(tmp_path / "diagnoses.jsonl")) == [b"first", b"sec", b"third", b"fourth"]


def test_journal_is_followed_while_its_files_are_turned(tmp_path: Path) -> None:
    path = tmp_path / "diagnoses.jsonl"
    path.write_bytes(b"before\n")
    looks = iter(["turn", "none", "write", "end"])

    def wait() -> bool:
        look = next(looks)
        if look == "turn":
            path.replace(older(path))
        elif look == "write":
            path.write_bytes(b"after\n")
        return look != "end"

    assert list(follow_lines(path, wait)) == [b"after"]
