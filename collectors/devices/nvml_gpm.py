"""What NVML tells between two looks: a GPU's own counters (GPM), PCIe throughput, MIG instances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import pynvml

from collectors.records.gap import Gap, GapKind

from .device_port import Field, Measured, Partition
from .nvml_calls import MOST_DEVICES, Handle, ask, device_uuid, memory_of, processes_of


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


_BYTES_PER_KB: Final = 1_000
_BYTES_PER_MIB: Final = 1 << 20
_WATCHED: Final = {Field.PCIE_TX: 0, Field.PCIE_RX: 1}
"""Field -> NVML's counter."""
_METRICS: Final = {
    Field.PCIE_TX: pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    Field.PCIE_RX: pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
}


class PcieThroughput:
    """Remembers each GPU's last GPM sample: the traffic is told between two of them."""

    def __init__(self) -> None:
        self._samples: dict[int, Any] = {}
        self.cheap = False
        """Whether a look costs no more than other fields: all GPUs have GPM."""

    def open(self, devices: int) -> None:
        """Take a first sample of each GPU; where one has none, all are watched instead."""
        for index in range(devices):
            sample = ask(partial(_first_sample, index))
            if isinstance(sample, Gap):
                self.close()
                return
            self._samples[index] = sample
        self.cheap = bool(devices)

    def measure(
        self, index: int, handle: Handle, wanted: Collection[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        """Give the throughput, in bytes a second, since the look before or over 20 ms."""
        fields = [field for field in _METRICS if field in wanted]
        if self.cheap and fields:
            yield from self._between(index, handle, fields)
            return
        for field in fields:
            kilobytes = ask(partial(pynvml.nvmlDeviceGetPcieThroughput, handle, _WATCHED[field]))
            yield field, kilobytes if isinstance(kilobytes, Gap) else kilobytes * _BYTES_PER_KB

    def close(self) -> None:
        """Free every sample."""
        for sample in self._samples.values():
            ask(partial(pynvml.nvmlGpmSampleFree, sample))
        self._samples.clear()
        self.cheap = False

    def _between(
        self, index: int, handle: Handle, fields: list[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        now = ask(partial(gpm_sample, partial(pynvml.nvmlGpmSampleGet, handle)))
        if isinstance(now, Gap):
            yield from ((field, now) for field in fields)
            return
        before = self._samples.get(index)
        self._samples[index] = now
        for field in fields:
            found = ask(partial(gpm_metric, before, now, _METRICS[field]))
            yield field, found if isinstance(found, Gap) else round(found * _BYTES_PER_MIB)
        ask(partial(pynvml.nvmlGpmSampleFree, before))


def _first_sample(index: int) -> Any:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpm_supported(handle)
    return gpm_sample(partial(pynvml.nvmlGpmSampleGet, handle))


_FIRST_LOOK: Final = Gap(GapKind.NOT_YET, "it takes two looks: this was the first")


class MigInstances:
    """Remembers each instance's last GPM sample: how busy it was is told between two of them."""

    def __init__(self) -> None:
        self._samples: dict[int, dict[str, Any]] = {}

    def look(self, index: int, gpu: Handle) -> tuple[Partition, ...] | Gap:
        """Give a GPU's instances; none where MIG is off."""
        mode = ask(lambda: pynvml.nvmlDeviceGetMigMode(gpu)[0])
        if isinstance(mode, Gap) or not mode:
            self._keep(index, {})
            return mode if isinstance(mode, Gap) else ()
        most = ask(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
        if isinstance(most, Gap):
            return most
        before, now = self._samples.get(index, {}), dict[str, Any]()
        parts = []
        for place in range(min(most, MOST_DEVICES)):
            part = ask(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place))
            if isinstance(part, Gap):
                continue  # a place without an instance
            name = ask(partial(device_uuid, part))
            label = f"partition-{place}" if isinstance(name, Gap) else name
            memory = ask(partial(memory_of, part))
            used, total = (memory, memory) if isinstance(memory, Gap) else memory
            sample = ask(partial(_mig_sample, gpu, part))
            if not isinstance(sample, Gap):
                now[label] = sample
            share = _mig_share(before.get(label), sample)
            parts.append(Partition(label, used, total, processes_of(part), share))
        self._keep(index, now)
        return tuple(parts)

    def close(self) -> None:
        """Free every sample."""
        for index in list(self._samples):
            self._keep(index, {})

    def _keep(self, index: int, now: dict[str, Any]) -> None:
        for old in self._samples.pop(index, {}).values():
            ask(partial(pynvml.nvmlGpmSampleFree, old))
        if now:
            self._samples[index] = now


def _mig_sample(gpu: Handle, part: Handle) -> Any:
    gpm_supported(gpu)
    instance = pynvml.nvmlDeviceGetGpuInstanceId(part)
    return gpm_sample(partial(pynvml.nvmlGpmMigSampleGet, gpu, instance))


def _mig_share(before: Any, now: Any) -> Measured:
    if isinstance(now, Gap):
        return now
    if before is None:
        return _FIRST_LOOK
    return ask(partial(_utilisation, before, now))


def _utilisation(before: Any, now: Any) -> int:
    return round(gpm_metric(before, now, pynvml.NVML_GPM_METRIC_SM_UTIL))
