"""What Debian's kernels of arm64 take, emulated on x86-64: programs loaded, launches counted.

scripts/arm64_root.sh lays a Debian of that machine; scripts/kernel_vm.sh boots each kernel on it,
and this module is run inside. The launches are calls of the real CUDA runtimes, as far as they go
without a device.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from bench.kernels import loaded_programs
from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from collectors.binaries.elf_file import ElfFile
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.records.gpu_calls import ProbeGroup

KERNELS: Final[tuple[Mapping[str, str], ...]] = (
    {"version": "6.1"},
    {"version": "6.12"},
    {"version": "6.12", "PAGES": "16k"},
)
RUNTIMES: Final = {"cuda_runtime": "12", "cu13": "13"}
LAUNCHES: Final = 7
"""Of real.c: four by cudaLaunchKernel, three by what compilers of CUDA 12 and later call."""
SOURCE: Final = ROOT / "tests" / "collectors" / "gpu_calls" / "stubs" / "real.c"
FOLDER: Final = ROOT / ".tools" / "arm64"
PACKAGES: Final = Path("/usr/lib/pointillist")
"""In the machine: the agent's packages, and what tests need beside."""
_NONE_THERE: Final = 77


def measure(kept: Parts) -> Measured:
    ready()
    seen = [kept.get(_name(kernel), partial(_seen, kernel)) for kernel in KERNELS]
    loaded = sum(one["loaded"] for one in seen)
    asked = loaded + sum(len(one["refused"]) for one in seen)
    counted = [count for one in seen for count in one["launches"].values()]
    return Measured(
        [
            Figure("programs_loaded_percent_arm64", 100 * loaded / asked, "%", 100.0),
            Figure(
                "launches_counted_percent_arm64",
                100 * sum(counted) / (LAUNCHES * len(counted)),
                "%",
                100.0,
            ),
        ],
        {"arm64": seen},
        beside="arm64 emulated by QEMU, without KVM",
        wrong=[line for one in seen for line in objections(one)],
    )


def ready() -> None:
    """Have the machine's files, and the programs. Raises CalledProcessError where it cannot be."""
    subprocess.run([str(ROOT / "scripts" / "arm64_root.sh")], check=True)
    for runtime, static in product(RUNTIMES, (False, True)):
        folder = FOLDER / "root" / PACKAGES.relative_to("/") / "tests" / "nvidia" / runtime / "lib"
        (shared,) = folder.glob("libcudart.so.*")
        inside: list[str | Path] = [shared, f"-Wl,-rpath,{_inside(shared).parent}"]
        if static:
            parts = [folder / "libcudart_static.a", *folder.glob("libculibos.a")]
            inside = [*parts, "-ldl", "-lrt", "-lpthread"]
        command = ["aarch64-linux-gnu-gcc", "-O1", "-w", SOURCE, *inside]
        subprocess.run([*command, "-o", _program(runtime, static)], check=True)


def _program(runtime: str, static: bool) -> Path:
    return FOLDER / f"{runtime}{'-static' * static}"


def _inside(path: Path) -> Path:
    return Path("/") / path.relative_to(FOLDER / "root")


def run_inside(kernel: Mapping[str, str], *command: str, most_s: int = 300) -> str:
    """Run a command of Python under a kernel; give its output. Raises RuntimeError."""
    paths = (
        ROOT,
        PACKAGES / "agent/lib/python3.11/site-packages",
        PACKAGES / "tests",
        # What has no code of a machine: pytest, elftools.
        *(ROOT / ".venv/lib").glob("python3.*/site-packages"),
    )
    version, path = kernel["version"], ":".join(map(str, paths))
    environment = {
        **os.environ,
        **{name: value for name, value in kernel.items() if name.isupper()},
        "APT_CONFIG": str(FOLDER / "apt.conf"),
        "ARCH": "arm64",
        "ROOT": str(FOLDER / "root"),
        "MOST_S": str(most_s),
        "PATH": "/usr/bin:/usr/sbin:/bin:/sbin",
    }
    vm = str(ROOT / "scripts" / "kernel_vm.sh")
    subprocess.run([vm, "fetch", version], check=True, env=environment)
    inside = ["env", "LANG=C.UTF-8", f"PYTHONPATH={path}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"]
    ran = subprocess.run(
        [vm, "run", version, *inside, "/usr/bin/python3", *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"expected exit code 0, got {ran.returncode}: {ran.stdout[-3_000:]}")
    return ran.stdout


def _name(kernel: Mapping[str, str]) -> str:
    return "-".join(kernel.values())


def _seen(kernel: Mapping[str, str]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run_inside(kernel, "-m", "bench.kernels_arm64"))
    return said


def look() -> dict[str, Any]:
    """Load each program alone, and count the launches of each runtime, here and now."""
    return {
        "release": platform.release(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        **loaded_programs(),
        "launches": {
            f"CUDA {cuda}{', static' * static}": _counted(runtime, static)
            for (runtime, cuda), static in product(RUNTIMES.items(), (False, True))
        },
    }


def _counted(runtime: str, static: bool) -> int:
    """Run a program; give the launches that were counted."""
    table, program = ProbeTable.load(), _program(runtime, static)
    library = program
    if not static:
        (library,) = (PACKAGES / "tests" / "nvidia" / runtime / "lib").glob("libcudart.so.*")
    with library.open("rb") as file:
        plan = PlanBook(table).plan(ElfFile.read(file), library.name)
    programs = GpuPrograms(table)
    try:
        programs.attach(
            1, str(library), [one for one in plan.attachments if one.group is ProbeGroup.LAUNCH]
        )
        subprocess.run([program], check=True, stdout=subprocess.DEVNULL)
        return sum(row.launches for row in programs.drain(boottime_ns()).launches)
    finally:
        programs.close()


def objections(seen: dict[str, Any]) -> list[str]:
    """Say what differs from what is promised for a kernel."""
    said = [f"{program} is refused: {why}" for program, why in seen["refused"].items()]
    said += [
        f"expected {LAUNCHES} launches of {runtime}, counted {count}"
        for runtime, count in seen["launches"].items()
        if count != LAUNCHES
    ]
    pages = f"pages of {seen['page_bytes'] >> 10} KiB"
    return [f"Linux {seen['release']}, {pages}: {one}" for one in said]


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
