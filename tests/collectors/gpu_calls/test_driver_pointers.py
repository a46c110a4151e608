"""Pointers into the real driver 535, as runtimes, Triton and JAX hold them: all are probed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from collectors.binaries.elf_file import ElfFile
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from tests.probes_kit import STUBS, Probed, compile_stub
from tests.real_libraries import DRIVER, RUNTIMES, static_runtime, unpacked

NOT_INITIALISED = 3
VARIANT = re.compile(r"(_v[0-9]+)?(_ptsz|_ptds)?$")
ROWS = [row for row in ProbeTable.load().rows if row.id.startswith("cuda.")]


class Pointer(NamedTuple):
    """What the driver answered: the name that was asked for, and whose address it gave."""

    asked: str
    release: int
    stream: int
    function: str


@pytest.fixture(scope="module")
def driver() -> Path:
    return unpacked(DRIVER)


@pytest.fixture(scope="module")
def exported(driver: Path) -> dict[int, str]:
    """Names of the driver's functions by address."""
    with driver.open("rb") as file:
        return {function.address: function.name for function in ElfFile.read(file).functions()}


@pytest.fixture(scope="module")
def planned(driver: Path) -> set[str]:
    """Names of the functions that are probed."""
    with driver.open("rb") as file:
        elf = ElfFile.read(file)
        plan = PlanBook(ProbeTable.load()).plan(elf, "libcuda.so.1", moved=False)
        places = {offset for link in plan.attachments for offset in link.offsets}
        return {function.name for function in elf.functions() if function.offset in places}


def given(
    folder: Path, driver: Path, exported: dict[int, str], program: Path, *words: str
) -> Iterator[Pointer]:
    """Run a program on the real driver; yield each pointer that it was given."""
    compile_stub(
        "-shared", "-fPIC", STUBS / "asked_driver.c", "-ldl", "-o", folder / "libcuda.so.1"
    )
    log = folder / "asked"
    environment = {
        "LD_LIBRARY_PATH": str(folder),
        "REAL_DRIVER": str(driver),
        "ASKED_LOG": str(log),
    }
    subprocess.run(
        [program, *words], env=os.environ | environment, stdout=subprocess.DEVNULL, check=True,
        timeout=30,
    )  # fmt: skip
    for line in log.read_text().splitlines():
        name, release, stream, address = line.split()
        yield Pointer(name, int(release), int(stream), exported.get(int(address), "unknown"))


def is_counted(name: str) -> bool:
    return any(row.has_symbol(name) for row in ROWS)


def test_driver_gives_probed_functions_for_every_release_and_stream(
    driver: Path, exported: dict[int, str], planned: set[str], tmp_path: Path
) -> None:
    names = sorted({VARIANT.sub("", name) for name in planned})
    compile_stub(STUBS / "ask.c", "-ldl", "-o", tmp_path / "ask")
    pointers = list(given(tmp_path, driver, exported, tmp_path / "ask", *names))
    assert {pointer for pointer in pointers if pointer.function not in planned} == set()
    assert {pointer.asked for pointer in pointers} == set(names)
    per_thread = {pointer.function for pointer in pointers if pointer.stream == 2}
    assert {"cuLaunchKernel_ptsz", "cuMemcpy_ptds", "cuGraphLaunch_ptsz"} <= per_thread


@pytest.mark.root  # whose call makes a node that nobody may leave behind
@pytest.mark.usefixtures("no_node_is_left")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_takes_every_pointer_from_a_probed_function(
    runtime: str, driver: Path, exported: dict[int, str], planned: set[str], tmp_path: Path
) -> None:
    """It asks for some 400 at its start, before it knows of a device; none is an internal one."""
    compile_stub(STUBS / "real.c", *static_runtime(runtime), "-o", tmp_path / "program")
    pointers = set(given(tmp_path, driver, exported, tmp_path / "program"))
    assert len(pointers) > 300
    assert {pointer for pointer in pointers if pointer.function == "unknown"} == set()
    calls = {pointer for pointer in pointers if is_counted(pointer.asked)}
    assert {pointer for pointer in calls if pointer.function not in planned} == set()
    assert {"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch"} <= {
        pointer.asked for pointer in calls
    }


@pytest.mark.root
@pytest.mark.kernel
def test_calls_through_pointers_are_counted(probed: Probed, driver: Path, tmp_path: Path) -> None:
    """Three times two to five calls: by dlsym, and by the driver for either default stream."""
    library, program = tmp_path / "libcuda.so.1", tmp_path / "program"
    library.write_bytes(driver.read_bytes())
    compile_stub(STUBS / "pointers.c", "-ldl", "-o", program)
    probed.attach(library)
    said = subprocess.run(
        [program, library], check=True, capture_output=True, text=True, timeout=30
    )
    assert set(map(int, said.stdout.split())) == {NOT_INITIALISED}
    drain = probed.drain()
    expected = {"launch": 6, "launch_ex": 9, "copy_on_stream": 12, "graph_launch": 15}
    expected = {f"cuda.{row}": count for row, count in expected.items()}
    assert probed.calls() == expected
    assert probed.calls("failures") == expected
    geometry = {(one.call, one.blocks, one.threads, one.shared_bytes) for one in drain.launches}
    assert {("cuda.launch", 36, 36 * 64, 48), ("cuda.launch_ex", 54, 54 * 64, 48)} <= geometry
    assert not drain.lost
