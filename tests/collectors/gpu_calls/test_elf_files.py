"""ELF files: symbols, build ids, USDT marks, entry classes, and files that lie."""

from __future__ import annotations

import io
import platform
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection, SymbolTableSection
from hypothesis import given
from hypothesis import strategies as st

from collectors.binaries.elf import ElfBytes, ElfError, read_symbols
from collectors.binaries.elf_file import ElfFile, EntryClass, arm64_entry, x86_64_entry
from tests.collectors.gpu_calls import elf_kit

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")


def _section(path: Path, name: str) -> Any:
    """A section as pyelftools reads it."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(name)
    assert section is not None
    return section


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return elf_kit.library(tmp_path_factory.mktemp("elf") / "libcuda.so.1")


@pytest.fixture
def elf(built: Path) -> Iterator[ElfFile]:
    with built.open("rb") as file:
        yield ElfFile.read(file)


def _oracle(path: Path) -> tuple[set[tuple[str, int]], str, int]:
    """Functions by name and address, build id and count of USDT notes, as pyelftools reads them."""
    with path.open("rb") as file:
        other = ELFFile(file)
        code = [s for s in other.iter_segments("PT_LOAD") if s["p_flags"] & 1]
        functions = {
            (symbol.name, symbol["st_value"])
            for section in other.iter_sections()
            if isinstance(section, SymbolTableSection)
            for symbol in section.iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF"
            if any(s["p_vaddr"] <= symbol["st_value"] < s["p_vaddr"] + s["p_filesz"] for s in code)
        }
        notes = [
            note
            for section in other.iter_sections()
            if isinstance(section, NoteSection)
            for note in section.iter_notes()
        ]
        ids = [note["n_desc"] for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"]
        return functions, ids[0], sum(note["n_name"] == "stapsdt" for note in notes)


@pytest.mark.parametrize(
    "name", ["libcuda.so.1", "libstdc++.so.6", "libc.so.6"], ids=["built", "stdc++", "c"]
)
def test_elf_file_reads_what_another_reader_reads(built: Path, name: str) -> None:
    path = built if name == built.name else Path("/usr/lib/x86_64-linux-gnu") / name
    if not path.exists():
        pytest.skip(f"this system keeps {name} elsewhere")
    functions, build_id, marks = _oracle(path)
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        found = {(f.name, f.address) for f in elf.functions()}
        assert found == functions
        assert elf.build_id == build_id
        assert len(elf.usdt) == marks


def test_elf_functions_stand_at_their_offsets(built: Path, elf: ElfFile) -> None:
    image = built.read_bytes()
    text = _section(built, ".text")
    for function in elf.functions():
        if text["sh_addr"] <= function.address < text["sh_addr"] + text["sh_size"]:
            assert function.offset - text["sh_offset"] == function.address - text["sh_addr"]
            assert elf.code(function.offset) == image[function.offset :][:16]
    assert "cuIndirect" not in {f.name for f in elf.functions()}  # its address is a resolver's


def test_elf_usdt_marks_have_place_and_semaphore(built: Path, elf: ElfFile) -> None:
    plain, counted = elf.usdt
    assert (plain.provider, plain.name) == ("torch", "op")
    assert plain.semaphore_offset == 0
    assert elf.code(plain.offset)[:1] == b"\x90"
    assert elf.entry_class(plain.offset) is EntryClass.EMULATED
    probes = _section(built, ".probes")
    assert counted.semaphore_offset == probes["sh_offset"]


def test_elf_usdt_marks_follow_a_base_that_moved(built: Path, tmp_path: Path) -> None:
    moved = tmp_path / "libmoved.so"
    image = bytearray(built.read_bytes())
    note = _section(built, ".note.stapsdt")["sh_offset"]
    with built.open("rb") as file:
        place = ElfFile.read(file).usdt[0].offset
    for at in (note + 20, note + 28):  # pc and base, both as if linked 4096 bytes lower
        value = int.from_bytes(image[at : at + 8], "little") - 4096
        image[at : at + 8] = value.to_bytes(8, "little")
    moved.write_bytes(image)
    with moved.open("rb") as file:
        assert ElfFile.read(file).usdt[0].offset == place


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("55", EntryClass.EMULATED),  # push rbp
        ("4157", EntryClass.EMULATED),  # push r15
        ("4855", EntryClass.STEPPED),  # push rbp with REX.W: the kernel steps it
        ("f30f1efa55", EntryClass.STEPPED),  # endbr64
        ("488d0500000000", EntryClass.STEPPED),  # lea
        ("4883ec08", EntryClass.STEPPED),  # sub
        ("0f1f440000", EntryClass.NOP),
        ("0f1f4000", EntryClass.STEPPED),  # a nop of four bytes
        ("90", EntryClass.EMULATED),
        ("e800000000", EntryClass.EMULATED),
        ("0f8400000000", EntryClass.EMULATED),
        ("", EntryClass.STEPPED),
    ],
)
def test_entry_class_of_x86_64_is_the_kernels(code: str, expected: EntryClass) -> None:
    assert x86_64_entry(bytes.fromhex(code)) is expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0xD503201F, EntryClass.NOP),
        (0x14000010, EntryClass.EMULATED),  # b
        (0x94000010, EntryClass.EMULATED),  # bl
        (0x90000000, EntryClass.EMULATED),  # adrp
        (0xD65F03C0, EntryClass.EMULATED),  # ret
        (0xB4000040, EntryClass.EMULATED),  # cbz
        (0xA9BF7BFD, EntryClass.STEPPED),  # stp x29, x30, [sp, #-16]!
        (0xD10083FF, EntryClass.STEPPED),  # sub sp, sp, #32
        (0xD503233F, EntryClass.STEPPED),  # paciasp
    ],
)
def test_entry_class_of_arm64_is_the_kernels(word: int, expected: EntryClass) -> None:
    assert arm64_entry(word.to_bytes(4, "little")) is expected
    assert arm64_entry(b"\x1f\x20") is EntryClass.STEPPED


def test_elf_file_tells_stripped_and_static_files(built: Path, tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    elf_kit.run("strip", "-o", stripped, built)
    static = elf_kit.compile_c("int main(void) { return 0; }", tmp_path / "static", "-static")
    with stripped.open("rb") as file:
        elf = ElfFile.read(file)
        assert not elf.has_symbol_table
        assert "cudaLaunchKernel" in {f.name for f in elf.functions()}
        assert len(elf.usdt) == 2
    with static.open("rb") as file:
        elf = ElfFile.read(file)
        assert "main" in {f.name for f in elf.functions()}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!/bin/sh\n",
        b"\x7fELF",
        b"\x7fELF\x01\x01\x01" + bytes(60),
        b"\x7fELF\x02\x01\x01" * 9,
    ],
)
def test_elf_file_refuses_what_is_no_program(content: bytes) -> None:
    with pytest.raises(ElfError, match="expected"):
        ElfFile.read(io.BytesIO(content))


def _read_all(content: bytes) -> None:
    elf = ElfFile.read(io.BytesIO(content))
    for function in elf.functions():
        elf.entry_class(function.offset)
    elf.asks_for(("cuda",))
    for mark in elf.usdt:
        elf.entry_class(mark.offset)


@given(data=st.data())
def test_elf_file_with_bytes_changed_is_read_or_refused(built: Path, data: st.DataObject) -> None:
    """Headers, section table and notes are where a change does most."""
    image = bytearray(built.read_bytes())
    sections = int.from_bytes(image[40:48], "little")
    starts = st.sampled_from([0, 64, sections, sections + 64 * 4, sections + 64 * 20])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(starts) + data.draw(st.integers(0, 600))
        image[at % len(image)] = data.draw(st.sampled_from([0, 1, 2, 8, 127, 128, 255]))
    with suppress(ElfError):
        _read_all(bytes(image))


@given(data=st.data())
def test_elf_file_cut_short_is_read_or_refused(built: Path, data: st.DataObject) -> None:
    image = built.read_bytes()
    with suppress(ElfError):
        _read_all(image[: data.draw(st.integers(0, len(image)))])


def test_elf_symbols_of_a_lying_size_are_in_disorder_not_in_memory(built: Path) -> None:
    image = bytearray(built.read_bytes())
    with built.open("rb") as file:
        other = ELFFile(file)
        index = other.get_section_index(".symtab")
        assert index is not None
        at = other["e_shoff"] + index * 64 + 32
    image[at : at + 8] = (1 << 40).to_bytes(8, "little")
    elf = ElfFile.read(io.BytesIO(bytes(image)))
    assert "cudaLaunchKernel" in {f.name for f in elf.functions()}  # of .dynsym
    with pytest.raises(ElfError, match="at most"):
        next(read_symbols(ElfBytes(io.BytesIO(image)), elf.symbol_tables()[0], ".symtab"))


def _large_library(path: Path, count: int, size: int) -> None:
    """A library of `size` bytes, most of them a hole, that defines f0, f1, ...: 16 bytes each."""
    names = [b"f%d\0" % number for number in range(count)]
    starts = [1]
    for name in names:
        starts.append(starts[-1] + len(name))
    strings = b"\0" + b"".join(names)
    symbols = b"".join(
        struct.pack("<IBBHQQ", start, 0x12, 0, 1, 0x1000 + 16 * number, 16)
        for number, start in enumerate(starts[:-1])
    )
    texts = b"\0.symtab\0.strtab\0.shstrtab\0"
    code = 16 * count
    at = 0x1000 + code
    sections = [
        struct.pack("<IIQQQQIIQQ", *row)
        for row in (
            (0,) * 10,
            (1, 2, 0, 0, at, len(symbols), 2, 0, 8, 24),
            (9, 3, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0),
            (17, 3, 0, 0, at + len(symbols) + len(strings), len(texts), 0, 0, 1, 0),
        )
    ]
    fields = (3, 62, 1, 0, 64, size - 256, 0, 64, 56, 1, 64, 4, 3)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", *fields)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0x1000, 0x1000, 0, code, code, 4096)
    with path.open("wb") as file:
        file.write(header + segment)
        file.seek(at)
        file.write(symbols + strings + texts)
        file.seek(size - 256)
        file.write(b"".join(sections))


@pytest.mark.slow
def test_elf_file_of_gigabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """60,000 functions in 2 GB; what is held at a time is a row of each and a part of the names."""
    path = tmp_path / "libtorch_cuda.so"
    _large_library(path, 60_000, 2 << 30)
    tracemalloc.start()
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        functions = sum(1 for _ in elf.functions())
        (last,) = elf.functions((b"f59999",))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert functions == 60_000
    assert (last.offset, last.address) == (0x1000 + 16 * 59_999,) * 2
    assert peak < 16 << 20


def _many_tables(path: Path, sections: int, symbols: int) -> None:
    """Write a file whose section headers all name one symbol table: no program, but it maps."""
    names = b"\0" + b"cudaLaunchKernel\0"
    table = b"".join(
        struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x1000 + 16 * at, 16) for at in range(symbols)
    )
    code_at = 64 + 56
    table_at = code_at + 16 * symbols
    names_at = table_at + len(table)
    headers_at = names_at + len(names)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3, 62, 1, 0, 64, headers_at,
        0, 64, 56, 1, 64, sections, 1,
    )  # fmt: skip
    code = 16 * symbols
    segment = struct.pack("<IIQQQQQQ", 1, 5, code_at, 0x1000, 0, code, code, 16)
    strings = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    one = struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, table_at, len(table), 1, 0, 8, 24)
    rows = [bytes(64), strings, *[one] * (sections - 2)]
    path.write_bytes(header + segment + b"\x90" * code + table + names + b"".join(rows))


def test_elf_symbol_tables_beyond_the_two_that_linkers_make_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "many.so"
    _many_tables(path, sections=60_000, symbols=100)
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        assert len(elf.symbol_tables()) == 1
        assert len(list(elf.functions())) == 100


def test_elf_names_that_overlap_are_asked_for_without_being_kept(tmp_path: Path) -> None:
    """One string of a megabyte holds a name at each of its letters."""
    path = tmp_path / "overlap.so"
    _overlapping(path, 200_000)
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        tracemalloc.start()
        assert not elf.asks_for(("cudaX",))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert elf.asks_for(("aaaa",))
    assert peak < 64 << 20


def _overlapping(path: Path, symbols: int) -> None:
    names = b"\0" + (b"a" * 16_000 + b"\0") * (symbols // 16_000 + 1)
    table = b"".join(struct.pack("<IBBHQQ", 1 + at, 0x12, 0, 0, 0, 0) for at in range(symbols))
    names_at = 64 + len(table)
    headers_at = names_at + len(names)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3, 62, 1, 0, 0, headers_at,
        0, 64, 56, 0, 64, 3, 1,
    )  # fmt: skip
    strings = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    one = struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, 64, len(table), 1, 0, 8, 24)
    path.write_bytes(header + table + names + bytes(64) + strings + one)


def test_elf_notes_are_read_up_to_one_bound_over_all_places(tmp_path: Path) -> None:
    """60,000 headers that name the same four megabytes of notes."""
    path = tmp_path / "notes.so"
    notes = (struct.pack("<III", 4, 0, 9) + b"XXX\0") * (1 << 16)
    headers_at = 64 + len(notes)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01".ljust(16, b"\0"), 3, 62, 1, 0, 0, headers_at,
        0, 64, 56, 0, 64, 60_000, 0,
    )  # fmt: skip
    one = struct.pack("<IIQQQQIIQQ", 0, 7, 0, 0, 64, len(notes), 0, 0, 4, 0)
    path.write_bytes(header + notes + one * 60_000)
    counted = _Counted(path.read_bytes())
    assert ElfFile.read(counted).build_id == ""
    assert counted.given < 32 << 20


class _Counted(io.BytesIO):
    given = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.given += len(found)
        return found
