"""`make gpu-check`, last part: PCIe pressure by copies, and what the diagnosis makes of it.

One process copies 16 MiB of pinned memory to the GPU again and again: its steps. Another, with a
context of its own, presses the same link at three intensities: by pinned copies to the device, and,
held out, by pageable copies and by copies back to the host. Beside them NVML's PCIe counters,
power, temperature, clocks and throttle reasons are read once a second: power and heat are observed,
nothing here makes them.

Runs with the machine's python3 (3.11) and numpy; `pynvml` comes from the machine or from
.tools/gpu. Needs no network. Exit code 0: every held-out case that had an impact was named; 1: not;
2: could not be checked; 77: there is no GPU here. GPU_CHECK_OUT=FOLDER writes
FOLDER/gpu_pressure.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from bench.record import Figure
from bench.steered import Steered
from collectors.boot_clock import boottime_ns
from scripts import gpu_present
from scripts.gpu_copies import DUTIES, INJECTORS
from scripts.gpu_present import AS_EXPECTED, DIFFERENT, NO_GPU, ROOT, UNCHECKED

if TYPE_CHECKING:
    from scripts.pressure import Case, Result

WARM_UP_S, PRESS_S, REST_S = 20.0, 10.0, 12.0


def main() -> int:
    if not gpu_present.ready("gpu-pressure"):
        return NO_GPU
    try:
        results = check()
    except ModuleNotFoundError as error:
        print(f"gpu-pressure: expected {error.name}: numpy, and `make gpu-kit` for pynvml")
        return UNCHECKED
    except Exception as error:  # noqa: BLE001 - whatever fails here, nothing was checked
        print(f"gpu-pressure: not checked: {type(error).__name__}: {error}")
        return UNCHECKED
    return tell(results)


def check(
    warm_up_s: float = WARM_UP_S, press_s: float = PRESS_S, rest_s: float = REST_S
) -> list[Result]:
    """Press the first GPU in every way and at every intensity, and diagnose what was seen."""
    from collectors.devices.nvml import NvmlReader
    from scripts.pressure import Watch, results_of

    reader = NvmlReader()
    inventory = reader.open()
    if not inventory.devices:
        raise OSError("expected a GPU, the driver names none")
    gpu = reader.read(0, ()).id
    cases: list[Case] = []
    with ExitStack() as held:
        held.callback(reader.close)
        watch = Watch(reader, gpu)
        held.callback(watch.stop)
        time.sleep(warm_up_s)
        for injector in INJECTORS:
            for level, duty in DUTIES.items():
                cases.append(_pressed(gpu, injector, level, duty, press_s))
                time.sleep(rest_s)
        watch.stop()
    return results_of(watch.seconds, cases)


def _pressed(gpu: str, injector: str, level: str, duty: float, press_s: float) -> Case:
    """Run the pressing process for a while; it says how much it copied."""
    from scripts.pressure import Case

    words = [sys.executable, "-m", "scripts.gpu_copies", gpu, injector, str(duty)]
    with Steered(words, cwd=ROOT) as child:
        if child.answer() != "pressing":
            raise RuntimeError(f"{injector}: the pressing process did not start")
        start_ns = boottime_ns()
        time.sleep(press_s)
        end_ns = boottime_ns()
        copied, _ = child.process.communicate(timeout=30)
    return Case(injector, level, start_ns, end_ns, float(copied or 0.0))


def tell(results: Sequence[Result]) -> int:
    """Print the cases, write them where the environment says; give the exit code."""
    judged = [one for one in results if one.held_out and one.impact]
    wrong = [one for one in judged if one.answer != "pcie_pressure"]
    for one in results:
        print(
            f"gpu-pressure: {one.injector:20} {one.level:7} {one.pressed_gb_per_s:6.1f} GB/s  "
            f"p99 x{one.rise:.2f}  {'impact' if one.impact else 'no impact':10} {one.answer or '-'}"
        )
    right = len(judged) - len(wrong)
    print(f"gpu-pressure: {right} of {len(judged)} held-out cases with impact were named")
    found = [Figure("pcie_pressure_cases", len(judged), "held-out cases with impact")]
    if judged:
        share, unit = right / len(judged), "share of held-out cases with impact"
        found.insert(0, Figure("pcie_pressure_recall_held_out", share, unit))
    cases = {"cases": [asdict(one) | {"impact": one.impact} for one in results]}
    gpu_present.write_found("gpu_pressure", found, None, cases)
    if not judged:
        print("gpu-pressure: no held-out case had an impact: nothing was judged")
        return UNCHECKED
    return DIFFERENT if wrong else AS_EXPECTED


if __name__ == "__main__":
    sys.exit(main())
