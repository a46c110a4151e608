"""The real CUDA runtimes of the wheels: what the table knows of them, and their calls counted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.gpu_calls.probe_table import ProbeTable
from tests.probes_kit import STUBS, Probed, compile_stub, run
from tests.real_libraries import RUNTIMES, shared_runtime, static_runtime

CALLS = re.compile(
    r"(cudaLaunch|cudaGraphLaunch|cudaMalloc|cudaFree|cudaHostAlloc|cudaMemcpy|cudaMemset"
    r"|cuda\w*Synchronize|cudaStreamWaitEvent|cudaLibraryLoad|__cudaGetKernel|cudaFuncGetName).*"
)
NO_WORK_OF_A_DEVICE = re.compile(r"cudaLaunchHostFunc(_v2)?(_ptsz)?")
"""Names that begin alike and launch no kernel."""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_table_knows_every_call_of_the_real_runtime(runtime: str) -> None:
    rows = [row for row in ProbeTable.load().rows if row.id.startswith("cudart.")]
    with shared_runtime(runtime).open("rb") as file:
        names = {one.name for one in ElfFile.read(file).functions()}
    calls = {n for n in names if CALLS.fullmatch(n) and not NO_WORK_OF_A_DEVICE.fullmatch(n)}
    assert len(calls) > 80
    for name in sorted(calls):
        assert sum(row.has_symbol(name) for row in rows) == 1, name


@pytest.mark.root
@pytest.mark.kernel
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_calls_of_the_real_runtime_are_counted(
    probed: Probed, runtime: str, static: bool, tmp_path: Path
) -> None:
    shared, program = shared_runtime(runtime), tmp_path / "program"
    with_what = static_runtime(runtime) if static else [shared, f"-Wl,-rpath,{shared.parent}"]
    compile_stub(STUBS / "real.c", *with_what, "-o", program)
    probed.attach(program if static else shared)
    run(program)
    drain = probed.drain()
    calls = probed.calls()
    for name, count in (("launch", 7), ("malloc", 5), ("copy", 3), ("device_synchronize", 2)):
        assert calls[f"cudart.{name}"] == count
        assert probed.calls("failures")[f"cudart.{name}"] == count
    # 35: cudaErrorInsufficientDriver, 100: cudaErrorNoDevice
    assert {error.code for error in drain.errors} <= {35, 100}
    (launch,) = drain.launches
    assert (launch.blocks, launch.threads, launch.shared_bytes) == (42, 42 * 64, 48)
    assert not drain.lost
