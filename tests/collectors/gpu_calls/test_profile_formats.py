"""Profiles in both formats, read back by readers that share nothing with the writers."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from collectors.binaries.proc_maps import Module
from collectors.gpu_calls.probe_table import CallKind
from collectors.gpu_calls.readout import CallSample
from collectors.gpu_time.recorded_work import TimedRow
from collectors.profiling.formats import REST, ChromeTraceWriter, PprofWriter
from collectors.profiling.gpu_times import GpuStep
from collectors.profiling.session import NamedCall, ProfiledGpuTime, ProfiledProcess
from collectors.records.basics import ProcessKey
from collectors.records.gpu_time import EstimatedTime, TimedGpu, TimedKernel, TimingState
from tests.profile_kit import ReadProfile, check_trace, parse

BEGUN = 7_000_000_000_000
PROCESS = ProcessKey(4711, 5_000)
PROGRAM = Module(0x400000, 0x410000, 0x1000, ((8, 1), 11), "/opt/train")
LIBRARY = Module(0x7F0000, 0x7F8000, 0x2000, ((8, 1), 12), "/opt/libcudart.so.12")
SUBJECT = ProfiledProcess(
    4711, "train", BEGUN, 1_800_000_000_000_000_000, BEGUN + 3_000_000_000,
    {4711: "train", 4712: "loader\udcff"}, ((PROGRAM, "aa11"), (LIBRARY, "bb22")),
    {"samples": 3}, ProfiledGpuTime(TimingState.MEASURED, 0.25, {0: "uuid-of-0"}),
)  # fmt: skip
STACK = (0x7F0100, 0x400200, 0x400300, 0x999999)


def call(
    number: int, kind: CallKind, name: str, kernel: str = "", stack: tuple[int, ...] = STACK,
    thread: int = 4711, stream: int | None = 0x51, size: int = 0,
) -> NamedCall:  # fmt: skip
    """A call of 2 us, ten microseconds after the one before."""
    sample = CallSample(
        PROCESS, thread, 1, name, 0, stream or 0, 0x6A if kind is CallKind.GRAPH_LAUNCH else 0, 0,
        number, size, 0, BEGUN + 10_000 * number, 2_000,
    )  # fmt: skip
    return NamedCall(sample, kind, kernel, stream is not None, stack)


CALLS = [
    call(1, CallKind.LAUNCH, "cudart.launch", "gemm"),
    call(2, CallKind.LAUNCH, "cudart.launch", "gemm"),
    call(3, CallKind.LAUNCH, "cudart.launch", "relu", (), 4712, 0),
    call(4, CallKind.GRAPH_LAUNCH, "cudart.graph_launch", "graph 0x6a"),
    call(5, CallKind.COPY, "cudart.copy", stack=STACK[1:], size=4096),
    call(6, CallKind.WAIT, "cudart.device_synchronize", stream=None),
]


def written(calls: list[NamedCall], most: int = 1000) -> ReadProfile:
    out = io.BytesIO()
    writer = PprofWriter(out, most)
    writer.add(calls[:2])
    writer.add(calls[2:])
    writer.finish(SUBJECT)
    return ReadProfile(parse(out.getvalue()))


def traced(calls: list[NamedCall], most: int = 1000) -> dict[str, object]:
    out = io.BytesIO()
    writer = ChromeTraceWriter(out, BEGUN, most)
    writer.add(calls)
    writer.finish(SUBJECT)
    document = json.loads(out.getvalue())
    assert isinstance(document, dict)
    return document


def test_pprof_adds_calls_up_by_stack_kernel_and_thread() -> None:
    profile = written(CALLS)
    assert profile.types == [
        ("gpu_kernel_launches", "count"), ("api_time", "nanoseconds"), ("gpu_time", "nanoseconds"),
    ]  # fmt: skip
    assert profile.total("gpu_kernel_launches") == 4
    assert profile.total("api_time") == 12_000
    by_leaf = {(frames[0], thread): (frames, values) for frames, values, thread in profile.samples}
    frames, values = by_leaf["gemm", 4711]
    # Return addresses stand one byte behind the calls; the innermost is no return address.
    assert frames == ["gemm", "cudart.launch", "0x7f0100", "0x4001ff", "0x4002ff", "0x999998"]
    assert values == [2, 4_000, 0]
    assert by_leaf["relu", 4712][0] == ["relu", "cudart.launch"]
    assert by_leaf["cudart.device_synchronize", 4711][1] == [0, 2_000, 0]


def test_pprof_says_where_code_was_mapped_from_which_build() -> None:
    profile = written(CALLS)
    mappings = [
        (m[2][0], m[3][0], m[4][0], profile.strings[m[5][0]], profile.strings[m[6][0]])
        for m in profile.mappings.values()
    ]
    assert mappings == [
        (0x400000, 0x410000, 0x1000, "/opt/train", "aa11"),
        (0x7F0000, 0x7F8000, 0x2000, "/opt/libcudart.so.12", "bb22"),
    ]
    assert not any({7, 8, 9, 10} & m.keys() for m in profile.mappings.values())
    assert profile.message[9] == [1_800_000_000_000_000_000]
    assert profile.message[10] == [3_000_000_000]
    comments = [profile.strings[place] for place in profile.message[13]]
    assert comments == ["GPU calls of train (4711)", "lost: samples 3", SUBJECT.gpu_time.said]


def test_pprof_of_nothing_is_a_profile() -> None:
    assert written([]).samples == []


def test_pprof_is_bounded_and_loses_no_call() -> None:
    calls = [call(n, CallKind.LAUNCH, "cudart.launch", f"kernel_{n}", ()) for n in range(50)]
    profile = written(calls, most=10)
    assert len(profile.samples) == 11
    assert profile.total("gpu_kernel_launches") == 50
    (rest,) = [values for frames, values, _ in profile.samples if frames[0] == REST]
    assert rest == [40, 80_000, 0]


def test_chrome_trace_shows_threads_streams_and_correlation() -> None:
    document = traced(CALLS)
    calls = check_trace(document)
    assert [(e["name"], e["cat"], e["tid"], e["ts"], e["dur"]) for e in calls] == [
        ("gemm", "launch", 4711, 10.0, 2.0),
        ("gemm", "launch", 4711, 20.0, 2.0),
        ("relu", "launch", 4712, 30.0, 2.0),
        ("graph 0x6a", "launch", 4711, 40.0, 2.0),
        ("cudart.copy", "copy", 4711, 50.0, 2.0),
        ("cudart.device_synchronize", "wait", 4711, 60.0, 2.0),
    ]
    assert calls[4]["args"] == {
        "call": "cudart.copy", "correlation": 5, "bytes": 4096, "stream": "0x51",
    }  # fmt: skip
    assert calls[3]["args"]["graph"] == "0x6a"
    assert "stream" not in calls[5]["args"]
    events = document["traceEvents"]
    assert isinstance(events, list)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    on_streams = [
        (names[e["pid"], e["tid"]], e["args"]["correlation"]) for e in events if e["ph"] == "i"
    ]
    assert on_streams == [
        ("stream 0x51", 1), ("stream 0x51", 2), ("default stream", 3), ("stream 0x51", 4),
        ("stream 0x51", 5),
    ]  # fmt: skip
    assert names[4711, 4712] == "loader?"


def test_chrome_trace_is_bounded_and_says_what_it_left_out() -> None:
    document = traced(CALLS, most=2)
    assert len(check_trace(document)) == 2
    about = document["otherData"]
    assert isinstance(about, dict)
    assert (about["calls"], about["calls_not_written"], about["lost"]) == (2, 4, {"samples": 3})


def test_chrome_trace_of_nothing_is_a_trace() -> None:
    assert check_trace(traced([])) == []


def kernel(name: str, recorded: int, ns: float, gpu: int = 0, alone: bool = True) -> TimedRow:
    of = TimedKernel(gpu, name, "gemm", 4 * recorded, EstimatedTime(ns, 0.0, 0, 10**9))
    return TimedRow(of, recorded, alone)


def gpu_step(second: int, *kernels: TimedRow) -> GpuStep:
    begun_ns = BEGUN + second * 10**9
    gpu = TimedGpu(0, 500_000_000, 400_000_000, 100_000_000, 0, 50_000_000, 0, 0)
    return GpuStep(begun_ns, begun_ns + 10**9, 250_000_000, kernels, (gpu,))


def on_gpu(
    *kernels: TimedRow, subject: ProfiledProcess, calls: list[NamedCall], most: int = 1000
) -> dict[tuple[str, ...], int]:
    """GPU time by stack, where there is any."""
    out = io.BytesIO()
    writer = PprofWriter(out, most)
    writer.add(calls)
    writer.add_time(gpu_step(0, *kernels))
    writer.finish(subject)
    samples = ReadProfile(parse(out.getvalue())).samples
    return {tuple(frames): values[2] for frames, values, _ in samples if values[2]}


NOTHING_LOST = replace(SUBJECT, lost={})
ROOT = "GPU 0 (uuid-of-0)"


def test_pprof_puts_gpu_time_where_all_of_a_kernel_s_launches_came_from() -> None:
    found = on_gpu(kernel("gemm", 2, 900), subject=NOTHING_LOST, calls=CALLS)
    ((frames, time_ns),) = found.items()
    assert frames[:3] == ("gemm", "cudart.launch", "0x7f0100")
    assert time_ns == 900


def test_pprof_makes_gpu_time_a_root_where_its_launches_are_not_surely_known() -> None:
    """Two places, a graph, two GPUs, more records than launches, calls that were lost, no call."""
    elsewhere = [*CALLS, call(7, CallKind.LAUNCH, "cudart.launch", "gemm", STACK[1:])]
    root = {("gemm", ROOT): 900}
    one = kernel("gemm", 2, 900)
    assert on_gpu(one, subject=NOTHING_LOST, calls=elsewhere) == root
    assert on_gpu(one._replace(alone=False), subject=NOTHING_LOST, calls=CALLS) == root
    assert on_gpu(one._replace(recorded=3), subject=NOTHING_LOST, calls=CALLS) == root
    assert on_gpu(one, subject=SUBJECT, calls=CALLS) == root
    assert on_gpu(one, subject=NOTHING_LOST, calls=[]) == root
    both = on_gpu(one, kernel("gemm", 2, 900, gpu=1), subject=NOTHING_LOST, calls=CALLS)
    assert both == root | {("gemm", "GPU 1"): 900}


def test_pprof_says_how_gpu_time_was_measured_and_bounds_it() -> None:
    many = [kernel(f"k{number}", 1, 10) for number in range(9)]
    found = on_gpu(*many, subject=NOTHING_LOST, calls=[], most=4)
    assert (len(found), found[REST, ROOT], sum(found.values())) == (5, 50, 90)
    comments = [SUBJECT.gpu_time.said, replace(SUBJECT.gpu_time, share=1.0).said]
    assert comments == [
        "GPU time: estimated, 25 % of the time was recorded", "GPU time: all of it was recorded",
    ]  # fmt: skip
    assert replace(SUBJECT.gpu_time, state=TimingState.NO_LIBRARY).said == (
        "GPU time: none (no library)"
    )


def test_trace_has_counters_of_the_gpu_and_no_slice_of_it() -> None:
    out = io.BytesIO()
    writer = ChromeTraceWriter(out, BEGUN)
    writer.add(CALLS[:1])
    writer.add_time(gpu_step(0, kernel("a", 1, 300_000_000), kernel("c", 1, 2e8, gpu=1)))
    writer.add_time(gpu_step(1))
    writer.finish(NOTHING_LOST)
    document = json.loads(out.getvalue())
    assert len(check_trace(document)) == 1
    counters = [event for event in document["traceEvents"] if event["ph"] == "C"]
    shown = [(e["name"], e["ts"], e["args"]) for e in counters]
    shares = {"busy": 50.0, "compute": 40.0, "copies": 10.0, "collectives": 0.0}
    assert shown[:4] == [
        ("GPU 0: share of time, %", 0, shares), ("GPU 0: kernel time, ms/s", 0, {"gemm": 300.0}),
        ("GPU 1: kernel time, ms/s", 0, {"gemm": 200.0}), ("recorded, %", 0, {"recorded": 25.0}),
    ]  # fmt: skip
    # What is no longer there is a zero, and nothing holds beyond the end.
    assert ("GPU 1: kernel time, ms/s", 1e6, {"gemm": 0.0}) in shown
    assert {ts for _, ts, args in shown[-4:] for value in args.values() if not value} == {2e6}
    assert document["otherData"]["gpu_time"] == NOTHING_LOST.gpu_time.said
