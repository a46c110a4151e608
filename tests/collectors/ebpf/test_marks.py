"""Layouts of marks, read as a table."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from collectors.bpf.bpf_maps import MARK_FIELDS
from collectors.ebpf import ebpf_tables as layout
from collectors.ebpf.ebpf_source import CHOSEN, BusiestCgroups
from collectors.records.activity import HostTable, RhythmKind
from collectors.steps.steps_source import THREAD_FIELDS, StepProbe

MARKS = (Path(__file__).parents[3] / "bpf/include/marks.h").read_text(encoding="utf-8")


def fields(struct: str) -> tuple[str, ...]:
    body = MARKS.split(f"struct {struct} {{", 1)[1].split("};", 1)[0]
    return tuple(re.findall(r"__u64 (\w+);", body))


def test_mark_and_thread_follow_the_header() -> None:
    assert fields("mark") == MARK_FIELDS
    assert fields("step_thread") == THREAD_FIELDS


def test_mark_with_the_kernels_header_divides_every_ring() -> None:
    assert 8 * (1 + len(MARK_FIELDS)) == 64


def test_step_probe_has_a_title() -> None:
    assert StepProbe("/opt/app/lib.so", "step").title == "lib.so:step"
    assert StepProbe("/opt/app/lib.so", "step", name="training").title == "training"


def test_rhythm_kinds_follow_the_header() -> None:
    body = MARKS.split("enum rhythm_kind {", 1)[1].split("};", 1)[0]
    names = re.findall(r"RHYTHM_(\w+),", body)
    assert names == [kind.name for kind in RhythmKind][: layout.RHYTHM_KINDS]
    words = re.findall(r"__u64 (\w+)(\[RHYTHM_KINDS\])?;", MARKS.split("struct rhythm_row {")[1])
    fields_of_row = words[: [name for name, _ in words].index("beyond") + 1]
    width = sum(layout.RHYTHM_KINDS if array else 1 for _, array in fields_of_row)
    assert width == layout.RHYTHM_FIELDS


def busy(**switches: int) -> HostTable:
    names = tuple(switches)
    values = np.array([[count] for count in switches.values()], np.int64)
    return HostTable("cgroup", names, ("switches",), values, 0, 1_000_000_000)


def test_busiest_cgroups_are_those_with_a_rhythm() -> None:
    chosen = BusiestCgroups().choose(busy(idle=3, loop=500, storm=300_000, server=90))
    assert chosen == {"loop", "server"}


def test_watched_cgroups_stay_while_they_are_busy() -> None:
    busiest = BusiestCgroups()
    first = busiest.choose(busy(**{f"c{n}": 100 + n for n in range(CHOSEN)}))
    more = {f"c{n}": 100 + n for n in range(CHOSEN)} | {f"d{n}": 900 for n in range(10)}
    assert busiest.choose(busy(**more)) == first
    assert len(first) == CHOSEN


def test_cgroups_that_switch_too_much_together_are_not_all_watched() -> None:
    chosen = BusiestCgroups().choose(busy(a=19_000, b=18_000, c=17_000, d=1_000))
    assert chosen == {"a", "b", "d"}
