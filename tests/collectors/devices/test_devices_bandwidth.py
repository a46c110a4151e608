"""Bandwidth between host and GPU, through the CUDA driver API and a fake driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.devices.bandwidth import REPEATS, WARM_UPS, Bandwidth, measure_all
from collectors.devices.bounded import Spawner
from collectors.records.basics import FailureKind, ReadFailure
from tests.fake_cuda_kit import FakeCuda

GPUS = tuple(f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(8))
MB = 1_000_000
PAIRS = {
    "cuMemHostAlloc": "cuMemFreeHost",
    "cuMemAlloc_v2": "cuMemFree_v2",
    "cuStreamCreate": "cuStreamDestroy_v2",
    "cuEventCreate": "cuEventDestroy_v2",
    "cuDevicePrimaryCtxRetain": "cuDevicePrimaryCtxRelease_v2",
}


@pytest.fixture
def cuda(tmp_path: Path) -> FakeCuda:
    return FakeCuda(tmp_path)


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def _one(cuda: FakeCuda, spawner: Spawner, *, deadline_s: float = 20) -> Bandwidth | ReadFailure:
    (found,) = measure_all([GPUS[1]], spawner, deadline_s=deadline_s, task=cuda.measure)
    return found


def _released(cuda: FakeCuda) -> bool:
    calls = cuda.calls
    return all(calls[made] == calls[freed] for made, freed in PAIRS.items())


def test_bandwidth_is_each_gpus_own_each_way(cuda: FakeCuda, spawner: Spawner) -> None:
    cuda.play("* to_device value 52000", "* to_host value 50000", "2 to_device value 6000")
    found = measure_all(GPUS[:3], spawner, task=cuda.measure)
    assert all(isinstance(one, Bandwidth) for one in found)
    rates = [
        (round(one.to_device_bytes_per_s / MB), round(one.to_host_bytes_per_s / MB))
        for one in found
        if isinstance(one, Bandwidth)
    ]
    assert rates == [(52_000, 50_000), (52_000, 50_000), (6_000, 50_000)]
    assert cuda.calls["cuMemcpyHtoDAsync_v2"] == 3 * (WARM_UPS + REPEATS)
    assert _released(cuda)


def test_bandwidth_is_measured_from_the_memory_beside_the_gpu(
    cuda: FakeCuda, spawner: Spawner
) -> None:
    beside = cuda.pci / "0000:a1:00.0"
    beside.mkdir(parents=True)
    cpu = min(os.sched_getaffinity(0))
    (beside / "numa_node").write_text("1\n")
    (beside / "local_cpulist").write_text(f"{cpu},{cpu}-{cpu},1000-1003\n")
    found = _one(cuda, spawner)
    assert isinstance(found, Bandwidth)
    assert found.numa_node == 1
    assert cuda.calls["cpus 1"] == 1
    (beside / "local_cpulist").write_text("\n")
    found = _one(cuda, spawner)
    assert isinstance(found, Bandwidth)
    assert found.numa_node is None


@pytest.mark.parametrize(
    "call", [*PAIRS, "cuCtxSetCurrent", "cuMemcpyDtoHAsync_v2", "cuEventRecord"]
)
def test_bandwidth_failing_call_is_a_gap_and_everything_is_released(
    cuda: FakeCuda, spawner: Spawner, call: str
) -> None:
    cuda.play(f"1 {call} error 2")
    found = _one(cuda, spawner)
    assert isinstance(found, ReadFailure)
    assert (found.kind, call in found.reason) == (FailureKind.FAILED, True)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in found.reason
    made, freed = dict(cuda.calls), cuda.calls
    made[call] = made.get(call, 0) - (call in PAIRS)
    assert all(made.get(one, 0) == freed[other] for one, other in PAIRS.items())


@pytest.mark.parametrize(
    ("scenario", "kind", "reason"),
    [
        ("gpus 0", FailureKind.FAILED, "cuInit: CUDA_ERROR_NO_DEVICE"),
        ("gpus 1", FailureKind.UNSUPPORTED, "CUDA does not show this GPU"),
        ("* mig value 1", FailureKind.UNSUPPORTED, "CUDA does not show this GPU"),
        ("1 cuEventSynchronize error 214", FailureKind.DAMAGED, "ECC_UNCORRECTABLE"),
        ("1 corrupt value 1", FailureKind.DAMAGED, "not those that were sent"),
    ],
)
def test_bandwidth_that_cannot_be_had_says_why(
    cuda: FakeCuda, spawner: Spawner, scenario: str, kind: FailureKind, reason: str
) -> None:
    cuda.play(scenario)
    found = _one(cuda, spawner)
    assert isinstance(found, ReadFailure)
    assert found.kind is kind
    assert reason in found.reason
    assert _released(cuda)


def test_bandwidth_hanging_driver_costs_its_child_and_its_gpu_alone(
    cuda: FakeCuda, spawner: Spawner
) -> None:
    cuda.play("1 cuEventSynchronize hang")
    hung, good = measure_all(GPUS[1:3], spawner, deadline_s=1.0, task=cuda.measure)
    assert isinstance(hung, ReadFailure)
    assert hung.kind is FailureKind.TIMED_OUT
    assert isinstance(good, Bandwidth)


@pytest.mark.live
def test_bandwidth_of_all_gpus_together_is_bounded(cuda: FakeCuda, spawner: Spawner) -> None:
    cuda.play("* cuInit hang")
    found = measure_all(GPUS, spawner, deadline_s=0.2, budget_s=0.3, task=cuda.measure)
    kinds = [one.kind for one in found if isinstance(one, ReadFailure)]
    assert kinds == [FailureKind.TIMED_OUT] * 2 + [FailureKind.FAILED] * 6


def _dies(_gpu_uuid: str) -> Bandwidth | ReadFailure:
    os._exit(1)


def test_bandwidth_child_that_dies_is_a_gap(spawner: Spawner) -> None:
    (found,) = measure_all(GPUS[:1], spawner, task=_dies)
    assert isinstance(found, ReadFailure)
    assert "the measuring process ended" in found.reason


def test_bandwidth_without_a_cuda_driver_is_unsupported(spawner: Spawner) -> None:
    """This machine has none, or it has a GPU, and `gpu-check` measures it."""
    (found,) = measure_all(GPUS[:1], spawner)
    assert isinstance(found, ReadFailure)
    assert found.kind in {FailureKind.UNSUPPORTED, FailureKind.FAILED}
