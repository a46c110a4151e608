"""Names of kernels: from stubs, symbols, debug files, handles; and of what has none."""

from __future__ import annotations

import ctypes
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.binaries import demangle_child
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import MappedFile, Module, Modules, open_mapped, read_maps
from collectors.binaries.symbols import MOST_SYMBOL, Demangler, SymbolCache, kernel_symbol
from collectors.gpu_calls.kernel_names import UNKNOWN, Found, KernelNamer
from collectors.gpu_calls.readout import NameEvent
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import Unnamed
from tests.collectors.gpu_calls import elf_kit
from tests.wait_kit import until

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64")

STUBS = """
int seen;
__attribute__((noinline)) void _Z24__device_stub__Z3addPiS_PiS_(void) { seen = 1; }
static __attribute__((noinline, used)) void _ZL24__device_stub__Z3mulPiS_PiS_(void) { seen = 2; }
__attribute__((noinline)) void _Z18__device_stub__subPi(void) { seen = 3; }
__attribute__((noinline)) void plain_kernel(void) { seen = 4; }
void *stub(int which) {
    void *all[] = {_Z24__device_stub__Z3addPiS_PiS_, _ZL24__device_stub__Z3mulPiS_PiS_,
                   _Z18__device_stub__subPi, plain_kernel};
    return all[which];
}
"""
ME = ProcessKey(os.getpid(), 0)
OTHER_PROCESS = ProcessKey(os.getpid(), 7)
ENDED = ProcessKey(1 << 22, 0)


def own_modules(_: ProcessKey) -> Modules:
    return Modules(read_maps("/proc", os.getpid()))


@pytest.fixture
def namer() -> Iterator[KernelNamer]:
    made = KernelNamer(own_modules)
    yield made
    made.close()


def _stubs(path: Path) -> list[int]:
    """Load a library and give the addresses that launches of its kernels would carry."""
    stub = ctypes.CDLL(str(path)).stub
    stub.restype = ctypes.c_void_p
    return [stub(which) for which in range(4)]


def _named(namer: KernelNamer, *kernels: int, process: ProcessKey = ME) -> list[str]:
    """Name kernels once it is known what their files register."""
    asked = {(process, kernel): 0 for kernel in kernels}
    until(
        lambda: not any(found.unnamed is Unnamed.READING for found in namer.names(asked).values())
    )
    names = namer.names(asked)
    return [names[process, kernel].name for kernel in kernels]


def _event(handle: int, name: str = "", host_function: int = 0) -> NameEvent:
    return NameEvent(ME, 1, "cuda.name", handle, name, host_function)


def test_namer_gives_the_kernel_of_a_host_stub(namer: KernelNamer, tmp_path: Path) -> None:
    stubs = _stubs(elf_kit.library(tmp_path / "libkernels.so", source=STUBS))
    names = ["add(int*, int*)", "mul(int*, int*)", "sub(int*)", "plain_kernel"]
    assert _named(namer, *stubs) == names


@pytest.mark.parametrize("flags", [("-pie",), ("-no-pie",)])
def test_namer_takes_off_the_load_bias_of_a_program(
    namer: KernelNamer, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """The modules of a process that is not ours: the program's parts where they were loaded."""
    program = elf_kit.compile_c(STUBS + "int main(void) { return 0; }", tmp_path / "app", *flags)
    with program.open("rb") as file:
        elf = ElfFile.read(file)
        function = next(f for f in elf.functions() if f.name == "plain_kernel")
    bias = 0x550000000000 if flags == ("-pie",) else 0
    part = next(p for p in elf.layout.segments if p.kind == 1 and p.flags & 1)
    page = part.address & ~0xFFF
    status = program.stat()
    module = Module(
        bias + page, bias + page + 0x2000, part.offset & ~0xFFF,
        ((os.major(status.st_dev), os.minor(status.st_dev)), status.st_ino), str(program),
    )  # fmt: skip
    namer.modules = lambda _: Modules(iter([module]))
    assert _named(namer, bias + function.address) == ["plain_kernel"]


def test_namer_reads_dynamic_symbols_of_a_stripped_library(
    namer: KernelNamer, tmp_path: Path
) -> None:
    path = elf_kit.library(tmp_path / "libstripped.so", "-s", source=STUBS)
    stubs = _stubs(path)
    first, hidden, *_ = _named(namer, *stubs)
    assert first == "add(int*, int*)"
    assert hidden.startswith("libstripped.so+0x")  # static, and its symbol is stripped


HIP = """
extern void __hipRegisterFunction(void *, const void *, char *, const char *, int, void *, void *,
                                  void *, void *, int *);
static const void *const handle = "of the stub";
const void *kernel(void) { return &handle; }
__attribute__((constructor)) void registers(void) {
    __hipRegisterFunction(0, &handle, "_Z4tickPf", "_Z4tickPf", -1, 0, 0, 0, 0, 0);
}
"""
HIP_RUNTIME = "void __hipRegisterFunction(void) {}"


def test_namer_gives_the_kernel_of_a_variable_that_is_its_handle(
    namer: KernelNamer, tmp_path: Path
) -> None:
    """Of HIP: no address of code. The file that launched, where the call returned to, has it."""
    runtime = elf_kit.library(tmp_path / "libruntime.so", source=HIP_RUNTIME)
    path = elf_kit.library(tmp_path / "libhip.so", "-s", runtime, source=HIP)
    ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(path))
    library.kernel.restype = ctypes.c_void_p
    caller = ctypes.cast(library.kernel, ctypes.c_void_p).value
    asked = {(ME, library.kernel()): caller or 0}
    until(lambda: _found(namer, asked).unnamed is None)
    assert _found(namer, asked).name == "tick(float*)"


def test_namer_says_why_a_kernel_has_no_name(namer: KernelNamer, tmp_path: Path) -> None:
    plain = _stubs(elf_kit.library(tmp_path / "libkernels.so", "-s", source=STUBS))[1]
    assert _found(namer, {(ME, 0xD1): 0}).unnamed is Unnamed.HANDLE
    until(lambda: _found(namer, {(ME, plain): 0}).unnamed is Unnamed.FILE)
    assert _found(namer, {(ME, plain): 0}).name.startswith("libkernels.so+0x")
    namer.modules = lambda _: None
    assert _found(namer, {(ENDED, plain): 0}).unnamed is Unnamed.PROCESS


def _found(namer: KernelNamer, asked: dict[tuple[ProcessKey, int], int]) -> Found:
    (found,) = namer.names(asked).values()
    return found


def test_namer_reads_a_debug_file_only_of_the_same_build(
    namer: KernelNamer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = elf_kit.library(tmp_path / "libwhole.so", source=STUBS)
    monkeypatch.setattr("collectors.binaries.symbols._DEBUG", str(tmp_path / "debug"))
    with whole.open("rb") as file:
        build_id = ElfFile.read(file).build_id
    debug = tmp_path / "debug" / build_id[:2] / f"{build_id[2:]}.debug"
    debug.parent.mkdir(parents=True)
    elf_kit.run("objcopy", "--only-keep-debug", whole, debug)
    stripped = tmp_path / "libstripped.so"
    elf_kit.run("strip", "-o", stripped, whole)
    assert _named(namer, _stubs(stripped)[1]) == ["mul(int*, int*)"]

    other = elf_kit.library(tmp_path / "libother.so", source=STUBS + "int more;")
    elf_kit.run("objcopy", "--only-keep-debug", other, debug)
    again = KernelNamer(own_modules)
    assert _named(again, _stubs(stripped)[1])[0].startswith("libstripped.so+0x")
    again.close()


@pytest.mark.root
@pytest.mark.kernel
def test_namer_reads_no_debug_file_that_another_user_put_there(
    namer: KernelNamer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root alone gives files away. The names of a library are those of all who have it mapped."""
    whole = elf_kit.library(tmp_path / "libwhole.so", source=STUBS)
    monkeypatch.setattr("collectors.binaries.symbols._DEBUG", str(tmp_path / "debug"))
    with whole.open("rb") as file:
        build_id = ElfFile.read(file).build_id
    debug = tmp_path / "debug" / build_id[:2] / f"{build_id[2:]}.debug"
    debug.parent.mkdir(parents=True)
    elf_kit.run("objcopy", "--only-keep-debug", whole, debug)
    stripped = tmp_path / "libstripped.so"
    elf_kit.run("strip", "-o", stripped, whole)
    os.chown(debug, 65_534, -1)
    assert _named(namer, _stubs(stripped)[1])[0].startswith("libstripped.so+0x")


def test_namer_takes_no_cached_name_of_another_file_with_the_same_build_id(
    namer: KernelNamer, tmp_path: Path
) -> None:
    """A build id is what a file says of itself: anyone can say that of another's library."""
    namer.cache = SymbolCache(tmp_path / "symbols.db")
    same = "-Wl,--build-id=0x" + "ab" * 20
    forged = elf_kit.library(tmp_path / "libf.so", same, source=STUBS.replace("Z3mul", "Z3bad"))
    real = elf_kit.library(tmp_path / "libr.so", same, source=STUBS)
    assert _named(namer, _stubs(forged)[1]) == ["bad(int*, int*)"]
    assert _named(namer, _stubs(real)[1]) == ["mul(int*, int*)"]
    namer.cache.close()


def test_namer_reads_a_file_to_which_another_process_leads(
    namer: KernelNamer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that used it has ended: it stayed without names for all that came after."""
    stubs = _stubs(elf_kit.library(tmp_path / "libshared.so", source=STUBS))
    asked: list[int] = []

    def reached(proc: str, pid: int, *place: Any) -> MappedFile | None:
        asked.append(pid)
        return None if pid == ENDED.pid else open_mapped(proc, pid, *place)

    monkeypatch.setattr("collectors.gpu_calls.kernel_names.open_mapped", reached)
    for name in _named(namer, *stubs[:2], process=ENDED):
        assert name.startswith("libshared.so+0x")
    assert _named(namer, stubs[0]) == ["add(int*, int*)"]
    assert asked == [ENDED.pid, ME.pid]


def test_namer_prefers_what_the_process_registered(namer: KernelNamer, tmp_path: Path) -> None:
    """A handle of the driver has a name; one of CUDA 13 a host function, and that a name."""
    stubs = _stubs(elf_kit.library(tmp_path / "libkernels.so", source=STUBS))
    namer.learn(
        [
            _event(0xD1, name="_Z6drivenPf"),
            _event(0xD2, host_function=stubs[3]),
            _event(0xD3, host_function=0x40),
            _event(0x40, name="_Z10registeredv"),
        ]
    )
    assert _named(namer, 0xD1, 0xD2, 0xD3) == ["driven(float*)", "plain_kernel", "registered()"]
    assert _named(namer, 0xD1, process=OTHER_PROCESS) == [UNKNOWN]  # another's handle


def test_namer_learns_late_and_forgets_a_process(namer: KernelNamer) -> None:
    assert _named(namer, 0xD1) == [UNKNOWN]
    namer.learn([_event(0xD1, name="late")])
    assert _named(namer, 0xD1) == ["late"]
    namer.learn([_event(0xD1, name="reused")])
    assert _named(namer, 0xD1) == ["reused"]
    namer.forget(ME)
    assert _named(namer, 0xD1) == [UNKNOWN]


def test_namer_asks_the_cache_before_the_symbols(namer: KernelNamer, tmp_path: Path) -> None:
    cache = SymbolCache(tmp_path / "symbols.db")
    namer.cache = cache
    path = elf_kit.library(tmp_path / "libkernels.so", "-s", source=STUBS)
    (address, *_) = _stubs(path)
    assert _named(namer, address) == ["add(int*, int*)"]
    with sqlite3.connect(tmp_path / "symbols.db") as db:
        db.execute("UPDATE symbols SET name = '_Z6cachedv'")
    later = KernelNamer(own_modules, SymbolCache(tmp_path / "symbols.db"))
    assert _named(later, address) == ["cached()"]
    later.close()
    cache.close()


def test_symbol_cache_is_private_bounded_and_mends_itself(tmp_path: Path) -> None:
    path = tmp_path / "symbols.db"
    path.write_bytes(b"no database" * 1000)
    cache = SymbolCache(path, most_names=3)
    assert path.stat().st_mode & 0o777 == 0o600
    cache.keep("aa", {number: f"name{number}" for number in range(5)})
    assert cache.find("aa", range(5)) == {2: "name2", 3: "name3", 4: "name4"}
    cache.keep("", {1: "without a build id"})
    assert cache.find("", [1]) == {}
    cache.keep("bb", {1 << 70: "no such place"})
    cache.close()
    assert SymbolCache(tmp_path / "no" / "folder.db").find("aa", [1]) == {}


def _doubling(levels: int) -> str:
    """A name whose every part holds the one before twice: 2 ** levels when written out."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    parts = [f"S_IS{digits[level]}_S{digits[level]}_E" for level in range(levels)]
    return "_Z1f1AIiiE" + "".join(parts)


def test_demangler_survives_names_made_to_explode() -> None:
    demangler = Demangler()
    bomb = _doubling(34)
    assert len(bomb) < 500
    names = demangler.demangle(["_Z5firstv", bomb, "_Z4lastPf", _doubling(14)])
    assert names[:3] == ["first()", bomb, "last(float*)"]
    assert len(names[3]) == MOST_SYMBOL
    assert demangler.failures <= 1


def test_demangler_passes_over_what_is_not_mangled() -> None:
    odd = ["plain", "", "_Zbroken", "_Z1\nf", "_Z" + "1" * 9000]
    assert Demangler().demangle(odd) == ["plain", "", "_Zbroken", "_Z1\nf", odd[4][:MOST_SYMBOL]]


@pytest.mark.parametrize(
    ("symbol", "kernel"),
    [
        ("__device_stub__Z3addPiS_", "_Z3addPiS_"),
        ("_Z24__device_stub__Z3addPiS_PiS_", "_Z3addPiS_"),
        ("_ZL24__device_stub__Z3addPiS_PiS_", "_Z3addPiS_"),
        ("_Z99999999__device_stub__Z3addPi", "_Z3addPi"),
        ("_Z18__device_stub__addPi", "_Z18__device_stub__addPi"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
    ],
)
def test_kernel_symbol_of_a_stub(symbol: str, kernel: str) -> None:
    assert kernel_symbol(symbol) == kernel


def test_demangling_child_can_open_nothing_while_it_reads_names() -> None:
    """It runs as the agent's user: a name that breaks the library must not reach key or ledger."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", demangle_child.__file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"_Z3addPf\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"add(float*)\n"
    limits = Path(f"/proc/{child.pid}/limits").read_text(encoding="utf-8").splitlines()
    bounds = {line[:26].strip(): line[26:].split()[:2] for line in limits}
    assert bounds["Max open files"] == bounds["Max processes"] == ["0", "0"]
    assert "NoNewPrivs:\t1" in Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
    child.communicate()
    assert child.returncode == 0
