"""The real CUDA runtimes 12.9 and 13.5: symbols, entries, handles, static copies."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile, EntryClass
from collectors.binaries.proc_maps import Modules
from collectors.gpu_calls.discovery import Discovery
from collectors.gpu_calls.kernel_names import KernelNamer
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.readout import NameEvent
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProbeGroup
from tests.collectors.gpu_calls import elf_kit
from tests.collectors.gpu_calls.elf_kit import row
from tests.collectors.gpu_calls.process_actor import Watcher

FOLDERS = {"12.9": "cuda_runtime", "13.5": "cu13"}
ENTRIES = {
    "12.9": {EntryClass.EMULATED: 435},
    "13.5": {EntryClass.EMULATED: 457, EntryClass.STEPPED: 1},
}
"""Measured on these very versions, which the requirement files pin."""
BOOK = PlanBook(
    ProbeTable((row(ProbeGroup.LAUNCH, ("(__)?cudaLaunchKernel(ExC)?(_ptsz)?",), returns=True),))
)

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not sys.platform.startswith("linux"),
    reason="the figures are those of the libraries for x86-64",
)


def _library(version: str, name: str = "") -> Path:
    """The runtime of a version, as make setup installs it."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    major = version.partition(".")[0]
    for place in places:
        path = Path(place) / FOLDERS[version] / "lib" / (name or f"libcudart.so.{major}")
        if path.exists():
            return path
    raise AssertionError(f"expected the CUDA runtime {version} in {places}; run make setup")


@pytest.mark.parametrize("version", FOLDERS)
def test_runtime_entries_are_cheap_to_probe(version: str) -> None:
    with _library(version).open("rb") as file:
        elf = ElfFile.read(file)
        functions = {function.name: function for function in elf.functions()}
        classes = Counter(elf.entry_class(f.offset) for f in functions.values())
    assert classes == ENTRIES[version]
    assert {"cudaLaunchKernel", "__cudaGetKernel", "__cudaRegisterFunction"} <= functions.keys()


@pytest.mark.parametrize("version", FOLDERS)
def test_runtime_plan_has_every_variant_of_a_launch_that_is_not_a_jump_to_another(
    version: str,
) -> None:
    path = _library(version)
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        offsets = {function.name: function.offset for function in elf.functions()}
        entries, returns = BOOK.plan(elf, path.name).attachments
    names = ["cudaLaunchKernel", "cudaLaunchKernelExC"]
    names += [f"{name}_ptsz" for name in names]
    assert entries.offsets == returns.offsets == tuple(sorted({offsets[name] for name in names}))
    assert set(entries.classes) == {EntryClass.EMULATED}


@pytest.mark.parametrize("version", FOLDERS)
def test_runtime_inside_a_program_is_planned_until_it_is_stripped(
    version: str, tmp_path: Path
) -> None:
    """NVIDIA's own static library; the marker of device code is what nvcc would leave."""
    source = """
    int cudaLaunchKernel(const void *, unsigned long, unsigned, unsigned long, unsigned, void **,
                         unsigned long, void *);
    __attribute__((section(".nv_fatbin"))) const char image[] = "code";
    int main(void) { return cudaLaunchKernel(0, 0, 0, 0, 0, 0, 0, 0); }
    """
    archive = _library(version, "libcudart_static.a")
    program = elf_kit.compile_c(source, tmp_path / "trainer", archive, "-ldl", "-lrt", "-lpthread")
    stripped = tmp_path / "stripped"
    elf_kit.run("strip", "-o", stripped, program)
    with program.open("rb") as file:
        plan = BOOK.plan(ElfFile.read(file), program.name)
    assert len(plan.attachments[0].offsets) == 4
    with stripped.open("rb") as file:
        plan = BOOK.plan(ElfFile.read(file), stripped.name)
    assert not plan
    assert "only calls of the driver's library" in plan.remark


LOADER = """
import ctypes, sys
libraries = [ctypes.CDLL(path) for path in sys.argv[1:]]
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.release
@pytest.mark.root
@pytest.mark.kernel
def test_discovery_finds_the_runtimes_of_a_python_process() -> None:
    paths = [_library(version) for version in FOLDERS]
    watcher = Watcher(Discovery(BOOK))
    watcher.poll()
    command = [sys.executable, "-c", LOADER, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        watcher.until(lambda: len(watcher.files(process.pid) or ()) == len(paths))
        found = {file.path: file for path in paths for file in watcher.found(path)}
        assert watcher.files(process.pid) == frozenset(file.file for file in found.values())
        modules = watcher.discovery.modules(*watcher.keys(process.pid))
        assert modules is not None
        assert {str(path) for path in paths} <= {module.path for module in modules}
        process.stdin.close()
    watcher.until(lambda: watcher.ends(process.pid))
    watcher.discovery.close()


HANDLE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
header = (ctypes.c_uint64 * 8)(0x00100001BA55ED50)
fatbin = (ctypes.c_uint64 * 3)(0x1466243B1, ctypes.addressof(header), 0)
register = library["__cudaRegisterFatBinary"]
register.restype = ctypes.c_void_p
owner = ctypes.c_void_p(register(ctypes.byref(fatbin)))
host = ctypes.cast(library["cudaMalloc"], ctypes.c_void_p)
none = ctypes.c_void_p()
library["__cudaRegisterFunction"](owner, host, b"_Z3addPf", b"_Z3addPf", -1, *[none] * 5)
library["__cudaRegisterFatBinaryEnd"](owner)
handle = ctypes.c_void_p()
library["__cudaGetKernel"](ctypes.byref(handle), host)
print(host.value, handle.value)
"""


@pytest.mark.parametrize("version", FOLDERS)
def test_handle_of_the_runtime_leads_to_the_name_it_registered(version: str) -> None:
    """What probes would see of these calls; without a driver the handle is the host function."""
    said = subprocess.run(
        [sys.executable, "-c", HANDLE, str(_library(version))],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    host, handle = map(int, said.split())
    process = ProcessKey(1, 0)
    namer = KernelNamer(lambda _: Modules())
    namer.learn(
        [
            NameEvent(process, 1, "cuda.module_function", host, "_Z3addPf", 0),
            NameEvent(process, 1, "cudart.get_kernel", 0xC13, "", handle),
        ]
    )
    names = namer.names({(process, 0xC13): 0, (process, host): 0})
    assert {found.name for found in names.values()} == {"add(float*)"}
