"""A snapshot as OTLP's request, under OpenTelemetry's names where it has one.

Source  OpenTelemetry, protocol (metrics v1, ExportMetricsServiceRequest); semantic conventions for
        hardware, containers (container.id) and Kubernetes (k8s.pod.uid). There is none for a batch
        job's number (slurm.job.id) and for GPU work by family (pointillist.*).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Metric,
    NumberDataPoint,
    ScopeMetrics,
)

from collectors.devices.otel import Instrument, device_attributes, measured

from .host_numbers import GpuNow, HostSnapshot
from .host_workloads import FamilyRow, HostWorkload

SCOPE: Final = "pointillist.host"


class Point(NamedTuple):
    """One value of one series."""

    name: str
    unit: str
    instrument: Instrument
    value: int | float
    attributes: Mapping[str, str]


_Series = tuple[str, tuple[tuple[str, str], ...]]
NumberDataPoints = RepeatedCompositeFieldContainer[NumberDataPoint]


class MessageWriter:
    """Writes messages in their order; it remembers since when each series counts."""

    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        self._resource, self._version = dict(resource), version
        self._since: dict[_Series, tuple[int, float]] = {}

    def write(self, snapshot: HostSnapshot) -> bytes:
        """Give a snapshot's message."""
        request = ExportMetricsServiceRequest()
        whole = request.resource_metrics.add()
        whole.resource.attributes.extend(_attributes(self._resource))
        scope = whole.scope_metrics.add()
        scope.scope.name, scope.scope.version = SCOPE, self._version
        metrics: dict[str, Metric] = {}
        seen: dict[_Series, tuple[int, float]] = {}
        for point in points(snapshot):
            series = point.name, tuple(sorted(point.attributes.items()))
            since_ns = self._start_ns(series, point.value, snapshot.unix_ns)
            seen[series] = since_ns, point.value
            written = _data_points(_metric(metrics, scope, point), point.instrument).add()
            written.time_unix_nano = snapshot.unix_ns
            if point.instrument is not Instrument.GAUGE:
                written.start_time_unix_nano = since_ns
            _set_value(written, point.value)
            written.attributes.extend(_attributes(point.attributes))
        self._since = seen
        return request.SerializeToString()

    def _start_ns(self, series: _Series, value: float, unix_ns: int) -> int:
        """Say since when a series counts: from its first point on, anew once it has fallen."""
        since_ns, last = self._since.get(series, (unix_ns, value))
        return unix_ns if value < last else since_ns


def points(snapshot: HostSnapshot) -> Iterator[Point]:
    """Give every value of a snapshot."""
    for gpu in snapshot.gpus:
        yield from _gpu_points(gpu)
    for row in snapshot.families:
        yield from _family_points(row)


def workload_attributes(workload: HostWorkload) -> dict[str, str]:
    """Give the attributes of a workload; an empty one is none."""
    named = {
        "slurm.job.id": workload.hpc_job,
        "k8s.pod.uid": workload.pod_uid,
        "container.id": workload.container_id,
    }
    return {name: value for name, value in named.items() if value}


def _gpu_points(gpu: GpuNow) -> Iterator[Point]:
    device = device_attributes(gpu.reading)
    for otel, value in measured(gpu.reading):
        attributes = {**device, **otel.attributes, **workload_attributes(gpu.workload)}
        yield Point(otel.name, otel.unit, otel.instrument, value, attributes)
    for workload, memory in gpu.memory:
        attributes = {**device, **workload_attributes(workload)}
        name = "pointillist.gpu.workload.memory.usage"
        yield Point(name, "By", Instrument.UP_DOWN_COUNTER, memory, attributes)


def _family_points(row: FamilyRow) -> Iterator[Point]:
    attributes = {"pointillist.kernel.family": row.family, **workload_attributes(row.workload)}
    counter, gauge = Instrument.COUNTER, Instrument.GAUGE
    for name, unit, instrument, value in (
        ("launches", "{launch}", counter, row.launches),
        ("launches.variance", "1", gauge, row.launches_variance),
        ("launches.below", "{launch}", gauge, row.launches_below),
        ("launches.above", "{launch}", gauge, row.launches_above),
        ("time", "s", counter, row.time_s),
        ("time.variance", "s2", gauge, row.time_variance_s2),
    ):
        if value is not None:
            yield Point(f"pointillist.gpu.kernel.{name}", unit, instrument, value, attributes)


def _metric(metrics: dict[str, Metric], scope: ScopeMetrics, point: Point) -> Metric:
    found = metrics.get(point.name)
    if found is None:
        found = metrics[point.name] = scope.metrics.add(name=point.name, unit=point.unit)
    return found


def _data_points(metric: Metric, instrument: Instrument) -> NumberDataPoints:
    match instrument:
        case Instrument.GAUGE:
            return metric.gauge.data_points
        case Instrument.COUNTER | Instrument.UP_DOWN_COUNTER:
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = instrument is Instrument.COUNTER
            return metric.sum.data_points


def _set_value(point: NumberDataPoint, value: float) -> None:
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value


def _attributes(named: Mapping[str, str]) -> Iterable[KeyValue]:
    for name, text in sorted(named.items()):
        written = KeyValue(key=name)
        written.value.string_value = text
        yield written
