"""Drained records become a frame's cgroups, and its subjects with their steps and rhythms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collectors.ebpf import ebpf_tables as layout
from collectors.records.activity import StepSource
from diagnosis.frames.framer import Framer
from diagnosis.frames.host_signals import CgroupPressure, cpu_cgroup
from tests.frames_kit import MS, T0, S, cgroup, cpu, frame_of, framer, marks, sends, table


def test_cgroups_name_the_busiest_by_each_rank_and_the_subjects_own() -> None:
    made = framer(watch=["/job*"])
    rows = {f"/idle{n}": {"cpu_ns": n * MS} for n in range(30)}
    rows |= {"/net": {"send_bytes": 9_000}, "/job1": {"cpu_ns": 1}, "OTHER": {"cpu_ns": S}}
    made.take([
        cpu({}), cgroup(rows),
        table("block_cgroup", layout.BLOCK_CGROUP_COLUMNS, {"/disk": {"read_bytes": 9}}),
    ])  # fmt: skip
    frame = frame_of(made)
    assert list(frame.subjects) == ["/job1"]
    assert frame.cgroups.keys() == {
        "/job1", "/idle29", "/idle28", "/idle27", "/idle26", "/disk", "/net",
    }  # fmt: skip
    assert frame.cgroups["/disk"]["block_read_bytes_per_s"] == 9
    assert frame.cgroups["/disk"]["cpu_ms_per_s"] == 0


def test_cgroup_quota_says_in_which_share_of_periods_it_ran_out() -> None:
    made = framer(watch=["/q"])
    rows = {"/q": {"quota_periods": 10, "throttled_periods": 4}, "/free": {"cpu_ns": 5}}
    made.take([cpu({}), cgroup(rows)])
    frame = frame_of(made)
    assert frame.subjects["/q"].signals["throttled_periods_percent"] == 40
    assert "throttled_periods_percent" not in frame.cgroups["/free"]


def test_waits_of_a_cgroup_that_is_not_watched_are_absent() -> None:
    made = framer(watch=["/a", "/b"])
    made.take([cpu({}), cgroup({"/a": {"switches": 9, "sleep_ns": MS}, "/b": {"switches": 9}})])
    subjects = frame_of(made).subjects
    assert subjects["/a"].signals["block_wait_ms_per_s"] == 0
    assert "block_wait_ms_per_s" not in subjects["/b"].signals


def test_subject_that_is_named_stays_while_it_is_silent_for_a_minute() -> None:
    made = framer(watch=["/job"])
    made.take([cpu({}), cgroup({"/job": {"cpu_ns": MS}})])
    assert list(frame_of(made, 1).subjects) == ["/job"]
    made.take([cpu({}), cgroup({"/x": {"cpu_ns": MS}})])
    silent = frame_of(made, 60).subjects["/job"]
    assert silent.signals["cpu_ms_per_s"] == 0
    assert not frame_of(made, 63).subjects


def test_subject_has_the_steps_of_its_process_and_the_age_of_the_open_one() -> None:
    made = framer()
    made.take([marks(7, [T0 + 20 * MS, T0 + 40 * MS], open_ns=T0 + 40 * MS)])
    job = frame_of(made).subjects["/job"]
    assert (job.cgroup, job.program) == ("/job", "train")
    assert job.steps is not None
    assert job.steps.ended_ns.tolist() == [T0 + 20 * MS, T0 + 40 * MS]
    assert job.steps.running_ns == S - 40 * MS
    made.take([marks(7, [], open_ns=T0 + 40 * MS)])
    hung = frame_of(made, 30).subjects["/job"].steps
    assert hung is not None
    assert len(hung.ended_ns) == 0
    assert hung.running_ns == 30 * S - 40 * MS


def test_processes_of_one_cgroup_that_make_steps_are_subjects_each() -> None:
    made = framer()
    made.take([marks(7, [T0 + MS]), marks(8, [T0 + 2 * MS]), marks(9, [T0 + 3 * MS], "/b")])
    assert list(frame_of(made).subjects) == ["/job#7", "/job#8", "/b"]


def test_subject_that_was_started_again_keeps_its_key() -> None:
    gone: set[int] = set()
    made = Framer(alive=lambda pid: pid not in gone)
    made.frame(T0)
    made.take([marks(7, [T0 + MS])])
    assert list(frame_of(made, 1).subjects) == ["/job"]
    gone.add(7)
    made.take([marks(8, [T0 + S + MS])])
    assert list(frame_of(made, 2).subjects) == ["/job"]


def test_subject_takes_the_more_exact_of_two_marks() -> None:
    made = framer()
    calls = StepSource.SYNCHRONISATIONS
    made.take([marks(7, [T0 + MS], source=calls, probe="sync"), marks(7, [T0 + 2 * MS])])
    steps = frame_of(made).subjects["/job"].steps
    assert steps is not None
    assert (steps.source, steps.ended_ns.tolist()) == (StepSource.UPROBE, [T0 + 2 * MS])
    made.take([marks(7, [T0 + S + MS], source=calls, probe="sync"), marks(7, [T0 + S + 5 * MS])])
    steps = frame_of(made, 2).subjects["/job"].steps
    assert steps is not None
    assert steps.ended_ns.tolist() == [T0 + S + 5 * MS]


def test_subject_of_a_rhythm_has_steps_of_its_own_after_some_seconds() -> None:
    made = framer()
    ends = T0 + np.cumsum(np.full(3_000, 10 * MS))
    found = []
    for second in range(1, 20):
        here = ends[(ends > T0 + (second - 1) * S) & (ends <= T0 + second * S)]
        made.take([sends(7, here.tolist(), "/loop"), sends(8, here.tolist(), "/")])
        found.append(frame_of(made, second).subjects)
    assert not found[0]
    rhythm = found[-1]["/loop"].rhythm
    assert rhythm is not None
    assert (rhythm.source, len(rhythm.ended_ns)) == (StepSource.RHYTHM, 100)
    assert (rhythm.duration_ns == 10 * MS).all()
    assert found[-1]["/loop"].steps is None
    assert list(found[-1]) == ["/loop"]
    assert not frame_of(made, 19 + 61).subjects


def test_subject_with_steps_has_the_rhythm_of_the_process_that_makes_them() -> None:
    made = framer()
    for second in range(1, 20):
        begun = T0 + (second - 1) * S
        for pid, every in ((6, 20 * MS), (7, 10 * MS)):
            made.take([sends(pid, range(begun + every, begun + S + 1, every), "/job")])
        made.take([marks(7, [begun + S])])
        job = frame_of(made, second).subjects["/job"]
    assert job.rhythm is not None
    assert (job.rhythm.duration_ns == 10 * MS).all()


def test_place_of_a_process_is_in_the_cpu_hierarchy() -> None:
    assert cpu_cgroup("12:cpu,cpuacct:/job\n3:memory:/m\n0::/u\n") == "/job"
    assert cpu_cgroup("0::/user.slice/a:b\n") == "/user.slice/a:b"
    assert cpu_cgroup("nonsense") == "/"


def test_pressure_of_a_subjects_cgroup_is_what_grew(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    file = tmp_path / "job" / "memory.pressure"
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total="
    made = framer(watch=["/job"], pressure=CgroupPressure(tmp_path))
    for second, stalled_us in ((1, 500), (2, 40_500)):
        file.write_text(f"some {line}{stalled_us}\nfull {line}0\n")
        made.take([cpu({}), cgroup({"/job": {"cpu_ns": 1}}, T0 + second * S)])
        signals = frame_of(made, second).subjects["/job"].signals
    assert signals["pressure_memory_some_ms_per_s"] == pytest.approx(40)
    assert signals["pressure_memory_full_ms_per_s"] == 0
    assert "pressure_io_some_ms_per_s" not in signals
