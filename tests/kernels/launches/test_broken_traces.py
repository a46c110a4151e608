"""PyTorch traces as they lie on disks: no JSON, cut, with marks of other systems."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernels.launches.kineto import TraceError, read_header, trace_items
from kernels.launches.launch import Launch, LaunchesRefused, Skip
from kernels.launches.read import open_launches


def kernel(number: int) -> str:
    event = {"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": number, "dur": 1, "args": {}}
    return json.dumps(event)


def host(name: str, more: str = "") -> str:
    return f'{{"ph":"X","cat":"python_function","name":"{name}","ts":1,"dur":1,"args":{{{more}}}}}'


def whole(*entries: str, between: str = ",\n", end: str = "") -> str:
    return f'{{"schemaVersion":1,"traceEvents":[{between.join(entries)}{end}],"traceName":"t"}}'


def read(folder: Path, content: str | bytes) -> tuple[list[str], dict[Skip, int]]:
    path = folder / "t.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = open_launches(path)
    assert found.form == "a PyTorch trace"
    return [one.name for one in found.launches], dict(found.skipped)


@pytest.mark.parametrize(
    "broken",
    [
        host(r"C:\Users\me\lib\site-packages\torch\nn\modules\module.py(1527): _call"),
        host("ncclAllReduce", '"In msg nelems":4,"Bandwidth":inf,"Rate":-nan(ind),"x":1.#INF'),
        host("torch/utils/data", '"seconds":NaN,"other":-Infinity'),
        host("line\nend and tab\t"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_traces_with_entries_that_are_no_json_are_read_all_the_same(
    tmp_path: Path, broken: str, place: int
) -> None:
    entries = [kernel(1), kernel(2)]
    entries.insert(place, broken)
    assert read(tmp_path, whole(*entries)) == (["k1", "k2"], {})


def test_traces_mend_a_kernels_own_entry(tmp_path: Path) -> None:
    kept = '{"ph":"X","cat":"kernel","name":"k9","ts":1,"dur":1,"args":{"occupancy":inf}}'
    assert read(tmp_path, whole(kernel(1), kept)) == (["k1", "k9"], {})


@pytest.mark.parametrize("broken", [host('a "quoted" name'), '{"ph":"X","cat":}'])
def test_traces_count_what_cannot_be_mended(tmp_path: Path, broken: str) -> None:
    entries = (kernel(1), broken, kernel(2), kernel(3))
    assert read(tmp_path, whole(*entries)) == (["k1", "k2", "k3"], {Skip.BROKEN: 1})


@pytest.mark.parametrize("between", [",", ",\n,\n", "\n"])
def test_traces_with_a_comma_too_many_or_too_few_are_read(tmp_path: Path, between: str) -> None:
    assert read(tmp_path, whole(kernel(1), kernel(2), between=between, end=",")) == (
        ["k1", "k2"], {},
    )  # fmt: skip


@pytest.mark.parametrize("cut", [1, 20, 60])
@pytest.mark.parametrize("compressed", [False, True])
def test_traces_that_are_cut_give_what_came_before(
    tmp_path: Path, cut: int, compressed: bool
) -> None:
    text = whole(*map(kernel, range(3_000)), end="")
    text = text[: text.rindex('{"ph"') + cut]
    content = text.encode()
    names, skipped = read(tmp_path, gzip.compress(content)[:-9] if compressed else content)
    assert names[:2_000] == [f"k{number}" for number in range(2_000)]
    assert skipped == {Skip.CUT: 1}


def test_traces_cut_inside_of_compression_give_what_came_before(tmp_path: Path) -> None:
    content = gzip.compress(whole(*map(kernel, range(20_000))).encode())
    names, skipped = read(tmp_path, content[: len(content) // 2])
    assert 1_000 < len(names) < 20_000
    assert skipped == {Skip.CUT: 1}


@pytest.mark.parametrize("size", [65_530, 65_536, 65_540, 300_000])
def test_traces_are_the_same_wherever_a_part_of_the_file_ends(tmp_path: Path, size: int) -> None:
    padded = host("x" * size + r"\y")
    assert read(tmp_path, whole(kernel(1), padded, kernel(2))) == (["k1", "k2"], {})


def test_traces_with_an_entry_that_never_ends_are_read_in_bounds(tmp_path: Path) -> None:
    endless = '{"ph":"X","name":"' + "x" * (9 << 20)
    assert read(tmp_path, whole(kernel(1), endless, kernel(2))) == (["k1"], {Skip.BROKEN: 1})
    assert read(tmp_path, whole(kernel(1), endless + '"}', kernel(2))) == (
        ["k1", "k2"], {Skip.BROKEN: 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"traceEvents": [{"ph": "X", "ca', "the text ends"),
        ('{"traceEvents": [{broken}]}', "Expecting property name"),
        ('{"a": broken}', "Expecting value"),
    ],
)
def test_traces_without_an_entry_that_can_be_read_are_refused(
    tmp_path: Path, content: str, said: str
) -> None:
    with pytest.raises(LaunchesRefused, match=said):
        read(tmp_path, content)


def test_traces_whose_head_is_broken_are_read_from_their_events_on(tmp_path: Path) -> None:
    text = whole(kernel(1), kernel(2)).replace("{", '{"path": "C:\\a", "size": inf,', 1)
    assert read(tmp_path, text) == (["k1", "k2"], {Skip.BROKEN: 1})


def test_traces_that_may_lose_nothing_end_at_the_first_loss(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = whole(kernel(1), host(r"C:\x"), kernel(2))
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError, match="escape") as refused:
        list(trace_items(path))
    assert refused.value.offset == text.index("\\x")


def test_traces_tell_what_stands_before_and_behind_their_events(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    fields = {"deviceProperties": [{"name": "NVIDIA H100"}, 7], "traceEvents": [{}], "last": 9}
    path.write_text(json.dumps(fields), encoding="utf-8")
    head: dict[str, Any] = {}
    assert list(trace_items(path, Counter(), head)) == [{}]
    assert head == {key: fields[key] for key in ("deviceProperties", "last")}
    assert read_header(path).gpu_models == ("NVIDIA H100",)


def test_traces_that_begin_with_a_byte_order_mark_are_traces(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbf" + whole(kernel(1)).encode()) == (["k1"], {})
    path = tmp_path / "names"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa_gemm\n"))
    assert list(open_launches(path).launches) == [Launch("a_gemm", 1, None)]
