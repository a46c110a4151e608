"""The demo as a person starts it: real processes, real releases, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from aggregator.releases.release_files import utc
from aggregator.releases.releases import read_releases
from aggregator.transcripts.transcript import read_transcript
from tests import recording_slice
from tests.closed_kit import REPOSITORY, closed, may_mount
from tests.conftest import why_not
from tests.golden_kit import noted
from tests.terminal_kit import Terminal
from wire.batch import vector_hash

pytestmark = pytest.mark.release

LONGEST_S = 150
CTRL_C = b"\x03"
ROLES = 5
"""Processes of a demo that plays: Leader, Helper, hosts, and one each that outlives a kill."""
ATTEMPTS = 3
WINDOWS = 2
SEED = "8"
"""One by which the demo's network holds no report back: the record has every report."""
SERIES_WINDOWS = WINDOWS + 4
"""Windows of the mix, and one of each other series."""
COLUMNS, ROWS, END_LINES = 80, 24, 30
LAST_WORDS = "this host in a browser, until Ctrl-C"
"""What a demo on a terminal says last, and then waits."""


def in_folder(folder: Path, command: Sequence[str]) -> list[str]:
    """Give the command that runs another in a folder, where its results are then named shortly."""
    return ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]


def panels(shown: str) -> list[list[str]]:
    """Give the rows of each picture of the live panel, and of what stands below it.

    shown   everything that the demo wrote, without moves of the cursor
    Returns more rows than the terminal has for a picture that was cut
    """
    pictures = [drawn.partition("\n─")[0] for drawn in shown.split("╭")[1:]]
    too_many = [""] * (ROWS + 1)
    return [drawn.strip().split("\n") if "╯" in drawn else too_many for drawn in pictures]


def end_lines(shown: str) -> list[str]:
    """Give the rows of the terminal that the end takes, from its heading on."""
    heading, *rest = shown.rpartition("╯")[2].partition("\n─")[2].strip().split("\n")
    lines = [f"─{heading}", *rest]
    return [row for line in lines for row in re.findall(f".{{1,{COLUMNS}}}", line) or [""]]


def demo_command(output: Path, *options: str, module: str = "pointillist") -> list[str]:
    return [sys.executable, "-m", module, "demo", "--out", str(output), *options]


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err[-3000:]
    return dict(json.loads(noted(["demo"], out)))


def finish_on_full_disk(process: subprocess.Popen[str], output: Path) -> dict[str, Any]:
    """As `finish`: the results are shown, and the files are elsewhere."""
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 4, err[-3000:]
    assert f"No space left on device; the files are in {tempfile.gettempdir()}" in err
    summary = dict(json.loads(out))
    kept = Path(summary["files"]["summary"]).parent
    shutil.copytree(kept, output, dirs_exist_ok=True)
    shutil.rmtree(kept)
    summary["files"] = {what: str(output / Path(p).name) for what, p in summary["files"].items()}
    return summary


def start(
    output: Path,
    *options: str,
    module: str = "pointillist",
    record: Path | None = None,
    full_disk: bool = False,
) -> subprocess.Popen[str]:
    output.mkdir()
    disk = [f"mount -t tmpfs -o size=64k tmpfs {output}"] if full_disk else []
    # Where it is root, the most usual place to start it from is a folder that root alone may enter.
    command = closed(demo_command(output, *options, "--json", module=module), more=disk)
    environment = {**os.environ, recording_slice.FILE: str(record)} if record else None
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@dataclass(frozen=True)
class SeededRuns:
    """One seed twice, at the same time; the second wrote down what it encoded and drew.

    The first has a full disk for its files where this machine lets us mount one.
    The second goes through Kafka where this machine can run it.
    """

    embedded: dict[str, Any]
    recorded: dict[str, Any]
    record: list[dict[str, Any]]
    on_the_log: list[str]


@pytest.fixture(scope="session")
def seeded_runs(tmp_path_factory: pytest.TempPathFactory) -> SeededRuns:
    """Run until every window was released: on a loaded machine reports of a demo come too late."""
    for attempt in range(ATTEMPTS):
        runs = run_seeded(tmp_path_factory.mktemp("seeded"), at_once=attempt == 0)
        if runs.embedded["windows_released"] == WINDOWS and all_came(runs):
            break
    return runs


def all_came(runs: SeededRuns) -> bool:
    """Whether each window of the recorded run was released with every host that reported."""
    rows = read_releases(runs.recorded["files"]["releases"]).itertuples()
    came = {(row.series, row.window_start): (row.n_hosts, row.n_bound) for row in rows}
    sent = {(line["series"], utc(line["window"])): line["hosts"] for line in runs.record}
    return len(sent) == SERIES_WINDOWS and all(
        at in came and abs(came[at][0] - hosts) <= came[at][1] for at, hosts in sent.items()
    )


def run_seeded(folder: Path, at_once: bool) -> SeededRuns:
    record = folder / "record.jsonl"
    sizes = ("--hosts", "40", "--windows", str(WINDOWS), "--processes", "1")
    options = (*sizes, "--seed", SEED, "--opendp-hosts", "0", "--no-live")
    kafka = [] if why_not("kafka") else ["--kafka"]
    full, output = may_mount(), folder / "embedded"
    embedded = start(output, *options, full_disk=full)

    def finished() -> dict[str, Any]:
        return finish_on_full_disk(embedded, output) if full else finish(embedded)

    first = None if at_once else finished()
    recorded = start(
        folder / "recorded", *options, *kafka, module="tests.recorded_demo", record=record
    )
    summaries = first or finished(), finish(recorded)
    windows = [json.loads(line) for line in record.read_text().splitlines()]
    releases = Path(f"{record}.releases").read_text(encoding="utf-8").splitlines()
    return SeededRuns(*summaries, windows, releases)


@pytest.fixture
def on_terminal(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """A demo on a terminal of 80x24 to its end, ended by Ctrl-C: what it showed, its summary."""
    sizes = ("--hosts", "120", "--windows", "2", "--opendp-hosts", "4")
    command = closed(in_folder(tmp_path, demo_command(Path("runs"), *sizes)))
    with Terminal(COLUMNS, ROWS, command, errors=True, patience_s=LONGEST_S) as terminal:
        terminal.until(lambda text: LAST_WORDS in text, lambda: None)
        shown = terminal.text
        address = end_lines(shown)[-2].split()[0]
        for page in (b"causes", b"faults"):
            with urlopen(f"{address}{page.decode()}", timeout=LONGEST_S) as answer:
                said = answer.read()
            assert b"No window of " + page not in said
            assert b"hosts, as hosts told them" in said
        children = psutil.Process(terminal.child.pid).children(recursive=True)
        terminal.press(CTRL_C)
        assert terminal.ended() == (0, True)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
    with pytest.raises(URLError):
        urlopen(address, timeout=LONGEST_S)
    (written,) = tmp_path.glob("runs/*/summary.json")
    return shown, json.loads(written.read_text())


@pytest.mark.timeout(2 * LONGEST_S)
def test_demo_releases_with_this_host_in_both_transcripts(
    on_terminal: tuple[str, dict[str, Any]],
) -> None:
    shown, summary = on_terminal
    assert max(map(len, panels(shown))) <= ROWS
    addresses = [line.split()[0] for line in end_lines(shown)[-2:]]
    assert [row.split()[1] for row in panels(shown)[-1][1:3]] == addresses
    assert len(end_lines(shown)) <= END_LINES
    assert summary["windows_released"] == 2
    assert summary["transcripts_agree"]
    sent = summary["live_reports_sent"]
    assert sent == SERIES_WINDOWS
    assert summary["live_reports_in_leader_transcript"] == sent
    assert summary["live_reports_in_helper_transcript"] == sent
    assert summary["epsilon_spent"] == pytest.approx(2.0, abs=1e-3)
    # Binomial, 383 cells at 95 %: below 88 % once in ten million runs.
    assert summary["cells_checked"] > 300
    assert summary["interval_coverage_percent"] > 88
    frame = read_releases(Path(summary["files"]["releases"]))
    assert set(frame["domain"]) == {"demo"}
    for path in summary["files"].values():
        assert Path(path).exists()
    assert summary["files"]["releases"] in summary["try_next"]["the fleet's pages again"]


def released(summary: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Every released number, with windows counted from the first."""
    frame = read_releases(Path(summary["files"]["releases"]))
    frame["window"] = (frame["window_start"] - frame["window_start"].min()).dt.total_seconds()
    columns = ["series", "window", "section", "cell", "value", "standard_error", "n_hosts"]
    return sorted(frame[columns].itertuples(index=False, name=None))


def check_seeded_runs(runs: SeededRuns) -> None:
    assert released(runs.embedded) == released(runs.recorded)
    assert len({row[4] for row in released(runs.embedded)}) > 100  # noise, not zeros, was compared
    transcript = read_transcript(Path(runs.recorded["files"]["leader_transcript"]))
    signed = [link.release.encode().hex() for link in transcript.links]
    assert sorted(set(runs.on_the_log)) == sorted(signed)  # for readers: the transcript's bytes
    links = {(link.series, link.window): link for link in transcript.links}
    assert len(links) == len(runs.record) == SERIES_WINDOWS
    for line in runs.record:
        link = links[line["series"], line["window"]]
        true, noise = np.array(line["true"]), np.array(line["noise"])
        # The signed hash is that of the released vector, modulo 2^32: released - true = noise.
        assert link.release.release.vector_hash == vector_hash((true + noise) % 2**32)
        assert noise[2:].any()


@pytest.mark.xdist_group("kafka")  # where the next one takes the same runs
@pytest.mark.timeout(5 * LONGEST_S)
def test_demo_with_a_seed_repeats_and_releases_the_truth_and_its_noise(
    seeded_runs: SeededRuns,
) -> None:
    check_seeded_runs(seeded_runs)


@pytest.mark.release
@pytest.mark.kafka
@pytest.mark.timeout(5 * LONGEST_S)
def test_demo_with_a_seed_releases_through_kafka_what_it_does_through_the_embedded_log(
    seeded_runs: SeededRuns,
) -> None:
    assert (seeded_runs.embedded["log"], seeded_runs.recorded["log"]) == ("embedded", "kafka")
    check_seeded_runs(seeded_runs)


@pytest.mark.timeout(2 * LONGEST_S)
def test_ctrl_c_ends_a_demo_with_what_was_released_and_no_error_of_make(tmp_path: Path) -> None:
    options = f"ARGS=--out {tmp_path} --hosts 40 --windows 50"
    # What is installed is what runs this test: nothing is installed anew.
    make = ["make", "-C", str(REPOSITORY), "-o", ".venv/.installed", "demo", options]
    with Terminal(COLUMNS, ROWS, make, errors=True, patience_s=LONGEST_S) as terminal:
        released = re.compile(r"window [1-9]\d* of 50")
        terminal.until(lambda text: bool(released.search(text)), lambda: None)
        children = psutil.Process(terminal.child.pid).children(recursive=True)
        terminal.press(CTRL_C)
        assert terminal.ended() == (-signal.SIGINT, True)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert children
    assert alive == []
    assert " of 50 windows were released: you ended it" in terminal.text
    assert "Error" not in terminal.text


@pytest.mark.timeout(2 * LONGEST_S)
@pytest.mark.parametrize("plays", [False, True])
def test_demo_interrupted_leaves_no_process_behind(tmp_path: Path, plays: bool) -> None:
    command = demo_command(tmp_path, "--hosts", "40", "--windows", "50")
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command],  # which tests in the background would ignore
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(1.0)
    demo = psutil.Process(process.pid)
    while plays and len(demo.children()) < ROLES and process.poll() is None:
        time.sleep(0.1)
    children = demo.children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    # On a loaded machine a second may end while Python itself is starting: that dies by the signal.
    assert process.returncode in ({130} if plays else {130, -signal.SIGINT})
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def test_demo_refuses_a_junk_trace_before_anything_starts(tmp_path: Path) -> None:
    junk = tmp_path / "junk.json"
    junk.write_text("no trace at all")
    command = demo_command(tmp_path / "runs", "--trace", str(junk))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "junk.json" in done.stderr
    assert "at byte" in done.stderr
    assert not list((tmp_path).glob("runs/*"))
