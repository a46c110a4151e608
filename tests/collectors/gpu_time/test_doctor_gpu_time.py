"""The doctor on GPU time: the library, the socket, and programs by name."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from collectors.gpu_time.found_programs import FoundPrograms, GpuProgram
from collectors.gpu_time.segment import RecordingState, Snapshot
from collectors.records.basics import ProcessKey
from edge_agent.service.doctor_sources import GpuTime
from pointillist.cli.agent_health import _add_timing, _text
from tests.fleet_kit import fleet_folder
from tests.segment_kit import snapshot
from transport.process.doctor_checks import CheckVerdict, Finding, examine

NONE = FoundPrograms((), 0)


def found(
    socket: Path, looked: FoundPrograms = NONE, library: Path | None = None
) -> dict[str, str]:
    """What each check says, with what to do about it."""
    checks = examine(GpuTime(socket, lambda: looked, library))
    return {one.name: f"{one.verdict}: {one.found} | {one.do}" for one in checks}


def programs(looked: FoundPrograms) -> Finding:
    findings = examine(GpuTime(Path("/none/s.sock"), lambda: looked))
    return next(one for one in findings if one.name == "programs")


def state(**header: int) -> Snapshot:
    return snapshot(windows=1, cupti_version=130_000, **header)


def test_doctor_says_that_gpu_time_works_here(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.touch(0o644)
    said = found(tmp_path / "s.sock", library=library)
    # A folder of the test's own is closed to others.
    assert said["library"].startswith(f"absent: {library}: programs of other users cannot read it")
    assert said["socket"] == f"ok: {tmp_path}/s.sock: an agent can listen there | None"
    assert said["programs"] == "ok: no program uses a GPU now | None"
    said = found(tmp_path / "no" / "s.sock", library=tmp_path / "none.so")
    assert "found none | use a machine of x86-64 or arm64" in said["library"]
    assert f"expected the folder {tmp_path}/no, found none" in said["socket"]
    assert "expected at most 107 bytes, got" in found(tmp_path / ("s" * 200))["socket"]


def test_doctor_loads_the_library() -> None:
    with fleet_folder() as folder:
        library = folder / "library.so"
        library.write_text("no library")
        said = found(folder / "s.sock", library=library)["library"]
        assert said == f"absent: {library}: file too short | install Pointillist anew"
        assert sorted(folder.iterdir()) == [library]


def test_doctor_finds_the_shipped_library(tmp_path: Path) -> None:
    library = f"libpointillist-gpu-time.{platform.machine()}.so"
    assert library in found(tmp_path / "s.sock")["library"]


def test_doctor_names_programs_that_are_timed_and_those_that_are_not() -> None:
    timed = GpuProgram(ProcessKey(1, 0), "trainer", True, state())
    bare = GpuProgram(ProcessKey(2, 0), "server", False)
    refused = GpuProgram(ProcessKey(3, 0), "old", True, state(state=2, error=35))
    busy = GpuProgram(ProcessKey(4, 0), "notebook", True, state(state=RecordingState.OCCUPIED))
    well = programs(FoundPrograms((timed,), 0))
    assert well == Finding(
        "gpu time", "programs", CheckVerdict.OK, "attached: trainer[1] with CUPTI 13.0"
    )
    ill = programs(FoundPrograms((timed, bare, refused, busy), 1))
    assert ill.verdict is CheckVerdict.ABSENT
    assert ill.found == (
        "attached: trainer[1] with CUPTI 13.0; not timed: server[2]: the library is not loaded, "
        "old[3]: CUPTI refused, code 35, notebook[4]: another profiler has CUPTI; "
        "1 process of others may not be looked into"
    )
    assert ill.do == "start it with what `pointillist agent attach` prints"
    crowd = FoundPrograms(tuple(bare._replace(process=ProcessKey(n, 0)) for n in range(30)), 0)
    assert programs(crowd).found.endswith("and 22 more")


@pytest.mark.parametrize(("attached", "words"), [(True, "measured, CUPTI 13.0"), (False, "loaded")])
def test_health_says_of_each_process_whether_it_is_timed(attached: bool, words: str) -> None:
    process = {"on": "GPU-1", "pid": 7, "name": "p", "memory_bytes": 1, "sm_percent": 1,
               "container": ""}  # fmt: skip
    other = process | {"pid": 8}
    gpus = [{"index": 0, "processes": [process, other], "not_told": []}]
    made = GpuProgram(ProcessKey(7, 0), "p", attached, state() if attached else None)
    _add_timing(gpus, FoundPrograms((made,), 0))
    text = _text({"checks": [], "gpus": gpus, "healthy": True, "machine": "any"})
    assert words in text.splitlines()[-3]
    assert other["gpu_time"] is None
    assert "GPU time" not in text.splitlines()[-2]


def test_a_library_that_writes_nonsense_is_said_to_be_unknown() -> None:
    odd = GpuProgram(
        ProcessKey(1, 0), "odd", True, replace(state(), header={**state().header, "state": 9})
    )
    assert "odd[1]: does not report" in programs(FoundPrograms((odd,), 0)).found
