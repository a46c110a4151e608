"""Names of kernels from files of arm64: what CUDA's compiler makes for that machine, stripped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from collectors.stubs.host_stubs import HostStubs, read_stubs
from tests.real_libraries import NVCC, unpacked

TOOLS = ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-strip")
RUNTIME = str(Path("arm64", "root", "usr/lib/pointillist/tests/nvidia/cu13"))
KERNELS = {"_Z5scaleIfEvPT_S0_", "_Z5scaleIdEvPT_S0_", "_Z5countv"}

pytestmark = [
    pytest.mark.release,
    pytest.mark.skipif(
        None in map(shutil.which, TOOLS), reason=f"needs {' and '.join(TOOLS)}: make test-all"
    ),
]
SHARED = ("-Xlinker", "-l:libcudart.so.13")
HOW = {
    "static library": ("-O2", "-shared", "-Xcompiler", "-fPIC", "-cudart", "static"),
    "static program": ("-O2", "-cudart", "static"),
    "static program, optimised less": ("-O1", "-cudart", "static"),
    "shared": ("-O2", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", *SHARED),
}


def built(folder: Path, *options: str) -> Path:
    nvcc, runtime = unpacked(NVCC), unpacked(RUNTIME)
    made = folder / "made"
    command: list[str | Path] = [
        *(nvcc, "-arch=sm_90", "-ccbin", "aarch64-linux-gnu-g++"),
        *(f"-I{runtime / 'include'}", f"-L{runtime / 'lib'}", *options),
        *(Path(__file__).with_name("tiny.cu"), "-o", made),
    ]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return made


def stripped(path: Path) -> Path:
    made = path.with_suffix(".stripped")
    subprocess.run(["aarch64-linux-gnu-strip", path, "-o", made], check=True)
    return made


def stubs(path: Path) -> HostStubs:
    with path.open("rb") as file:
        return read_stubs(file)


def symbols(path: Path) -> dict[str, int]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        return {one.name: one["st_value"] for one in table.iter_symbols()}


@pytest.mark.parametrize("how", HOW)
def test_a_stripped_file_of_arm64_names_its_kernels_and_where_they_launch(
    how: str, tmp_path: Path
) -> None:
    made = built(tmp_path, *HOW[how])
    known, found = symbols(made), stubs(stripped(made))
    assert found.how == ("import" if how == "shared" else "structure")
    assert found.names == {known[name]: name for name in KERNELS}
    assert set(found.returns.values()) == set(found.names)
    if how == "shared":
        return
    assert found.launches == [known["__cudaLaunchKernel"]]
    code = made.read_bytes()
    for after, stub in found.returns.items():
        # What it returns from is `bl`, and lies in the code to which the stub jumps.
        assert code[after - 1] & 0xFC == 0x94
        assert abs(after - stub) < 0x400
