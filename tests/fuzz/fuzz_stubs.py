"""Programs and libraries of any user: what they register is read, or an ElfError, and packed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress

from collectors.binaries.elf import ElfError
from collectors.stubs.host_stubs import HostStubs, read_stubs
from collectors.stubs.loaded_file import MOST_NAME
from collectors.stubs.stub_table import StubTable, pack
from tests.stub_files import made_library


def fuzz(data: bytes) -> None:
    with suppress(ValueError):
        table = StubTable(data)
        assert len(table) >= 0
    with suppress(ElfError):
        found = read_stubs(io.BytesIO(data))
        assert all(0 < len(name) <= MOST_NAME for name in found.names.values())
        assert set(found.returns.values()) <= found.names.keys()
        table = StubTable(pack(found))
        assert {table.name(stub) for stub in found.names} == set(found.names.values())
        assert all(table.launched(place) for place in found.returns)


def seeds() -> Iterator[bytes]:
    """Give a library of each form, its cut half, and packed tables."""
    for machine, static in ((62, False), (62, True), (183, False), (183, True)):
        library = made_library(machine, static)
        yield library
        yield library[: len(library) // 2]
    yield pack(HostStubs())
    yield pack(read_stubs(io.BytesIO(made_library())))
