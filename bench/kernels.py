"""What other kernels take: every program loaded, attached, exact; an agent up to a sealed report.

Debian's kernels are booted by scripts/kernel_vm.sh, with this machine's files beneath them, and
this module is run inside. A kernel that no registry serves is held by what each object asks for:
helpers and instructions, each with the kernel that brought it.
"""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from bench.parts import Measured, Parts
from bench.probes_target import Target, build, copy_library, symbol_offset
from bench.record import ROOT, Figure
from collectors.binaries.elf_file import ElfFile, EntryClass
from collectors.boot_clock import boottime_ns
from collectors.bpf.libbpf import BpfObject, kernel_has_hook
from collectors.bpf.perf_events import begin_opener
from collectors.bpf.uprobes import end_needless_opener, expect_way, uprobe_way
from collectors.ebpf import ebpf_tables
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.gpu_calls.probe_plan import Attachment
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.interface import SourceUnavailable
from collectors.records.activity import HostTable
from collectors.records.gpu_calls import FileGroup, ProbeGroup
from transport.process.privileges import AGENT_USER, drop_to, ensure_users

KERNELS: Final = ("6.1", "6.12")
LAUNCHES: Final = 1_000
PLACES: Final = 16
"""Attached and let go by the clock: functions of the C library's mathematics."""
SLEEPS: Final = 500
SEEN: Final = 0.95
"""Of switches: some reach no hook (bpf/README.md)."""
WINDOW_S: Final = 3
NOT_RUN: Final = {"5.15": "by helpers, not run", "RHEL 9's 5.14": "not run"}
_VM: Final = str(ROOT / "scripts" / "kernel_vm.sh")
_NONE_THERE: Final = 77
_TARGET: Final = ROOT / ".tools" / "kernels" / "target"
_OBJECTS: Final = ("host.bpf.o", "steps.bpf.o", f"gpu.{platform.machine()}.bpf.o")

HELPERS: Final = {
    1: "3.18", 2: "3.18", 3: "3.18", 5: "4.1", 8: "4.1", 14: "4.2", 27: "4.6", 112: "5.5",
    113: "5.5", 114: "5.5", 125: "5.8", 130: "5.8", 131: "5.8", 132: "5.8", 137: "5.9",
    158: "5.11", 169: "5.15", 170: "5.15", 171: "5.15", 174: "5.15", 181: "5.17", 195: "5.19",
}  # fmt: skip
"""Number of a helper -> the kernel that brought it, by the history of include/uapi/linux/bpf.h."""
NEWER: Final = ("start_ticks", "on_tick", "add_cpu")
"""A program and its functions: a kernel that refuses it has on_perf_tick."""
_CALL, _ATOMICS, _JUMP_32, _PLAIN_ADD = 0x85, {0xC3, 0xDB}, 0x06, 0x00


def asked_of_kernels(path: Path) -> dict[str, dict[str, str]]:
    """Give, for each function of an object, what it asks for: helper or instruction -> kernel."""
    asked: dict[str, dict[str, str]] = {}
    with path.open("rb") as file:
        elf = ELFFile(file)
        for symbol in _functions(elf):
            content = elf.get_section(symbol["st_shndx"]).data()
            begin = symbol["st_value"]
            of = asked.setdefault(symbol.name, {})
            for at in range(begin, begin + symbol["st_size"], 8):
                code, registers, _, value = struct.unpack_from("<BBhi", content, at)
                if code == _CALL and not registers >> 4:
                    of[f"helper {value}"] = HELPERS[value]
                elif code in _ATOMICS and value != _PLAIN_ADD:
                    of["atomics that fetch"] = "5.12"
                elif code & 7 == _JUMP_32:
                    of["jumps of 32 bits"] = "5.1"
    return asked


def least_kernel(path: Path) -> str:
    """Give the oldest kernel that has all that an object asks for, less what has another way."""
    asked = asked_of_kernels(path).items()
    least = [kernel for name, of in asked if name not in NEWER for kernel in of.values()]
    return max(least, key=lambda kernel: [int(part) for part in kernel.split(".")])


def _functions(elf: ELFFile) -> Iterator[Any]:
    table = elf.get_section_by_name(".symtab")
    assert isinstance(table, SymbolTableSection)
    yield from (one for one in table.iter_symbols() if one["st_info"]["type"] == "STT_FUNC")


def loaded_programs() -> dict[str, Any]:
    """Load each program of each object alone; say which lack a hook, and why others are refused."""
    refused: dict[str, str] = {}
    loaded, without_hook = 0, []
    for name in _OBJECTS:
        path = ROOT / "bpf" / "objects" / name
        image, programs = path.read_bytes(), list(_programs(path))
        for program in programs:
            reason = _refusal(image, program, [one for one in programs if one != program])
            hook = ebpf_tables.PROGRAMS.get(program)
            if reason is None:
                loaded += 1
            elif hook is not None and not kernel_has_hook(hook):
                without_hook.append(program)
            else:
                refused[program] = reason
    return {"loaded": loaded, "without_hook": without_hook, "refused": refused}


def look() -> dict[str, Any]:
    """Load each program alone, count what is known, ask the doctor, seal a report: here and now."""
    begun_s = time.monotonic()
    took: dict[str, float] = {}
    seen: dict[str, Any] = {"release": platform.release(), **loaded_programs()}
    parts = {"counting": _as_agent, "host": _host, "doctor": _doctor, "agent": _agent}
    for name, part in parts.items():
        took[name] = round(time.monotonic() - begun_s, 1)
        seen[name] = part()
    return {**seen, "begun_s": took, "seconds": round(time.monotonic() - begun_s, 1)}


def _programs(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for symbol in _functions(ELFFile(file)):
            if symbol["st_info"]["bind"] == "STB_GLOBAL":
                yield symbol.name


def _refusal(image: bytes, program: str, others: list[str]) -> str | None:
    """Load one program of an object; say why it was refused."""
    loading = BpfObject(image)
    try:
        loading.disable(others)
        if program.startswith(("gpu_", "step_")):
            expect_way(loading, [program], uprobe_way())
        loading.load()
    except SourceUnavailable as error:
        return str(error)
    finally:
        loading.close()
    return None


def _as_agent() -> dict[str, Any]:
    """Count as the agent's user, in a child: with its rights, and its child that opens events."""
    ensure_users()
    library = copy_library(_TARGET, "push", "counted").resolve()
    ours, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            begin_opener()
            drop_to(AGENT_USER, keep_caps=["CAP_BPF", "CAP_PERFMON"])
            said = {"opener": end_needless_opener(), **_counted(library)}
            os.write(its, json.dumps(said).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(its)
    with os.fdopen(ours, "rb") as answer:
        told = answer.read()
    os.waitpid(pid, 0)
    return json.loads(told) if told else {"launches": None}


def _counted(library: Path) -> dict[str, Any]:
    table = ProbeTable.load()
    row = table.index("cudart.launch")
    mathematics = Path(next(line.split()[-1] for line in _maps() if "/libm.so" in line))
    with mathematics.open("rb") as file:
        known = {one.offset for one in ElfFile.read(file).functions((b"c",))}
    places = {1: (symbol_offset(library),), 2: tuple(sorted(known)[:PLACES])}
    programs = GpuPrograms(table)
    took: list[float] = [time.monotonic()]
    try:
        for file_number, path in ((1, library), (2, mathematics)):
            offsets = places[file_number]
            rows, none = (row,) * len(offsets), (0,) * len(offsets)
            classes = (EntryClass.EMULATED,) * len(offsets)
            one = Attachment(ProbeGroup.LAUNCH, False, offsets, rows, none, classes)
            programs.attach(file_number, str(path), [one])
            took.append(time.monotonic())
        with Target(_TARGET, [library]) as target:
            target.call(0, 1, LAUNCHES)
            counted = sum(r.launches for r in programs.drain(boottime_ns()).launches if r.file == 1)
        took.append(time.monotonic())
        programs.detach_all([FileGroup(2, ProbeGroup.LAUNCH)])
        took.append(time.monotonic())
    finally:
        programs.close()
    _, attached_s, _, let_go_s = (after - before for before, after in pairwise(took))
    return {
        "way": uprobe_way(),
        "launches": counted,
        "attach_ms": round(1e3 * attached_s / PLACES, 2),
        "detach_ms": round(1e3 * let_go_s / PLACES, 2),
    }


def _maps() -> list[str]:
    import numpy.linalg  # noqa: F401 - has the C library's mathematics mapped

    return Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()


def _host() -> dict[str, Any]:
    """Hold switches between two drains against the kernel's count inside and around them."""
    source = EbpfSource("libbpf")
    source.start()
    seen: list[int] = []
    try:
        for _ in range(2):
            seen.append(_switches())
            records = list(source.drain(boottime_ns()))
            seen.append(_switches())
            for _ in range(SLEEPS):
                time.sleep(0.001)
    finally:
        source.stop()
    cpus = next(one for one in records if isinstance(one, HostTable) and one.name == "cpu")
    return {
        "switches": int(sum(cpus.column("switches").values())),
        "least": seen[2] - seen[1],
        "most": seen[3] - seen[0],
        "ticks": sum(not isinstance(one, HostTable) for one in records),
    }


def _switches() -> int:
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("ctxt "))


def _doctor() -> dict[str, dict[str, Any]]:
    from edge_agent.service.doctor_sources import CallProbes, source_check
    from transport.process.doctor_checks import examine

    checks = (source_check("ebpf", EbpfSource), CallProbes())
    found = {one.name: one for one in examine(*checks, failures=[SourceUnavailable])}
    return {
        name: {"verdict": found[name].verdict, "found": found[name].found}
        for name in ("ebpf", "kernel", "counting")
    }


def _agent() -> dict[str, Any]:
    """Run an agent with the sources that programs in the kernel serve until it has reported."""
    from collectors.gpu_calls.gpu_probes import ProbesSection
    from edge_agent.config import SourcesSection
    from edge_agent.open_agent import open_agent
    from tests.agent_live import surroundings
    from tests.agent_world import T0, NoNoise
    from wire.topics import REPORTS

    sources = SourcesSection(gpus=False, faults=False, ebpf=True, probes=ProbesSection())
    with tempfile.TemporaryDirectory() as folder:
        made = surroundings(Path(folder), window_s=WINDOW_S, sources=sources)
        clock = _Clock(T0)
        runtime, absent = open_agent(made.config, domain="demo", sampler=NoNoise(), clock=clock)
        try:
            runtime.start()
            while runtime.tally.published < 2:  # the epoch is a record too
                runtime.step()
                time.sleep(min(runtime.pause_ms(), 100) / 1000)
            running = sorted(source.name for source in runtime.sources)
        finally:
            runtime.close()
        reports = sum(record.topic == REPORTS for record in made.records())
    return {"sources": running, "absent": [one.source for one in absent], "reports": reports}


class _Clock:
    """This machine's clocks, but for the date."""

    def __init__(self, date_s: int) -> None:
        self._shift_ms = date_s * 1000 - time.time_ns() // 1_000_000

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._shift_ms

    def boottime_ns(self) -> int:
        return boottime_ns()

    def sleep_ms(self, span_ms: int) -> None:
        time.sleep(span_ms / 1000)


def objections(seen: Mapping[str, Any]) -> Iterator[str]:
    """Say what differs from what is promised for every kernel that is run."""
    yield from (f"{program} is refused: {why}" for program, why in seen["refused"].items())
    for name, said in seen["doctor"].items():
        if said["verdict"] != "ok":
            yield f"expected that the doctor finds {name} well: {said['found']}"
    for program in seen["without_hook"]:
        if program not in seen["doctor"]["ebpf"]["found"]:
            yield f"expected that the doctor names {program}: {seen['doctor']['ebpf']['found']}"
    if seen["counting"]["launches"] != LAUNCHES:
        yield f"expected {LAUNCHES} launches, counted {seen['counting']['launches']}"
    host = seen["host"]
    if not host["ticks"] or not SEEN * host["least"] <= host["switches"] <= host["most"]:
        yield f"expected ticks, and switches between the kernel's counts: {host}"
    if not seen["agent"]["reports"] or not {"ebpf", "host", "probes"} <= {
        *seen["agent"]["sources"]
    }:
        yield f"expected a report by three sources: {seen['agent']}"


def under(version: str) -> dict[str, Any]:
    """Look under one of Debian's kernels; empty where apt's sources have none for this machine.

    Raises      CalledProcessError
    """
    build(_TARGET)
    fetched = subprocess.run([_VM, "fetch", version], check=False)
    if fetched.returncode == _NONE_THERE:
        return {}
    fetched.check_returncode()
    inside = [_VM, "run", version, sys.executable, "-m", "bench.kernels"]
    done = subprocess.run(inside, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(kept: Parts) -> Measured:
    seen = {version: kept.get(version, partial(under, version)) for version in KERNELS}
    seen = {version: found for version, found in seen.items() if found}
    if os.geteuid() == 0:
        seen["here"] = kept.get("here", look)
    figures = []
    for version, found in seen.items():
        hooks = found["loaded"] + len(found["refused"])
        for name, share in (
            ("programs_loaded", found["loaded"] / hooks),
            ("launches_counted", found["counting"]["launches"] / LAUNCHES),
        ):
            of = version.replace(".", "_")
            figures.append(Figure(f"{name}_percent_{of}", 100 * share, "%", goal=100.0))
    by_events = next(
        found["counting"] for found in seen.values() if found["counting"]["way"] == "perf events"
    )
    figures += [Figure(name, by_events[name], "ms") for name in ("attach_ms", "detach_ms")]
    least = {name: least_kernel(ROOT / "bpf" / "objects" / name) for name in _OBJECTS}
    highest = max(least.values(), key=lambda kernel: [int(part) for part in kernel.split(".")])
    figures.append(Figure("least_kernel_by_helpers", float(highest), "Linux"))
    wrong = [
        f"Linux {found['release']}: {one}" for found in seen.values() for one in objections(found)
    ]
    tables = {"kernels": seen, "least": least, "launches": LAUNCHES, "not_run": NOT_RUN}
    return Measured(figures, tables, wrong=wrong)


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
