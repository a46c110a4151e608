"""Files that users hand over: traces, tables, recordings; read, or refused in one line."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from diagnosis.frames.recording import RecordingError, read_recording
from diagnosis.stragglers.trace import TraceRefused
from diagnosis.stragglers.trace_file import read_trace
from kernels.families import FamilyRules
from kernels.launches.kineto import TraceError, gpu_events, read_header
from kernels.launches.launch import LaunchesRefused
from kernels.launches.read import open_launches
from kernels.signature_learning import read_profile
from kernels.signatures import SignatureError

_MOST_READ: Final = 5_000
_APART: Final = b"\0--\0"


def _launches(path: Path) -> None:
    for launch in islice(open_launches(path).launches, _MOST_READ):
        assert min(launch.launches, launch.gpu_time_ns or 0) >= 0


def _kineto(path: Path) -> None:
    read_header(path)
    for event in islice(gpu_events(path), _MOST_READ):
        assert event.duration_ns >= 0


def _profile(path: Path) -> None:
    read_profile(path, _rules())


@cache
def _rules() -> FamilyRules:
    return FamilyRules.load()


_WAYS: Final[tuple[tuple[str, Callable[[Path], Any]], ...]] = (
    ("input", _launches),
    ("trace.json", _kineto),
    ("trace.json", read_trace),
    ("trace.csv", read_trace),
    ("trace.jsonl", read_trace),
    ("trace.parquet", read_trace),
    ("run.parquet", read_recording),
    ("profile.toml", _profile),
    ("profile.json", _profile),
    ("ranks", read_trace),
)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="pointillist-fuzz-"))


def close() -> None:
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder())
        _folder.cache_clear()


def fuzz(data: bytes) -> None:
    """Write the input into a file of a name, and read it as its command would."""
    if not data:
        return
    name, read = _WAYS[data[0] % len(_WAYS)]
    path = _folder() / name
    if name == "ranks":
        path.mkdir(exist_ok=True)
        for rank, content in enumerate([*data[1:].split(_APART, 1), b""][:2]):
            (path / f"rank-{rank}.json").write_bytes(content)
    else:
        path.write_bytes(data[1:])
    try:
        read(path)
    except (LaunchesRefused, TraceError, TraceRefused, SignatureError, RecordingError) as refused:
        if not str(refused).isprintable():
            raise AssertionError("a refusal that a terminal would act on") from refused


_EVENT: Final = {"ph": "X", "cat": "kernel", "name": "a_gemm", "ts": 1.5, "dur": 3.0,
                 "args": {"device": 0, "bytes": 8}}  # fmt: skip
_ROCPROF: Final = {
    "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "a"}],
    "buffer_records": {"kernel_dispatch": []},
}
_STEP: Final = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 9}
_ROW: Final = {"rank": 0, "step": 1, "optype": "forward", "start_ms": 1.0, "duration_ms": 2.0}


def seeds() -> Iterator[bytes]:
    trace = json.dumps({"distributedInfo": {"rank": 0}, "traceEvents": [_STEP, _EVENT]}).encode()
    table = (
        b'application = "llm_training"\n[[kernel]]\nname = "a_gemm"\nlaunches = 2\ntime_ns = 3\n'
    )
    texts = (
        b"Time (%),Total Time (ns),Instances,Avg (ns),Name\n99.0,3000,2,1500.0,a_gemm\n",
        b'"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n"0","a","Duration",us,3\n',
        b'"Kind","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n"K","a",1,5,9\n',
        b"void f<a, b>(int)\n[CUDA memcpy DtoH]\n",
        table,
        trace,
        gzip.compress(trace, mtime=0),
        json.dumps({"rocprofiler-sdk-tool": [_ROCPROF]}).encode(),
        _nsys(),
    )
    yield from (b"\0" + text for text in texts)
    yield b"\1" + trace
    yield b"\2" + json.dumps([_ROW, {**_ROW, "rank": 1}]).encode()
    yield b"\3" + b"rank,step,optype,start_ms,duration_ms\n0,1,forward,1.0,2.0\n"
    yield b"\4" + json.dumps(_ROW).encode() + b"\n"
    yield b"\5" + _parquet()
    yield b"\7" + table
    yield b"\x08" + b'{"since_ns": 1, "until_ns": 2, "cut_short": false, "activity": []}'
    yield b"\x09" + trace + _APART + trace.replace(b'"rank": 0', b'"rank": 1')


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([_ROW]), sink)
    return bytes(sink.getvalue())


def _nsys() -> bytes:
    with sqlite3.connect(":memory:") as database:
        database.executescript(
            "PRAGMA page_size = 512;"
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, demangledName);"
            "INSERT INTO StringIds VALUES (1, 'a_gemm');"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 4, 1);"
        )
        return database.serialize()
