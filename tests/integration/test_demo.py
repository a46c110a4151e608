"""The demo as a person starts it: real processes, real releases, nothing left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from aggregator.releases import read_releases

LONGEST_S = 150


def demo_command(output: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pointillist", "demo", "--output", str(output), *options]


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err[-3000:]
    return dict(json.loads(out))


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    command = demo_command(output, *options, "--json")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def seeded_runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same seed twice, at the same time."""
    sizes = ("--hosts", "40", "--windows", "1", "--processes", "1")
    options = (*sizes, "--seed", "7", "--opendp-hosts", "0", "--no-live")
    playing = [start(tmp_path_factory.mktemp("seeded"), *options) for _ in range(2)]
    return [finish(process) for process in playing]


@pytest.mark.timeout(2 * LONGEST_S)
def test_demo_releases_with_this_host_in_both_transcripts(tmp_path: Path) -> None:
    summary = finish(start(tmp_path, "--hosts", "120", "--windows", "2", "--opendp-hosts", "4"))
    assert summary["windows_released"] == 2
    assert summary["transcripts_agree"]
    sent = summary["live_reports_sent"]
    assert sent == 2 + 3  # two windows of the mix, and one of each event section
    assert summary["live_reports_in_leader_transcript"] == sent
    assert summary["live_reports_in_helper_transcript"] == sent
    assert summary["epsilon_spent"] == pytest.approx(2.0, abs=1e-3)
    # Binomial, 400 cells at 95 %: below 90 % once in a million runs.
    assert summary["cells_checked"] > 300
    assert summary["interval_coverage_percent"] > 90
    frame = read_releases(Path(summary["files"]["releases"]))
    assert set(frame["domain"]) == {"demo"}
    for path in summary["files"].values():
        assert Path(path).exists()


@pytest.mark.timeout(2 * LONGEST_S)
def test_demo_repeats_to_the_last_digit_with_a_seed(seeded_runs: list[dict[str, Any]]) -> None:
    def released(summary: dict[str, Any]) -> list[tuple[Any, ...]]:
        frame = read_releases(Path(summary["files"]["releases"]))
        first = frame.groupby("series")["window_start"].transform("min")
        frame["window"] = (frame["window_start"] - first).dt.total_seconds()
        columns = ["series", "window", "section", "cell", "value", "n_hosts"]
        return sorted(frame[columns].itertuples(index=False, name=None))

    one, other = (released(summary) for summary in seeded_runs)
    assert one == other
    assert len({value for *_, value, _ in one}) > 100  # noise, not zeros, was compared


@pytest.mark.timeout(2 * LONGEST_S)
@pytest.mark.parametrize("after_s", [1.0, 9.0])
def test_demo_interrupted_leaves_no_process_behind(tmp_path: Path, after_s: float) -> None:
    process = subprocess.Popen(
        demo_command(tmp_path, "--hosts", "40", "--windows", "50"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(after_s)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    if after_s > 5:
        assert children  # it was interrupted while its processes ran


def test_demo_refuses_a_junk_trace_before_anything_starts(tmp_path: Path) -> None:
    junk = tmp_path / "junk.json"
    junk.write_text("no trace at all")
    command = demo_command(tmp_path / "runs", "--trace", str(junk))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "junk.json" in done.stderr
    assert "at byte" in done.stderr
    assert not list((tmp_path).glob("runs/*"))
