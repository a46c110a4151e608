"""Exports are read piece by piece, each within its bounds."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aggregator.state.state_file import StateUnusable
from aggregator.transcripts import transcript_check
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import FORMAT, TranscriptRefused, export_parts
from wire.batch import Release, SignedRelease

HASH = bytes(32)


def link(window: int, **changes: Any) -> dict[str, Any]:
    release = SignedRelease(Release(HASH, HASH, HASH, HASH))
    return {
        "series": "minute", "cohort": 0, "window": window, "release": release.encode().hex(),
        "batch_hash": HASH.hex(), "share_hash": HASH.hex(),
        "reports": HASH.hex(), "asked": {"00" * 16: True},
    } | changes  # fmt: skip


def share(**changes: Any) -> dict[str, Any]:
    place = {"series": "minute", "cohort": 0, "window": 60, "reason": "", "share": ""}
    return place | {"batch_hash": HASH.hex(), "share_hash": HASH.hex()} | changes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leader.json"


def parts(path: Path, text: str, **bounds: int) -> Iterator[tuple[str, Any]]:
    path.write_text(text, encoding="utf-8")
    return export_parts(path, **bounds)


def test_piece_is_given_before_the_next_is_read(path: Path) -> None:
    good = json.dumps(link(60))
    # ijson reads 64 KiB at once: what follows is beyond them.
    found = parts(path, f'{{"links": [{good}, {" " * 200_000} no JSON')
    kind, first = next(found)
    assert (kind, first.window, first.report_ids) == ("links", 60, frozenset({bytes(16)}))
    with pytest.raises(TranscriptRefused, match="expected a transcript, got"):
        next(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"links": [' + "[" * 9 + "]" * 9 + "]}", "more than 4 deep"),
        (
            json.dumps({"links": [link(0, asked={f"{at:032x}": True for at in range(200)})]}),
            "more than 100 parts",
        ),
        ('{"party": "' + "x" * 300_000 + '"}', "a text of more than 100000 bytes"),
        ('{"party": "leader"}', "no format"),
        (f'{{"format": "{FORMAT}"}}', "no party"),
        ('{"format": "pointillist-transcript-9", "party": ""}', "'pointillist-transcript-9'"),
        ('["links"]', "no object"),
        (json.dumps({"links": [link(1, series="x" * 64)]}), "64 characters"),
        (json.dumps({"links": [link(-1)]}), "window"),
        (json.dumps({"links": [link(1, cohort=1.5)]}), "no whole number"),
        (json.dumps({"links": [link(1, release="00")]}), "length"),
        (json.dumps({"links": "leader"}), "transcript"),
        (json.dumps({"suppressed": [["minute", 0, 60]]}), "transcript"),
        (json.dumps({"unreleased": [share(series={"a": 1})]}), "where a text is expected"),
        (json.dumps({"unreleased": [share(window=-1e300)]}), "no whole number"),
    ],
)
def test_what_is_none_is_refused_with_what_came(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setattr(transcript_check, "MOST_PARTS", 100)
    with pytest.raises(TranscriptRefused, match="expected a transcript, got") as refused:
        list(parts(path, text, most_text=100_000))
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_names_that_no_export_has_take_no_room(path: Path) -> None:
    names = ", ".join(f'"{number:x}": 1' for number in range(30_000))
    found = parts(path, f'{{{names}, "format": "{FORMAT}", "party": "leader"}}')
    tracemalloc.start()
    try:
        assert list(found) == [("party", "leader")]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_longer_file_than_is_taken_is_not_read(path: Path) -> None:
    with pytest.raises(TranscriptRefused, match="expected at most 10 bytes, got 11"):
        next(parts(path, "{" + " " * 9 + "}", most_bytes=10))


def test_command_names_the_file_that_is_none(path: Path) -> None:
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(StateUnusable, match=r"leader\.json: expected a transcript, got: no format"):
        read_transcript(path)
