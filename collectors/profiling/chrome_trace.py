"""The profile as trace events, for chrome://tracing and Perfetto: written as the calls come.

Each thread has a track with its calls. Each stream has one with the moments at which work was
given to it; when the GPU did that work is not seen from here. What the GPU did is known as sums of
a second: counters show them, and no single kernel. Times are microseconds since the profile began.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Final

from collectors.gpu_calls.meanings import CallKind

from .gpu_times import GpuStep
from .profiled import NamedCall, ProfiledProcess

MOST_CALLS: Final = 2_000_000
"""About 700 MB of text, 40 MB compressed; further calls are counted, not written."""

_CATEGORIES: Final = {
    CallKind.LAUNCH: "launch",
    CallKind.GRAPH_LAUNCH: "launch",
    CallKind.COPY: "copy",
    CallKind.MEMSET: "memset",
    CallKind.WAIT: "wait",
    CallKind.ALLOCATE: "memory",
    CallKind.FREE: "memory",
    CallKind.COLLECTIVE: "collective",
    CallKind.NAME: "load",
}
_STREAMS_PID: Final = 1 << 31
"""Beyond every process id: the tracks of the streams are a process of their own."""
_GPUS_PID: Final = _STREAMS_PID + 1
_COVERED: Final = ("busy", "compute", "copies", "collectives")
"""Of a GPU, in the order of `TimedGpu`."""


class ChromeTraceWriter:
    """Writes JSON to a file, call by call."""

    def __init__(self, out: BinaryIO, begun_ns: int, most_calls: int = MOST_CALLS) -> None:
        self._out, self._begun_ns, self._most = out, begun_ns, most_calls
        self._calls = self._left_out = 0
        self._streams: dict[int, int] = {}
        self._families: dict[int, list[str]] = {}
        self._ended_ns = begun_ns
        self._counters: dict[str, list[str]] = {}
        self._separator = b""
        self._out.write(b'{"displayTimeUnit":"ns","traceEvents":[')

    def add(self, calls: list[NamedCall]) -> None:
        """Write calls."""
        for call in calls:
            if self._calls >= self._most:
                self._left_out += 1
                continue
            self._calls += 1
            self._call(call)

    def add_time(self, step: GpuStep) -> None:
        """Write counters that hold from the step's begin until the next."""
        span_ns = step.ended_ns - step.begun_ns
        for gpu in step.gpus:
            covered = zip(_COVERED, gpu[1:5], strict=True)
            shares = {name: 100 * time_ns / span_ns for name, time_ns in covered}
            self._counter(f"GPU {gpu.gpu}: share of time, %", step.begun_ns, shares)
        for device, families in self._by_family(step).items():
            # An estimate of one step may be below 0.
            rates = {
                family: 1e3 * max(time_ns, 0.0) / span_ns for family, time_ns in families.items()
            }
            self._counter(f"GPU {device}: kernel time, ms/s", step.begun_ns, rates)
        recorded = {"recorded": 100 * step.recorded_ns / span_ns}
        self._counter("recorded, %", step.begun_ns, recorded)
        self._ended_ns = step.ended_ns

    def _by_family(self, step: GpuStep) -> dict[int, dict[str, float]]:
        """Give each GPU's time by family; a family that has been seen stays, if as a zero."""
        found: dict[int, dict[str, float]] = {
            gpu: dict.fromkeys(families, 0.0) for gpu, families in self._families.items()
        }
        for kernel, _, _ in step.kernels:
            of = found.setdefault(kernel.gpu, {})
            of[kernel.family] = of.get(kernel.family, 0.0) + kernel.time.value_ns
        self._families = {gpu: list(of) for gpu, of in found.items()}
        return found

    def _end_counters(self) -> None:
        """Let no counter hold beyond what was measured."""
        for title, names in self._counters.items():
            self._counter(title, self._ended_ns, dict.fromkeys(names, 0.0))

    def finish(self, subject: ProfiledProcess) -> None:
        """Write names of threads and streams, and what the trace is of."""
        self._end_counters()
        if self._counters:
            name = f"GPU time of {subject.pid}, as sums of a second"
            self._name("process_name", _GPUS_PID, 0, name)
        self._name("process_name", subject.pid, 0, f"{subject.name} ({subject.pid})")
        for thread, name in subject.threads.items():
            self._name("thread_name", subject.pid, thread, name)
        if self._streams:
            self._name("process_name", _STREAMS_PID, 0, f"streams of {subject.pid}, as given work")
        for stream, track in self._streams.items():
            title = f"stream {stream:#x}" if stream else "default stream"
            self._name("thread_name", _STREAMS_PID, track, title)
        about = {
            "clock": "CLOCK_BOOTTIME",
            "begun_boottime_ns": subject.begun_ns,
            "begun_unix_ns": subject.unix_ns,
            "duration_ns": subject.ended_ns - subject.begun_ns,
            "calls": self._calls,
            "calls_not_written": self._left_out,
            "lost": subject.lost,
            "gpu_time": subject.gpu_time.said,
            "gpu_uuids": subject.gpu_time.uuids,
        }
        self._out.write(b'],"otherData":' + _json(about) + b"}\n")

    def _call(self, call: NamedCall) -> None:
        sample, name = call.sample, _clean(call.title)
        category = _CATEGORIES.get(call.kind, "call")
        begun = (sample.boottime_ns - self._begun_ns) / 1000
        args: dict[str, Any] = {"call": sample.call, "correlation": sample.correlation}
        if call.kind in {CallKind.COPY, CallKind.MEMSET, CallKind.ALLOCATE, CallKind.COLLECTIVE}:
            args["bytes"] = sample.bytes
        if call.on_stream:
            args["stream"] = f"{sample.stream:#x}"
        for handle, value in (("graph", sample.graph), ("event", sample.event)):
            if value:
                args[handle] = f"{value:#x}"
        common = {"name": name, "cat": category, "ts": begun, "args": args}
        spent = sample.duration_ns / 1000
        self._event(
            common | {"ph": "X", "dur": spent, "pid": sample.process.pid, "tid": sample.thread}
        )
        if call.on_stream:
            track = self._streams.setdefault(sample.stream, len(self._streams) + 1)
            self._event(common | {"ph": "i", "s": "t", "pid": _STREAMS_PID, "tid": track})

    def _counter(self, title: str, at_ns: int, values: dict[str, float]) -> None:
        self._counters[title] = list(values)
        at = max(at_ns - self._begun_ns, 0) / 1000
        self._event(
            {"name": title, "ph": "C", "pid": _GPUS_PID, "tid": 0, "ts": at, "args": values}
        )

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        args = {"name": _clean(name)}
        self._event({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def _event(self, event: dict[str, Any]) -> None:
        self._out.write(self._separator + b"\n" + _json(event))
        self._separator = b","


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _clean(text: str) -> str:
    """Names come from processes: no lone surrogates, which readers refuse."""
    return text.encode("utf-8", "replace").decode()
