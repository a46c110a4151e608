"""`agent diagnose`: files and folders to replay, and what cannot be answered is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from collectors.bpf.cgroup_names import Hierarchy
from collectors.host.host_source import HostSource
from collectors.interface import SourceRegistry
from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import SpikeBegan, StepTimes
from diagnosis.detect.journal import encode
from diagnosis.frames.recording import write_recording
from pointillist import cli
from pointillist.cli import agent_diagnose
from pointillist.cli.output import ExitCode
from pointillist.diagnose.finding_printer import Watching
from tests.diagnosis_kit import JOB as SUBJECT
from tests.diagnosis_kit import SECOND_NS as S
from tests.diagnosis_kit import frames_of_contention


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pointillist", "agent", "diagnose", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    path = tmp_path / "calm.parquet"
    write_recording(path, frames_of_contention(40, 99, 99), {"class": "none"})
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    times = StepTimes(1.0, 2.0, 30)
    spike = SpikeBegan(
        "/elsewhere", 5 * S, 7 * S, StepSource.UPROBE, times, StepTimes(1.0, 9.0, 30)
    )
    path = tmp_path / "other-host.jsonl"
    path.write_bytes(encode(spike, 1_700_000_000 * S) + b"\n")
    return path


def test_replay_of_a_calm_recording_says_that_it_was_calm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calm: Path
) -> None:
    assert run(monkeypatch, "--replay", str(calm)) == ExitCode.OK
    said = capsys.readouterr()
    assert said.out == ""
    assert "watched 1 subject for 40 s, 99.5 steps a second; calm" in said.err


def test_replay_takes_a_folder_of_recordings_and_journals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calm: Path, journal: Path
) -> None:
    (journal.parent / "broken.parquet").write_bytes(b"PAR1 and nothing more")
    assert run(monkeypatch, "--replay", str(calm.parent), "--json") == ExitCode.OK
    said = capsys.readouterr()
    (one,) = map(json.loads, said.out.splitlines())
    assert (one["recording"], one["subject"], one["time"]) == (
        "other-host", "/elsewhere", 1_700_000_007.0,
    )  # fmt: skip
    assert "broken.parquet" in said.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--subject", "nomatch"], SUBJECT),
        (["--watch", "/a"], "--watch: expected with --live"),
        (["--seconds", "9"], "--seconds: expected with --live"),
        (["--plots", "{file}"], "expected a folder"),
    ],
)
def test_replay_refuses_what_it_would_pass_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calm: Path,
    arguments: list[str], expected: str,
) -> None:  # fmt: skip
    given = [one.format(file=calm) for one in arguments]
    assert run(monkeypatch, "--replay", str(calm), *given) == ExitCode.USAGE
    assert expected in capsys.readouterr().err


def test_replay_refuses_a_recording_too_short_to_judge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = tmp_path / "short.parquet"
    write_recording(short, frames_of_contention(6, 99, 99), {})
    assert run(monkeypatch, "--replay", str(short)) == ExitCode.USAGE
    assert "nothing could be judged" in capsys.readouterr().err


def test_plots_of_a_journal_without_kept_seconds_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording, plots = tmp_path / "slow.parquet", tmp_path / "plots"
    write_recording(recording, frames_of_contention(70, 31, 56), {})
    journal = tmp_path / "without.jsonl"
    diagnoser = Diagnoser()
    found = [one for f in frames_of_contention(70, 31, 56) for one in diagnoser.handle(f)]
    journal.write_bytes(b"".join(encode(one, 0) + b"\n" for one in found))
    assert run(monkeypatch, "--replay", str(journal), "--plots", str(plots)) == ExitCode.OK
    assert "1 spike without a picture" in capsys.readouterr().err


def test_rhythm_is_refused_where_a_journal_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--rhythm") == ExitCode.USAGE
    assert "--rhythm: expected with --live or --replay" in capsys.readouterr().err


def _no_ebpf() -> SourceRegistry:
    class Absent(HostSource):
        name = "ebpf"

        def probe(self) -> str | None:
            return "no right to load programs"

    registry = SourceRegistry()
    registry.register("ebpf", Absent)
    registry.register("host", HostSource)
    return registry


def test_live_refuses_to_run_where_nothing_can_be_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_diagnose, "host_registry", _no_ebpf)
    assert run(monkeypatch, "--live", "--seconds", "2") == ExitCode.USAGE
    assert "no right to load programs" in capsys.readouterr().err


def test_live_refuses_patterns_that_no_cgroup_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "train" / "rank0").mkdir(parents=True)
    monkeypatch.setattr(
        agent_diagnose, "hierarchy_of", lambda _: Hierarchy(str(tmp_path), unified=True)
    )
    agent_diagnose._need_cgroups(["/train/*"])
    with pytest.raises(Exception, match=r"/nosuch.*no cgroup matches"):
        agent_diagnose._need_cgroups(["/train/*", "/nosuch*"])


def test_watching_says_who_is_watched_and_when_usual_is_known() -> None:
    said: list[str] = []
    watching, diagnoser = Watching(said.append), Diagnoser()
    for frame in frames_of_contention(30, 99, 99):
        diagnoser.handle(frame)
        watching.take(frame, diagnoser)
    first, learnt = said
    assert first.startswith(f"watching {SUBJECT} (python3), steps by uprobe")
    assert "99.6 steps a second" in learnt
    assert watching.known == 1
    assert watching.summary(0).endswith("; calm")
    assert watching.summary(2).endswith("; 2 spikes")
