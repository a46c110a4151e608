"""The transcript: sound as kept, and any altered link is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aggregator.state_file import StateUnusable
from aggregator.transcript import export_transcript, read_transcript, verify_transcripts
from tests.protocol_kit import T0, WINDOW_S, Fleet, build_world, honest_reports, open_epochs

WORLD = build_world(9)


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Path]:
    fleet = Fleet(WORLD, tmp_path)
    fleet.send_epochs(open_epochs(WORLD))
    for number in range(3):
        window = T0 + number * WINDOW_S
        fleet.send(honest_reports(WORLD, window=window), window + WINDOW_S + 1)
        fleet.close_window(window)
    fleet.state.close()
    paths = (tmp_path / "leader.json", tmp_path / "helper.json")
    for path in paths:
        export_transcript(read_transcript(path.with_suffix(".sqlite")), path)
    return paths


def problems(leader: Path, helper: Path) -> list[str]:
    both = read_transcript(leader), read_transcript(helper)
    return verify_transcripts(both[0], both[1], WORLD.parties).problems


def alter(path: Path, change: Callable[[list[Any]], object]) -> None:
    body = json.loads(path.read_text())
    change(body["links"])
    path.write_text(json.dumps(body))


def flip(text: str, at: int) -> str:
    return text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]


def test_kept_transcripts_agree(exported: tuple[Path, Path]) -> None:
    assert problems(*exported) == []


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda links: links.pop(1), "chain is broken"),
        (lambda links: links.pop(), "no such release"),
        (lambda links: links[1].update(release=flip(links[1]["release"], 300)), "signature"),
        (lambda links: links[1].update(batch_hash="00" * 32), "another batch"),
        (lambda links: links[0]["report_ids"].pop(), "different reports"),
    ],
)
def test_altered_transcript_is_named(
    change: Callable[[list[Any]], object], told: str, side: int, exported: tuple[Path, Path]
) -> None:
    alter(exported[side], change)
    assert any(told in problem for problem in problems(*exported))


def test_other_files_are_no_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(StateUnusable, match="transcript"):
        read_transcript(path)
