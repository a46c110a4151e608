"""Whether every BPF program loads under other kernels, and what the doctor says there.

make test-kernels boots Debian's kernels by scripts/kernel_vm.sh, this machine's files beneath them,
and runs this module inside. It fails where a program is refused whose hook the kernel has, where
the doctor says other than the kernel does, and where a launch is not counted.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from bench.probes_target import Target, build, copy_library, symbol_offset
from bench.record import ROOT, Figure, write_result
from collectors.binaries.elf_file import EntryClass
from collectors.boot_clock import boottime_ns
from collectors.bpf.libbpf import UPROBE_MULTI, BpfObject, kernel_has_hook
from collectors.ebpf import ebpf_tables
from collectors.gpu_calls.probe_plan import Attachment
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms, unavailable
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import ProbeGroup

KERNELS: Final = ("6.12", "6.1")
PROBED: Final = ("6.12",)
"""Those at or above the floor of the GPU probes."""
LAUNCHES: Final = 1_000
_VM: Final = str(ROOT / "scripts" / "kernel_vm.sh")
_TARGET: Final = ROOT / ".tools" / "kernels" / "target"
_NONE_THERE: Final = 77
_OBJECTS: Final = ("host.bpf.o", "steps.bpf.o", f"gpu.{platform.machine()}.bpf.o")
_TRIED: Final = (("sources", "ebpf"), ("gpu calls", "kernel"), ("gpu calls", "counting"))
"""The doctor's findings that are held against what loads."""


def look() -> dict[str, Any]:
    """Load each program alone, ask the doctor, and count launches, under the running kernel."""
    refused: dict[str, str] = {}
    loaded, without_hook = [], []
    for name in _OBJECTS:
        image = (ROOT / "bpf" / "objects" / name).read_bytes()
        programs = list(_programs(ROOT / "bpf" / "objects" / name))
        for program in programs:
            reason = _refusal(image, program, [one for one in programs if one != program])
            hook = ebpf_tables.PROGRAMS.get(program)
            if reason is None:
                loaded.append(program)
            elif hook is not None and not kernel_has_hook(hook):
                without_hook.append(program)
            else:
                refused[program] = reason
    return {
        "release": platform.release(),
        "programs": len(loaded) + len(without_hook) + len(refused),
        "loaded": len(loaded),
        "without_hook": without_hook,
        "refused": refused,
        "doctor": _doctor(),
        "launches_counted": None if unavailable() else _counted(),
    }


def _programs(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        for symbol in table.iter_symbols():
            info = symbol["st_info"]
            if info["type"] == "STT_FUNC" and info["bind"] == "STB_GLOBAL":
                yield symbol.name


def _refusal(image: bytes, program: str, others: list[str]) -> str | None:
    """Load one program of an object; say why it was refused."""
    loading = BpfObject(image)
    try:
        loading.disable(others)
        if program.startswith(("gpu_", "step_")):
            loading.expect_attach_type(program, UPROBE_MULTI)
        loading.load()
    except SourceUnavailable as error:
        return str(error)
    finally:
        loading.close()
    return None


def _doctor() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "pointillist", "agent", "doctor", "--json"]
    begun_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    took_s = round(time.monotonic() - begun_s, 1)
    findings = {(one["group"], one["name"]): one for one in json.loads(done.stdout)["findings"]}
    said = {
        name: {key: findings[group, name][key] for key in ("verdict", "found")}
        for group, name in _TRIED
    }
    return {**said, "took": {"seconds": took_s}}


def _counted() -> int | str:
    """Count launches of a program that makes LAUNCHES; or say why it cannot be probed."""
    library = copy_library(_TARGET, "push", "counted").resolve()
    table = ProbeTable.load()
    places = ((symbol_offset(library),), (table.index("cudart.launch"),), (0,))
    attachment = Attachment(ProbeGroup.LAUNCH, False, *places, (EntryClass.EMULATED,))
    try:
        programs = GpuPrograms(table)
    except SourceUnavailable as error:
        return str(error)
    try:
        programs.attach(1, str(library), [attachment])
        with Target(_TARGET, [library]) as target:
            target.call(0, 1, LAUNCHES)
            return sum(row.launches for row in programs.drain(boottime_ns()).launches)
    except SourceUnavailable as error:
        return str(error)
    finally:
        programs.close()


def objections(version: str, seen: Mapping[str, Any]) -> Iterator[str]:
    """Say what differs from what is promised for a kernel."""
    yield from (f"{program} is refused: {why}" for program, why in seen["refused"].items())
    probed = version in PROBED
    ebpf, counting = (seen["doctor"][name] for name in ("ebpf", "counting"))
    if ebpf["verdict"] != "ok":
        yield f"expected of the doctor that eBPF serves: {ebpf['found']}"
    by_libbpf = counting["verdict"] == "ok" and counting["found"].endswith("libbpf")
    if by_libbpf != probed:
        yield f"expected of the doctor {'' if probed else 'not '}by libbpf: {counting['found']}"
    if probed and seen["launches_counted"] != LAUNCHES:
        yield f"expected {LAUNCHES} launches, counted {seen['launches_counted']}"


def main() -> int:
    """Look under each kernel that apt's sources have, and write what was seen."""
    build(_TARGET)
    seen: dict[str, Any] = {}
    wrong: list[str] = []
    for version in KERNELS:
        fetched = subprocess.run([_VM, "fetch", version], check=False)
        if fetched.returncode == _NONE_THERE and version not in PROBED:
            continue
        fetched.check_returncode()
        begun_s = time.monotonic()
        inside = [_VM, "run", version, sys.executable, "-m", "bench.kernels", "look"]
        done = subprocess.run(inside, stdout=subprocess.PIPE, cwd=ROOT, check=True)
        found = json.loads(done.stdout)
        found["seconds"] = round(time.monotonic() - begun_s)
        seen[version] = found
        wrong += [f"Linux {found['release']}: {one}" for one in objections(version, found)]
        print(
            f"Linux {found['release']}: {found['loaded']} of {found['programs']} programs load, "
            f"calls: {found['doctor']['counting']['found']}, {found['seconds']} s"
        )
    if os.geteuid() == 0:
        seen["here"] = look()
    figures = [
        Figure(
            f"programs_loaded_percent_{version.replace('.', '_')}",
            100 * found["loaded"] / found["programs"],
            "%",
            goal=100.0 if version in PROBED else None,
        )
        for version, found in seen.items()
    ]
    tables = {"tables": {"kernels": seen, "launches": LAUNCHES}}
    write_result("kernels", "make test-kernels", figures, tables=tables)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["look"]:
        json.dump(look(), sys.stdout)
    else:
        sys.exit(main())
