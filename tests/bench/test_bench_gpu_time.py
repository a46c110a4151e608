"""The figures of GPU time's benchmark that need no machine of their own."""

from __future__ import annotations

from bench import gpu_time_library

FOUND = {
    "records": {
        "1": {"library": [50.0, 60.0, 70.0], "floor": [6.0, 6.0, 7.0]},
        "4": {"library": [80.0, 90.0, 110.0], "floor": [6.0, 6.0, 7.0]},
    },
    "off": {"with": [31.0, 30.0, 32.0], "without": [30.0, 30.0, 30.0]},
}


def test_library_figures_have_their_goals_and_floors() -> None:
    made = {figure.name: figure for figure in gpu_time_library.figures(FOUND)}
    goals = {name: figure.goal for name, figure in made.items() if figure.goal is not None}
    assert goals == {**gpu_time_library.GOALS, "ns_per_record_aggregated_4_threads": 100.0}
    assert made["ns_per_record_aggregated"].floor == 6.0
    assert made["off_cost_ns_per_launch"].value == 1.0
