"""How many launches have a kernel's name, by the files of real libraries: make bench-names.

A process of PyTorch calls its own host stubs, as its operators do: without a device each launch
fails, but is made. The agent comes when all kernels were launched once, and handles are opaque, as
they are with a driver. It needs root and, unpacked into .tools/names, 4 GB of wheels.
"""

from __future__ import annotations

import io
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure
from collectors.binaries.elf import ElfError
from collectors.binaries.symbols import Demangler
from collectors.boot_clock import boottime_ns
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_calls.activity_records import GpuPlaces
from collectors.gpu_calls.governor import GovernorSettings
from collectors.gpu_calls.gpu_probes import GpuProbesSource, ProbesSection
from collectors.records.gpu_calls import GpuCalls
from collectors.stubs.host_stubs import HostStubs, read_stubs
from collectors.stubs.stub_table import StubTable, pack
from wire.catalogue import Catalogue

_TOOLS: Final = ROOT / ".tools" / "names"
_TORCH: Final = ("torch==2.15.0",)
_ALONE: Final = ("torch==2.8.0", "nvidia-cublas-cu12==12.8.4.1")
"""Of CUDA 12: their files are read, nothing runs them."""
_READ: Final = {
    "torch": "torch/torch/lib/libtorch_cuda.so",
    "torch_cuda12": "alone/torch/lib/libtorch_cuda.so",
    "cublas": "torch/nvidia/*/lib/libcublas.so.*",
    "cublas_lt": "torch/nvidia/*/lib/libcublasLt.so.*",
    "cublas_lt_cuda12": "alone/nvidia/cublas/lib/libcublasLt.so.12",
    "cudnn_ops": "torch/nvidia/cudnn/lib/libcudnn_ops.so.*",
    "cudnn_precompiled": "torch/nvidia/cudnn/lib/libcudnn_engines_precompiled.so.*",
    "nccl": "torch/nvidia/nccl/lib/libnccl.so.*",
}
_LAUNCHED: Final = 2000
_WAIT_S: Final = 120.0
_HOSTILE: Final = 20_000
_CHILD: Final = """
import ctypes, json, sys
import torch
maps = [line.split() for line in open("/proc/self/maps")]
def at(name): return next(int(m[0].split("-")[0], 16) for m in maps if m[-1].endswith(name))
base = at("/libtorch_cuda.so")
runtime = ctypes.CDLL(next(m[-1] for m in maps if "libcudart.so" in m[-1]))
class Dim3(ctypes.Structure): _fields_ = [(name, ctypes.c_uint) for name in "xyz"]
push = runtime["__cudaPushCallConfiguration"]
push.argtypes = [Dim3, Dim3, ctypes.c_size_t, ctypes.c_void_p]
one, room = Dim3(1, 1, 1), ctypes.create_string_buffer(8192)
Stub = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * 40)
for line in sys.stdin:
    for stub in json.loads(line):
        push(one, one, 0, None)
        Stub(base + stub)(*[ctypes.addressof(room)] * 40)
    print("done", flush=True)
"""
_OPAQUE: Final = """
#include <stdlib.h>
int __cudaGetKernel(void **kernel, const void *host) { *kernel = malloc(64); return 0; }
"""


def measure(kept: Parts) -> Measured:
    """Read real libraries, launch from one that an agent came late to, and damage small ones."""
    read = kept.get("files", _files)
    late = kept.get("late", lambda: _late(stripped=False))
    stripped = kept.get("stripped", lambda: _late(stripped=True))
    hostile = kept.get("hostile", lambda: _hostile(kept.scaled(_HOSTILE)))
    return Measured(
        [
            Figure("late_agent_named_percent", late["named_percent"], "%", goal=99.0),
            Figure("stripped_library_named_percent", stripped["named_percent"], "%", goal=99.0),
            *(
                Figure(f"stubs_named_by_file_percent_{name}", row["named_percent"], "%")
                for name, row in read.items()
            ),
            Figure("reader_cpu_s_torch", read["torch"]["cpu_s"], "s", goal=5.0),
            Figure(
                "reader_peak_mib", max(row["peak_mib"] for row in read.values()), "MiB", goal=100.0
            ),
            Figure("hostile_files", hostile["files"], "files"),
            Figure("crashes", sum(hostile["crashes"].values()), "files", goal=0.0),
        ],
        {"files": read, "late": late, "stripped": stripped, "hostile": hostile},
    )


def _site(name: str) -> Path:
    return _TOOLS / name


def _unpack() -> None:
    """Unpack what is measured, once."""
    uv = subprocess.run(
        [ROOT / "scripts" / "uv.sh"], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    for name, packages, more in (("torch", _TORCH, ()), ("alone", _ALONE, ("--no-deps",))):
        if not (_site(name) / ".complete").exists():
            command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
            subprocess.run([*command, "--target", _site(name), *more, *packages], check=True)
            (_site(name) / ".complete").touch()


def _files() -> Part:
    _unpack()
    found: Part = {}
    for name, pattern in _READ.items():
        (path,) = sorted(_TOOLS.glob(pattern))
        with path.open("rb") as file:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            asked = subprocess.run(
                [sys.executable, "-c", _READER], stdin=file, capture_output=True, check=True
            )
            spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        table, peak = StubTable(asked.stdout[1:]), int(asked.stderr)
        found[name] = {
            "how": table.how,
            "stubs": len(table),
            "named_percent": 100 * len(table) / max(len(table) + table.missed, 1),
            "cpu_s": round(spent.ru_utime + spent.ru_stime - before.ru_utime - before.ru_stime, 2),
            "peak_mib": peak >> 10,
        }
    return found


_READER: Final = """
import resource, sys
from collectors.stubs.stub_child import main
main()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def _late(stripped: bool) -> Part:
    _unpack()
    library = _site("torch") / "torch" / "lib" / "libtorch_cuda.so"
    with library.open("rb", buffering=0) as file:
        stubs = read_stubs(file)
    chosen = random.Random(5).sample(sorted(stubs.names), _LAUNCHED)
    with TemporaryDirectory() as name, _replaced(library, stripped):
        shim = Path(name) / "opaque.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim],
            input=_OPAQUE, text=True, check=True,
        )  # fmt: skip
        with subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"LD_PRELOAD": str(shim), "PYTHONPATH": str(_site("torch"))},
        ) as child:  # fmt: skip
            try:
                return _launched(child, stubs, chosen)
            finally:
                child.kill()


@contextmanager
def _replaced(library: Path, stripped: bool) -> Iterator[None]:
    """Have a stripped copy in a library's place."""
    whole = library.with_suffix(".whole")
    if not stripped:
        yield
        return
    library.rename(whole)
    try:
        subprocess.run(["strip", "-o", library, whole], check=True)
        yield
    finally:
        whole.replace(library)


def _launch(child: subprocess.Popen[str], chosen: list[int]) -> None:
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("expected pipes to the process that launches")
    child.stdin.write(json.dumps(chosen) + "\n")
    child.stdin.flush()
    child.stdout.readline()


def _launched(child: subprocess.Popen[str], stubs: HostStubs, chosen: list[int]) -> Part:
    _launch(child, chosen)
    source = GpuProbesSource(
        ProbesSection(), Catalogue.load(), GpuPlaces(1, GpuUsers()),
        governor=GovernorSettings(budget=0.5),
    )  # fmt: skip
    source.start()
    try:
        waited = time.monotonic()
        namer = source.running.kernels.namer
        path = str(_site("torch") / "torch" / "lib" / "libtorch_cuda.so")
        while namer.launches(path) is None and time.monotonic() < waited + _WAIT_S:
            list(source.drain(boottime_ns()))
            time.sleep(0.2)
        read_s = time.monotonic() - waited
        list(source.drain(boottime_ns()))
        _launch(child, chosen)
        seen: Counter[str] = Counter()
        for _ in range(3):
            time.sleep(0.5)
            for record in source.drain(boottime_ns()):
                for kernel in record.kernels if isinstance(record, GpuCalls) else ():
                    if kernel.process.pid == child.pid:
                        seen[kernel.kernel] += round(kernel.launches.value)
    finally:
        source.stop()
    demangler, expected = Demangler(), Counter[str]()
    for first in range(0, len(chosen), 500):
        expected.update(demangler.demangle([stubs.names[s] for s in chosen[first : first + 500]]))
    right = (seen & expected).total()
    return {
        "launches": seen.total(), "named_right": right, "read_s": round(read_s, 1),
        "named_percent": 100 * right / max(seen.total(), len(chosen)),
    }  # fmt: skip


def _hostile(files: int) -> Part:
    """Damage small compiled files at random: only the reader's own error may come out."""
    crashes: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    worst_s, dice = 0.0, random.Random(11)
    whole = [path.read_bytes() for path in _small_files()]
    for _ in range(files):
        damaged = _damaged(dice, bytearray(dice.choice(whole)))
        begun_s = time.process_time()
        try:
            found = StubTable(pack(read_stubs(io.BytesIO(damaged))))
            outcomes["read" if len(found) else "nothing"] += 1
        except ElfError:
            outcomes["refused"] += 1
        except Exception as error:  # noqa: BLE001 (whatever it is, it is what is counted)
            crashes[type(error).__name__] += 1
        worst_s = max(worst_s, time.process_time() - begun_s)
    return {
        "files": files, "crashes": dict(crashes), "outcomes": dict(outcomes),
        "worst_s": round(worst_s, 2),
    }  # fmt: skip


def _damaged(dice: random.Random, content: bytearray) -> bytes:
    size = len(content)
    for _ in range(dice.choice((1, 3, 10, 100))):
        zones = ((0, 64), (64, 700), (0, 6000), (max(size - 3000, 0), size), (0, size))
        low, high = dice.choice(zones)
        at, length = dice.randrange(low, min(high, size)), dice.choice((1, 2, 4, 8))
        content[at : at + length] = dice.choice(
            (dice.randbytes(length), b"\xff" * length, bytes(length))
        )
    return bytes(content[: dice.randrange(size)] if dice.random() < 0.1 else content)


def _small_files() -> Iterator[Path]:
    """Yield programs of NVIDIA's compiler: shared and static, stripped."""
    nvcc = ROOT / ".tools" / "cuda" / "nvidia" / "cu13" / "bin" / "nvcc"
    source = ROOT / "tests" / "collectors" / "gpu_calls" / "stubs" / "kernels.cu"
    (runtime,) = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13/lib")
    with TemporaryDirectory() as name:
        folder = Path(name)
        for level in ("-O0", "-O2"):
            made = folder / "kernels.o"
            subprocess.run(
                [nvcc, "-arch=sm_90", "--extended-lambda", level, "-Xcompiler", "-fPIC", "-c",
                 source, "-o", made], check=True,
            )  # fmt: skip
            for form, more in (("shared", "libcudart.so.13"), ("static", "libcudart_static.a")):
                path = folder / f"{form}{level}"
                subprocess.run(
                    ["g++", "-s", made, runtime / more, "-lpthread", "-ldl", "-lrt", "-o", path],
                    check=True,
                )
                yield path
