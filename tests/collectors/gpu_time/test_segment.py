"""A segment is a stranger's bytes: each read ends, in a whole state or in an error."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu_time import segment as layout
from collectors.gpu_time.segment import ROW, SegmentError, SegmentUnsettled
from tests.segment_kit import FakeMemory


@pytest.fixture
def memory() -> Iterator[FakeMemory]:
    found = FakeMemory()
    yield found
    found.close()


def test_segment_gives_what_was_written(memory: FakeMemory) -> None:
    memory.rows(("gemm", {"count": 3, "total_ns": 30, "device": 1}), ("näme", {"count": 1}))
    seen = memory.segment().read()
    assert seen.names == ("", "gemm", "näme")
    assert [int(row["count"]) for row in seen.rows] == [0, 3, 1]
    assert (seen.header["pid"], seen.uuids[0]) == (os.getpid(), "")


@pytest.mark.parametrize("size", [0, 1, 4096, layout.SEGMENT_BYTES - 1, layout.SEGMENT_BYTES + 1])
def test_segment_of_another_size_is_refused(size: int) -> None:
    descriptor = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with pytest.raises(SegmentError, match=f"expected {layout.SEGMENT_BYTES} bytes"):
        layout.ProcessSegment(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK])
def test_segment_that_can_be_resized_is_refused(seals: int) -> None:
    memory = FakeMemory(seals=seals)
    with pytest.raises(SegmentError, match="sealed against resizing"):
        memory.segment()
    memory.close()


@pytest.mark.parametrize("kind", ["file", "pipe", "folder"])
def test_segment_that_is_no_memory_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "f").write_bytes(bytes(layout.SEGMENT_BYTES))
    opened = (
        os.pipe()
        if kind == "pipe"
        else (os.open(tmp_path / "f" if kind == "file" else tmp_path, 0),)
    )
    with pytest.raises(SegmentError, match="sealed"):
        layout.ProcessSegment(opened[0])
    for descriptor in opened:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", 0), ("version", 2), ("bytes", 0), ("rows", 4095), ("row_bytes", 0),
        ("devices", 17), ("device_bytes", 1), ("names_at", 0), ("names_bytes", 1 << 60),
        ("rows_used", 0), ("rows_used", 4097), ("rows_used", 0xFFFFFFFF),
        ("names_used", (1 << 21) + 1), ("names_used", 0xFFFFFFFF),
    ],
)  # fmt: skip
def test_header_that_no_library_writes_is_refused(
    memory: FakeMemory, field: str, value: int
) -> None:
    segment = memory.segment()
    memory.head(**{field: value})
    with pytest.raises(SegmentError):
        segment.read()


def test_segment_that_never_rests_is_not_waited_for(memory: FakeMemory) -> None:
    memory.head(generation=7, rows_used=layout.ROWS)
    segment = memory.segment()
    begun_s = time.monotonic()
    with pytest.raises(SegmentUnsettled):
        segment.read()
    assert time.monotonic() - begun_s < 1


def test_names_without_an_end_or_outside_are_bounded(memory: FakeMemory) -> None:
    memory.rows(*(("x", {"count": 1}) for _ in range(5)))
    names = layout.NAMES_BYTES
    memory.memory[layout.NAMES_AT :] = b"y" * names
    for row, at in enumerate((0, names - 1, names, layout.NO_NAME, names - 100), 1):
        begin = layout.HEADER_BYTES + row * ROW.itemsize
        memory.memory[begin : begin + 4] = at.to_bytes(4, "little")
    memory.head(rows_used=6, names_used=names)
    seen = memory.segment().read()
    assert [len(name) for name in seen.names] == [0, layout.NAME_BYTES, 1, 0, 0, 100]


def test_names_that_lie_over_each_other_are_refused(memory: FakeMemory) -> None:
    """All rows with the longest name would be eight times what names may take."""
    memory.memory[layout.NAMES_AT :] = b"y" * layout.NAMES_BYTES
    memory.head(rows_used=layout.ROWS, names_used=layout.NAMES_BYTES)
    with pytest.raises(SegmentError, match="expected at most 2097152 bytes of names"):
        memory.segment().read()


def test_reading_fills_no_page_that_the_process_left_out(memory: FakeMemory) -> None:
    """The pages would be the agent's, which may have so many."""
    memory.head(rows_used=layout.ROWS, names_used=layout.NAMES_BYTES)
    before = os.fstat(memory.descriptor).st_blocks
    assert len(memory.segment().read().rows) == layout.ROWS
    assert os.fstat(memory.descriptor).st_blocks == before


def test_rows_that_come_and_go_have_names(memory: FakeMemory) -> None:
    segment = memory.segment()
    memory.rows(("a", {"count": 1}), ("b", {"count": 1}))
    assert segment.read().names == ("", "a", "b")
    memory.head(rows_used=1)
    assert segment.read().names == ("",)
    memory.head(rows_used=3, names_used=4)
    assert segment.read().names == ("", "a", "b")


@given(st.data())
def test_whatever_a_process_writes_a_read_ends(data: st.DataObject) -> None:
    memory = FakeMemory()
    segment = memory.segment()
    try:
        for _ in range(3):
            at = data.draw(st.integers(0, layout.SEGMENT_BYTES - 1))
            if data.draw(st.booleans()):
                at %= 8192
            raw = data.draw(st.binary(max_size=600))
            end = min(at + len(raw), layout.SEGMENT_BYTES)
            memory.memory[at:end] = raw[: end - at]
        try:
            seen = segment.read()
        except (SegmentError, SegmentUnsettled):
            return
        assert 1 <= len(seen.rows) == len(seen.names) <= layout.ROWS
        assert all(len(name) <= layout.NAME_BYTES for name in seen.names)
    finally:
        segment.close()
        memory.close()
