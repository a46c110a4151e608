"""What both parties of a small fleet signed and exported, and a store of the same releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.releases.store import Store
from aggregator.transcripts.transcript import export_transcript, read_transcript
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, window
from tests.protocol_kit import SERIES, T0, WINDOW_S, Fleet, build_world, honest_reports, open_epochs
from web.signed_chains import TranscriptFiles

HOSTS = 9
WORLD = build_world(HOSTS)
WINDOWS = 3


@dataclass(frozen=True, slots=True)
class SignedFleet:
    files: TranscriptFiles
    store: Path


def sign_and_export(folder: Path, windows: int = WINDOWS) -> TranscriptFiles:
    fleet = Fleet(WORLD, folder)
    fleet.send_epochs(open_epochs(WORLD))
    for number in range(windows):
        start = T0 + number * WINDOW_S
        fleet.send(honest_reports(WORLD, window=start), start + WINDOW_S + 1)
        fleet.close_window(start)
    fleet.state.close()
    paths = folder / "leader.json", folder / "helper.json"
    for path in paths:
        export_transcript(read_transcript(path.with_suffix(".sqlite")), path)
    return TranscriptFiles(*paths, WORLD.parties)


def store_of(
    folder: Path, windows: int = WINDOWS, *, series: str = SERIES, hosts: int = HOSTS
) -> Path:
    """Write a store of windows as these parties release them; give the readers' folder."""
    task = replace(make_task(windows, domain="fleet", start=T0), series=series)
    vector = np.zeros(task.d, dtype=np.int64)
    vector[:2] = hosts
    with Store(folder / "leader.duckdb", folder / "releases", CATALOGUE) as store:
        for number in range(windows):
            store.write(window(task, vector, hosts, T0 + number * WINDOW_S))
    return folder / "releases"


def alter(path: Path, change: Callable[[list[Any]], object]) -> None:
    body = json.loads(path.read_text(encoding="utf-8"))
    change(body["links"])
    path.write_text(json.dumps(body), encoding="utf-8")


def flip(text: str, at: int) -> str:
    return text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
