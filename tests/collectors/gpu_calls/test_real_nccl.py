"""The real NCCL of a wheel: the table knows its collectives, and counts their calls and bytes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from collectors.gpu_calls.probe_table import ProbeTable
from tests.probes_kit import STUBS, Probed, compile_stub
from tests.real_libraries import CUDA13_HEADERS, NCCL, unpacked

WITHOUT_HALVES = ("-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__", "-D__CUDA_FP8_H__")
"""Headers that NCCL's includes and that need one more package; no call uses their types."""
BYTES = {
    "all_reduce": 1 * 16 * 4, "reduce_scatter": 2 * 16 * 2, "all_gather": 3 * 16,
    "broadcast": 4 * 16 * 8, "bcast": 5 * 16 * 4, "reduce": 6 * 16 * 4, "send": 7 * 16 * 4,
    "recv": 8 * 16 * 4,
}  # fmt: skip
"""Of one call, two calls, and so on, of sixteen elements each."""


@pytest.fixture(scope="module")
def nccl() -> Path:
    """The folder of include/ and lib/."""
    return unpacked(NCCL).parents[1]


def test_table_knows_every_collective_of_the_real_header(nccl: Path) -> None:
    """A collective is what is given a type of elements and a stream."""
    header = (nccl / "include" / "nccl.h").read_text()
    calls = re.findall(r"\n *ncclResult_t +(p?nccl\w+)\(([^)]*)\)", header)
    names = {name for name, words in calls if "ncclDataType_t" in words and "cudaStream_t" in words}
    rows = [row for row in ProbeTable.load().rows if row.id.startswith("nccl.")]
    assert len(names) == 2 * len(BYTES)
    assert {name: sum(row.has_symbol(name) for row in rows) for name in names} == dict.fromkeys(
        names, 1
    )


@pytest.mark.root
@pytest.mark.kernel
def test_collectives_of_the_real_library_are_counted_with_their_bytes(
    probed: Probed, nccl: Path, tmp_path: Path
) -> None:
    """Without a communicator each is refused; what `bcast` calls inside is no second call."""
    library, program = nccl / "lib" / "libnccl.so.2", tmp_path / "program"
    folders = (f"-I{nccl / 'include'}", f"-I{unpacked(CUDA13_HEADERS)}")
    linked = (library, f"-Wl,-rpath,{library.parent}", "-o", program)
    compile_stub(*WITHOUT_HALVES, *folders, STUBS / "collectives.c", *linked)
    probed.attach(library)
    ended = subprocess.run([program], check=True, capture_output=True, text=True, timeout=30)
    assert ended.stdout == "36\n"
    drain = probed.drain()
    seen = {(row.call, row.calls): row.bytes for row in drain.collectives}
    assert seen == {
        (f"nccl.{call}", calls): size for calls, (call, size) in enumerate(BYTES.items(), 1)
    }
    # A kernel's name in a page that nobody has touched yet cannot be read: no call is lost by that.
    assert not drain.lost.keys() - {"unreadable"}
