"""The bytes of a perf ring: what is whole is understood, what is not is refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.binaries.perf_ring import (
    BrokenRing,
    Executed,
    Forked,
    Lost,
    Mapped,
    file_mark,
    parse_records,
)
from collectors.binaries.proc_maps import Module, Modules, parse_maps, parse_stat


def _record(kind: int, body: bytes, misc: int = 0, time_ns: int = 5) -> bytes:
    whole = body.ljust((len(body) + 7) // 8 * 8, b"\0") + struct.pack("<Q", time_ns)
    return struct.pack("<IHH", kind, misc, 8 + len(whole)) + whole


def _mapping(path: bytes = b"/lib/a.so", inode: int = 77, generation: int = 3) -> bytes:
    head = struct.pack("<IIQQQIIQQII", 9, 9, 0x1000, 0x2000, 0x400, 254, 1, inode, generation, 5, 2)
    return _record(10, head + path + b"\0")


def _fork(pid: int, parent: int) -> bytes:
    return _record(7, struct.pack("<IIIIQ", pid, parent, pid, parent, 1))


def test_records_are_read_in_order_and_others_passed_over() -> None:
    ring = b"".join([
        _mapping(),
        _record(9, b"a sample"),
        _record(3, struct.pack("<II", 4, 4) + b"name\0"),
        _record(3, struct.pack("<II", 4, 4) + b"name\0", misc=1 << 13),
        _fork(12, 11),
        _fork(11, 11),  # a thread
        _record(4, struct.pack("<IIIIQ", 12, 11, 12, 11, 1)),  # an end
        _record(2, struct.pack("<QQ", 1, 40)),
        _mapping(inode=0),  # memory of no file
    ])  # fmt: skip
    assert list(parse_records(ring)) == [
        Mapped(5, 9, 0x1000, 0x2000, 0x400, (254, 1), 77, 3, "/lib/a.so"),
        Executed(5, 4),
        Forked(5, 11, 12),
        Lost(5, 40),
    ]


def test_records_of_plain_files_are_passed_over() -> None:
    plain = {file_mark((254, 1), 77, 3)}
    assert list(parse_records(_mapping() + _mapping(generation=4), plain)) == [
        Mapped(5, 9, 0x1000, 0x2000, 0x400, (254, 1), 77, 4, "/lib/a.so")
    ]


@pytest.mark.parametrize(
    "ring",
    [
        b"\0" * 4,
        struct.pack("<IHH", 10, 0, 0) * 4,  # would never end
        struct.pack("<IHH", 10, 0, 12) + bytes(8),
        struct.pack("<IHH", 10, 0, 4096) + bytes(64),
        _mapping()[:-8],
    ],
)
def test_records_that_do_not_fit_are_refused(ring: bytes) -> None:
    with pytest.raises(BrokenRing, match="expected"):
        list(parse_records(ring))


@given(st.binary(max_size=300), st.integers(0, 12), st.integers(0, 0xFFFF))
def test_records_of_any_content_are_read_or_passed_over(body: bytes, kind: int, misc: int) -> None:
    assert len(list(parse_records(_record(kind, body, misc)))) <= 1


@given(st.binary(max_size=600))
def test_rings_of_any_bytes_are_read_or_refused(ring: bytes) -> None:
    with suppress(BrokenRing):
        list(parse_records(ring))


@given(st.binary(max_size=600))
def test_process_files_of_any_bytes_are_read(content: bytes) -> None:
    list(parse_maps(content))
    parse_stat(b"1 (x) " + content)


def test_stat_of_a_name_with_brackets_and_spaces_is_read() -> None:
    fields = b"S " + b" ".join(b"%d" % number for number in range(1, 40))
    assert parse_stat(b"7 (a) R) 1 2 (b) " + fields) == ("S", 190_000_000)
    assert parse_stat(b"") is None


def test_maps_give_executable_parts_of_files() -> None:
    text = (
        b"00400000-00401000 r--p 00000000 fe:00 12 /bin/a b\n"
        b"00401000-00402000 r-xp 00001000 fe:00 12 /bin/a b\n"
        b"7f0000000000-7f0000001000 r-xp 00000000 00:00 0 [vdso]\n"
        b"7f0000002000-7f0000003000 r-xp 00002000 103:02 9 /lib/c.so (deleted)\n"
    )
    assert list(parse_maps(text)) == [
        Module(0x401000, 0x402000, 0x1000, ((254, 0), 12), "/bin/a b"),
        Module(0x7F0000002000, 0x7F0000003000, 0x2000, ((259, 2), 9), "/lib/c.so (deleted)"),
    ]


spans = st.tuples(st.integers(0, 60), st.integers(1, 20))


@given(st.lists(spans, max_size=30))
def test_modules_by_address_are_the_last_mapped(
    parts: list[tuple[int, int]],
) -> None:
    """Against a table of every address: a mapping takes the place of all that it touches."""
    modules = Modules()
    owners: dict[int, Module] = {}
    for number, (start, length) in enumerate(parts):
        module = Module(start, start + length, 0, ((0, 0), number), "")
        touched = {owners[at] for at in range(start, start + length) if at in owners}
        owners = {at: owner for at, owner in owners.items() if owner not in touched}
        owners |= dict.fromkeys(range(start, start + length), module)
        modules.add(module)
    assert {at: modules.find(at) for at in range(90)} == {at: owners.get(at) for at in range(90)}


def test_maps_take_no_line_that_a_path_brings_along() -> None:
    text = b"1000-2000 r-xp 00000000 08:01 7 /a\r3000-4000 r-xp 00000000 08:01 9 /b\n"
    assert [module.file[1] for module in parse_maps(text)] == [7]
