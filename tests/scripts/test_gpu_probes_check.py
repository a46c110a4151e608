"""The logic of the probes' check on a GPU machine, against a loop that stands for PyTorch."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts import gpu_present, gpu_probes
from scripts.gpu_probes import PAIRS, Loop, Slowdown, agreement, figures, interleaved, slowdown

LOOP = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    what, number = line.split()
    profile = '{"gemm": [3, 900], "relu": [1, 50]}'
    print(profile if what == "profile" else int(number) / 10, flush=True)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "loop.py").write_text(LOOP)
    return [sys.executable, str(tmp_path / "loop.py")]


class CountingProbes:
    """Sees what it was told, once."""

    def __init__(self, **launches: int) -> None:
        self._waiting = [Counter(launches), Counter(warm_up=7)]

    def launches(self, pid: int) -> Counter[str]:
        return self._waiting.pop()


def test_agreement_counts_names_and_totals() -> None:
    assert agreement({"a": 90, "b": 10}, {"a": 90, "b": 10}) == (0.0, 1.0)
    error, named = agreement({"a": 90, "b": 10}, {"a": 90, "c": 5})
    assert error == pytest.approx(0.05)
    assert named == pytest.approx(0.9)
    with pytest.raises(ValueError, match="expected launches"):
        agreement({}, {"a": 1})


def test_slowdown_has_the_interval_of_its_pairs() -> None:
    cost = slowdown([(1.01, 1.0), (1.03, 1.0)] * (PAIRS // 2))
    assert cost.percent == pytest.approx(2.0)
    # Student's t of seven degrees of freedom, times 1 / sqrt(7): the deviation over sqrt(8).
    assert cost.interval == pytest.approx(2.365 / 7**0.5)


def test_blocks_with_and_without_probes_take_turns_and_end_without() -> None:
    said: list[str] = []

    def block() -> float:
        return {"on": 2.0, "off": 1.0}[said[-1]]

    pairs = interleaved(block, lambda: said.append("on"), lambda: said.append("off"), 5)
    assert pairs == [(2.0, 1.0)] * 5
    assert Counter(said) == {"on": 5, "off": 6}
    assert said[-1] == "off"


def test_loop_is_steered_by_lines(command: list[str]) -> None:
    with Loop("inference", command) as loop:
        assert loop.steps(20) == 2.0
        assert loop.profile(3) == {"gemm": 3, "relu": 1}
    with pytest.raises(RuntimeError, match="expected `ready`, got ''"):
        Loop("training", [sys.executable, "-c", ""])


def test_counts_are_those_of_the_steps_alone(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_probes, "missing_symbols", lambda pid: [])
    with Loop("inference", command) as loop:
        same = gpu_probes.check_counts(loop, CountingProbes(gemm=3, relu=1))  # type: ignore[arg-type]
        short = gpu_probes.check_counts(loop, CountingProbes(gemm=3))  # type: ignore[arg-type]
    assert same == (0.0, 1.0)
    assert short == (0.25, 0.75)


def test_counts_without_bpf_are_of_names_alone(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loop("inference", command) as loop:
        assert not gpu_probes.missing_symbols(loop.pid)
        error, named = gpu_probes.check_counts(loop, None)
        assert (error, named >= 0.75) == (0.0, True)
        monkeypatch.setattr(gpu_probes, "missing_symbols", lambda pid: ["/lib/libcudart.so.12"])
        assert gpu_probes.check_counts(loop, None) == (1.0, 0.0)


def test_symbols_are_missed_in_a_runtime_without_launches(tmp_path: Path) -> None:
    library = tmp_path / "libcudart.so.12"
    library.write_bytes(Path(os.path.realpath("/lib/x86_64-linux-gnu/libm.so.6")).read_bytes())
    code = f"import ctypes; ctypes.CDLL({str(library)!r}); print('ready', flush=True); input()"
    with Loop("inference", [sys.executable, "-c", code]) as loop:
        assert gpu_probes.missing_symbols(loop.pid) == [str(library)]


def test_figures_are_the_worst_loop_and_the_costs() -> None:
    costs = {"inference": Slowdown(0.3, 0.1), "training": Slowdown(0.05, 0.02)}
    found = {f.name: f.value for f in figures({"a": (0.0, 1.0), "b": (0.01, 0.995)}, costs)}
    assert found == {
        "slowdown_percent_launch_bound": 0.3,
        "slowdown_interval_launch_bound": 0.1,
        "slowdown_percent_training": 0.05,
        "slowdown_interval_training": 0.02,
        "launch_count_error_percent": pytest.approx(1.0),
        "launches_named_percent": pytest.approx(99.5),
    }


def test_a_machine_without_a_gpu_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nvidiactl").touch()  # NVIDIA's library makes it where root calls it
    monkeypatch.setattr(gpu_present, "DEVICES", tmp_path)
    assert gpu_probes.main() == gpu_present.NO_GPU
    assert "no NVIDIA GPU" in capsys.readouterr().out
