"""What the doctor says of GPU calls: one line and one thing to do for each need.

What it says of programs it finds out by loading them: the kernel that refuses one here is this one.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from collectors.boot_clock import boottime_ns, read_point
from collectors.bpf import libbpf
from collectors.bpf.uprobes import UprobeWay
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.records.gpu_calls import Unnamed
from collectors.steps.steps_source import StepProbe, StepsSource
from edge_agent.local.history import History
from edge_agent.service.doctor_sources import (
    CallProbes,
    KernelNames,
    load_probes,
    source_advice,
    source_check,
)
from tests.calls_kit import governor_state
from tests.local_kit import flattener
from transport.process.doctor_checks import CheckVerdict, Finding, examine

BPF, PERFMON, PTRACE, DAC, SYS_ADMIN = 1 << 39, 1 << 38, 1 << 19, 1 << 2, 1 << 21


BPF_FILES = Path(__file__).parents[3] / "bpf"
LOADERS = {
    "gpu_return": "collectors.gpu_calls.programs.files",
    "step_end": "collectors.steps.steps_source.files",
    "on_irq_exit": "collectors.ebpf.ebpf_loaders.files",
    "on_sched_switch": "collectors.ebpf.ebpf_loaders.files",
}
"""A program of each object, and where its loader looks for the file."""

READS_R7 = bytes.fromhex("bf76000000000000")
"""r6 = r7"""


def spoil(program: str, folder: Path, source: Path = BPF_FILES) -> Path:
    """Copy the objects into a folder; give it. One program begins by reading what nobody wrote."""
    (folder / "objects").mkdir(exist_ok=True)
    for path in (source / "objects").glob("*.bpf.o"):
        image = bytearray(path.read_bytes())
        with path.open("rb") as file:
            elf = ELFFile(file)
            table = elf.get_section_by_name(".symtab")
            assert isinstance(table, SymbolTableSection)
            for symbol in table.get_symbol_by_name(program) or ():
                at = elf.get_section(symbol["st_shndx"])["sh_offset"] + symbol["st_value"]
                image[at : at + 8] = READS_R7
        (folder / "objects" / path.name).write_bytes(image)
    return folder


def verdicts(effective: int, load: Callable[[], str] = lambda: "libbpf") -> dict[str, Finding]:
    return {one.name: one for one in examine(CallProbes(effective=effective, load=load))}


@pytest.mark.parametrize(
    ("effective", "absent"),
    [
        (BPF | PERFMON | PTRACE | DAC, set()),
        (BPF | PERFMON | PTRACE, {"batch jobs"}),
        (BPF | PERFMON | DAC, {"batch jobs", "containers"}),
        (PERFMON | PTRACE | DAC, {"counting"}),
        (0, {"counting", "containers", "batch jobs"}),
    ],
)
def test_doctor_says_what_is_lost_without_each_capability(effective: int, absent: set[str]) -> None:
    found = verdicts(effective)
    named = {"counting", "containers", "batch jobs"}
    assert {name for name in named if found[name].verdict is CheckVerdict.ABSENT} == absent
    assert all(found[name].do for name in absent)
    assert not any(found[name].do for name in named - absent)


def test_doctor_names_the_capability_that_is_missing() -> None:
    counting = verdicts(PERFMON)["counting"]
    assert counting.found == "without CAP_BPF: no GPU call is seen, other sources go on"
    assert "CAP_BPF" in (counting.do or "")
    assert "CAP_PERFMON" not in (counting.do or "")


@pytest.mark.root
def test_doctor_says_how_an_older_kernel_attaches_and_with_which_right() -> None:
    """By perf events: no uprobe_multi, as before Linux 6.6."""
    older = partial(CallProbes, way=lambda: UprobeWay.EVENTS, load=lambda: "libbpf")
    found = {one.name: one for one in examine(older(effective=BPF | PERFMON))}
    assert found["kernel"].verdict is CheckVerdict.OK
    assert "perf events, so that few functions are probed" in found["kernel"].found
    assert found["counting"].found.startswith("without CAP_SYS_ADMIN: no GPU call is seen")
    assert "allowed CAP_SYS_ADMIN" in (found["counting"].do or "")
    found = {one.name: one for one in examine(older(effective=BPF | PERFMON | SYS_ADMIN))}
    assert found["counting"].verdict is CheckVerdict.OK


def test_doctor_says_what_a_kernel_without_either_way_needs() -> None:
    reason = "expected uprobe_multi links, or attach cookies of perf events: 5.10 has neither"
    assert "BTF" in source_advice("probes", f"GPU calls: {reason}")


def test_doctor_notices_a_pid_namespace(tmp_path: Path) -> None:
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.touch()
    found = {one.name: one for one in examine(CallProbes(tmp_path, 0))}["process ids"]
    assert found.verdict is CheckVerdict.ABSENT
    assert "hostPID" in (found.do or "")


def test_doctor_says_which_launches_had_no_name_and_why(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"

    def said() -> Finding:
        return next(examine(KernelNames(file, lambda: read_point().unix_ns)))

    assert said().found == "no agent has counted launches here yet"
    with closing(History(file)) as history:
        history.note_clock(read_point())
        state = replace(governor_state(at_ns=boottime_ns()), launches=1000, unnamed={})
        history.add(flattener().rows("probes", [state]))
        assert said().found == "of 1,000 launches of the last hour each had a name"
        unnamed = {Unnamed.HANDLE: 90, Unnamed.FILE: 10}
        history.add(flattener().rows("probes", [replace(state, unnamed=unnamed)]))
        found = said()
        assert found.verdict is CheckVerdict.ABSENT
        assert "9 % as their handles were made before the agent came" in found.found
        assert "1 % as their file gives no name that can be read" in found.found


@pytest.mark.parametrize("states", ["", "cur state: R0_w=1 R10=fp0\nold state: R10=fp0\n"])
def test_the_objection_of_a_verifier_is_its_last_line_but_for_its_account(states: str) -> None:
    """As Linux 6.1 and 6.12 ended the log of a program that loops."""
    log = (
        "libbpf: prog 'gpu_entry': -- BEGIN PROG LOAD LOG --\n"
        "610: (16) if w9 == 0x0 goto pc-262\ninfinite loop detected at insn 610\n"
        f"{states}processed 9406 insns (limit 1000000) max_states_per_insn 4 total_states 391\n"
        "-- END PROG LOAD LOG --\n"
    )
    assert libbpf._objection(log) == "infinite loop detected at insn 610"


@pytest.mark.root
@pytest.mark.kernel
def test_doctor_tries_the_programs_and_names_what_the_kernel_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = verdicts(BPF | PERFMON, load_probes)["counting"]
    assert well.verdict is CheckVerdict.OK
    assert well.found == "calls are counted: the programs load here, by libbpf"
    libbpf._library()[0].libbpf_set_print(libbpf.Print())  # BCC takes it for itself
    monkeypatch.setattr(LOADERS["gpu_return"], lambda _: spoil("gpu_return", tmp_path))
    refused = verdicts(BPF | PERFMON, load_probes)["counting"]
    assert refused.verdict is CheckVerdict.ABSENT
    assert refused.found == (
        f"Linux {platform.release()} refuses gpu_return: R7 !read_ok: "
        "no GPU call is seen, other sources go on"
    )
    assert "kernels that were tried" in (refused.do or "")


@pytest.mark.root
@pytest.mark.kernel
@pytest.mark.parametrize(
    ("program", "make", "goes_on"),
    [
        ("on_sched_switch", lambda: EbpfSource("libbpf"), "the host source serves CPU"),
        ("step_end", lambda: StepsSource([StepProbe("/no.so", "step")]), "taken from GPU calls"),
    ],
)
def test_doctor_tries_each_source_that_loads_programs(
    program: str,
    make: Callable[[], EbpfSource | StepsSource],
    goes_on: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = source_check(make().name, make)
    (found,) = examine(source)
    assert found.verdict is CheckVerdict.OK
    assert found.found.startswith("can be collected")
    if make().name == "steps":
        assert found.found.endswith("without no.so:step: /no.so: No such file or directory")
    monkeypatch.setattr(LOADERS[program], lambda _: spoil(program, tmp_path))
    (refused,) = examine(source)
    assert refused.verdict is CheckVerdict.ABSENT
    assert f"Linux {platform.release()} refuses {program}: R7 !read_ok; " in refused.found
    assert goes_on in refused.found
    assert "kernels that were tried" in (refused.do or "")


@pytest.mark.root
@pytest.mark.kernel
def test_a_program_that_the_kernel_refuses_takes_its_one_signal_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two signals of the host and the timer: what is left loads, and is told of."""
    monkeypatch.setattr(LOADERS["on_irq_exit"], lambda _: tmp_path)
    for program in ("on_irq_exit", "on_packet_drop", "start_ticks"):
        spoil(program, tmp_path, BPF_FILES if program == "on_irq_exit" else tmp_path)
    (found,) = examine(source_check("ebpf", lambda: EbpfSource("libbpf")))
    assert found.verdict is CheckVerdict.OK
    release = platform.release()
    for program in ("on_irq_exit", "on_packet_drop"):
        assert f"{program}: Linux {release} refuses {program}: R7 !read_ok" in found.found
    assert "start_ticks" not in found.found
