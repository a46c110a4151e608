"""Samples of a GPU's own counters (GPM: Hopper and later), and what is told between two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from .nvml_calls import Handle


def gpm_sample(get: Callable[[Any], object]) -> Any:
    """Take a sample by `get`; the caller frees it."""
    sample = pynvml.nvmlGpmSampleAlloc()
    try:
        get(sample)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(sample)
        raise
    return sample


def gpm_metric(before: Any, now: Any, metric: int) -> float:
    """Give one metric between two samples of one GPU or instance."""
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, now
    asked.metrics[0].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    if asked.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(asked.metrics[0].nvmlReturn)
    return float(asked.metrics[0].value)


def gpm_supported(gpu: Handle) -> None:
    """Raise NVMLError where a GPU has no GPM."""
    if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
