"""Files of launches: told by their content, read in bounds, and what is left out is counted."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from kernels.launches.launch import MOST_DEPTH, JsonDepth, Launch, LaunchesRefused, Skip
from kernels.launches.read import open_launches

GEMM = Launch("a_gemm", 1, 3_000)
TWO = Launch("a_gemm", 2, 3_000)
EVENT: dict[str, Any] = {
    "cat": "kernel",
    "name": "a_gemm",
    "ts": 1,
    "dur": 3,
    "args": {"device": 0},
}
BIG = 2**64 - 1


def written(folder: Path, content: str | bytes, name: str = "input") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path) -> tuple[str, list[Launch], dict[Skip, int]]:
    found = open_launches(path)
    launches = list(found.launches)
    return found.form, launches, dict(found.skipped)


def refusal(path: Path) -> LaunchesRefused:
    with pytest.raises(LaunchesRefused) as refused:
        list(open_launches(path).launches)
    return refused.value


@pytest.mark.parametrize(
    ("content", "form", "launches"),
    [
        (json.dumps({"traceEvents": [EVENT]}), "a PyTorch trace", [GEMM]),
        (f" [{json.dumps(EVENT)}]", "a PyTorch trace", [GEMM]),
        (
            "Time (%),Total Time (ns),Instances,Avg (ns),Name\n99.0,3000,2,1500.0,a_gemm\n",
            "an Nsight Systems summary (CSV)",
            [TWO],
        ),
        (
            (
                "Processing [a.sqlite] with [cuda_gpu_kern_sum.py]...\n\n"
                '"Time (%)","Total Time (us)","Instances","Name"\n'
                '"99","3.0","2","void f<a, b>(int)"\n'
            ),
            "an Nsight Systems summary (CSV)",
            [Launch("void f<a, b>(int)", 2, 3_000)],
        ),
        (
            "Time (%),Total Time (ns),Count,Operation\n9,3000,2,[CUDA memcpy Host-to-Device]\n",
            "an Nsight Systems summary (CSV)",
            [Launch("[CUDA memcpy Host-to-Device]", 2, 3_000)],
        ),
        (
            "Start (ns),Duration (ns),CorrId,Device,Name\n77,3000,1,H100 (0),a_gemm\n",
            "an Nsight Systems trace (CSV)",
            [GEMM],
        ),
        (
            (
                '==PROF== Connected to process 7 (/bin/x)\n"ID","Kernel Name","Metric Name",'
                '"Metric Unit","Metric Value"\n"0","a_gemm","Duration","usecond","3"\n'
                '"0","a_gemm","Elapsed Cycles","cycle","4,711"\n'
                '"1","a_gemm","Duration","ns","3,000"\n'
            ),
            "an Nsight Compute report (CSV)",
            [GEMM, GEMM],
        ),
        (
            '"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","a_gemm","3.0"\n',
            "an Nsight Compute report (CSV)",
            [GEMM],
        ),
        (
            '"Name","Calls","TotalDurationNs","AverageNs"\n"a_gemm",2,3000,1500\n',
            "rocprofv3 statistics (CSV)",
            [TWO],
        ),
        (
            (
                '"Kind","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
                '"KERNEL_DISPATCH","a_gemm",1,1551874061244694,1551874061247694\n'
            ),
            "a rocprofv3 trace (CSV)",
            [GEMM],
        ),
        (
            (
                '"Type","Time(%)","Time","Calls","Name"\n,%,us,,\n'
                '"GPU activities",9,3.0,2,"a_gemm"\n'
                '"API calls",9,3.0,2,"cudaMalloc"\n'
            ),
            "an nvprof summary (CSV)",
            [TWO],
        ),
        (
            '# ours\n[[kernel]]\nname = "a_gemm"\nlaunches = 2\ntime_ns = 3000\n',
            "a kernel table (TOML)",
            [TWO],
        ),
        (
            '[[kernel]]\nname = "a_gemm"\nlaunches_per_1000_steps = 2\ntime_ns_per_step = 3000\n',
            "a kernel table (TOML)",
            [TWO],
        ),
        (
            "[CUDA memcpy DtoH]\nvoid f(int, int, int)\n",
            "kernel names",
            [Launch("[CUDA memcpy DtoH]", 1, None), Launch("void f(int, int, int)", 1, None)],
        ),
        ("void f<a, b>(int)\n\n", "kernel names", [Launch("void f<a, b>(int)", 1, None)]),
        ("évil\x1b[2J\n", "kernel names", [Launch("évil\x1b[2J", 1, None)]),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_launch_files_are_told_by_their_content(
    tmp_path: Path, content: str, form: str, launches: list[Launch], compressed: bool
) -> None:
    data = content.encode()
    path = written(tmp_path, gzip.compress(data) if compressed else data)
    assert read(path) == (form, launches, {})


def test_launch_files_of_a_profiler_with_tables_below_one_another_are_read_to_the_end(
    tmp_path: Path,
) -> None:
    kernels = "Time (%),Total Time (ns),Instances,Name\n9,3000,2,a_gemm\n"
    calls = "Time (%),Total Time (ns),Num Calls,Name\n9,3000,2,cudaMalloc\n"
    copies = "Time (%),Total Time (ns),Count,Operation\n9,5,1,[CUDA memset]\n"
    path = written(tmp_path, f"{kernels}\n** other (other):\n\n{calls}\n{copies}")
    assert read(path)[1:] == ([TWO, Launch("[CUDA memset]", 1, 5)], {Skip.NO_TABLE: 2})


def test_launch_files_traces_need_no_device(tmp_path: Path) -> None:
    events = [EVENT | {"args": {"device": "gfx942"}}, EVENT | {"args": None, "pid": "GPU 0"}]
    assert read(written(tmp_path, json.dumps(events)))[1:] == ([GEMM, GEMM], {})


def test_launch_files_graphs_beside_kernels_are_told(tmp_path: Path) -> None:
    """A run whose graphs were recorded as wholes shows only what ran outside of them."""
    path = export(
        tmp_path / "run.sqlite",
        NSYS
        + """
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 3010, 0, 1, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, graphId INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2000001, 1), (9, 5000009, 1);
        """,
    )
    found = open_launches(path)
    assert list(found.launches) == [GEMM]
    (said,) = found.remarks
    assert said.startswith("7.000 ms more lie in 2 launches of CUDA graphs")
    assert "--cuda-graph-trace=node" in said


@pytest.mark.parametrize(
    ("slices", "twice"),
    [
        ([(0, 900, 7), (100, 100, 7), (200, 900, 7)], "0.800 of 1.900 ms"),
        ([(200, 900, 7), (0, 900, 7)], "0.700 of 1.800 ms"),
        ([(0, 900, 7), (100, 100, 8), (899, 900, 7)], None),
    ],
)
def test_launch_files_slices_that_overlap_on_a_stream_are_told(
    tmp_path: Path, slices: list[tuple[int, int, int]], twice: str | None
) -> None:
    events = [
        EVENT | {"ts": ts, "dur": dur, "args": {"device": 0, "stream": stream}}
        for ts, dur, stream in slices
    ]
    found = open_launches(written(tmp_path, json.dumps(events)))
    assert sum(one.gpu_time_ns or 0 for one in found.launches) == 1_000 * sum(
        dur for _, dur, _ in slices
    )
    assert [said.partition(" are told")[0] for said in found.remarks] == ([twice] if twice else [])


def export(path: Path, statements: str) -> Path:
    with sqlite3.connect(path) as database:
        database.executescript(statements)
    database.close()
    return path


NSYS = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
  (start INT, end INT, deviceId INT, demangledName INT, shortName INT);
INSERT INTO StringIds VALUES (1, 'a_gemm'), (2, 'short');
"""


def test_launch_files_nsight_sqlite_gives_kernels_copies_and_fills(tmp_path: Path) -> None:
    path = export(
        tmp_path / "run.sqlite",
        NSYS
        + """
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 3010, 0, 1, 2), (10, 3010, 0, 1, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, copyKind INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 5, 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INT, end INT);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1, 3);
        """,
    )
    form, launches, skipped = read(path)
    assert form == "an export of Nsight Systems (SQLite)"
    assert launches == [GEMM, GEMM, Launch("Memcpy HtoD", 1, 4), Launch("Memset", 1, 2)]
    assert skipped == {}


def test_launch_files_nsight_sqlite_counts_what_makes_no_sense(tmp_path: Path) -> None:
    path = export(
        tmp_path / "run.sqlite",
        NSYS
        + """
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES
          (10, 3010, 0, 1, 2), (10, 5, 0, 1, 2), (10, NULL, 0, 1, 2), (10, 20, 0, 99, 2),
          (0, 3600000000001, 0, 1, 2);
        """,
    )
    _, launches, skipped = read(path)
    assert launches == [GEMM]
    assert skipped == {Skip.TOO_LONG: 2, Skip.NO_TIME: 1, Skip.NO_NAME: 1}


@pytest.mark.parametrize(
    ("statements", "message", "hint"),
    [
        ("CREATE TABLE names (name TEXT);", "SQLite file with tables names", "nsys export"),
        ("CREATE TABLE 'a\x1b[2J' (b INT);", r"tables a\\x1b\[2J", "nsys export"),
        (
            "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT);",
            "launches of graphs alone",
            "--cuda-graph-trace=node",
        ),
        (
            "CREATE TABLE t (a INT); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM t;",
            "SQLite file with tables t",
            "nsys export",
        ),
        ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (a INT);", "expected start, end", "nsys export"),
        (
            (
                "CREATE TABLE StringIds (id INT); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
                "(start INT, end INT, demangledName INT);"
            ),
            "expected id and value in StringIds",
            "nsys export",
        ),
    ],
)
def test_launch_files_other_sqlite_is_refused_with_what_to_export(
    tmp_path: Path, statements: str, message: str, hint: str
) -> None:
    refused = refusal(export(tmp_path / "other.db", statements))
    assert refused.hint is not None
    assert hint in refused.hint
    with pytest.raises(LaunchesRefused, match=message):
        raise refused


def test_launch_files_damaged_sqlite_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", NSYS)
    path.write_bytes(path.read_bytes()[:5_000])
    assert "SQLite file cannot be read" in str(refusal(path))


def rocprof(dispatches: list[Any], process: bool = True) -> str:
    info = {
        "metadata": {"pid": 1, "limit": BIG},
        "kernel_symbols": [
            {"kernel_id": 0},
            {"kernel_id": 7, "kernel_name": "a.kd", "formatted_kernel_name": "a_gemm"},
        ],
        "buffer_records": {
            "kernel_dispatch": dispatches,
            "memory_copy": [{"start_timestamp": 1, "end_timestamp": 3}],
        },
    }
    return json.dumps({"rocprofiler-sdk-tool": [info] if process else info})


def dispatch(kernel: int, start: Any, end: Any) -> dict[str, Any]:
    info = {"kernel_id": kernel, "agent_id": {"handle": BIG}, "queue_id": {"handle": BIG}}
    return {"dispatch_info": info, "start_timestamp": start, "end_timestamp": end}


@pytest.mark.parametrize("process", [False, True])
def test_launch_files_rocprof_json_with_handles_of_64_bits_is_read(
    tmp_path: Path, process: bool
) -> None:
    rows = [dispatch(7, 10, 3010), dispatch(99, 1, 2), dispatch(7, 5, 2), dispatch(7, None, 2), 4]
    form, launches, skipped = read(written(tmp_path, rocprof(rows, process)))
    assert form == "a rocprofv3 trace (JSON)"
    assert launches == [GEMM, Launch("Memcpy", 1, 2)]
    assert skipped == {Skip.NO_NAME: 2, Skip.TOO_LONG: 1, Skip.NO_TIME: 1}


@pytest.mark.parametrize(
    "content", [rocprof([])[:-9], rocprof([]).replace("18446744", "9" * 5_000)]
)
def test_launch_files_damaged_rocprof_json_is_refused(tmp_path: Path, content: str) -> None:
    assert "expected JSON of rocprofv3" in str(refusal(written(tmp_path, content)))


def test_launch_files_traces_count_events_that_make_no_sense(tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"dur": -1},
        {"dur": "x"},
        {"ts": None},
        {"dur": 4e9},
        {"ph": "i"},
    ]
    events = [EVENT, {"cat": "cpu_op", "dur": -1}, *(EVENT | change for change in odd)]
    _, launches, skipped = read(written(tmp_path, json.dumps({"traceEvents": events})))
    assert launches == [GEMM]
    assert skipped == {Skip.TOO_LONG: 2, Skip.NO_TIME: 2, Skip.NO_SLICE: 1}


def test_launch_files_tables_count_rows_that_make_no_sense(tmp_path: Path) -> None:
    rows = ("3000,2,a_gemm", "x,2,a_gemm", "-3,2,a_gemm", "3000,0,a_gemm", "3000,2,", "3000,2")
    path = written(tmp_path, "\n".join(("Total Time (ns),Instances,Name", *rows)))
    _, launches, skipped = read(path)
    assert launches == [TWO]
    wanted = {Skip.NO_TIME: 2, Skip.NO_COUNT: 1, Skip.NO_NAME: 1, Skip.COLUMNS: 1}
    assert skipped == wanted


def test_launch_files_names_count_lines_that_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, b"a_gemm\n" + b"x" * 70_000 + b"\nb\n" * 22_000 + b"c\xff\nd\n")
    _, launches, skipped = read(path)
    assert launches[0].name == "a_gemm"
    assert launches[-1].name == "d"
    assert skipped == {Skip.LONG_LINE: 1, Skip.NO_TEXT: 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (random.Random(7).randbytes(4_000), "bytes that are no text"),
        (b"NVIDIA\x00report", "bytes that are no text"),
        ("a_gemm\n".encode("utf-16"), "got UTF-16, as PowerShell writes"),
        ("a_gemm\n".encode("utf-16-le"), "bytes that are no text"),
        (gzip.compress(b"a_gemm\n" * 9_000, mtime=0)[:60], "cannot read it"),
        (gzip.compress(random.Random(7).randbytes(99), mtime=0)[:-9] + b"x" * 9, "cannot read it"),
        (b'[tool]\nname = "x"\n', r"expected \[\[kernel\]\] rows"),
        (b"[[kernel]]\nname = 7\nlaunches = -1\n", r"expected \[\[kernel\]\] rows"),
        (b"name = \n", r"expected \[\[kernel\]\] rows"),
        (
            b"Time (%),Total Time (ns),Num Calls,Name\n9,3000,2,cudaMalloc\n",
            r"got Time \(%\), Total Time \(ns\), Num Calls, Name",
        ),
        (b'{"traceEvents": [{"cat"', "trace"),
        (b'Total Time (ns),Instances,Name\n3,1,"' + b"x" * 2_000_000, "field larger than"),
    ],
)
def test_launch_files_other_content_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    with pytest.raises(LaunchesRefused, match=message):
        raise refusal(written(tmp_path, content))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_launch_files_depth_counts_brackets_outside_of_strings(chunk: int) -> None:
    deep = MOST_DEPTH + 1
    texts = {
        b'{"a": "' + b"[" * deep + b'", "b": [1]}': False,
        b'["\\"' + b"[" * deep + b'\\\\", 1]': False,
        b'["' + b"]" * deep + b'",' + b"[" * deep: True,
        b"[1," * deep: True,
        b"[]" * deep: False,
    }
    for text, expected in texts.items():
        depth = JsonDepth()
        parts = [text[at : at + chunk] for at in range(0, len(text), chunk)]
        assert (True in list(map(depth.too_deep, parts))) is expected, text[:20]


@pytest.mark.parametrize("content", [b"[" * 50_000, b'{"rocprofiler-sdk-tool": ' + b"[" * 50_000])
def test_launch_files_nested_without_end_are_refused_before_they_are_parsed(
    tmp_path: Path, content: bytes
) -> None:
    assert "1,000" in str(refusal(written(tmp_path, content)))


def test_launch_files_that_broke_a_parser_are_refused(tmp_path: Path) -> None:
    assert str(refusal(written(tmp_path, b"[[kernel]]\nname = " + b"[" * 5_000)))


def test_launch_files_sqlite_with_a_schema_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", "CREATE TABLE StringIds (id INTEGER)")
    content = path.read_bytes().replace(b"tableStringIds", b"tableStri\xff\xfeIds")
    path.write_bytes(content.replace(b"(id INTEGER)", b"=id INTEGER)"))
    assert "its schema is no text" in str(refusal(path))
