"""Profiles of applications: traces, tables, local history, and what cannot be read."""

import gzip
import json
from pathlib import Path

import pytest

from kernels.families import FamilyRules
from kernels.kernel_mix import MixMeasure
from kernels.launches.kineto import TraceError
from kernels.signature_learning import read_profile
from kernels.signatures import SignatureError

TABLE = """
application = "text_encoder"
gpu_model = "H100"
[[kernel]]
name = "volta_sgemm_128x32_nt"
launches = 3
time_ns = 900
[[kernel]]
name = "softmax_warp_forward"
launches = 1
time_ns = 100
"""


@pytest.fixture(scope="module")
def rules() -> FamilyRules:
    return FamilyRules.load()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_profile_of_a_table_classes_its_names(tmp_path: Path, rules: FamilyRules) -> None:
    one = read_profile(write(tmp_path / "encoder.toml", TABLE), rules)
    assert (one.name, one.application, one.gpu_model) == ("encoder", "text_encoder", "H100")
    assert one.mix(MixMeasure.LAUNCHES).families == {"gemm": 0.75, "softmax": 0.25}
    assert one.mix(MixMeasure.GPU_TIME).families == {"gemm": 0.9, "softmax": 0.1}


def test_profile_class_named_by_the_caller_wins(tmp_path: Path, rules: FamilyRules) -> None:
    path = write(tmp_path / "encoder.toml", TABLE)
    assert read_profile(path, rules, "reranking").application == "reranking"


def test_profile_without_times_has_launches(tmp_path: Path, rules: FamilyRules) -> None:
    text = "\n".join(line for line in TABLE.splitlines() if not line.startswith("time_ns"))
    one = read_profile(write(tmp_path / "encoder.toml", text), rules)
    assert one.mix(MixMeasure.LAUNCHES).families["gemm"] == 0.75
    assert one.mix(MixMeasure.GPU_TIME).families == {}


def test_profile_of_a_trace_counts_launches_and_time(tmp_path: Path, rules: FamilyRules) -> None:
    event = {"cat": "kernel", "name": "volta_sgemm_128x32_nt", "ts": 1, "dur": 2.5, "pid": 0}
    trace = {"application": "llm_inference", "traceEvents": [event, event | {"name": "cumsum"}]}
    one = read_profile(write(tmp_path / "t.json", json.dumps(trace)), rules)
    assert one.application == "llm_inference"
    assert {row.operation: row.launches for row in one.rows} == {"gemm": 1, "cumsum": 1}
    assert {row.gpu_time for row in one.rows} == {2_500}


def test_profile_of_local_history_keeps_its_families(tmp_path: Path, rules: FamilyRules) -> None:
    row = {"name": "k", "family": "norm", "count": 5, "gpu_time_ns": None}
    text = json.dumps({"since_ns": 1, "until_ns": None, "activity": [row], "cut_short": []})
    one = read_profile(write(tmp_path / "h.json", text), rules, "llm_training")
    assert one.application == "llm_training"
    assert one.mix(MixMeasure.LAUNCHES).families == {"norm": 1.0}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = ", "expected a kernel table"),
        ("b.toml", "application = 'x'", "expected a kernel table"),
        ("c.toml", "[[kernel]]\nname = 'a'\nlaunches = -1", "at least 0 expected"),
        ("c.toml", TABLE.replace('"text_encoder"', "[1]"), "a class in quotes expected"),
        ("d.toml", "kernel = []", "expected kernels, found none"),
        ("e.json", '{"since_ns": 1, "activity": [{}]}', "expected kernel activity"),
        ("h.json", '{"since_ns": 1, "kernel": [], "cut_short": []}', "activity`, got kernel$"),
        ("f.json", '{"traceEvents": []}', "expected kernels, found none"),
    ],
)
def test_profile_that_cannot_be_read_is_named(
    tmp_path: Path, rules: FamilyRules, name: str, text: str, message: str
) -> None:
    with pytest.raises(SignatureError, match=message) as caught:
        read_profile(write(tmp_path / name, text), rules)
    assert name in str(caught.value)


def test_profile_of_a_cut_trace_is_refused(tmp_path: Path, rules: FamilyRules) -> None:
    with pytest.raises(TraceError, match="cut"):
        read_profile(write(tmp_path / "cut.json", '{"traceEvents": [{"cat": "ker'), rules)


def _activity(count: str) -> bytes:
    row = f'{{"name": "a", "family": "b", "count": {count}, "gpu_time_ns": null}}'
    return f'{{"since_ns": 1, "activity": [{row}]}}'.encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json.gz", gzip.compress(b'{"traceEvents": []}', mtime=0)[:9]),
        ("run.json", b'{"since_ns": ' + b"[" * 100_000),
        ("run.toml", b"kernel = " + b"[" * 5_000),
        ("run.json", _activity("[]")),
        ("run.json", _activity("-1")),
        ("run.json", _activity("1" + "0" * 400)),
        ("run.toml", b"[[kernel]]\nname = 'a'\nlaunches = 1" + b"0" * 400),
        ("run.toml", b"[[kernel]]\nname = 'a'\nlaunches = 0x1" + b"0" * 5_000),
    ],
    ids=["cut", "nested JSON", "nested TOML", "no number", "negative", "long", "TOML", "hex"],
)
def test_profile_that_is_damaged_or_nested_is_refused(
    tmp_path: Path, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((SignatureError, TraceError)):
        read_profile(path, FamilyRules.load())
