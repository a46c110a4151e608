"""Evidence in plain words: every signal has a sentence, every value a unit that a person reads."""

from __future__ import annotations

import pytest

from collectors.records.activity import StepSource
from diagnosis.detect.findings import Cause, Diagnosis, Evidence, SpikeBegan, StepTimes
from diagnosis.frames.signals import SIGNALS
from edge_agent.local.words import (
    ADVICE,
    CAUSES,
    counted,
    diagnosis_said,
    evidence_in_full,
    evidence_said,
    most_telling,
    quantity,
    spike_said,
    title,
)
from pointillist.diagnose.finding_layout import as_lines, as_object, recording_clock, unix_clock

S = 1_000_000_000
WAITED = Evidence(
    "run_delay_ms_per_s", "ms/s", 4224.13, 79.88, 20.0, 9 * S, 1258.0, "/other0", "host"
)
TIMES = StepTimes(9.1, 11.0, 900)


def diagnosed(cause: Cause, *evidence: Evidence, incident: bool = False) -> Diagnosis:
    return Diagnosis(
        "/job0", cause, 0.97, ((cause, 0.97),), 0.1, 10 * S, 12 * S, StepSource.UPROBE, TIMES,
        StepTimes(20.0, 31.0, 50), evidence, "hand rules 1", incident=incident,
    )  # fmt: skip


def test_every_signal_has_a_sentence_with_its_value_and_no_raw_name() -> None:
    for name, signal in SIGNALS.items():
        assert signal.said.count("{value}") == 1, name
        assert "_" not in title("own", name)
        assert "{" not in title("own", name)


def test_every_cause_has_words_and_advice() -> None:
    assert set(CAUSES) == set(ADVICE) == set(Cause)


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (4224.13, "ms/s", "4.22 s/s"), (79.88, "ms/s", "79.9 ms/s"), (7e6, "bytes/s", "7 MB/s"),
        (22_880.4, "1/s", "22,880/s"), (0.04, "1/s", "0.04/s"), (0.0, "bytes/s", "0 B/s"),
        (1258, "ms", "1.26 s"), (300, "µs", "300 µs"), (44.25, "%", "44.2 %"), (2, "", "2"),
        (1e12, "bytes/s", "1,000 GB/s"), (float("nan"), "ms", "? ms"),
    ],
)  # fmt: skip
def test_quantity_is_said_in_a_unit_that_fits(value: float, unit: str, said: str) -> None:
    assert quantity(value, unit) == said


def test_counts_have_their_plural() -> None:
    assert [counted(n, "picture") for n in (0, 1, 2)] == ["0 pictures", "1 picture", "2 pictures"]


def test_evidence_is_a_sentence_and_its_raw_figures_are_kept_apart() -> None:
    assert evidence_said(WAITED) == (
        "the host's threads waited 4.22 s/s for a CPU, usually 79.9 ms/s, "
        "from 1.26 s before the first slow step, most by /other0"
    )
    assert "/other0" not in evidence_said(WAITED, ("/other0",))
    assert evidence_in_full(WAITED).startswith("host.run_delay_ms_per_s 4224.13, usual 79.88 ± 20")


def test_whoever_did_it_is_named_with_the_cause() -> None:
    assert diagnosis_said(diagnosed(Cause.CPU_CONTENTION, WAITED)).endswith(", by /other0")
    assert "/other0" not in diagnosis_said(diagnosed(Cause.CGROUP_THROTTLING, WAITED))


def test_signals_that_say_the_same_are_told_once() -> None:
    worst = Evidence("worst_disk_ms_per_s", "ms/s", 4.0, 1.0, 1.0, 0, scope="host")
    every = Evidence("block_ms_per_s", "ms/s", 4.0, 1.0, 1.0, 0, scope="host")
    assert most_telling([worst, every, WAITED], 2) == [worst, WAITED]


def test_steps_that_end_no_more_are_not_told_as_zero() -> None:
    spike = SpikeBegan("/job0", 10 * S, 12 * S, StepSource.RHYTHM, TIMES, StepTimes(0.0, 0.0, 0))
    said = spike_said(spike)
    assert "no step ends any more" in said
    assert "→ 0" not in said
    assert "guessed" in said


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    one = diagnosed(Cause.DISK_IO, WAITED)
    lines = as_lines(one, recording_clock(0), None, width=width, verbose=True)
    assert all(len(line) <= max(width, 60) for line in lines)
    assert "next:" in " ".join(lines)
    assert "run_delay_ms_per_s" in " ".join(lines)
    plain = " ".join(as_lines(one, recording_clock(0), None, width=width, verbose=False))
    assert "run_delay_ms_per_s" not in plain


def test_an_incident_is_told_without_repeating_the_evidence() -> None:
    before = diagnosed(Cause.DISK_IO, WAITED)
    now = diagnosed(Cause.DISK_IO, WAITED, incident=True)
    (line,) = as_lines(now, recording_clock(0), before, width=100, verbose=False)
    assert "incident" in line


def test_json_gives_unix_seconds_and_says_which_clock() -> None:
    found = as_object(diagnosed(Cause.DISK_IO, WAITED), unix_clock(1_700_000_000 * S))
    assert (found["time"], found["onset_s"], found["clock"]) == (
        1_700_000_012.0, 1_700_000_010.0, "unix",
    )  # fmt: skip
    assert found["evidence"][0]["since_s"] == 1_700_000_009.0
    assert found["evidence"][0]["signal"] == "run_delay_ms_per_s"
    assert not [name for name in found if name.endswith("_ns")]
