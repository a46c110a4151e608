"""What the agent's benchmark makes of its measurements."""

from __future__ import annotations

import random
import re
from pathlib import Path

from bench.agent_measure import PROBE_NAMES, median_of


def test_median_interval_holds_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(7)
    held = 0
    for _ in range(2_000):
        found = median_of([generator.gauss(3.0, 2.0) for _ in range(20)])
        assert found.low <= found.value <= found.high
        held += found.low <= 3.0 <= found.high
    assert 0.95 <= held / 2_000 <= 0.975


def test_median_of_few_values_spans_all_of_them() -> None:
    assert (median_of([4.0, 1.0]).low, median_of([4.0, 1.0]).high) == (1.0, 4.0)


def test_bench_knows_every_map_and_program_of_the_gpu_probes() -> None:
    folder = Path(__file__).parents[2] / "bpf"
    text = "".join((folder / name).read_text() for name in ("gpu_maps.h", "gpu.bpf.c"))
    maps = re.findall(r"^MAP\((\w+),|^\} (\w+) SEC", text, re.MULTILINE)
    programs = re.findall(r'SEC\("u(?:ret)?probe"\)\s+int (\w+)', text)
    assert {one or other for one, other in maps} | set(programs) == PROBE_NAMES
