"""Probe tables: what they refuse, and rows for other libraries that need no code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors.gpu_calls.probe_table import (
    ArgumentPlace,
    CallKind,
    Meaning,
    ProbeTable,
    ProbeTableError,
)
from collectors.records.gpu_calls import Direction, ProbeGroup
from tests.probes_kit import PUSH, STUBS, compile_stub, probing, run

HEAD = 'name = "own"\nfiles = ["*"]\n'
ROW = '[[row]]\nid = "call"\nkind = "wait"\nsymbols = ["call"]\n'


def load(folder: Path, text: str) -> ProbeTable:
    path = folder / "own.toml"
    path.write_text(text)
    return ProbeTable.load(path)


def test_table_of_the_agent_names_every_variant_of_the_apis() -> None:
    table = ProbeTable.load()
    row = table.rows[table.index("cuda.copy_to_host_on_stream")]
    for name in ("cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2_ptsz"):
        assert row.has_symbol(name)
    assert not row.has_symbol("cuMemcpyDtoHAsync_v2_ptsz_extra")
    assert row.direction is Direction.DEVICE_TO_HOST
    launch = table.rows[table.index("cudart.launch")]
    assert (launch.group, launch.return_group) == (ProbeGroup.LAUNCH, ProbeGroup.LAUNCH_RESULT)
    assert launch.arguments[Meaning.STREAM] == ArgumentPlace(7)
    assert launch.has_symbol("__cudaLaunchKernel_ptsz")
    owners = {
        name: [row.id for row in table.rows if row.has_symbol(name)]
        for name in (
            "ncclAllReduce",
            "pncclAllReduce",
            "cudaFree",
            "hipFree",
            "cuStreamWaitEvent_ptsz",
        )
    }
    assert owners["cudaFree"] == ["cudart.free"]
    assert owners["pncclAllReduce"] == ["nccl.all_reduce", "rccl.all_reduce"]


def test_table_tells_copies_on_a_stream_from_those_without() -> None:
    table = ProbeTable.load()
    blocking = table.rows[table.index("cudart.copy")]
    on_stream = table.rows[table.index("cudart.copy_on_stream")]
    assert Meaning.STREAM not in blocking.arguments
    assert blocking.has_symbol("cudaMemcpy_ptds")
    assert not blocking.has_symbol("cudaMemcpyAsync")
    assert on_stream.arguments[Meaning.STREAM] == ArgumentPlace(4)
    assert on_stream.has_symbol("cudaMemcpyAsync_ptsz")
    assert on_stream.direction == blocking.direction
    assert {row.id for row in table.rows if "hipMemcpyWithStream(_spt)?" in row.symbols} == {
        "hip.copy_on_stream"
    }
    waits = table.rows[table.index("cuda.stream_synchronize")]
    assert waits.arguments[Meaning.STREAM] == ArgumentPlace(0)


def test_table_rows_of_the_agent_have_one_meaning_per_symbol() -> None:
    table = ProbeTable.load()
    for row in table.rows:
        for symbol in row.symbols:
            bare = re.sub(r"\(_[^)]*\)\?", "", symbol).replace("p?", "")
            same = [r.id for r in table.rows if r.files == row.files and r.has_symbol(bare)]
            assert same == [row.id], bare


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "expected TOML"),
        ('name = "Own"\nfiles = ["*"]\n' + ROW, "name: expected text like"),
        ('name = "own"\n' + ROW, "files: expected an array of 1 or more, got nothing"),
        (HEAD, "row: expected an array of 1 or more, got nothing"),
        (HEAD + ROW + ROW, "row own.call: expected a name of its own"),
        (HEAD + ROW + "colour = 1\n", r"row\[call\]\.colour: unknown key"),
        (HEAD + ROW.replace("wait", "sing"), "kind: expected one of count, launch"),
        (HEAD + ROW.replace('"call"]', '"("]'), "is no regular expression"),
        (HEAD + ROW.replace("symbols", "usdt"), "usdt.0.: expected text like .*:"),
        (HEAD + ROW + "arguments = { stream = 99 }\n", "expected a slot of 0 to 15"),
        (HEAD + ROW + "arguments = { stream = [0, 8, 8] }\n", r"expected slot or \[slot, offset\]"),
        (
            HEAD + ROW + "arguments = { colour = 1 }\n",
            "arguments.colour: unknown key; expected one of object",
        ),
        (HEAD + ROW + "arguments = { datatype = 1 }\n", "datatype needs element_sizes"),
        (
            HEAD + ROW + "element_sizes = [256]\n",
            r"element_sizes\[0\]: expected an integer from 0 to 255",
        ),
        (HEAD + ROW + 'group = "launch"\n', "only they, are in the group launch"),
        (HEAD + ROW.replace("wait", "free"), "a row of kind free needs object"),
        (HEAD + ROW.replace("wait", "name"), "a row of kind name needs name_out or out"),
        (
            HEAD + ROW.replace("wait", "allocate") + "returns = false\narguments = { out = 0 }\n",
            "out is read at the return",
        ),
    ],
)
def test_table_refuses_what_it_cannot_mean(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ProbeTableError, match=said):
        load(tmp_path, text)


@pytest.mark.root
@pytest.mark.kernel
def test_python_and_torch_rows_need_no_code(tmp_path: Path) -> None:
    """A static probe, and a mangled C++ function whose second argument counts bytes."""
    table = load(
        tmp_path,
        """
        name = "frameworks"
        files = ["framework*"]

        [[row]]
        id = "python_call"
        kind = "count"
        usdt = ["python:function__entry"]

        [[row]]
        id = "torch_empty"
        kind = "count"
        symbols = ["_ZN2at6detail13empty_genericE.*"]
        arguments = { size = 1 }
        """,
    )
    assert [row.kind for row in table.rows] == [CallKind.COUNT, CallKind.COUNT]
    program = tmp_path / "framework"
    compile_stub(*PUSH, "-x", "c++", STUBS / "framework.cc", "-o", program)
    with probing(table) as probed:
        probed.attach(program)
        pid = run(program)
        (first, second) = sorted(probed.drain().calls, key=lambda row: row.call)
    assert (first.call, first.calls) == ("frameworks.python_call", 47)
    assert (second.call, second.calls, second.bytes) == ("frameworks.torch_empty", 53, 53 * 640)
    assert first.process.pid == second.process.pid == pid
