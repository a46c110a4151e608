"""What files register, read from small ones: by each way, packed, in a child, and remembered."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collectors.binaries.proc_maps import Module
from collectors.binaries.symbols import SymbolCache
from collectors.stubs import stub_files
from collectors.stubs.host_stubs import HostStubs, read_stubs
from collectors.stubs.stub_files import READING, StubFiles
from collectors.stubs.stub_table import StubTable, pack
from tests.collectors.gpu_calls import elf_kit
from tests.stub_files import LAUNCH, NAME, RETURNS, RETURNS_ARM64, STUB, made_library
from tests.wait_kit import until

X86_64, ARM64 = 62, 183


@pytest.mark.parametrize(
    ("machine", "static", "how", "returns", "launches"),
    [
        (X86_64, False, "import", {RETURNS: STUB}, []),
        (X86_64, True, "structure", {RETURNS: STUB}, [LAUNCH]),
        (ARM64, False, "import", {RETURNS_ARM64: STUB}, []),
        (ARM64, True, "structure", {RETURNS_ARM64: STUB}, [LAUNCH]),
    ],
)
def test_kernels_are_found_by_what_registers_them(
    machine: int, static: bool, how: str, returns: dict[int, int], launches: list[int]
) -> None:
    found = read_stubs(io.BytesIO(made_library(machine, static)))
    assert (found.how, found.names, found.missed) == (how, {STUB: NAME}, 0)
    assert (found.returns, found.launches) == (returns, launches)


HIP = """
#include <stddef.h>
extern int __hipRegisterFunction(void *, const void *, char *, const char *, int, void *, void *,
                                 void *, void *, int *);
const void *const handle = "of the stub";
__attribute__((constructor)) void registers(void) {
    __hipRegisterFunction(0, &handle, "_Z4tickPf", "_Z4tickPf", -1, 0, 0, 0, 0, 0);
}
"""


@pytest.mark.parametrize("flags", [(), ("-fno-plt",), ("-O0",), ("-fcf-protection=full",)])
def test_kernels_of_hip_are_found_by_the_variables_that_are_their_handles(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    path = elf_kit.library(tmp_path / "libhip.so", *flags, "-s", source=HIP)
    with path.open("rb") as file:
        found = read_stubs(file)
    assert list(found.names.values()) == ["_Z4tickPf"]
    (handle,) = found.names
    assert not any(part.address <= handle < part.address + part.size for part in found.code)


def test_a_table_is_looked_up_by_where_its_file_was_loaded() -> None:
    table = StubTable(pack(read_stubs(io.BytesIO(made_library()))))
    bias = table.bias(Module(0x7F0000000000, 0x7F0000001000, 0, ((8, 1), 5), "/lib/libtick.so"))
    assert bias == 0x7F0000000000
    assert (table.name(STUB), table.launched(RETURNS), len(table)) == (NAME, NAME, 1)
    assert (table.name(STUB + 1), table.launched(RETURNS + 1)) == (None, None)
    assert table.bias(Module(0, 4096, 0x9000, ((8, 1), 5), "/lib/libother.so")) is None


def _packed(**changes: object) -> bytes:
    """A table of one stub, with other words in its head."""
    raw = zlib.decompress(pack(HostStubs("import", {STUB: NAME}, {RETURNS: STUB})))
    head, _, body = raw.partition(b"\n")
    return zlib.compress(json.dumps(json.loads(head) | changes).encode() + b"\n" + body)


@pytest.mark.parametrize(
    "packed",
    [
        b"", b"no table", zlib.compress(b"{}"), zlib.compress(b"[]\n"), zlib.compress(b"{}\n"),
        _packed(stubs=2), _packed(stubs=-1), _packed(stubs=1 << 40), _packed(returns="1"),
        _packed(how="guess"), _packed(code=[[1, 2]]), _packed(launches=7), _packed(missed=None),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        StubTable(packed)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[StubFiles]:
    with closing(SymbolCache(tmp_path / "names.sqlite")) as cache:
        made = StubFiles(cache)
        yield made
        made.close()


def _read(files: StubFiles, path: Path, state: str) -> StubTable | str:
    """Ask until the file is read."""
    with path.open("rb") as file:
        until(lambda: files.table(state, file.fileno()) != READING)
        return files.table(state, file.fileno())


def test_a_file_is_read_once_by_a_child_and_remembered_by_its_state(
    files: StubFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "libtick.so"
    path.write_bytes(made_library())
    first = _read(files, path, "a.1.2.3")
    assert isinstance(first, StubTable)
    assert first.name(STUB) == NAME
    again = StubFiles(files.cache)
    monkeypatch.setattr(stub_files, "_CODE", "raise SystemExit(1)")
    kept = _read(again, path, "a.1.2.3")
    assert isinstance(kept, StubTable)
    assert kept.name(STUB) == NAME
    assert _read(again, path, "a.1.2.4") == "the reader ended"  # written anew: read anew
    again.close()


def test_a_file_that_is_refused_says_why_and_is_not_read_again(
    files: StubFiles, tmp_path: Path
) -> None:
    path = tmp_path / "libtick.so"
    path.write_bytes(made_library()[:60])
    said = _read(files, path, "a.1.2.3")
    assert isinstance(said, str)
    assert said.startswith("expected a 64-bit little-endian ELF file")
    path.write_bytes(made_library())
    assert _read(files, path, "a.1.2.3") == said


def test_a_kept_table_that_somebody_changed_is_read_anew(files: StubFiles, tmp_path: Path) -> None:
    path = tmp_path / "libtick.so"
    path.write_bytes(made_library())
    assert files.cache is not None
    files.cache.keep_file("a.1.2.3", b"+changed")
    table = _read(files, path, "a.1.2.3")
    assert isinstance(table, StubTable)
    assert table.name(STUB) == NAME


def test_an_agent_that_stops_does_not_wait_for_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stub_files, "_CODE", "import time; time.sleep(600)")
    files, path = StubFiles(), tmp_path / "libtick.so"
    path.write_bytes(made_library())
    with path.open("rb") as file:
        assert files.table("a.1.2.3", file.fileno()) == READING
        until(lambda: files._child is not None)
        child = files._child
        files.close()
    assert child is not None
    assert child.poll() is not None


def test_a_reader_can_open_nothing_while_it_reads() -> None:
    """It runs as the agent's user: a file that breaks it must not reach key or ledger."""
    code = """
import collectors.stubs.stub_child as child
from collectors.stubs.host_stubs import HostStubs
status, limits = open("/proc/self/status"), open("/proc/self/limits")
def read(file):
    try:
        open("/etc/hostname")
        opened = "opened"
    except OSError:
        opened = "none opened"
    return HostStubs(names={1: opened + "|" + [l for l in status if "NoNewPrivs" in l][0][-2]})
child.read_stubs = read
child.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert StubTable(done.stdout[1:]).name(1) == "none opened|1"
