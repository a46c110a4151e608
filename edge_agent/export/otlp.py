"""A snapshot as OTLP's request, under OpenTelemetry's names where it has one, sent by a thread.
What waits is bounded, what is refused dropped; no redirect, no proxy. Source: OpenTelemetry
protocol (metrics v1, OTLP/HTTP), semantic conventions for hardware, containers and Kubernetes.
"""

from __future__ import annotations

import gzip
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from threading import Condition, Thread
from typing import Final, NamedTuple

import structlog
import urllib3
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from urllib3.exceptions import HTTPError

from collectors.devices.otel import Instrument, device_attributes, measured
from edge_agent.config import OtlpSection
from transport.files.private_files import UnfitToken, read_token_text

from .host_numbers import FamilyRow, GpuNow, HostSnapshot, HostWorkload

SCOPE: Final = "pointillist.host"


class Point(NamedTuple):
    name: str
    unit: str
    instrument: Instrument
    value: int | float
    attributes: Mapping[str, str]


_Series = tuple[str, tuple[tuple[str, str], ...]]
NumberDataPoints = RepeatedCompositeFieldContainer[metrics_pb2.NumberDataPoint]


class MessageWriter:
    """Writes messages in their order; it remembers since when each series counts."""

    def __init__(self, resource: Mapping[str, str], version: str) -> None:
        self._resource, self._version = dict(resource), version
        self._since: dict[_Series, tuple[int, float]] = {}

    def write(self, snapshot: HostSnapshot) -> bytes:
        request = ExportMetricsServiceRequest()
        whole = request.resource_metrics.add()
        whole.resource.attributes.extend(_attributes(self._resource))
        scope = whole.scope_metrics.add()
        scope.scope.name, scope.scope.version = SCOPE, self._version
        metrics: dict[str, metrics_pb2.Metric] = {}
        seen: dict[_Series, tuple[int, float]] = {}
        for point in points(snapshot):
            series = point.name, tuple(sorted(point.attributes.items()))
            since_ns = self._start_ns(series, point.value, snapshot.unix_ns)
            seen[series] = since_ns, point.value
            if point.name not in metrics:
                metrics[point.name] = scope.metrics.add(name=point.name, unit=point.unit)
            written = _data_points(metrics[point.name], point.instrument).add()
            written.time_unix_nano = snapshot.unix_ns
            if point.instrument is not Instrument.GAUGE:
                written.start_time_unix_nano = since_ns
            if isinstance(point.value, int):
                written.as_int = point.value
            else:
                written.as_double = point.value
            written.attributes.extend(_attributes(point.attributes))
        self._since = seen
        return request.SerializeToString()

    def _start_ns(self, series: _Series, value: float, unix_ns: int) -> int:
        """Say since when a series counts: from its first point on, anew once it has fallen."""
        since_ns, last = self._since.get(series, (unix_ns, value))
        return unix_ns if value < last else since_ns


def points(snapshot: HostSnapshot) -> Iterator[Point]:
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


def _data_points(metric: metrics_pb2.Metric, instrument: Instrument) -> NumberDataPoints:
    match instrument:
        case Instrument.GAUGE:
            return metric.gauge.data_points
        case Instrument.COUNTER | Instrument.UP_DOWN_COUNTER:
            metric.sum.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = instrument is Instrument.COUNTER
            return metric.sum.data_points


def _attributes(named: Mapping[str, str]) -> Iterable[KeyValue]:
    for name, text in sorted(named.items()):
        written = KeyValue(key=name)
        written.value.string_value = text
        yield written


_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_MOST_ANSWER: Final = 64 << 10
_MOST_TOKEN: Final = 4 << 10
_LEAVE_S: Final = 1.0


class SendOutcome(StrEnum):
    """What became of a message; also the counter's label."""

    SENT = "sent"
    PARTLY_REFUSED = "partly_refused"
    """The collector took it and left points out."""
    REFUSED = "refused"
    CROWDED_OUT = "crowded_out"
    """It waited for so long that newer ones needed the room."""
    BROKEN = "broken"
    """It could not be written or sent, for a reason that lasts."""


class _CollectorAway(Exception):
    """The collector took nothing, for now; `pause_s` is what it asked for, if anything."""

    def __init__(self, why: str, pause_s: float | None = None) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class OtlpSender:
    def __init__(self, settings: OtlpSection, writer: MessageWriter) -> None:
        self._settings, self._writer = settings, writer
        self._url = settings.endpoint.rstrip("/") + "/v1/metrics"
        authorities = None if settings.ca_file is None else str(settings.ca_file)
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, ca_certs=authorities)
        self._waiting: deque[HostSnapshot] = deque()
        self._changed = Condition()
        self._closing = False
        self._counts: Counter[str] = Counter()
        self._away = ""
        self._log = structlog.get_logger("pointillist.agent")
        # It warns of headers in the words of whoever sent them.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._thread = Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Mapping[str, int]:
        """Messages by what became of them."""
        return dict(self._counts)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def offer(self, snapshot: HostSnapshot) -> None:
        """Have a snapshot sent; never waits."""
        with self._changed:
            while len(self._waiting) >= self._settings.most_waiting:
                self._waiting.popleft()
                self._counts[SendOutcome.CROWDED_OUT] += 1
            self._waiting.append(snapshot)
            self._changed.notify()

    def close(self) -> None:
        """Stop; what waits is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_LEAVE_S)
        self._pool.clear()

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while (snapshot := self._next()) is not None:
            try:
                outcome = self._post(gzip.compress(self._writer.write(snapshot), 1))
            except _CollectorAway as away:
                self._say(str(away))
                with self._changed:
                    # It waits again, unless newer ones have filled the room meanwhile.
                    if len(self._waiting) < self._settings.most_waiting:
                        self._waiting.appendleft(snapshot)
                    else:
                        self._counts[SendOutcome.CROWDED_OUT] += 1
                    wanted_s = pause_s if away.pause_s is None else away.pause_s
                    self._changed.wait_for(lambda: self._closing, _jittered(wanted_s))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except Exception as error:  # noqa: BLE001 (one message's fault must not end the others)
                self._log.warning("export broken", error=type(error).__name__)
                self._counts[SendOutcome.BROKEN] += 1
            else:
                self._counts[outcome] += 1
                self._say("")
                pause_s = _FIRST_PAUSE_S

    def _next(self) -> HostSnapshot | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or bool(self._waiting))
            return None if self._closing else self._waiting.popleft()

    def _post(self, message: bytes) -> SendOutcome:
        """Send one message. Raises _CollectorAway."""
        try:
            answer = self._pool.request(
                "POST", self._url, body=message, headers=self._headers(), retries=False,
                redirect=False, timeout=self._settings.timeout_s, preload_content=False,
            )  # fmt: skip
            try:
                said = answer.read(_MOST_ANSWER, decode_content=True)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise _CollectorAway(type(error).__name__) from None
        if answer.status in _RETRYABLE:
            asked = answer.headers.get("retry-after", "")
            pause_s = min(float(asked), _LONGEST_PAUSE_S) if asked.isdecimal() else None
            raise _CollectorAway(f"expected 200, got {answer.status}", pause_s)
        if answer.status != 200:
            return SendOutcome.REFUSED
        return SendOutcome.PARTLY_REFUSED if _left_out(said) else SendOutcome.SENT

    def _headers(self) -> dict[str, str]:
        """Give the request's headers. Raises OSError, _CollectorAway without a usable token."""
        headers = {
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
            "user-agent": "pointillist",
        }
        if self._settings.token_file is not None:
            try:
                token = read_token_text(self._settings.token_file, _MOST_TOKEN)
            except UnfitToken:
                token = ""
            if not token:
                raise _CollectorAway("expected a token of printable ASCII in token_file")
            headers["authorization"] = f"Bearer {token}"
        return headers

    def _say(self, why: str) -> None:
        """Log once that the collector is away, and once that it is back."""
        if bool(why) != bool(self._away):
            if why:
                self._log.warning("collector away", reason=why)
            else:
                self._log.info("collector back")
        self._away = why


def _left_out(answer: bytes) -> int:
    """Give how many points a collector left out; 0 where it says nothing that is understood."""
    try:
        said = ExportMetricsServiceResponse.FromString(answer)
    except DecodeError:
        return 0
    return said.partial_success.rejected_data_points


def _jittered(pause_s: float, random_byte: Callable[[int], bytes] = os.urandom) -> float:
    """Take between half and all of a pause: hosts that lost one collector do not ask together."""
    return pause_s * (0.5 + random_byte(1)[0] / 512)
