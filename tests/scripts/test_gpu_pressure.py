"""`make gpu-check`'s PCIe pressure without a GPU: its judgement, and its calls on the fakes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.gpu_present import AS_EXPECTED, DIFFERENT, NO_GPU, OUT, UNCHECKED
from scripts.gpu_pressure import tell
from scripts.pressure import Case, Result, Second, results_of
from tests.fake_cuda_kit import FakeCuda
from tests.fake_nvml_kit import FakeDriver

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_pressure.py"
S, MS = 1_000_000_000, 1_000_000
CALM, PRESSED = 2e9, 21e9

ON_FAKES = """
import json, sys
from dataclasses import asdict
from scripts import gpu_pressure, pressure
pressure.STEP_BYTES = 1 << 20
found = gpu_pressure.check(0.3, 0.15, 0.05)
print(json.dumps([asdict(one) for one in found]))
"""


def seconds(pressed: range, step_ms: float, pcie: float) -> list[Second]:
    """A minute of 20 ms steps; in some seconds they take longer, and the link carries more."""
    chance, made = random.Random(5), []
    for number in range(1, 61):
        struck = number in pressed
        mean_ms = step_ms if struck else 20.0
        steps, at = [], (number - 1) * S
        while at < number * S - mean_ms * MS * 1.2:
            took = round(mean_ms * MS * chance.uniform(0.96, 1.04))
            at += took
            steps.append((at, took))
        gpu = {"pcie_rx_bytes_per_s": (pcie if struck else CALM) * chance.uniform(0.95, 1.05)}
        made.append(Second(number * S, S, gpu | {"pcie_tx_bytes_per_s": 1e8}, steps))
    return made


def case(injector: str = "pageable_to_device", level: str = "high") -> Case:
    return Case(injector, level, 40 * S, 50 * S, 19e9)


def test_gpu_pressure_without_a_gpu_says_so_with_its_own_code(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "scripts.gpu_pressure"], env={"PATH": str(tmp_path)},
        cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == NO_GPU
    assert "this machine has no NVIDIA GPU" in ran.stdout


def test_gpu_pressure_names_what_the_link_tells_of() -> None:
    (found,) = results_of(seconds(range(41, 51), 33.0, PRESSED), [case()])
    assert found.impact
    assert found.rise == pytest.approx(33 / 20, rel=0.05)
    assert found.answer == "pcie_pressure"
    assert found.signals["pcie_rx_bytes_per_s"] == pytest.approx(PRESSED, rel=0.05)


def test_gpu_pressure_is_not_named_where_the_link_is_as_it_was() -> None:
    (found,) = results_of(seconds(range(41, 51), 33.0, CALM), [case()])
    assert found.impact
    assert found.answer != "pcie_pressure"


def test_gpu_pressure_that_nobody_feels_is_not_judged() -> None:
    (found,) = results_of(seconds(range(41, 51), 20.5, PRESSED), [case()])
    assert not found.impact
    assert found.answer == ""
    assert tell([found]) == UNCHECKED


def test_gpu_pressure_is_judged_by_held_out_cases_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUT, str(tmp_path))

    def result(injector: str, level: str, answer: str) -> Result:
        return Result(injector, level, case(injector, level).held_out, 19.0, 1.6, answer, {})

    taught = result("pinned_to_device", "high", "unknown")
    right = result("pinned_to_device", "middle", "pcie_pressure")
    wrong = result("pinned_to_host", "low", "unknown")
    assert tell([taught, right]) == AS_EXPECTED
    assert tell([taught, right, wrong]) == DIFFERENT
    body = json.loads((tmp_path / "gpu_pressure.json").read_text())
    assert [one["value"] for one in body["figures"]] == [0.5, 2]


@pytest.mark.release
def test_gpu_pressure_presses_in_every_way_on_a_fake_gpu(tmp_path: Path) -> None:
    driver, cuda = FakeDriver(tmp_path), FakeCuda(tmp_path)
    driver.play("gpus 1")
    cuda.play("gpus 1")
    libraries = f"{driver.library.parent}:{cuda.library.parent}"
    # The pressing process is the script itself, with its own sizes: the fake moves real bytes.
    ran = subprocess.run(
        [sys.executable, "-c", ON_FAKES],
        env={
            **os.environ, **driver.environment, **cuda.environment,
            "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(SCRIPT.parents[1]),
        },
        cwd=SCRIPT.parents[1], capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    assert len(found) == 9
    assert {one["injector"] for one in found if not one["held_out"]} == {"pinned_to_device"}
    assert all(one["pressed_gb_per_s"] > 0 for one in found)
    made = cuda.calls
    for name in ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"):
        assert made[name] > 0
    assert made["cuMemFreeHost"] == sum(n for c, n in made.items() if c.startswith("cuMemHostAll"))
