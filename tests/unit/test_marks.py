"""Layouts of marks, read as a table."""

from __future__ import annotations

import re
from pathlib import Path

from edge_agent.sources.mark_ring import MARK_FIELDS
from edge_agent.sources.step_programs import THREAD_FIELDS, StepProbe

MARKS = (Path(__file__).parents[2] / "bpf/include/marks.h").read_text(encoding="utf-8")


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
