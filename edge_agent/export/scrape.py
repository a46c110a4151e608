"""This host's numbers for a Prometheus on this host, under DCGM's names; for named users alone, by
what the kernel says of their sockets. Left out of DCGM's fields: those of NVLink and free memory,
which are other numbers here. Source: NVIDIA, DCGM's fields, dcgm-exporter's default counters.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collectors.devices.device_port import NVIDIA, DeviceReading, Field
from edge_agent.host_page.peer_owner import owner_of
from transport.process.supervision import MetricsServer
from transport.settings.config import OWN_NAMES, asked_name

from .host_numbers import FamilyRow, GpuNow, HostSnapshot, HostWorkload

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DcgmField:
    """DCGM's field: `per_unit` of ours are its unit; whole units, or none that are rounded down."""

    name: str
    text: str
    per_unit: int = 1
    counts: bool = False
    whole: bool = True

    def value(self, measured: int) -> int | float:
        return measured // self.per_unit if self.whole else measured / self.per_unit


def _counter(name: str, text: str) -> DcgmField:
    return DcgmField(name, text, counts=True)


NAMES: Final[Mapping[Field, DcgmField]] = {
    Field.UTILISATION: DcgmField("DCGM_FI_DEV_GPU_UTIL", "time with a kernel, %"),
    Field.MEMORY_BUSY: DcgmField("DCGM_FI_DEV_MEM_COPY_UTIL", "time with memory traffic, %"),
    Field.MEMORY_USED: DcgmField("DCGM_FI_DEV_FB_USED", "memory in use, MiB", _MIB),
    Field.MEMORY_TOTAL: DcgmField("DCGM_FI_DEV_FB_TOTAL", "memory, MiB", _MIB),
    Field.SM_CLOCK: DcgmField("DCGM_FI_DEV_SM_CLOCK", "clock of the SMs, MHz"),
    Field.SM_CLOCK_MAX: DcgmField("DCGM_FI_DEV_MAX_SM_CLOCK", "highest clock of the SMs, MHz"),
    Field.MEMORY_CLOCK: DcgmField("DCGM_FI_DEV_MEM_CLOCK", "clock of the memory, MHz"),
    Field.POWER: DcgmField("DCGM_FI_DEV_POWER_USAGE", "power, W", 1_000, whole=False),
    Field.POWER_LIMIT: DcgmField(
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "power that the driver allows, W", 1_000, whole=False
    ),
    Field.TEMPERATURE: DcgmField("DCGM_FI_DEV_GPU_TEMP", "temperature, C"),
    Field.FAN: DcgmField("DCGM_FI_DEV_FAN_SPEED", "speed of the fan, %"),
    Field.THROTTLE: DcgmField("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "why clocks are held, bits"),
    Field.PCIE_TX: DcgmField("DCGM_FI_PROF_PCIE_TX_BYTES", "sent over PCIe, bytes a second"),
    Field.PCIE_RX: DcgmField("DCGM_FI_PROF_PCIE_RX_BYTES", "received over PCIe, bytes a second"),
    Field.PCIE_GENERATION: DcgmField("DCGM_FI_DEV_PCIE_LINK_GEN", "generation of the PCIe link"),
    Field.PCIE_WIDTH: DcgmField("DCGM_FI_DEV_PCIE_LINK_WIDTH", "lanes of the PCIe link"),
    Field.PCIE_GENERATION_MAX: DcgmField(
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "highest generation of the PCIe link"
    ),
    Field.PCIE_WIDTH_MAX: DcgmField("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "most lanes of the link"),
    Field.PCIE_REPLAYS: _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "replays on the PCIe link"),
    Field.ECC_VOLATILE_CORRECTED: _counter(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "corrected errors since the driver was loaded"
    ),
    Field.ECC_VOLATILE_UNCORRECTED: _counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrected errors since the driver was loaded"
    ),
    Field.ECC_AGGREGATE_CORRECTED: _counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "corrected errors of the GPU's life"
    ),
    Field.ECC_AGGREGATE_UNCORRECTED: _counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "uncorrected errors of the GPU's life"
    ),
    Field.ROWS_CORRECTED: _counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rows remapped after corrected errors"
    ),
    Field.ROWS_UNCORRECTED: _counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows remapped after uncorrected errors"
    ),
    Field.ROWS_PENDING: DcgmField("DCGM_FI_DEV_ROW_REMAP_PENDING", "1 while a remap waits"),
    Field.ROWS_FAILED: DcgmField("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 where a remap failed"),
    Field.XID_LAST: DcgmField("DCGM_FI_DEV_XID_ERRORS", "last XID since the agent looks, 0: none"),
    Field.MIG: DcgmField("DCGM_FI_DEV_MIG_MODE", "1 where MIG is on"),
}


def device_labels(reading: DeviceReading) -> dict[str, str]:
    return {
        "gpu": str(reading.index),
        "UUID": reading.id,
        "device": f"nvidia{reading.index}",
        "modelName": reading.model,
    }


_CHOOSE: Final = "export.prometheus.port in the agent's configuration, 0 for a free one"

Owner = Callable[[tuple[str, int], tuple[str, int]], int | None]


class HostCollector(Collector):
    def __init__(self, snapshot: Callable[[], HostSnapshot], hostname: str) -> None:
        self._snapshot, self._hostname = snapshot, hostname

    def collect(self) -> Iterable[Metric]:
        now = self._snapshot()
        nvidia = [(gpu, gpu.reading.values) for gpu in now.gpus if gpu.reading.vendor == NVIDIA]
        for kind, dcgm in NAMES.items():
            told = [(gpu, values[kind]) for gpu, values in nvidia if kind in values]
            if told:
                yield self._devices(dcgm, told)
        yield from self._memory(now.gpus)
        yield from _work(now.families, {"Hostname": self._hostname})

    def _devices(self, dcgm: DcgmField, values: Sequence[tuple[GpuNow, int]]) -> Metric:
        # The format would have counters end in _total, and DCGM's do not.
        family = Metric(dcgm.name, dcgm.text, "unknown" if dcgm.counts else "gauge")
        for gpu, value in values:
            labels = device_labels(gpu.reading) | self._labels(gpu.workload)
            family.add_sample(dcgm.name, labels, float(dcgm.value(value)))
        return family

    def _memory(self, gpus: Iterable[GpuNow]) -> Iterator[Metric]:
        name = "pointillist_gpu_workload_memory_bytes"
        family = GaugeMetricFamily(name, "memory of a GPU by whose processes hold it")
        for gpu in gpus:
            device = device_labels(gpu.reading)
            for workload, memory in gpu.memory:
                family.add_sample(name, device | self._labels(workload), memory)
        if family.samples:
            yield family

    def _labels(self, workload: HostWorkload) -> dict[str, str]:
        return {"Hostname": self._hostname, **workload_labels(workload)}


def workload_labels(workload: HostWorkload) -> dict[str, str]:
    return {name: value for name, value in workload._asdict().items() if value}


def _work(rows: Sequence[FamilyRow], host: dict[str, str]) -> Iterator[Metric]:
    prefix = "pointillist_gpu_kernel"
    families: list[tuple[Metric, str]] = [
        (CounterMetricFamily(f"{prefix}_launches", "kernels launched, by family"), "launches"),
        *(
            (GaugeMetricFamily(f"{prefix}_launches_{part}", text), f"launches_{part}")
            for part, text in _ERRORS.items()
        ),
        (CounterMetricFamily(f"{prefix}_seconds", "time of kernels on GPUs, by family"), "time_s"),
        (
            GaugeMetricFamily(f"{prefix}_seconds_variance", "variance of the time's estimate, s^2"),
            "time_variance_s2",
        ),
    ]
    for metric, field in families:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        for row in rows:
            if (value := getattr(row, field)) is not None:
                labels = {"family": row.family, **host, **workload_labels(row.workload)}
                metric.add_sample(name, labels, value)
        if metric.samples:
            yield metric


_ERRORS: Final = {
    "variance": "variance of the launches' sampling error",
    "below": "how many launches less there can be beside that, of what all share",
    "above": "how many launches more there can be beside that, of what all share",
}


class ReaderGuard:
    """Lets readers alone in, by the user whose socket asks, under this machine's own names."""

    def __init__(
        self, inner: WSGIApplication, users: frozenset[int], owner: Owner = owner_of
    ) -> None:
        self._inner, self._users, self._owner = inner, users, owner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        here = environ["LOCAL_ADDR"], int(environ["SERVER_PORT"])
        client = environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])
        named = asked_name(environ.get("HTTP_HOST", ""))
        if named in OWN_NAMES and self._owner(client, here) in self._users:
            return self._inner(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"These numbers are for the agent's own user, for root, and for its readers.\n"]


def scrape_port(
    port: int, users: frozenset[int], snapshot: Callable[[], HostSnapshot], hostname: str
) -> MetricsServer:
    """Serve /metrics on loopback to these users. Raises AddressUnavailable."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostCollector(snapshot, hostname))
    return MetricsServer(port, ReaderGuard(make_wsgi_app(registry), users), _CHOOSE)


def users_of_scrape(names: Iterable[str]) -> tuple[frozenset[int], tuple[str, ...]]:
    """Give the ids of root, of this process and of named users, and the names nobody has here."""
    known, missing = {0, os.geteuid()}, []
    for name in names:
        try:
            known.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            missing.append(name)
    return frozenset(known), tuple(missing)
