"""GPU causes that no signal alone tells: links under load, devices that are gone or silent."""

from __future__ import annotations

from typing import Final

import pytest

from diagnosis.detect.baseline import in_use
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Cause
from tests.diagnosis_kit import CROWDED, USUAL, Host, Second, diagnoses, run, warm

_AT_WORK: Final = {
    "gpu_busy_percent": 90.0, "pcie_width_percent": 100.0, "pcie_generation_percent": 100.0,
    "gpu_lost_count": 0.0, "gpu_silent_count": 0.0,
}  # fmt: skip
_CALM: Final = USUAL.with_(gpu=_AT_WORK)
_LINK: Final = {"pcie_width_percent": 25.0, "pcie_generation_percent": 20.0}


def gpu(**signals: float) -> dict[str, float]:
    return {**_AT_WORK, **signals}


def causes(scene: Second) -> set[Cause]:
    """What is said of ten seconds of it."""
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 30, _CALM)
    return {one.cause for one in diagnoses(run(diagnoser, host.frames(scene, 10)))}


@pytest.mark.parametrize("percent", [80.0, 60.0, 40.0, 20.0])
@pytest.mark.parametrize("name", ["pcie_generation_percent", "pcie_width_percent"])
def test_slower_link_of_a_gpu_at_work_is_pcie_pressure(name: str, percent: float) -> None:
    """Every step is longer by the same, as in a new phase of the job; lanes come in halves."""
    if name == "pcie_width_percent":
        percent = {80.0: 50.0, 60.0: 25.0, 40.0: 12.5, 20.0: 6.25}[percent]
    assert causes(_CALM.with_(step_ms=25.0, gpu=gpu(**{name: percent}))) == {Cause.PCIE_PRESSURE}


@pytest.mark.parametrize(
    "asleep",
    [
        {"gpu_busy_percent": 3.0, "sm_clock_percent": 17.0},
        {"gpu_busy_percent": float("nan"), "sm_clock_percent": 17.0},
    ],
)
def test_link_and_clock_that_an_idle_gpu_lowers_accuse_nobody(asleep: dict[str, float]) -> None:
    """Its job waits for something else: to save power the GPU lowers them by itself."""
    told = {name: value for name, value in gpu(**_LINK, **asleep).items() if value == value}  # noqa: PLR0124
    found = causes(_CALM.with_(long_share=0.2, gpu=told))
    assert found == {Cause.UNKNOWN}


def test_gpu_is_in_use_by_its_kernels_or_where_they_are_not_told_by_its_clock() -> None:
    assert in_use({"gpu_busy_percent": 40.0, "sm_clock_percent": 17.0})
    assert not in_use({"gpu_busy_percent": 2.0, "sm_clock_percent": 99.0})
    assert in_use({"sm_clock_percent": 42.0})
    assert not in_use({"sm_clock_percent": 17.0})
    assert not in_use({})


def test_gpu_that_is_gone_is_a_hardware_fault() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 30, _CALM)
    hung = _CALM.with_(running_ms=1500.0, gpu={"gpu_lost_count": 1.0})
    found = diagnoses(run(diagnoser, host.frames(hung, 25)))
    assert {one.cause for one in found} == {Cause.GPU_HARDWARE_FAULT}
    assert found[-1].evidence[0].signal == "gpu_lost_count"


def test_gpu_that_does_not_answer_is_a_hardware_fault_unless_its_reader_got_no_time() -> None:
    silent = gpu(gpu_silent_count=1.0)
    assert causes(_CALM.with_(long_share=0.2, gpu=silent)) == {Cause.GPU_HARDWARE_FAULT}
    assert Cause.GPU_HARDWARE_FAULT not in causes(CROWDED.with_(gpu=silent))


def test_few_long_steps_are_enough_where_hardware_has_told_of_a_fault() -> None:
    """A channel that waits for a replaced row stalls seldom; and an error makes a stall likely."""

    def found(elsewhere: float = 0.0, **signals: float) -> set[Cause]:
        host, diagnoser = Host(seed=4), Diagnoser()
        warm(diagnoser, host, 30, _CALM.with_(host={"faults_gpu_per_s": 0.0}))
        told = {"faults_gpu_per_s": elsewhere}
        scene = _CALM.with_(long_share=0.02, gpu=gpu(**signals), host=told)
        return {one.cause for one in diagnoses(run(diagnoser, host.frames(scene, 3)))}

    assert found() == set()
    assert found(ecc_corrected_per_s=0.4) == set()
    assert found(xids_faulty_per_s=1.0) == {Cause.GPU_HARDWARE_FAULT}
    assert found(gpu_processes_count=2.0) == set()
    assert found(elsewhere=1.0) == set(), "it may be another job's GPU"
