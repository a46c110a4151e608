"""Programs of NVIDIA's own compiler: found as they start, their launches counted, kernels named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.records.gpu_calls import GpuCalls
from tests.probe_source_kit import OURS, Watched, watching
from tests.probes_kit import STUBS, begin, compile_stub
from tests.real_libraries import NVCC, RUNTIMES, shared_runtime, static_runtime, unpacked

pytestmark = [pytest.mark.root, pytest.mark.kernel]

CUDA13 = RUNTIMES[1]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program before it is linked, for an H100."""
    made = tmp_path_factory.mktemp("compiled") / "kernels.o"
    command: list[str | Path] = [
        unpacked(NVCC),
        "-arch=sm_90",
        "-O1",
        "-c",
        STUBS / "kernels.cu",
        "-o",
        made,
    ]
    subprocess.run(command, check=True, timeout=60)
    return made


def linked(compiled: Path, folder: Path, static: bool) -> Path:
    """Link it under a name of the test's own."""
    shared, program = shared_runtime(CUDA13), folder / ("static" if static else "shared") / OURS
    program.parent.mkdir()
    runtime = static_runtime(CUDA13) if static else [shared, f"-Wl,-rpath,{shared.parent}"]
    compile_stub(compiled, *runtime, "-lstdc++", "-o", program)
    return program


def by_kernel(watched: Watched, pid: int) -> dict[str, float]:
    """Give a process's launches by kernel, of the last drain."""
    found: dict[str, float] = {}
    for record in watched.drain():
        for kernel in record.kernels if isinstance(record, GpuCalls) else ():
            if kernel.process.pid == pid:
                found[kernel.kernel] = found.get(kernel.kernel, 0.0) + kernel.launches.value
    return found


def test_launches_of_compiled_programs_are_counted_by_kernel(
    compiled: Path, tmp_path: Path
) -> None:
    """The compiler links the runtime statically unless it is told otherwise."""
    with watching() as watched:
        for static in (True, False):
            with watched.waiting(linked(compiled, tmp_path, static)) as child:
                begin(child)
                assert by_kernel(watched, child.pid) == {
                    "tick()": 7,
                    "void scale<float>(float*, float)": 5,
                }, f"static: {static}"


def test_a_compiled_program_without_symbols_says_what_is_not_seen(
    compiled: Path, tmp_path: Path
) -> None:
    program = linked(compiled, tmp_path, static=True)
    subprocess.run(["strip", program], check=True, timeout=30)
    with program.open("rb") as file:
        plan = PlanBook(ProbeTable.load()).plan(ElfFile.read(file), program.name)
    assert not plan.attachments
    assert "only calls of the driver's library are seen" in plan.remark
