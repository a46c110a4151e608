"""The picture of a job: its labels are round numbers, of steps and ranks that are there."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot as plt

from diagnosis.stragglers.job_plot import SLOW, _columns, _name_ranks, _name_steps
from diagnosis.stragglers.judge import judge
from tests.diagnosis.stragglers.jobs import job, made


def named_steps(steps: list[int]) -> tuple[list[str], str]:
    figure, axis = plt.subplots()
    _name_steps(axis, np.array(steps), 1)
    told = [label.get_text() for label in axis.get_xticklabels()], axis.get_xlabel()
    plt.close(figure)
    return told


def test_plot_names_round_steps() -> None:
    assert named_steps(list(range(60))) == (["0", "10", "20", "30", "40", "50"], "step")


def test_plot_names_the_steps_after_longer_gaps() -> None:
    labels, said = named_steps([16, 21, 27, 404, 408, 413, 1204, 1205, 1207])
    assert labels == ["16", "404", "1,204", "1,207"]
    assert named_steps([16, 21, 27, 404])[0] == ["16", "404"]
    assert "9 of 16 to 1,207 were recorded" in said


def test_plot_names_steps_of_a_trace_that_holds_every_tenth() -> None:
    labels, said = named_steps(list(range(0, 100, 10)))
    assert labels[0] == "0"
    assert labels[-1] == "90"
    assert "gaps" not in said


@pytest.mark.parametrize(("ranks", "slow"), [(4, 2), (70, 31), (70, 69)])
def test_plot_names_the_slow_rank_in_red_and_none_too_near(ranks: int, slow: int) -> None:
    figure, axis = plt.subplots()
    _name_ranks(judge(job(made(3, {0: 1.0}, ranks, slow={slow: 1.8}))), axis.yaxis)
    labels = axis.get_yticklabels()
    red = [label.get_text() for label in labels if label.get_color() == SLOW]
    near = np.diff([int(label.get_text()) for label in labels]).min()
    plt.close(figure)
    assert red == [str(slow)]
    assert near >= -(-ranks // 32)


def test_plot_takes_medians_of_a_run_longer_than_its_columns() -> None:
    values = np.array([[1.0, 2.0, 9.0, 4.0]])
    assert _columns(values, 3).tolist() == [[2.0, 4.0]]
