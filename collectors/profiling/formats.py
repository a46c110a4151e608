"""The profile in pprof's format, and as trace events for chrome://tracing and Perfetto.

GPU time is known by kernel: in pprof it is put where the kernel was launched from if every launch
was seen and came from one place, else it is a root; among trace events it is a counter of sums.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from collectors.binaries.proc_maps import Module, Modules
from collectors.gpu_calls.probe_table import CallKind

from .gpu_times import GpuStep
from .pprof_pb2 import Profile
from .session import LAUNCHES, NamedCall, ProfiledProcess

MOST_STACKS: Final = 200_000
"""Distinct samples; the calls of others are added up under `REST`."""
REST: Final = "(the rest)"

SAMPLE_TYPES: Final = (
    ("gpu_kernel_launches", "count"), ("api_time", "nanoseconds"), ("gpu_time", "nanoseconds"),
)  # fmt: skip

_Place = tuple[str, str, int, tuple[int, ...]]
_OnGpu = tuple[int, str, bool]
"""GPU, kernel, and whether it was launched by itself and not by a graph."""
_REST: Final[_Place] = (REST, "", 0, ())


@dataclass(slots=True)
class _GpuSums:
    recorded: float = 0.0
    time_ns: float = 0.0


class PprofWriter:
    """Adds calls up: kernel, call and user's stack by thread; other GPU time by kernel and GPU."""

    def __init__(self, out: BinaryIO, most_stacks: int = MOST_STACKS) -> None:
        self._out, self._most = out, most_stacks
        self._launches: Counter[_Place] = Counter()
        self._time_ns: Counter[_Place] = Counter()
        self._gpu: dict[_OnGpu, _GpuSums] = {}

    def add(self, calls: list[NamedCall]) -> None:
        for call in calls:
            place = (call.kernel, call.sample.call, call.sample.thread, call.stack)
            if place not in self._time_ns and len(self._time_ns) >= self._most:
                place = _REST
            self._launches[place] += call.kind in LAUNCHES
            self._time_ns[place] += call.sample.duration_ns

    def add_time(self, step: GpuStep) -> None:
        for kernel, recorded, alone in step.kernels:
            on = kernel.gpu, kernel.kernel, alone
            if on not in self._gpu and len(self._gpu) >= self._most:
                on = kernel.gpu, REST, False
            sums = self._gpu.setdefault(on, _GpuSums())
            sums.recorded += recorded
            sums.time_ns += kernel.time.value_ns

    def finish(self, subject: ProfiledProcess) -> None:
        builder = _Builder(subject)
        for place, spent_ns in self._time_ns.items():
            builder.sample(place, (self._launches[place], spent_ns, 0))
        origins = {} if subject.lost else self._origins()
        on_gpus = Counter(kernel for _, kernel, _ in self._gpu)
        for (gpu, kernel, alone), sums in self._gpu.items():
            time_ns = max(round(sums.time_ns), 0)  # an estimate of few windows may be below
            origin, launches = origins.get(kernel, (None, 0))
            if alone and origin and on_gpus[kernel] == 1 and sums.recorded <= launches:
                builder.sample(origin, (0, 0, time_ns))
            else:
                builder.gpu_sample(gpu, kernel, time_ns)
        self._out.write(builder.profile.SerializeToString(deterministic=True))

    def _origins(self) -> dict[str, tuple[_Place | None, int]]:
        found: dict[str, tuple[_Place | None, int]] = {}
        for place, launches in self._launches.items():
            if launches:
                found[place[0]] = (None if place[0] in found else place, launches)
        return {} if REST in found else found


class _Builder:
    def __init__(self, subject: ProfiledProcess) -> None:
        self.profile = Profile()
        self._strings: dict[str, int] = {}
        self._locations: dict[str | int, int] = {}
        self._mappings: dict[Module, int] = {}
        self._string("")
        self._modules = Modules(module for module, _ in subject.modules)
        self._build_ids = dict(subject.modules)
        self._thread = self._string("thread")
        for kind, unit in SAMPLE_TYPES:
            self.profile.sample_types.add(type=self._string(kind), unit=self._string(unit))
        self.profile.default_sample_type = self._string(SAMPLE_TYPES[0][0])
        self.profile.time_nanos = subject.unix_ns
        self.profile.duration_nanos = subject.ended_ns - subject.begun_ns
        self._gpu, self._gpu_time = self._string("gpu"), subject.gpu_time
        lost = ", ".join(f"{what} {count}" for what, count in sorted(subject.lost.items()))
        for line in (
            f"GPU calls of {subject.name} ({subject.pid})", f"lost: {lost or 'nothing'}",
            subject.gpu_time.said,
        ):  # fmt: skip
            self.profile.comments.append(self._string(line))
        for module, _ in subject.modules[:1]:
            self._mapping(module)  # the first mapping is taken for the program

    def gpu_sample(self, gpu: int, kernel: str, time_ns: int) -> None:
        uuid = self._gpu_time.uuids.get(gpu, "")
        named = f"GPU {gpu} ({uuid})" if uuid else f"GPU {gpu}"
        places = [self._named(name) for name in (kernel, named)]
        sample = self.profile.samples.add(location_ids=places, values=(0, 0, time_ns))
        sample.labels.add(key=self._gpu, num=gpu)

    def sample(self, place: _Place, values: tuple[int, int, int]) -> None:
        kernel, call, thread, stack = place
        names = [self._named(name) for name in (kernel, call) if name]
        # A return address stands behind its call: one byte before it is in the right line.
        frames = [self._address(at - (number > 0)) for number, at in enumerate(stack)]
        sample = self.profile.samples.add(location_ids=[*names, *frames], values=values)
        sample.labels.add(key=self._thread, num=thread)

    def _named(self, name: str) -> int:
        if name not in self._locations:
            self._locations[name] = len(self._locations) + 1
            function = len(self.profile.functions) + 1
            text = self._string(name)
            self.profile.functions.add(id=function, name=text, system_name=text)
            self.profile.locations.add(id=self._locations[name]).lines.add(function_id=function)
        return self._locations[name]

    def _address(self, address: int) -> int:
        if address not in self._locations:
            self._locations[address] = len(self._locations) + 1
            module = self._modules.find(address)
            mapping = self._mapping(module) if module is not None else 0
            self.profile.locations.add(
                id=self._locations[address], mapping_id=mapping, address=address
            )
        return self._locations[address]

    def _mapping(self, module: Module) -> int:
        if module not in self._mappings:
            self._mappings[module] = len(self._mappings) + 1
            self.profile.mappings.add(
                id=self._mappings[module],
                memory_start=module.start,
                memory_limit=module.end,
                file_offset=module.offset,
                filename=self._string(module.path),
                build_id=self._string(self._build_ids.get(module, "")),
            )
        return self._mappings[module]

    def _string(self, text: str) -> int:
        clean = text.encode("utf-8", "replace").decode()  # paths may hold any byte
        if clean not in self._strings:
            self._strings[clean] = len(self._strings)
            self.profile.strings.append(clean)
        return self._strings[clean]


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


class ChromeTraceWriter:
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
        for call in calls:
            if self._calls >= self._most:
                self._left_out += 1
                continue
            self._calls += 1
            self._call(call)

    def add_time(self, step: GpuStep) -> None:
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
        found: dict[int, dict[str, float]] = {
            gpu: dict.fromkeys(families, 0.0) for gpu, families in self._families.items()
        }
        for kernel, _, _ in step.kernels:
            of = found.setdefault(kernel.gpu, {})
            of[kernel.family] = of.get(kernel.family, 0.0) + kernel.time.value_ns
        self._families = {gpu: list(of) for gpu, of in found.items()}
        return found

    def finish(self, subject: ProfiledProcess) -> None:
        for title, names in self._counters.items():  # none holds beyond what was measured
            self._counter(title, self._ended_ns, dict.fromkeys(names, 0.0))
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
