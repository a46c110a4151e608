"""The mirror of bpf/include/gpu.h, and the committed objects."""

from __future__ import annotations

import re
import shutil
import subprocess
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from struct import iter_unpack

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from collectors.binaries.proc_maps import coarse
from collectors.gpu_calls import probe_table
from collectors.gpu_calls import readout as layout
from collectors.gpu_calls.probe_table import CallKind, Meaning, ProbeTable
from collectors.gpu_calls.readout import encode_row
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Direction, ProbeGroup
from tests.bpf_kit import enumeration
from tests.probes_kit import compile_stub

BPF = Path(__file__).parents[3] / "bpf"
HEADER = (BPF / "include/gpu.h").read_text()
STRUCTS: dict[str, np.dtype[np.void] | tuple[str, ...]] = {
    "process": layout.PROCESS,
    "launch_key": layout.LAUNCH_KEY,
    "call_key": layout.CALL_KEY,
    "error_key": layout.ERROR_KEY,
    "copy_key": layout.COPY_KEY,
    "collective_key": layout.COLLECTIVE_KEY,
    "allocation_key": layout.ALLOCATION_KEY,
    "launch_row": layout.LAUNCH_ROW,
    "call_row": layout.CALL_ROW,
    "error_row": layout.ERROR_ROW,
    "copy_row": layout.COPY_ROW,
    "collective_row": layout.COLLECTIVE_ROW,
    "memory_row": layout.MEMORY_ROW,
    "allocation_row": layout.ALLOCATION_ROW,
    "name_event": layout.NAME_EVENT,
    "sample_event": layout.SAMPLE_EVENT,
}


def places(mirror: np.dtype[np.void] | tuple[str, ...]) -> dict[str, int]:
    """Offset of each field."""
    if isinstance(mirror, tuple):
        return {name: 8 * place for place, name in enumerate(mirror)}
    assert mirror.fields is not None
    return {name: field[1] for name, field in mirror.fields.items()}


def test_layout_structures_lie_as_the_compiler_lays_them(tmp_path: Path) -> None:
    lines, expected = [], []
    for struct, mirror in STRUCTS.items():
        for field, offset in places(mirror).items():
            inner = field in {"start_ns", "tgid", "file"} and struct != "process"
            lines.append(f"P({struct}, {'process.' if inner else ''}{field})")
            expected.append(offset)
        size = 8 * len(mirror) if isinstance(mirror, tuple) else mirror.itemsize
        if struct != "name_event":  # its text follows
            lines.append(f'printf("%zu\\n", sizeof(struct {struct}));')
            expected.append(size)
    lines.append('printf("%zu\\n", sizeof(struct frame));')
    lines.append('printf("%zu\\n", sizeof(struct thread));')
    lines.append('printf("%zu\\n", sizeof(struct row_spec));')
    lines.append("P(name_event, text)")
    rows = ProbeTable.load().rows
    expected += [layout.FRAME_BYTES, 8 * layout.THREAD_FIELDS, len(encode_row(rows[0])),
                 layout.NAME_EVENT.itemsize]  # fmt: skip
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        "#include <stdio.h>\n#include <stddef.h>\n#include <include/gpu.h>\n"
        '#define P(s, f) printf("%zu\\n", offsetof(struct s, f));\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    compile_stub(f"-I{BPF}", source, "-o", program)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    assert list(map(int, said.split())) == expected


def test_layout_enumerations_and_bounds_follow_the_header() -> None:
    assert enumeration(HEADER, "kind") == [f"kind_{kind}" for kind in CallKind]
    assert enumeration(HEADER, "meaning") == [
        *(f"meaning_{meaning}" for meaning in Meaning),
        "meanings",
    ]
    assert enumeration(HEADER, "lost") == [*(f"lost_{name}" for name in layout.LOST), "lost"]
    assert len(Direction) == 5
    bounds = {
        "MAX_ROWS": probe_table.MAX_ROWS,
        "MAX_FILES": layout.MAX_FILES,
        "GROUPS": len(ProbeGroup),
        "FRAMES": layout.FRAMES,
        "ELEMENT_SIZES": probe_table.MAX_ELEMENT_SIZES,
        "SIZE_BINS": layout.SIZE_BINS,
    }
    for name, value in bounds.items():
        assert re.search(rf"#define {name} {value}\b", HEADER), name


def test_process_keys_are_whole_clock_ticks() -> None:
    assert coarse(ProcessKey(7, 1_239_999_999)) == (7, 1_230_000_000)


@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang, as make tools installs it")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_committed_gpu_objects_are_what_the_sources_build(tmp_path: Path, machine: str) -> None:
    name = f"gpu.{machine}.bpf.o"
    subprocess.run(
        ["make", "-s", "-C", BPF, f"OUT={tmp_path}", tmp_path / name], check=True, timeout=100
    )
    version = subprocess.run(["clang", "--version"], check=True, capture_output=True, text=True)
    if "clang version 14." in version.stdout:  # which built the committed ones
        assert (tmp_path / name).read_bytes() == (BPF / "objects" / name).read_bytes()


JUMPS, JUMP, CALL, EXIT = {5, 6}, 0x00, 0x80, 0x90
"""Classes of BPF instructions that jump, and operations of theirs."""


def ways(code: bytes) -> dict[int, set[int]]:
    """Give for each BPF instruction those that may follow it."""
    follow: dict[int, set[int]] = {}
    for at, (operation, _, offset, _) in enumerate(iter_unpack("<BBhi", code)):
        jumps, kind = operation & 7 in JUMPS, operation & 0xF0
        follow[at] = set() if jumps and kind in {JUMP, EXIT} else {at + 1}
        if jumps and kind not in {CALL, EXIT}:
            follow[at].add(at + 1 + offset)
    return follow


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_gpu_program_loops(machine: str) -> None:
    """Linux 6.1 and 6.12 refuse as infinite a loop whose counter is a map's key; 6.18 takes it."""
    with (BPF / f"objects/gpu.{machine}.bpf.o").open("rb") as file:
        section = ELFFile(file).get_section_by_name("uprobe")
        assert section is not None
        code = section.data()
    TopologicalSorter(ways(code)).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter(ways(code + bytes.fromhex("0500ffff00000000"))).prepare()
