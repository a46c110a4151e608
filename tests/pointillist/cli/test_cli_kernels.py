"""`pointillist kernels` and `pointillist signatures`: answers, JSON and wrong input."""

import gzip
import io
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from pointillist import cli
from pointillist.cli.output import ExitCode

EVENTS = [
    {"cat": "kernel", "name": "volta_sgemm_128x32_nt", "ts": 1, "dur": 3, "pid": 0},
    {"cat": "kernel", "name": "volta_sgemm_32x32_nt", "ts": 5, "dur": 5, "pid": 0},
    {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 9, "dur": 2, "pid": 0},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pointillist", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> Any:
    assert run(monkeypatch, *arguments, "--json") == ExitCode.OK
    return json.loads(capsys.readouterr().out)


def test_classify_trace_sums_time_by_family(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    told = answer(monkeypatch, capsys, "kernels", "classify", str(trace))
    assert (told["read_as"], told["skipped"]) == ("a PyTorch trace", {})
    rows = told["families"]
    assert [(r["family"], r["launches"], r["gpu_time_ns"]) for r in rows] == [
        ("gemm", 2, 8_000),
        ("memcpy", 1, 2_000),
    ]
    assert (rows[0]["kernels"], rows[0]["heaviest"]) == (1, "volta_sgemm_#_nt")
    assert rows[0]["gpu_time_percent"] == pytest.approx(80)


def test_classify_names_counts_lines_and_knows_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("volta_sgemm_32x32_nt\n\n[CUDA memcpy DtoH]\nmystery\nmystery\n")
    rows = answer(monkeypatch, capsys, "kernels", "classify", str(names))["families"]
    found = {row["family"]: (row["launches"], row["gpu_time_ns"]) for row in rows}
    assert found == {"other": (2, None), "gemm": (1, None), "memcpy": (1, None)}
    assert run(monkeypatch, "kernels", "classify", str(names)) == ExitCode.OK
    assert "GPU time" not in capsys.readouterr().out


def test_classify_reads_names_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"a_gemm\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", typed)
    assert run(monkeypatch, "kernels", "classify", "-") == ExitCode.OK
    assert "gemm" in capsys.readouterr().out


def test_classify_reads_a_profilers_table_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = b"Total Time (ns),Instances,Name\n3000,2,a_gemm\nx,1,b\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(table), encoding="utf-8"))
    told = answer(monkeypatch, capsys, "kernels", "classify", "-")
    assert (told["families"][0]["launches"], told["families"][0]["gpu_time_ns"]) == (2, 3_000)
    assert told["skipped"] == {"no valid start or duration": 1}


def test_classify_says_what_it_read_and_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    odd = [event | {"dur": dur} for event, dur in zip(EVENTS, (3, -1, "x"), strict=True)]
    path.write_text(json.dumps({"traceEvents": odd}))
    assert run(monkeypatch, "kernels", "classify", str(path)) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "Read as a PyTorch trace." in shown
    assert "1 with a duration below 0 or above an hour" in shown
    assert "1 with no valid start or duration" in shown


def test_classify_says_where_the_sum_is_more_than_the_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    twice = [EVENTS[0] | {"ts": ts, "dur": 100} for ts in (0, 50)]
    path.write_text(json.dumps({"traceEvents": twice}))
    assert run(monkeypatch, "kernels", "classify", str(path)) == ExitCode.OK
    assert "Time: 0.050 of 0.200 ms are told twice" in capsys.readouterr().out


def test_classify_says_what_a_trace_without_kernels_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    host = [{"cat": cat, "name": "x", "ts": 1, "dur": 1} for cat in ("cpu_op", "cpu_op", "mtia")]
    path.write_text(json.dumps(host))
    assert run(monkeypatch, "kernels", "classify", str(path)) == ExitCode.USAGE
    assert "found none; entries of no GPU: 2 of cpu_op, 1 of mtia" in capsys.readouterr().err


def test_classify_refuses_a_database_and_says_what_to_export(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "names.txt"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE names (name TEXT)")
    database.close()
    assert run(monkeypatch, "kernels", "classify", str(path)) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "got a SQLite file with tables names" in said
    assert "nsys export --type sqlite" in said


HOSTILE = "evil\x1b[J\x9bm\u202e_kernel"
SHOWN = "evil\\x1b[J\\x9bm\\u202e_kernel"


@pytest.mark.parametrize("command", ["classify", "explain"])
def test_kernels_names_reach_no_terminal_with_control_characters(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
) -> None:
    path = tmp_path / "names.txt"
    path.write_text(HOSTILE, encoding="utf-8")
    given = str(path) if command == "classify" else HOSTILE
    assert run(monkeypatch, "kernels", command, given) == ExitCode.OK
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert all(line.isprintable() for line in shown.splitlines())
    assert run(monkeypatch, "kernels", command, given, "--json") == ExitCode.OK
    document = capsys.readouterr().out
    assert all(line.isprintable() for line in document.splitlines())
    told = json.loads(document)
    normal = told["families"][0]["heaviest"] if command == "classify" else told["normalised"]
    assert normal == HOSTILE  # nothing is lost to a program


def test_errors_reach_no_terminal_with_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "kernels", "classify", "no\x1b[2Jfile") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "no\\x1b[2Jfile: expected a trace" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found none"),
        ('{"traceEvents": [{"cat": "kernel", "na', "trace"),
        ('{"traceEvents": []}', "found none"),
    ],
)
def test_classify_refuses_what_holds_no_kernels(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    content: str,
    message: str,
) -> None:
    path = tmp_path / "x"
    path.write_text(content)
    assert run(monkeypatch, "kernels", "classify", str(path)) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_explain_names_the_rule_and_those_that_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "void (anonymous namespace)::multimem_all_reduce_kernel<float, 16>(long)"
    told = answer(monkeypatch, capsys, "kernels", "explain", name)
    assert (told["family"], told["rule"]) == ("communication", "symmetric-collective")
    assert told["normalised"] == "multimem_all_reduce_kernel"
    assert ("reduce", "reduce") in {(one["family"], one["rule"]) for one in told["lost"]}


def test_explain_with_rules_of_no_catalogue_family_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nid='a'\npriority=1\nfamily='nowhere'\npattern=''\nmatch=[]\n")
    assert run(monkeypatch, "kernels", "explain", "x", "--rules", str(rules)) == ExitCode.USAGE
    assert "'nowhere' is no family" in capsys.readouterr().err


def test_signatures_train_then_explain(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    trace: Path,
) -> None:
    table = tmp_path / "vision.toml"
    row = '[[kernel]]\nname = "implicit_convolve_sgemm"\nlaunches = 4\ntime_ns = 10\n'
    table.write_text(f'application = "image_classification"\n{row}')
    out = str(tmp_path / "signatures.json")
    named = f"{trace}=llm_inference"
    learned = answer(monkeypatch, capsys, "signatures", "train", named, str(table), "--out", out)
    assert (learned["profiles"], learned["classes"]) == (2, 2)
    told = answer(monkeypatch, capsys, "signatures", "explain", str(trace), "--signatures", out)
    assert told["launches"]["application"] == told["gpu_time"]["application"] == "llm_inference"
    assert list(told)[:3] == ["application", "decided_by", "because"]
    assert (told["application"], told["decided_by"]) == ("llm_inference", "launches")
    assert told["because"] == (
        "the nearest profile, trace, is 0.000 away, within the threshold of "
        f"{told['launches']['threshold']:.3f}"
    )
    assert told["launches"]["runner_up"] == "image_classification"
    assert told["launches"]["families"][0]["family"] == "gemm"


def test_signatures_train_needs_a_class_of_the_catalogue(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    trace: Path,
) -> None:
    out = tmp_path / "signatures.json"
    assert run(monkeypatch, "signatures", "train", str(trace), "--out", str(out)) == ExitCode.USAGE
    assert "expected a class" in capsys.readouterr().err
    wrong = f"{trace}=chatting"
    assert run(monkeypatch, "signatures", "train", wrong, "--out", str(out)) == ExitCode.USAGE
    assert "got 'chatting'" in capsys.readouterr().err
    assert not out.exists()


def test_signatures_evaluate_packaged_shows_intervals_and_variants(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "140")  # so that no name is folded
    assert run(monkeypatch, "signatures", "evaluate") == ExitCode.OK
    shown = capsys.readouterr().out
    assert "8/8 [68, 100] %" in shown
    assert "variant: 500 launches" in shown
    assert "by number of classes to choose from" in shown


def test_signatures_explain_a_broken_trace_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "cut.json"
    path.write_text('{"traceEvents": [{"cat"')
    assert run(monkeypatch, "signatures", "explain", str(path)) == ExitCode.USAGE
    assert "cut.json" in capsys.readouterr().err
