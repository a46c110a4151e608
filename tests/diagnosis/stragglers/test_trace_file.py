"""Traces from files: the formats, and what is refused of files that nobody vouches for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from diagnosis.stragglers import trace as trace_module
from diagnosis.stragglers import trace_file
from diagnosis.stragglers import trace_file as kineto_ranks
from diagnosis.stragglers.trace import UNKNOWN, TraceRefused
from diagnosis.stragglers.trace_file import read_trace

ROWS: list[dict[str, Any]] = [
    {
        "rank": rank, "stage": rank // 2, "step": step, "optype": name,
        "start_ms": 100.0 * step, "duration_ms": 40.0 + rank,
    }
    for rank in range(4) for step in range(6) for name in ("forward-compute", "grads-all-reduce")
]  # fmt: skip


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def csv(path: Path, rows: list[dict[str, Any]]) -> None:
    pa_csv.write_csv(pa.Table.from_pylist(rows), path)


def json_list(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(rows), encoding="utf-8")


def json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


WRITERS = {".parquet": parquet, ".csv": csv, ".json": json_list, ".jsonl": json_lines}
Writer = Callable[[Path, list[dict[str, Any]]], None]


@pytest.mark.parametrize(("suffix", "write"), WRITERS.items())
def test_trace_is_the_same_from_every_format(tmp_path: Path, suffix: str, write: Writer) -> None:
    path = tmp_path / f"trace{suffix}"
    write(path, ROWS)
    read = read_trace(path)
    assert len(read.rank) == len(ROWS)
    assert read.ranks.tolist() == [0, 1, 2, 3]
    assert read.stage_of.tolist() == [0, 0, 1, 1]
    assert read.start_s.max() == pytest.approx(0.5)
    assert sorted(set(read.duration_s.round(6))) == [0.04, 0.041, 0.042, 0.043]
    assert set(read.names) == {"forward-compute", "grads-all-reduce"}
    assert np.all(read.group == UNKNOWN)


def test_trace_without_stages_is_of_one_stage(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("rank,step,op,start_us,dur_us\n0,0,compute,0,5\n1,0,compute,0,7\n")
    read = read_trace(path)
    assert read.stage_of.tolist() == [0, 0]
    assert read.duration_s.tolist() == pytest.approx([5e-6, 7e-6])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace.txt", "", "expected a file .parquet"),
        ("trace.csv", "", "expected columns rank, step"),
        ("trace.csv", "rank,step\n0,1\n", "found no name, start, duration among: rank, step"),
        ("trace.csv", "rank,step,op,start,duration\n0,0,a,0,x\n", "expected columns"),
        ("trace.csv", "rank,step,op,start,duration\n0,0,a,0,-1\n", "durations of 0"),
        ("trace.csv", "rank,step,op,start,duration\n0,0,a,inf,1\n", "finite"),
        ("trace.csv", "rank,step,op,start,duration\n0.5,0,a,0,1\n", "expected columns"),
        ("trace.csv", "rank,step,op,start,duration\nab,0,a,0,1\n", "whole numbers in rank"),
        ("trace.csv", "rank,step,op,start,duration\n-1,0,a,0,1\n", "at least 0"),
        ("trace.csv", "rank,step,op,start,duration\n9999999999,0,a,0,1\n", "rank within"),
        ("trace.csv", "rank,step,op,start,duration\n0,,a,0,1\n", "a value in each row of step"),
        ("trace.csv", "rank,step,op,start,duration\n0,0,a,0,1\n" + "1," * 9, "expected columns"),
        ("trace.csv", f"rank,step,op,start,duration\n0,0,{'a' * 257},0,1\n", "256 characters"),
        ("trace.csv", "rank,stage,step,op,start,dur\n0,0,0,a,0,1\n0,1,0,a,0,1\n", "in several"),
        ("trace.json", "[]", "found none"),
        ("trace.json", "[1, 2]", "in place of a row"),
        ("trace.json", '[{"rank": 0', "expected columns"),
        (
            "trace.json",
            '[{"rank": {}, "step": 0, "op": 1, "start": 0, "dur": 0}]',
            "got start_map in rank",
        ),
        ("trace.json", "[" * 100_000 + "]" * 100_000, "expected a list of rows of"),
        ("trace.json", '[{"rank": 1' + "0" * 30 + ', "step": 0, "op": "a"', "expected columns"),
        (
            "trace.json",
            '[{"rank": 1' + "0" * 30 + ', "step": 0, "op": "a", "start": 0, "dur": 0}]',
            "integer overflow",
        ),
        ("trace.jsonl", "not json", "expected columns"),
        ("trace.csv", "rank,rank,step,op,start,duration\n0,1,0,a,0,1\n", "one column rank"),
        (
            "trace.json",
            "[{" + ",".join(f'"k{number}": 0' for number in range(1_100)) + "}]",
            "at most 1,024 columns",
        ),
        ("trace.csv", '"a\x1b[2J\nb",c\n1,2\n', r"among: a\\x1b\[2J\\nb, c"),
        ("trace.parquet", "PAR1 nothing of the kind PAR1", "expected columns"),
    ],
)
def test_trace_that_is_none_is_refused_with_what_was_expected(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(TraceRefused, match=said) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)


def test_trace_that_is_not_there_or_cut_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceRefused, match="cannot read it"):
        read_trace(tmp_path / "none.csv")
    path = tmp_path / "trace.parquet"
    parquet(path, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(TraceRefused):
        read_trace(path)
    path.write_bytes(whole[: len(whole) // 2] + bytes(8) + whole[len(whole) // 2 + 8 :])
    with pytest.raises(TraceRefused) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("suffix", "write"), WRITERS.items())
def test_trace_has_a_largest_number_of_rows(
    tmp_path: Path, suffix: str, write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MOST_ROWS", 10)
    path = tmp_path / f"trace{suffix}"
    write(path, ROWS)
    with pytest.raises(TraceRefused, match="at most 10 rows"):
        read_trace(path)


def test_trace_has_a_largest_number_of_ranks_and_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MOST_CELLS", 23)
    path = tmp_path / "trace.parquet"
    parquet(path, ROWS)
    with pytest.raises(TraceRefused, match="4 ranks and 6 steps"):
        read_trace(path)


def kineto(rank: int, slow: float = 1.0, steps: int = 8) -> dict[str, Any]:
    """A trace of a rank: a kernel, then a collective that all leave at the same time."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        begin = 1e6 + 1e5 * step
        worked = 2e4 * slow
        events += [
            {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 9e4},
            {"cat": "kernel", "name": "gemm", "ts": begin + 10, "dur": worked, "args": {}},
            {
                "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": begin + 20 + worked,
                "dur": 8e4 - worked,
            },
            {"cat": "cpu_op", "name": "aten::mm", "ts": begin, "dur": 5},
            {"cat": "kernel", "name": "bad", "ts": "soon", "dur": None},
        ]  # fmt: skip
    return {"distributedInfo": {"backend": "nccl", "rank": rank}, "traceEvents": events}


def test_folder_of_pytorch_traces_is_one_job(tmp_path: Path) -> None:
    from diagnosis.stragglers.judge import job_of, judge

    for rank in range(4):
        made = kineto(rank, slow=2.0 if rank == 3 else 1.0)
        (tmp_path / f"worker-{rank}.json").write_text(json.dumps(made))
    judged = judge(job_of(read_trace(tmp_path)))
    assert [one.rank for one in judged.slow] == [3]
    assert judged.steps.tolist() == list(range(8))
    assert np.all(judged.waits.direct[:3, 3] == pytest.approx(8 * 0.02))


def test_folder_of_pytorch_traces_needs_one_file_a_rank(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(kineto(0)))
    with pytest.raises(TraceRefused, match="expected 2 to"):
        read_trace(tmp_path)
    (tmp_path / "b.json").write_text(json.dumps(kineto(0)))
    with pytest.raises(TraceRefused, match=r"one trace a rank, got ranks \[0, 0\]"):
        read_trace(tmp_path)
    (tmp_path / "b.json").write_text('{"traceEvents": []}')
    with pytest.raises(TraceRefused, match="expected a rank in distributedInfo"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("bound", "said"),
    [("MOST_ROWS", "20 operations of all ranks"), ("_MOST_STEPS_OF_A_RANK", "20 steps")],
)
def test_folder_of_pytorch_traces_has_a_largest_size_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, said: str
) -> None:
    monkeypatch.setattr(kineto_ranks, bound, 20)
    for rank in range(2):
        made = kineto(rank, steps=21 if bound != "MOST_ROWS" else 8)
        (tmp_path / f"worker-{rank}.json").write_text(json.dumps(made))
    with pytest.raises(TraceRefused, match=said):
        read_trace(tmp_path)


NESTED = {"pg_config": [{"pg_name": "0", "ranks": [0, 1], "rank": 5}], "rank": 1, "world_size": 2}


@pytest.mark.parametrize(
    ("name", "info", "rank", "said"),
    [
        ("host-worker-1.json", NESTED, 1, None),
        ("host-worker-7.json", NESTED, 1, "host-worker-7.json is of rank 1"),
        ("1722-TP-1.json", {"backend": "nccl"}, 1, "rank 1 by the file's name"),
        ("node0_worker4_rank1.json", None, 1, "rank 1 by the file's name"),
        ("worker_1.170.pt.trace.json", {"rank": "1"}, 1, "rank 1 by the file's name"),
        ("httpd-1-TP-0-DP-1-rank_1.json", None, 1, "rank 1 by the file's name"),
    ],
)
def test_folder_takes_a_rank_from_the_trace_and_says_where_a_name_decides(
    tmp_path: Path, name: str, info: dict[str, Any] | None, rank: int, said: str | None
) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(kineto(0)))
    made = kineto(0, slow=2.0)
    if info is None:
        del made["distributedInfo"]
    else:
        made["distributedInfo"] = info
    (tmp_path / name).write_text(json.dumps(made))
    read = read_trace(tmp_path)
    assert read.ranks.tolist() == [0, rank]
    assert read.duration_s[read.rank == rank].max() > read.duration_s[read.rank == 0].max() - 0.1
    assert len(read.remarks) == (said is not None)
    assert said is None or said in read.remarks[0]


def test_folder_whose_times_begin_elsewhere_is_put_on_one_clock(tmp_path: Path) -> None:
    plain = [kineto(rank) | {"baseTimeNanoseconds": 10**18} for rank in range(2)]
    moved = [plain[0], json.loads(json.dumps(plain[1]))]
    moved[1]["baseTimeNanoseconds"] += 3_000_000_000
    for event in moved[1]["traceEvents"]:
        event["ts"] = event["ts"] - 3e6 if isinstance(event["ts"], float) else event["ts"]
    found = []
    for folder, ranks in (("plain", plain), ("moved", moved)):
        (tmp_path / folder).mkdir()
        for rank, made in enumerate(ranks):
            (tmp_path / folder / f"rank{rank}.json").write_text(json.dumps(made))
        found.append(read_trace(tmp_path / folder))
    assert np.allclose(found[0].start_s, found[1].start_s)
    assert [len(one.remarks) for one in found] == [0, 1]
    assert "3.000 s apart" in found[1].remarks[0]


def test_folder_with_a_cut_trace_says_what_it_lost(tmp_path: Path) -> None:
    for rank in range(2):
        text = json.dumps(kineto(rank))
        (tmp_path / f"rank{rank}.json").write_text(text[:-300] if rank else text)
    (said,) = read_trace(tmp_path).remarks
    assert said == "rank1.json: left out: 1 with its end cut off"


def test_folder_compares_work_in_kernels_whose_arguments_are_called_collective(
    tmp_path: Path,
) -> None:
    from diagnosis.stragglers.judge import job_of, judge

    attention = (
        "void cutlass::device_kernel<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2>, "
        "flash::CollectiveEpilogueBwd<cute::tuple<cute::C<80> > > > >(Params)"
    )
    for rank in range(4):
        made = json.dumps(kineto(rank, slow=2.0 if rank == 2 else 1.0))
        text = made.replace('"gemm"', json.dumps(attention)).replace(
            "ncclDevKernel_AllReduce", "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>()"
        )
        (tmp_path / f"rank{rank}.json").write_text(text)
    judged = judge(job_of(read_trace(tmp_path)))
    assert [one.rank for one in judged.slow] == [2]
    assert judged.waits.calls
