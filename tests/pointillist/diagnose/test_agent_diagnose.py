"""Diagnosis as a person meets it: the agent's source, `agent top`, `agent diagnose`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from collectors.interface import UnavailableSource
from collectors.records.activity import Observation, Record, StepSource
from collectors.rounds import Drained
from diagnosis.detect.findings import (
    Cause,
    Diagnosis,
    Finding,
    SpikeBegan,
    SpikeEnded,
    StepTimes,
)
from diagnosis.detect.journal import JournalReader, Series
from diagnosis.frames.frame import HostSample
from diagnosis.frames.recording import write_recording
from diagnosis.frames.signals import SIGNALS
from edge_agent.config import DiagnosisSection
from edge_agent.host_diagnosis import DiagnosisSettings, HostDiagnosis
from edge_agent.journal import read_lines
from edge_agent.local.local_rows import Flattener
from edge_agent.local.recent import Recent
from edge_agent.local.view_lines import document
from pointillist import cli
from pointillist.cli.host_panels import diagnosis_panel, height_of
from pointillist.cli.output import ExitCode
from pointillist.diagnose.finding_layout import unix_clock
from pointillist.diagnose.finding_printer import Teller
from tests.diagnosis_kit import BOOT, frames_of_contention
from tests.diagnosis_kit import JOB as SUBJECT
from tests.diagnosis_kit import SECOND_NS as S
from tests.local_kit import at
from wire.catalogue import Catalogue

SLOW_FROM, SLOW_UNTIL, SECONDS = 31, 56, 70


class FramesInTurn:
    """Stands where records become frames: this test is about what comes after."""

    def __init__(self, frames: Iterable[HostSample]) -> None:
        self._frames = iter(frames)
        self.taken = 0

    def take(self, records: Iterable[Record]) -> None:
        self.taken += len(list(records))

    def lack(self, signals: Iterable[str]) -> None:
        self.lacking = frozenset(signals)

    def frame(self, now_ns: int) -> HostSample | None:
        return next(self._frames, None)


Told = Finding | Observation


def diagnosed(source: HostDiagnosis, until: int = SECONDS + 1) -> Iterator[tuple[int, Told]]:
    for number in range(1, until):
        for record in source.look(BOOT + number * S).records:
            assert isinstance(record, Finding | Observation)
            yield number, record


@pytest.fixture
def source(tmp_path: Path) -> Iterator[HostDiagnosis]:
    made = start(tmp_path / "diagnoses.jsonl")
    made._framer = FramesInTurn(frames_of_contention(SECONDS, SLOW_FROM, SLOW_UNTIL))  # type: ignore[assignment]
    yield made
    made.close()


def start(journal: Path) -> HostDiagnosis:
    made = DiagnosisSettings(DiagnosisSection(), journal, faults=False).start()
    assert isinstance(made, HostDiagnosis)
    return made


def test_agent_names_the_cause_of_a_spike_in_time_and_counts_one_incident(
    source: HostDiagnosis,
) -> None:
    records = list(diagnosed(source))
    found = [(at, one) for at, one in records if isinstance(one, Finding)]
    began = [at for at, one in found if isinstance(one, SpikeBegan)]
    causes = [(at, one.cause) for at, one in found if isinstance(one, Diagnosis)]
    assert len(began) == 1
    assert SLOW_FROM <= began[0] <= SLOW_FROM + 3
    assert next(at for at, cause in causes if cause is Cause.CPU_CONTENTION) <= SLOW_FROM + 5
    assert sum(isinstance(one, SpikeEnded) for _, one in found) == 1
    incidents = [one for _, one in records if isinstance(one, Observation)]
    assert [(one.section, one.cell) for one in incidents] == [("incidents", "cpu_contention")]


def test_agent_that_stops_during_an_incident_counts_it_once(source: HostDiagnosis) -> None:
    records = diagnosed(source, until=SLOW_UNTIL - 1)
    assert not any(isinstance(one, Observation) for _, one in records)
    assert [one.cell for one in source.flush()] == ["cpu_contention"]
    assert source.flush() == []


def test_agent_journal_holds_findings_and_one_picture(
    source: HostDiagnosis, tmp_path: Path
) -> None:
    shown = [one for _, one in diagnosed(source) if isinstance(one, Finding)]
    reader = JournalReader()
    kept = [line.finding for line in reader.read(read_lines(tmp_path / "diagnoses.jsonl"))]
    assert reader.damaged == 0
    assert [one for one in kept if not isinstance(one, Series)] == shown
    (picture,) = (one for one in kept if isinstance(one, Series))
    assert picture.subject == SUBJECT
    (over,) = (one for one in kept if isinstance(one, SpikeEnded))
    assert picture.ended_s == pytest.approx((over.ended_ns - over.onset_ns) / 1e9, abs=1e-3)
    slow = [ms for at, ms in zip(picture.seconds, picture.longest_ms, strict=True) if 1 < at < 15]
    before = [ms for at, ms in zip(picture.seconds, picture.longest_ms, strict=True) if at < -1]
    assert min(ms or 0 for ms in slow) > 2 * max(ms or 0 for ms in before)
    assert any(value for series in picture.signals for value in series.values)


def test_agent_goes_on_finding_when_the_journal_cannot_be_written(
    source: HostDiagnosis,
) -> None:
    journal = source._journal
    assert journal is not None
    journal.close()
    found = [source.look(BOOT + number * S) for number in range(1, SECONDS + 1)]
    assert any("diagnoses.jsonl" in one.failure for one in found if one.failure)
    assert isinstance([each for one in found for each in one.findings][-1], SpikeEnded)


def test_diagnosis_takes_what_sources_handed_out(source: HostDiagnosis) -> None:
    source.take(Drained("host", [Observation("host_cpu", "steal", 1, BOOT)]))
    assert source._framer.taken == 1  # type: ignore[attr-defined]


def test_diagnosis_leaves_out_what_sources_cannot_measure(source: HostDiagnosis) -> None:
    source.lack([UnavailableSource("on_packet_drop", "this kernel has no such hook")])
    assert "queue_drops_per_s" in SIGNALS
    assert "queue_drops_per_s" in source._framer.lacking  # type: ignore[attr-defined]
    assert "retransmits_per_s" not in source._framer.lacking  # type: ignore[attr-defined]


def test_diagnosis_is_absent_where_its_journal_cannot_be_opened(tmp_path: Path) -> None:
    absent = DiagnosisSettings(DiagnosisSection(), tmp_path, faults=False).start()
    assert isinstance(absent, UnavailableSource)
    assert absent.source == "diagnosis"
    assert "diagnosis: " in absent.reason


def test_top_shows_what_is_slow_now_and_why(source: HostDiagnosis) -> None:
    recent, flattener = Recent(), Flattener(Catalogue.load())
    for number, record in diagnosed(source):
        recent.add(flattener.rows("diagnosis", [record]))
        if number >= SLOW_FROM + 10:
            view = document(recent.view(at(BOOT + number * S)))
            break
    (one,) = view["findings"]
    assert (one["state"], one["cause"], one["subject"]) == ("spike", "cpu_contention", SUBJECT)
    console = Console(width=120, color_system=None)
    with console.capture() as captured:
        console.print(diagnosis_panel(view))
    text = captured.get()
    assert "cpu_contention" in text
    assert "by /system/backup; step p50" in text
    assert "threads waited" in text
    assert "next: " in text
    assert height_of(view) == len(text.strip().splitlines())
    assert diagnosis_panel({"findings": []}) is None


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pointillist", "agent", "diagnose", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_diagnose_replays_a_recording_and_draws_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording, plots = tmp_path / "contention.parquet", tmp_path / "plots"
    frames = frames_of_contention(SECONDS, SLOW_FROM, SLOW_UNTIL)
    write_recording(recording, frames, {"workload": "steps", "class": "cpu_contention"})
    assert run(monkeypatch, "--replay", str(recording), "--plots", str(plots)) == ExitCode.OK
    assert "cpu_contention" in capsys.readouterr().out
    (picture,) = plots.iterdir()
    assert re.fullmatch(r"contention-00\d\d\.\ds-cpu_contention-jobs_train\.png", picture.name)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(monkeypatch, "--replay", str(recording), "--json") == ExitCode.OK
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [one["kind"] for one in documents]
    assert documents[0]["clock"] == "recording"
    assert documents[0]["onset_s"] <= documents[0]["time"] < SECONDS
    assert kinds[0] == "SpikeBegan"
    assert kinds[-1] == "SpikeEnded"
    assert "Diagnosis" in kinds


@pytest.mark.parametrize("name", ["wrong.parquet", "missing.parquet"])
def test_diagnose_refuses_what_is_no_recording(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "wrong.parquet").write_bytes(b"PAR1 and nothing more")
    assert run(monkeypatch, "--replay", str(tmp_path / name)) == ExitCode.USAGE
    assert name in capsys.readouterr().err


_LONG: Final = "/" + "\udcff" * 4_000
"""A cgroup's name may be any 4 KiB of bytes but / and NUL."""


def _named(frames: Iterable[HostSample], name: str) -> Iterator[HostSample]:
    """The same frames, whose subject and neighbours have a name that their user chose."""
    for frame in frames:
        subjects = {name: replace(frame.subjects[SUBJECT], cgroup=name)}
        cgroups = {
            name if key == SUBJECT else f"{key}{name}": found
            for key, found in frame.cgroups.items()
        }
        yield replace(frame, subjects=subjects, cgroups=cgroups)


def test_agent_keeps_findings_of_cgroups_with_names_of_any_bytes(
    source: HostDiagnosis, tmp_path: Path
) -> None:
    frames = _named(frames_of_contention(SECONDS, SLOW_FROM, SLOW_UNTIL), _LONG)
    source._framer = FramesInTurn(frames)  # type: ignore[assignment]
    records = [record for _, record in diagnosed(source)]
    assert sum(isinstance(one, Observation) for one in records) == 1
    reader = JournalReader()
    kept = [line.finding for line in reader.read(read_lines(tmp_path / "diagnoses.jsonl"))]
    assert len([one for one in kept if not isinstance(one, Series)]) == len(records) - 1
    assert all(len(one.subject) == 512 for one in kept)


def test_diagnose_prints_and_draws_names_of_any_bytes(
    source: HostDiagnosis, tmp_path: Path
) -> None:
    frames = _named(frames_of_contention(SECONDS, SLOW_FROM, SLOW_UNTIL), "/a\x9b2J\n\udcff\x1b")
    source._framer = FramesInTurn(frames)  # type: ignore[assignment]
    for _ in diagnosed(source):
        pass
    shown: list[str] = []
    for as_json in (True, False):
        teller = Teller(shown.append, as_json=as_json, plots=tmp_path)
        for line in JournalReader().read(read_lines(tmp_path / "diagnoses.jsonl")):
            teller.tell(line.finding, unix_clock(line.offset_ns))
        assert teller.drawn == 1
    assert shown
    assert all(line.isprintable() and line.encode() for line in shown)


def test_agent_writes_the_other_findings_when_one_fits_no_line(
    source: HostDiagnosis, tmp_path: Path
) -> None:
    times = StepTimes(1.0, 2.0, 3)
    odd = SpikeBegan("/odd", 1, 2, StepSource.RHYTHM, times, StepTimes(float("inf"), 2.0, 3))
    failure = source._write([odd, replace(odd, now=times)])
    assert failure is not None
    assert "expected a finite number" in failure
    assert len(list(read_lines(tmp_path / "diagnoses.jsonl"))) == 1
