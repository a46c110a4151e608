"""Names and units are DCGM's and OpenTelemetry's own, and the page's table has each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.semconv._incubating.attributes import container_attributes, k8s_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics
from opentelemetry.semconv.attributes import service_attributes

from collectors.devices.device_port import DeviceReading, Field
from collectors.devices.otel import NAMES as OTEL
from edge_agent.export.host_numbers import FamilyRow, GpuNow, HostSnapshot, HostWorkload
from edge_agent.export.otlp import MessageWriter, workload_attributes
from edge_agent.export.scrape import NAMES as DCGM
from tests.export_kit import CONTAINER, JOB, POD, series_of

PAGE = Path("docs/monitoring.md").read_text(encoding="utf-8")
DEVICES = Path("docs/devices.md").read_text(encoding="utf-8")
UNITS = {"%", "MiB", "MHz", "W"}
RESOURCE = {"host.name": "node7", "service.name": "pointillist-agent", "service.version": "1"}
BATCH = HostWorkload(JOB)


class NotingMeter:
    """Takes down what the conventions' own package asks of a meter."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[str, str]] = {}

    def create_counter(self, name: str, unit: str, **_: Any) -> None:
        self.asked[name] = ("counter", unit)

    def create_up_down_counter(self, name: str, unit: str, **_: Any) -> None:
        self.asked[name] = ("updowncounter", unit)

    def create_observable_gauge(self, name: str, unit: str, **_: Any) -> None:
        self.asked[name] = ("gauge", unit)


def conventions() -> dict[str, tuple[str, str]]:
    """Instrument and unit of every metric of hardware, as the conventions' package makes them."""
    meter = NotingMeter()
    for name, make in vars(hw_metrics).items():
        if name.startswith("create_hw_"):
            gauge = make.__code__.co_argcount > 1
            make(meter, None) if gauge else make(meter)
    return meter.asked


def test_otel_names_units_and_instruments_are_those_of_the_conventions() -> None:
    known = conventions()
    assert len(known) > 20
    assert {otel.name: (str(otel.instrument), otel.unit) for otel in OTEL.values()} == {
        otel.name: known[otel.name] for otel in OTEL.values()
    }
    attributes = workload_attributes(HostWorkload(JOB, POD, CONTAINER))
    assert attributes[k8s_attributes.K8S_POD_UID] == POD
    assert attributes[container_attributes.CONTAINER_ID] == CONTAINER
    assert service_attributes.SERVICE_NAME in RESOURCE


@pytest.mark.parametrize(
    ("field", "measured", "said"),
    [
        (Field.UTILISATION, 93, 93),
        (Field.MEMORY_USED, (80 << 30) + 1, 81_920),
        (Field.POWER, 412_345, 412.345),
        (Field.POWER_LIMIT, 700_000, 700.0),
        (Field.TEMPERATURE, 61, 61),
        (Field.SM_CLOCK, 1_980, 1_980),
        (Field.PCIE_TX, 3 << 20, 3 << 20),
        (Field.XID_LAST, 79, 79),
    ],
)
def test_dcgm_units(field: Field, measured: int, said: float) -> None:
    assert DCGM[field].value(measured) == said


def rows() -> Iterator[list[str]]:
    for line in PAGE.splitlines():
        if line.startswith("| `") and line.count("|") == 4:
            yield [cell.strip(" `") for cell in line.strip("| ").split(" | ")]


def test_the_page_has_every_name_with_its_field_and_the_page_of_devices_its_source() -> None:
    table = {row[0]: (row[2], row[1]) for row in rows() if row[0].startswith("DCGM_FI_")}
    assert {name: field for name, (field, _) in table.items()} == {
        dcgm.name: str(kind) for kind, dcgm in DCGM.items()
    }
    for dcgm in DCGM.values():
        unit = dcgm.text.rpartition(", ")[2]
        if unit in UNITS:
            assert table[dcgm.name][1].split(",")[0] == unit
    fields = set(re.findall(r"`([a-z_]+)`", DEVICES)) | {"pcie_width_max", "pcie_generation_max"}
    assert {str(kind) for kind in DCGM} <= fields
    assert {otel.name for otel in OTEL.values()} <= set(re.findall(r"`(hw[a-z._]+)`", DEVICES))


def test_the_page_names_our_own_metrics() -> None:
    for name in (
        "pointillist_gpu_kernel_launches_total", "pointillist_gpu_kernel_launches_variance",
        "pointillist_gpu_kernel_launches_below", "pointillist_gpu_kernel_launches_above",
        "pointillist_gpu_kernel_seconds_total", "pointillist_gpu_kernel_seconds_variance",
        "pointillist_gpu_workload_memory_bytes", "pointillist.gpu.kernel.launches",
        "pointillist.gpu.kernel.time", "pointillist.gpu.workload.memory.usage",
    ):  # fmt: skip
        assert f"`{name}`" in PAGE, name


def reading(fields: dict[Field, int]) -> DeviceReading:
    return DeviceReading(0, "GPU-1", "H100", 0, 1, fields)


def written(writer: MessageWriter, at_s: int, replays: int) -> ExportMetricsServiceRequest:
    fields = {Field.UTILISATION: 50, Field.MEMORY_USED: 1 << 30, Field.PCIE_REPLAYS: replays}
    gpu = GpuNow(reading(fields), BATCH, ((BATCH, 1 << 29),))
    row = FamilyRow(BATCH, "gemm", 1000.0, None, 1.5, 0.25)
    message = writer.write(HostSnapshot(at_s * 10**9, (gpu,), (row,)))
    return ExportMetricsServiceRequest.FromString(message)


def test_message_has_values_units_kinds_and_whose_they_are() -> None:
    request = written(MessageWriter(RESOURCE, "1"), 100, 3)
    (whole,) = request.resource_metrics
    assert {a.key: a.value.string_value for a in whole.resource.attributes} == RESOURCE
    (scope,) = whole.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    device = {("hw.id", "GPU-1"), ("hw.type", "gpu"), ("hw.model", "H100"), ("slurm.job.id", JOB)}
    work = {("pointillist.kernel.family", "gemm"), ("slurm.job.id", JOB)}
    assert series_of(request) == {
        ("hw.gpu.utilization", frozenset(device | {("hw.gpu.task", "general")})): 0.5,
        ("hw.gpu.memory.usage", frozenset(device)): 1 << 30,
        ("hw.errors", frozenset(device | {("error.type", "pcie_replay")})): 3,
        ("pointillist.gpu.workload.memory.usage", frozenset(device)): 1 << 29,
        ("pointillist.gpu.kernel.launches", frozenset(work)): 1000.0,
        ("pointillist.gpu.kernel.time", frozenset(work)): 1.5,
        ("pointillist.gpu.kernel.time.variance", frozenset(work)): 0.25,
    }
    assert found["hw.gpu.utilization"].HasField("gauge")
    assert found["hw.errors"].sum.is_monotonic
    assert not found["hw.gpu.memory.usage"].sum.is_monotonic
    kind = found["hw.errors"].sum.aggregation_temporality
    assert kind == AGGREGATION_TEMPORALITY_CUMULATIVE
    assert found["pointillist.gpu.kernel.time"].unit == "s"


def test_a_counter_that_fell_begins_anew() -> None:
    writer = MessageWriter(RESOURCE, "1")
    since = []
    for at_s, replays in ((100, 3), (110, 5), (120, 0), (130, 1)):
        request = written(writer, at_s, replays)
        (errors,) = (
            metric
            for metric in request.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == "hw.errors"
        )
        (point,) = errors.sum.data_points
        assert point.time_unix_nano == at_s * 10**9
        since.append(point.start_time_unix_nano // 10**9)
    assert since == [100, 100, 120, 120]


def test_dcgm_names_are_written_once() -> None:
    names = [dcgm.name for dcgm in DCGM.values()]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"DCGM_FI_(DEV|PROF)_[A-Z_]+", name) for name in names)
