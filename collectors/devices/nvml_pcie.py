"""PCIe throughput by NVML: between two GPM samples, or watched for 20 ms where there are none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import pynvml

from collectors.records.gap import Gap

from .device_port import Field, Measured
from .nvml_calls import Handle, ask
from .nvml_gpm import gpm_metric, gpm_sample, gpm_supported

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
            sample = ask(partial(_sample_of, index))
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


def _sample_of(index: int) -> Any:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpm_supported(handle)
    return gpm_sample(partial(pynvml.nvmlGpmSampleGet, handle))
