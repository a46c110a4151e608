"""The GPU-time check on a GPU machine: what it calls different."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.gpu_time.figures import differences


def part(launches: int, error: float, graphs: bool = False) -> dict[str, Any]:
    rounds = [{"launches": launches, "profiler_launches": 200}]
    return {
        "truth": {
            "rounds": rounds, "time_error_percent": error, "profiler_counts_graphs": graphs,
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"inference": part(200, 0.4), "launches": {}}, []),
        ({"inference": part(199, 0.4)}, ["199 launches"]),
        ({"training": part(200, -1.2)}, ["-1.20 %"]),
        ({"graphs": part(30_000, 1.7, graphs=True)}, ["+1.70 %"]),
    ],
)
def test_differences_are_other_counts_and_times_above_the_goal(
    parts: dict[str, Any], told: list[str]
) -> None:
    lines = list(differences(parts))
    assert len(lines) == len(told)
    assert all(text in line for text, line in zip(told, lines, strict=True))
