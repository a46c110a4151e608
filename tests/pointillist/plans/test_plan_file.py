"""Plan files: exact numbers, unknown keys refused, every bound by name."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pointillist.plan_file import DEFAULT_PATH, PlanFileError, default_plan, load_plan
from privacy.errors import ParameterError


@pytest.fixture
def plan_with(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write the default plan with one text replaced."""

    def write(old: str, new: str) -> Path:
        text = DEFAULT_PATH.read_text()
        assert old in text
        path = tmp_path / "plan.toml"
        path.write_text(text.replace(old, new, 1))
        return path

    return write


def test_default_plan_is_read_exactly() -> None:
    plan = default_plan()
    assert (plan.epsilon_millionths, plan.delta_1e12) == (2_000_000, 1_000)
    assert (plan.hosts, plan.n_min, plan.t, plan.h) == (12_500, 10_000, 1_250, 8_750)
    assert [task.T for task in plan.tasks] == [10_081, 8, 2, 2]
    assert [task.weight_millionths for task in plan.tasks] == [340_000, 402_000, 112_000, 146_000]


def test_optional_keys_have_the_protocols_defaults(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(
        'format = 1\nname = "small"\nhosts = 101\n[[task]]\nseries = "s"\nwindow_s = 5\n'
        "lateness_s = 2\nretention_s = 20_000\nwindows = 24\n[task.weights]\nkernel_mix = 0.5\n"
        "[task.rates]\nkernel_mix = 0.25\n"
    )
    plan = load_plan(path)
    assert (plan.scheme, plan.n_min, plan.t, plan.min_operators) == ("masked", 80, 11, 3)
    assert plan.tasks[0].T == 24
    assert plan.tasks[0].sections[0].rate_millionths == 250_000


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epsilon = 2", "epsilom = 2", "epsilom: unknown key"),
        ("window_s = 60", "window = 60", "window: unknown key"),
        ("format = 1", "format = 2", "expected 1, got 2"),
        ("hosts = 12_500", "hosts = 12.5", "hosts: expected an integer"),
        ("hosts = 12_500", "hosts = true", "hosts: expected an integer"),
        ("window_s = 60", "window_s = 0", "window_s: expected an integer from 1"),
        ("epsilon = 2", 'epsilon = "2"', "epsilon: expected a number"),
        ("epsilon = 2", "epsilon = nan", "epsilon: expected a number"),
        ("epsilon = 2", "epsilon = -1", "above 0"),
        ("kernel_mix = 0.1155", "kernel_mix = 0.1155001", "multiple of 1/1000000"),
        ("kernel_mix = 0.1155", "kernel_mix = 0", "above 0"),
        ('series = "minute"', "series = 5", "series: expected text like"),
        ("[task.weights]", "weights = 5\n[task.rates]", "expected a table"),
        ('name = "default"', "name = ", "expected TOML"),
        ("kernel_mix = 0.1155", "kernel_mix = 1e-9999999999", "multiple|number|TOML"),
    ],
)
def test_file_that_is_no_plan_is_refused(
    plan_with: Callable[[str, str], Path], old: str, new: str, said: str
) -> None:
    path = plan_with(old, new)
    with pytest.raises(PlanFileError, match=said) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "bound"),
    [
        ("kernel_mix = 0.1155", "kernel_mix = 0.1165", "sum of weights"),
        ("t = 1_250", "t = 1_000", "corrupted hosts t"),
        ("t = 1_250", "t = 6_000", "honest hosts h"),
        ("n_min = 10_000", "n_min = 13_000", "n_min"),
        ('scheme = "masked"', 'scheme = "prio3"', "scheme"),
        ('series = "day"', 'series = "minute"', "series"),
        ("retention_s = 28_800", "retention_s = 7_300", "retention"),
        ("epsilon = 2", "epsilon = 101", "epsilon"),
        ("delta = 1e-9", "delta = 0.01", "delta"),
        ("kernel_mix = 0.1155\n", "kernel_mix = 0.1155\n[task.rates]\nkernel_mix = 1.5\n", "rate"),
    ],
)
def test_plan_that_breaks_a_bound_names_it(
    plan_with: Callable[[str, str], Path], old: str, new: str, bound: str
) -> None:
    if "[task.rates]" in new:
        old = "synchronisation_waits = 0.0055\n"
        new = f"{old}[task.rates]\nkernel_mix = 1.5\n"
    with pytest.raises(ParameterError) as caught:
        load_plan(plan_with(old, new))
    assert bound in caught.value.bound


def test_plan_without_tasks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text('format = 1\nname = "x"\nhosts = 100\n')
    with pytest.raises(PlanFileError, match="at least one"):
        load_plan(path)


def test_rates_of_unknown_sections_are_refused(plan_with: Callable[[str, str], Path]) -> None:
    last = "synchronisation_waits = 0.0055\n"
    path = plan_with(last, f"{last}[task.rates]\nother = 0.5\n")
    with pytest.raises(PlanFileError, match="other"):
        load_plan(path)
