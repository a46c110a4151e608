"""Programs of NVIDIA's own compiler: found as they start, their launches counted, kernels named."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from collectors.profiling.session import ProfileSession
from collectors.records.gpu_calls import GpuCalls
from tests.collectors.gpu_calls import elf_kit
from tests.probe_source_kit import OURS, Watched, attached_files, watching
from tests.probes_kit import STUBS, begin, compile_stub, waiting
from tests.real_libraries import NVCC, RUNTIMES, shared_runtime, static_runtime, unpacked
from tests.wait_kit import until

pytestmark = [pytest.mark.root, pytest.mark.kernel]

CUDA13 = RUNTIMES[1]
KERNELS = {
    "tick()": 7,
    "void scale<float>(float*, float)": 5,
    "void apply<launch(float*)::{lambda(float)#1}>(launch(float*)::{lambda(float)#1}, float*)": 3,
}
"""As the profiler spells them; the host's compiler has a wrapper for the last."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program before it is linked, for an H100."""
    made = tmp_path_factory.mktemp("compiled") / "kernels.o"
    command: list[str | Path] = [
        unpacked(NVCC),
        "-arch=sm_90",
        "-O1",
        "--extended-lambda",
        "-c",
        STUBS / "kernels.cu",
        "-o",
        made,
    ]
    subprocess.run(command, check=True, timeout=60)
    return made


def linked(compiled: Path, folder: Path, static: bool, stripped: bool) -> Path:
    """Link it under a name of the test's own."""
    shared, program = shared_runtime(CUDA13), folder / OURS
    runtime = static_runtime(CUDA13) if static else [shared, f"-Wl,-rpath,{shared.parent}"]
    compile_stub(compiled, *runtime, "-lstdc++", "-o", program)
    if stripped:
        subprocess.run(["strip", program], check=True, timeout=30)
    return program


def opaque_handles(folder: Path) -> dict[str, str]:
    """Have the runtime give handles as it does with a driver: no address of code."""
    shim = folder / "shim.so"
    source = """
    #include <stdlib.h>
    int __cudaGetKernel(void **kernel, const void *host) { *kernel = malloc(64); return 0; }
    """
    elf_kit.library(shim, source=source)
    return {"LD_PRELOAD": str(shim)}


class Started(NamedTuple):
    program: Path
    child: subprocess.Popen[str]


def wait_for_launches(child: subprocess.Popen[str]) -> None:
    """It has launched all kernels once and waits: it reads from its standard input."""
    where = Path(f"/proc/{child.pid}/syscall")
    until(lambda: where.read_text(encoding="utf-8").startswith("0 0x0 "))


def drained(watched: Watched, pid: int) -> dict[str, float]:
    """Give a process's launches by kernel, of the last drain."""
    found: dict[str, float] = {}
    for record in watched.drain():
        for kernel in record.kernels if isinstance(record, GpuCalls) else ():
            if kernel.process.pid == pid:
                found[kernel.kernel] = found.get(kernel.kernel, 0.0) + kernel.launches.value
    return found


def attached(watched: Watched, pid: int) -> bool:
    """Drain, by which stripped programs get their probes, and look."""
    watched.drain()
    return bool(attached_files(watched.source, pid))


def is_read(watched: Watched, program: Path) -> bool:
    """Tell whether the source has read what a file registers."""
    return watched.source.running.kernels.namer.launches(str(program)) is not None


FORMS = {
    "static": (True, False, False),
    "static, stripped": (True, True, False),
    "shared, opaque handles": (False, False, True),
    "shared, stripped": (False, True, False),
    "shared, stripped, opaque handles": (False, True, True),
}


@contextmanager
def programs(compiled: Path, folder: Path, **more: str) -> Iterator[dict[str, Started]]:
    """Run one of each form; inside the block they wait."""
    with ExitStack() as running:
        started = {}
        for form, (static, stripped, opaque) in FORMS.items():
            place = folder / form.replace(" ", "")
            place.mkdir()
            program = linked(compiled, place, static, stripped)
            handles = opaque_handles(place) if opaque else {}
            child = running.enter_context(waiting(program, more=more | handles))
            started[form] = Started(program, child)
        yield started


def expect_named(watched: Watched, started: dict[str, Started]) -> None:
    for form, (program, child) in started.items():
        until(partial(is_read, watched, program))
        until(partial(attached, watched, child.pid))
        begin(child)
        assert drained(watched, child.pid) == KERNELS, form


def test_launches_of_compiled_programs_are_named_by_an_agent_that_comes_late(
    compiled: Path, tmp_path: Path
) -> None:
    """By their files alone: every kernel was launched before, and no look-up is heard."""
    with programs(compiled, tmp_path, EARLY="1") as started:
        for _, child in started.values():
            wait_for_launches(child)
        with watching() as watched:
            expect_named(watched, started)


@pytest.mark.release
def test_launches_of_compiled_programs_are_named_by_an_agent_that_was_there(
    compiled: Path, tmp_path: Path
) -> None:
    with watching() as watched, programs(compiled, tmp_path) as started:
        expect_named(watched, started)


@pytest.mark.release
def test_a_profile_that_comes_late_names_every_call(compiled: Path, tmp_path: Path) -> None:
    with programs(compiled, tmp_path, EARLY="1") as started:
        child = started["shared, stripped, opaque handles"].child
        wait_for_launches(child)
        with ProfileSession(child.pid) as session:
            session.start()
            begin(child)
            calls = session.stop()
        assert Counter(call.kernel for call in calls if call.kernel) == KERNELS
