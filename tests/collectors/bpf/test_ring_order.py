"""Readers of rings give room back behind a full barrier: arm64 may order copies after it."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from collectors.binaries.perf_ring import PerfRing, parse_records
from collectors.bpf.bpf_maps import MARK_FIELDS, MarkRing

RING_BYTES = 1 << 16
MARK_BYTES = 8 * (1 + len(MARK_FIELDS))


def test_marks_are_copied_between_barriers_before_their_room_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel lays it: the reader's page, the writer's, the records twice in a row."""
    marks = np.arange(2 * (1 + len(MARK_FIELDS)), dtype=np.uint64).reshape(2, -1)
    page = mmap.PAGESIZE
    content = bytearray(2 * page + 2 * RING_BYTES)
    content[page : page + 8] = struct.pack("=Q", 2 * MARK_BYTES)
    content[2 * page : 2 * page + marks.nbytes] = marks.tobytes()
    path = tmp_path / "ring"
    path.write_bytes(content)

    def cursor() -> int:
        return int.from_bytes(path.read_bytes()[:8], "little")

    seen: list[int] = []
    monkeypatch.setattr("collectors.bpf.bpf_maps.barrier", lambda: seen.append(cursor()))
    descriptor = os.open(path, os.O_RDWR)
    ring = MarkRing(descriptor, RING_BYTES)
    assert ring.read().tolist() == marks[:, 1:].tolist()
    assert (seen, cursor()) == ([0, 0, 0], 2 * MARK_BYTES)
    ring.close()
    os.close(descriptor)


@pytest.mark.root
@pytest.mark.kernel
def test_events_are_copied_between_barriers_before_their_room_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = PerfRing(0)
    kept = ring._pages
    seen: list[bytes] = []
    monkeypatch.setattr(
        "collectors.binaries.perf_ring.barrier", lambda: seen.append(kept[1032:1040])
    )
    subprocess.run(["taskset", "-c", "0", "true"], check=True)
    assert list(parse_records(ring.take()))
    assert seen == [bytes(8)] * 2
    assert kept[1032:1040] != bytes(8)
    ring.close()
