"""Run on a GPU machine: `python3 -m scripts.gpu_time [PART...]`; parts are in PARTS.

Needs the machine's python3 and what `make gpu-kit` packed; no network. Where the machine has no
PyTorch its parts are left out. With GPU_CHECK_OUT=FOLDER each part is written to
FOLDER/gpu_time.json as it ends. Exit code 0: as expected; 1: not; 2: could not be checked; 77:
there is no GPU here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from scripts import gpu_present
from scripts.gpu_present import AS_EXPECTED, DIFFERENT, NO_GPU, OUT, ROOT, TOOLS, UNCHECKED
from scripts.gpu_probes import Loop
from scripts.gpu_programs import LAUNCHES, commands

from .figures import differences, figures

CUPTI: Final = TOOLS / "cupti" / "libcupti.so.12"
OF_TORCH: Final = ("training", "inference", "graphs", "triton")
PARTS: Final = (
    "launches", "cubin", "runtime", "replay", "training", "governed", "inference", "memory",
    "graphs", "triton",
)  # fmt: skip
GIVEN: Final = "POINTILLIST_CUPTI"
PAIRS: Final = {"launches": 400, "training": 200}
"""Pairs of blocks, of the loops whose cost is measured."""
_CPU: Final = {"GPU_CHECK_CPU": "5"}
"""Both loops of a pair work on this one, in turns."""


def main() -> int:
    if not gpu_present.ready("gpu-time"):
        return NO_GPU
    if importlib.util.find_spec("numpy") is None or not (TOOLS / "driver").exists():
        print(f"gpu-time: expected numpy and programs in {TOOLS}: make gpu-kit packs them")
        return UNCHECKED
    has_torch = importlib.util.find_spec("torch") is not None
    results: dict[str, Any] = {}
    good = True
    for part in sys.argv[1:] or PARTS:
        if part in OF_TORCH and not has_torch:
            print(f"gpu-time: {part}: left out, as {sys.executable} has no torch")
            continue
        try:
            results[part] = _part(part)
        except (RuntimeError, OSError, ValueError) as error:
            print(f"gpu-time: {part}: not checked: {type(error).__name__}: {error}")
            good = False
        for figure in figures({part: results.get(part, {})}):
            print(f"gpu-time: {part}: {figure.name} {figure.value:.3f} {figure.unit}")
        _write(results)
    for line in differences(results):
        print(f"gpu-time: {line}")
        good = False
    return AS_EXPECTED if good else DIFFERENT


def _part(part: str) -> dict[str, Any]:
    from .listening import listening
    from .measures import beside_profiler, costs, governed, memory, switching, truth

    own = commands()
    launches = own[LAUNCHES]
    os.environ.pop(GIVEN, None)  # PyTorch brings its own
    if part not in OF_TORCH and CUPTI.exists():
        os.environ[GIVEN] = str(CUPTI)
    torch = [sys.executable, str(ROOT / "scripts" / "gpu_workload.py")]
    if part == "governed":
        return {
            "steady": governed("launches", launches, "steps"),
            "bursts": governed("launches", launches, "bursts"),
        }
    command = own.get(part, launches if part == "memory" else torch)
    with listening() as agent:
        if part == "memory":
            return memory(launches, agent)
        more = agent.environment | _CPU
        with Loop(part, command, _CPU) as bare, Loop(part, command, more) as loop:
            agent.wait(loop.pid)
            found: dict[str, Any] = {}
            if part in PAIRS:
                found["costs"] = costs(agent, bare, loop, PAIRS[part])
            if part != "training":
                found["switching"] = switching(agent, loop)
            if part != "launches":
                found["truth"] = truth(agent, bare, loop)
            if part == "inference":
                found["beside_profiler"] = beside_profiler(agent, loop)
    return found


def _write(results: dict[str, Any]) -> None:
    folder = os.environ.get(OUT)
    if folder:
        text = json.dumps(results, indent=1, default=int)
        (Path(folder) / "gpu_time.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
