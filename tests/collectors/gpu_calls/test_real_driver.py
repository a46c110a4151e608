"""NVIDIA's real driver library 535, without a device: where it is probed, and its calls counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile, EntryClass
from collectors.gpu_calls.probe_plan import FilePlan, PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from tests.probes_kit import STUBS, Probed, compile_stub
from tests.real_libraries import DRIVER, unpacked

pytestmark = pytest.mark.usefixtures("no_node_is_left")

ROOT = Path(__file__).parents[3]
NO_DEVICE, NOT_INITIALISED, NO_SUCH_FUNCTION = 100, 3, 400

ANSWERS = [NO_DEVICE] + [NO_SUCH_FUNCTION] * 7 + [NOT_INITIALISED] * 5
"""Of cuInit, seven launches and five allocations on a machine without a GPU."""
CALLS = re.compile(
    r"cu(Launch|GraphLaunch|Mem(Alloc|HostAlloc|Free|Create|Release)|Mem(cpy|set)|\w*Synchronize"
    r"|StreamWaitEvent|Module(Load|GetFunction)|Library(Load|GetKernel)|KernelGetFunction"
    r"|(Mipmapped)?Array(3D)?(Create|Destroy)).*"
)
NO_WORK_OF_A_DEVICE = "cuLaunchHostFunc"
"""Begins alike, and launches no kernel."""
GPU_TIME = ROOT / "cupti" / "objects" / "libpointillist-gpu-time.x86_64.so"


@pytest.fixture(scope="module")
def driver() -> Path:
    return unpacked(DRIVER)


def _plan(driver: Path, moved: bool) -> FilePlan:
    with driver.open("rb") as file:
        return PlanBook(ProbeTable.load()).plan(ElfFile.read(file), "libcuda.so.1", moved)


def _said(folder: Path, library: Path, **environment: str) -> list[int]:
    """What the calls of a program answered; its exit code is 0."""
    program = folder / "program"
    compile_stub(STUBS / "driver.c", "-ldl", "-o", program)
    ended = subprocess.run(
        [program, library], check=True, capture_output=True, text=True, timeout=30,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert not ended.stderr
    return list(map(int, ended.stdout.split()))


def test_every_planned_call_of_the_driver_is_moved_to_its_jump(driver: Path) -> None:
    """Measured on this very version: 149 functions, each a compare of ten bytes and a jump."""
    entries, moved = _plan(driver, moved=False), _plan(driver, moved=True)
    places = [
        (behind - entry, before.value, after.value)
        for was, now in zip(entries.attachments, moved.attachments, strict=True)
        for entry, behind, before, after in zip(
            was.offsets, now.offsets, was.classes, now.classes, strict=True
        )
        if not was.returns
    ]
    assert Counter(places) == {(10, EntryClass.STEPPED, EntryClass.EMULATED): 149}


def test_table_knows_every_call_of_the_real_driver(driver: Path) -> None:
    rows = [row for row in ProbeTable.load().rows if row.id.startswith("cuda.")]
    with driver.open("rb") as file:
        names = {function.name for function in ElfFile.read(file).functions()}
    calls = {n for n in names if CALLS.fullmatch(n) and not n.startswith(NO_WORK_OF_A_DEVICE)}
    assert len(calls) == 149
    for name in sorted(calls):
        assert sum(row.has_symbol(name) for row in rows) == 1, name


@pytest.mark.root
@pytest.mark.kernel
def test_calls_of_the_real_driver_are_counted_with_arguments_and_results(
    probed: Probed, driver: Path, tmp_path: Path
) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(driver.read_bytes())
    probed.attach(library)
    assert _said(tmp_path, library) == ANSWERS
    drain = probed.drain()
    calls, failures = probed.calls(), probed.calls("failures")
    assert (calls["cuda.launch"], failures["cuda.launch"]) == (7, 7)
    assert (calls["cuda.alloc"], failures["cuda.alloc"]) == (5, 5)
    assert {error.code for error in drain.errors} == {NOT_INITIALISED, NO_SUCH_FUNCTION}
    (launch,) = drain.launches
    assert (launch.blocks, launch.threads, launch.shared_bytes) == (42, 42 * 64, 48)
    assert not drain.lost


@pytest.mark.root
def test_a_program_that_is_to_load_the_gpu_time_library_runs_as_before(
    driver: Path, tmp_path: Path
) -> None:
    """The real driver finds no device, so it may or may not load the library: nobody notices."""
    assert _said(tmp_path, driver, CUDA_INJECTION64_PATH=str(GPU_TIME)) == ANSWERS


@pytest.mark.root
def test_health_beside_the_real_management_library_says_that_there_is_no_driver(
    driver: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pointillist", "agent", "health"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)},
    )  # fmt: skip
    assert ended.returncode != 0
    assert "NVML: Driver Not Loaded" in ended.stderr
    assert "Traceback" not in ended.stderr
