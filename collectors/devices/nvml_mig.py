"""MIG instances by NVML: memory, processes, and how busy each is where the GPU samples it (GPM)."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pynvml

from collectors.records.gap import Gap, GapKind

from .device_port import Measured, Partition
from .nvml_calls import MOST_DEVICES, Handle, ask, device_uuid, memory_of, processes_of
from .nvml_gpm import gpm_metric, gpm_sample, gpm_supported

_FIRST: Final = Gap(GapKind.NOT_YET, "it takes two looks: this was the first")


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
            sample = ask(partial(_sample, gpu, part))
            if not isinstance(sample, Gap):
                now[label] = sample
            share = _share(before.get(label), sample)
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


def _sample(gpu: Handle, part: Handle) -> Any:
    gpm_supported(gpu)
    instance = pynvml.nvmlDeviceGetGpuInstanceId(part)
    return gpm_sample(partial(pynvml.nvmlGpmMigSampleGet, gpu, instance))


def _share(before: Any, now: Any) -> Measured:
    if isinstance(now, Gap):
        return now
    if before is None:
        return _FIRST
    return ask(partial(_between, before, now))


def _between(before: Any, now: Any) -> int:
    return round(gpm_metric(before, now, pynvml.NVML_GPM_METRIC_SM_UTIL))
