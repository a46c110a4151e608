"""GPU time as the source hands it out, with numbers that add up by hand."""

from __future__ import annotations

from collectors.records.basics import ProcessKey
from collectors.records.gpu_time import (
    EstimatedTime,
    FamilyTime,
    GpuTimes,
    TimedGpu,
    TimedKernel,
    TimedProcess,
    TimingState,
)
from tests.calls_kit import GEMM
from tests.local_kit import BOOT, S

TRAINER = ProcessKey(4711, BOOT - 3600 * S)
NOTEBOOK = ProcessKey(815, BOOT - 60 * S)
MS = 1_000_000
WINDOWS = 32
T_95 = 2.040
"""Of Student's distribution, as variances were learnt from WINDOWS."""


def gpu_times(at_ns: int = BOOT, span_ns: int = S, window: bool = True) -> GpuTimes:
    """A trainer that uses half of each of two GPUs, and a notebook that nobody times.

    window   whether one of the trainer's ended in the span
    """
    half = span_ns / 2

    def estimate(value_ns: float, error_ms: float | None) -> EstimatedTime:
        known = error_ms is not None
        variance = (error_ms * MS) ** 2 if error_ms is not None else None
        return EstimatedTime(value_ns, variance, WINDOWS * known, span_ns)

    kernels = (
        TimedKernel(0, GEMM, "gemm", 1000, estimate(half * 0.8, 3), 0, 2_000),
        TimedKernel(0, "Memcpy HtoD", "memcpy", 10, estimate(half * 0.2, None), 1 << 30),
        TimedKernel(1, GEMM, "gemm", 1000, estimate(half, 4)),
    )
    families = (
        FamilyTime("gemm", estimate(half * 1.8, 6)),
        FamilyTime("memcpy", estimate(half * 0.2, None)),
    )  # fmt: skip
    devices = (
        TimedGpu(0, half, half * 0.8, half * 0.2, 0, half * 0.1, 0, 0),
        TimedGpu(1, half, half, 0, 0, 0, 0, 0),
    )
    trainer = TimedProcess(
        TRAINER, "python3", TimingState.MEASURED, (0, 1), "c" * 64, "llm_training", 0, 130_000,
        span_ns, span_ns // 10, 0, estimate(2 * half, 7), families, kernels, devices,
    )  # fmt: skip
    if not window:
        trainer = trainer.without_span
    notebook = TimedProcess(NOTEBOOK, "jupyter", TimingState.NO_LIBRARY, (1,))
    return GpuTimes(
        at_ns, span_ns, 3, frozenset({0}), frozenset({0, 1, 2}), (trainer, notebook)
    )  # fmt: skip
