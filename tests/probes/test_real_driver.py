"""NVIDIA's real driver library 535, without a device: where it is probed, and its calls counted."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.binaries.elf_file import ElfFile, EntryClass
from collectors.gpu_calls.probe_plan import FilePlan, plan_file
from collectors.gpu_calls.probe_table import ProbeTable
from tests.probes_kit import STUBS, Probed, compile_stub

LIBRARIES = Path(__file__).parents[2] / ".tools" / "gpu-libraries"
NO_DEVICE, NOT_INITIALISED, NO_SUCH_FUNCTION = 100, 3, 400
CONTROL_NODE = Path("/dev/nvidiactl")


@pytest.fixture(scope="module")
def driver() -> Path:
    found = sorted(LIBRARIES.glob("libcuda.so.535.*"))
    if not found:
        pytest.skip(f"needs NVIDIA's driver library in {LIBRARIES}: make gpu-libraries")
    return found[0]


@pytest.fixture(autouse=True)
def _no_node_is_left() -> Iterator[None]:
    """The library makes the node where root calls it, and nobody may take that for a GPU."""
    before = CONTROL_NODE.exists()
    yield
    if not before:
        CONTROL_NODE.unlink(missing_ok=True)


def _plan(driver: Path, moved: bool) -> FilePlan:
    with driver.open("rb") as file:
        return plan_file(ElfFile.read(file), ProbeTable.load(), "libcuda.so.1", moved)


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


@pytest.mark.root
@pytest.mark.kernel
def test_calls_of_the_real_driver_are_counted_with_arguments_and_results(
    probed: Probed, driver: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    compile_stub(STUBS / "driver.c", "-ldl", "-o", program)
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(driver.read_bytes())
    probed.attach(library)
    said = subprocess.run(
        [program, library], check=True, capture_output=True, text=True, timeout=30
    ).stdout
    failed = [NO_SUCH_FUNCTION] * 7 + [NOT_INITIALISED] * 5
    assert list(map(int, said.split())) == [NO_DEVICE, *failed]
    drain = probed.drain()
    calls, failures = probed.calls(), probed.calls("failures")
    assert (calls["cuda.launch"], failures["cuda.launch"]) == (7, 7)
    assert (calls["cuda.alloc"], failures["cuda.alloc"]) == (5, 5)
    assert {error.code for error in drain.errors} == {NOT_INITIALISED, NO_SUCH_FUNCTION}
    (launch,) = drain.launches
    assert (launch.blocks, launch.threads, launch.shared_bytes) == (42, 42 * 64, 48)
    assert not drain.lost
