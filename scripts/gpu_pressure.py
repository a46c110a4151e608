"""`make gpu-check`, last part: PCIe pressure by copies, and what the diagnosis makes of it.

One process copies 16 MiB of pinned memory to the GPU again and again: its steps. Another, with a
context of its own, presses the same link at three intensities: by pinned copies to the device, and,
held out, by pageable copies and by copies back to the host. Beside them NVML's PCIe counters,
power, temperature, clocks and throttle reasons are read once a second: power and heat are observed,
nothing here makes them.

Runs with the machine's python3 (3.11) and numpy; `pynvml` comes from the machine or from .tools/gpu.
Needs no network. Exit code 0: every held-out case that had an impact was named; 1: not; 2: could
not be checked; 77: there is no GPU here. GPU_CHECK_OUT=FOLDER writes FOLDER/gpu_pressure.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from edge_agent.devices.cuda import Cuda
    from edge_agent.frames.frame import Frame

ROOT: Final = Path(__file__).resolve().parent.parent
KIT: Final = ROOT / ".tools" / "gpu"
DEVICE: Final = Path("/dev/nvidiactl")
OUT: Final = "GPU_CHECK_OUT"
AS_EXPECTED, DIFFERENT, UNCHECKED, NO_GPU = 0, 1, 2, 77
STEP_BYTES: Final = 16 << 20
PRESS_BYTES: Final = 64 << 20
DUTIES: Final = {"low": 0.25, "middle": 0.5, "high": 1.0}
INJECTORS: Final = ("pinned_to_device", "pageable_to_device", "pinned_to_host")
HELD_OUT: Final = frozenset(INJECTORS[1:])
WARM_UP_S, PRESS_S, REST_S = 20.0, 10.0, 12.0
IMPACT: Final = 1.3
_PIECE_S: Final = 0.1
_SUBJECT: Final = "/gpu-check"
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """One stretch of pressure."""

    injector: str
    level: str
    start_ns: int
    end_ns: int
    pressed_bytes_per_s: float

    @property
    def held_out(self) -> bool:
        """Whether the injector or the level only judges."""
        return self.injector in HELD_OUT or self.level == "middle"


@dataclass(slots=True)
class Second:
    """One look: GPU signals, and the steps that ended since the look before."""

    at_ns: int
    span_ns: int
    gpu: dict[str, float]
    steps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Result:
    """What a case did and what was said of it.

    rise     p99 of steps in it over that of the calm before
    answer   the cause that stood at its end; "" nothing was said
    """

    injector: str
    level: str
    held_out: bool
    pressed_gb_per_s: float
    rise: float
    answer: str
    signals: dict[str, float]

    @property
    def impact(self) -> bool:
        """Whether it passed the gate."""
        return self.rise >= IMPACT


def main(words: Sequence[str] | None = None) -> int:
    """Press, watch, diagnose, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--press", nargs=3, metavar=("GPU", "INJECTOR", "DUTY"))
    given = parser.parse_args(words)
    sys.path[:0] = [str(ROOT), str(KIT), *(str(wheel) for wheel in KIT.glob("nvidia_ml_py*.whl"))]
    if given.press:
        gpu, injector, duty = given.press
        press(gpu, injector, float(duty))
        return AS_EXPECTED
    if shutil.which("nvidia-smi") is None or not DEVICE.exists():
        print(f"gpu-pressure: this machine has no NVIDIA GPU (no nvidia-smi or no {DEVICE})")
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
    from edge_agent.devices.nvml import NvmlReader

    reader = NvmlReader()
    inventory = reader.open()
    if not inventory.devices:
        raise OSError("expected a GPU, the driver names none")
    gpu = reader.read(0, ()).id
    cases: list[Case] = []
    with ExitStack() as held:
        held.callback(reader.close)
        stepper = Stepper(gpu, held)
        watch = Watch(reader, stepper)
        held.callback(watch.stop)
        watch.start()
        time.sleep(warm_up_s)
        for injector in INJECTORS:
            for level, duty in DUTIES.items():
                cases.append(_pressed(gpu, injector, level, duty, press_s))
                time.sleep(rest_s)
        watch.stop()
    return results_of(watch.seconds, cases)


def _pressed(gpu: str, injector: str, level: str, duty: float, press_s: float) -> Case:
    """Run the pressing process for a while; it says how much it copied."""
    words = [sys.executable, str(Path(__file__).resolve()), "--press", gpu, injector, str(duty)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("expected pipes to the pressing process")
        if child.stdout.readline().strip() != "pressing":
            raise RuntimeError(f"{injector}: the pressing process did not start")
        start_ns = _now_ns()
        time.sleep(press_s)
        end_ns = _now_ns()
        child.stdin.close()
        copied = float(child.stdout.readline() or 0.0)
        child.wait(30)
    return Case(injector, level, start_ns, end_ns, copied)


def press(gpu: str, injector: str, duty: float) -> None:
    """Copy for this share of every tenth of a second until stdin ends; print bytes a second."""
    from edge_agent.devices.cuda import Cuda

    with ExitStack() as held:
        cuda = Cuda()
        device = _context(cuda, gpu, held)
        on_gpu = _made(cuda, held, "cuMemAlloc_v2", "cuMemFree_v2", PRESS_BYTES)
        stream = _made(cuda, held, "cuStreamCreate", "cuStreamDestroy_v2", 1)
        pageable = ctypes.create_string_buffer(b"\1" * PRESS_BYTES, PRESS_BYTES)
        pinned = _made(cuda, held, "cuMemHostAlloc", "cuMemFreeHost", PRESS_BYTES, 0)
        ctypes.memset(pinned, 1, PRESS_BYTES)

        def copy() -> None:
            if injector == "pageable_to_device":
                cuda("cuMemcpyHtoD_v2", on_gpu, ctypes.addressof(pageable), PRESS_BYTES)
            elif injector == "pinned_to_host":
                cuda("cuMemcpyDtoHAsync_v2", pinned, on_gpu, PRESS_BYTES, stream)
            elif injector == "pinned_to_device":
                cuda("cuMemcpyHtoDAsync_v2", on_gpu, pinned, PRESS_BYTES, stream)
            else:
                raise ValueError(f"expected one of {INJECTORS}, got {injector!r} on {device}")
            cuda("cuStreamSynchronize", stream)

        copy()
        over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
        print("pressing", flush=True)
        copies, begun_s = _turns(copy, duty, over)
        print(copies * PRESS_BYTES / max(time.monotonic() - begun_s, 1e-9), flush=True)


def _turns(copy: Any, duty: float, over: threading.Event) -> tuple[int, float]:
    copies, begun_s = 0, time.monotonic()
    while not over.is_set():
        piece_s = time.monotonic()
        while time.monotonic() - piece_s < duty * _PIECE_S and not over.is_set():
            copy()
            copies += 1
        over.wait(max(0.0, piece_s + _PIECE_S - time.monotonic()))
    return copies, begun_s


class Stepper(threading.Thread):
    """The watched process' steps: a pinned copy to the GPU and a short rest, again and again."""

    def __init__(self, gpu: str, held: ExitStack) -> None:
        super().__init__(daemon=True)
        from edge_agent.devices.cuda import Cuda

        self._cuda, self._gpu = Cuda(), gpu
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._steps: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        held.callback(self.stop)

    def take(self) -> list[tuple[int, int]]:
        """Give (ended, duration) in ns of the steps since the last call."""
        if self.failure is not None:
            raise self.failure
        with self._lock:
            taken, self._steps = self._steps, []
        return taken

    def stop(self) -> None:
        """End it; a second call does nothing."""
        self._over.set()
        if self.is_alive():
            self.join(30)

    def run(self) -> None:
        """Step until told to end."""
        try:
            with ExitStack() as held:
                self._step_on(held)
        except Exception as error:  # noqa: BLE001 - told where the steps are taken
            self.failure = error

    def _step_on(self, held: ExitStack) -> None:
        cuda = self._cuda
        _context(cuda, self._gpu, held)
        host = _made(cuda, held, "cuMemHostAlloc", "cuMemFreeHost", STEP_BYTES, 0)
        on_gpu = _made(cuda, held, "cuMemAlloc_v2", "cuMemFree_v2", STEP_BYTES)
        stream = _made(cuda, held, "cuStreamCreate", "cuStreamDestroy_v2", 1)
        before_ns = _now_ns()
        while not self._over.is_set():
            for _ in range(8):
                cuda("cuMemcpyHtoDAsync_v2", on_gpu, host, STEP_BYTES, stream)
            cuda("cuStreamSynchronize", stream)
            time.sleep(0.005)
            now_ns = _now_ns()
            with self._lock:
                self._steps.append((now_ns, now_ns - before_ns))
            before_ns = now_ns


class Watch(threading.Thread):
    """Looks at the GPU and takes the steps once a second."""

    def __init__(self, reader: Any, stepper: Stepper) -> None:
        super().__init__(daemon=True)
        from edge_agent.devices.port import ALL
        from edge_agent.frames.gpu_signals import GpuSignals

        self._reader, self._stepper, self._fields = reader, stepper, ALL
        self._signals = GpuSignals()
        self._over = threading.Event()
        self.seconds: list[Second] = []
        self.failure: Exception | None = None

    def run(self) -> None:
        """Start the steps, then look on."""
        self._stepper.start()
        before_ns = _now_ns()
        try:
            while not self._over.wait(1.0):
                self._signals.look([self._reader.read(0, self._fields)])
                now_ns = _now_ns()
                gpu = self._signals.signals(now_ns).get(0, {})
                steps = self._stepper.take()
                self.seconds.append(Second(now_ns, now_ns - before_ns, gpu, steps))
                before_ns = now_ns
        except Exception as error:  # noqa: BLE001 - told at the stop
            self.failure = error

    def stop(self) -> None:
        """End both; raises what ended them before."""
        self._over.set()
        if self.is_alive():
            self.join(60)
        self._stepper.stop()
        if self.failure is not None:
            raise self.failure


def frame_of(second: Second) -> Frame:
    """Make the second a frame: one subject on GPU 0, no host signals."""
    import numpy as np

    from edge_agent.frames.frame import FINE_BINS, Frame, Steps, StepSource, Subject
    from edge_agent.frames.signals import FINE

    ended = np.array([one for one, _ in second.steps], np.int64)
    took = np.array([one for _, one in second.steps], np.int64)
    steps = Steps(StepSource.SYNCHRONISATIONS, ended, took)
    subject = Subject(_SUBJECT, "gpu-check", {}, steps, None, (0,))
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    gpus = {0: second.gpu}
    return Frame(second.at_ns, second.span_ns, {}, fine, {_SUBJECT: subject}, {}, gpus)


def results_of(seconds: Sequence[Second], cases: Sequence[Case]) -> list[Result]:
    """Play the seconds through the diagnoser; give what stood at each case's end."""
    from edge_agent.diagnosis.diagnoser import Diagnoser
    from edge_agent.diagnosis.findings import Diagnosis

    diagnoser = Diagnoser()
    said = [
        (found.at_ns, str(found.cause))
        for second in seconds
        for found in diagnoser.handle(frame_of(second))
        if isinstance(found, Diagnosis)
    ]
    results = []
    for case in cases:
        answers = [cause for at_ns, cause in said if case.start_ns <= at_ns <= case.end_ns]
        results.append(Result(
            case.injector, case.level, case.held_out, case.pressed_bytes_per_s / 1e9,
            _rise(seconds, case), answers[-1] if answers else "", _mean(_within(seconds, case)),
        ))  # fmt: skip
    return results


def _rise(seconds: Sequence[Second], case: Case) -> float:
    """Give p99 in the case over p99 of the 8 s before it; 0 where there are too few steps."""
    before = [s for s in seconds if case.start_ns - 8 * _NS <= s.at_ns < case.start_ns]
    calm, struck = _p99(before), _p99(_within(seconds, case))
    return struck / calm if calm else 0.0


def _p99(seconds: Sequence[Second]) -> float:
    took = sorted(duration for second in seconds for _, duration in second.steps)
    return float(statistics.quantiles(took, n=100)[98]) if len(took) >= 20 else 0.0


def _within(seconds: Sequence[Second], case: Case) -> list[Second]:
    return [one for one in seconds if case.start_ns + _NS <= one.at_ns <= case.end_ns]


def _mean(seconds: Sequence[Second]) -> dict[str, float]:
    names = {name for second in seconds for name in second.gpu}
    told = {name: [s.gpu[name] for s in seconds if name in s.gpu] for name in sorted(names)}
    return {name: round(statistics.mean(values), 3) for name, values in told.items()}


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
    folder = os.environ.get(OUT)
    if folder:
        body = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": "make gpu-check",
            "figures": list(_figures(judged, right)),
            "cases": [asdict(one) | {"impact": one.impact} for one in results],
        }
        path = Path(folder) / "gpu_pressure.json"
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        print(f"gpu-pressure: {path}")
    if not judged:
        print("gpu-pressure: no held-out case had an impact: nothing was judged")
        return UNCHECKED
    return DIFFERENT if wrong else AS_EXPECTED


def _figures(judged: Sequence[Result], right: int) -> Iterator[dict[str, Any]]:
    share = right / len(judged) if judged else None
    for name, value, unit in (
        ("pcie_pressure_recall_held_out", share, "share of held-out cases with impact"),
        ("pcie_pressure_cases", len(judged), "held-out cases with impact"),
    ):
        yield {"name": name, "value": value, "unit": unit, "goal": None, "floor": None}


def _context(cuda: Cuda, gpu: str, held: ExitStack) -> int:
    cuda("cuInit", 0)
    device = cuda.device(gpu)
    if device is None:
        raise OSError(f"CUDA does not show {gpu} (MIG, or it is kept from us)")
    context = cuda.handle("cuDevicePrimaryCtxRetain", device)
    held.callback(cuda, "cuDevicePrimaryCtxRelease_v2", device)
    cuda("cuCtxSetCurrent", context)
    return device


def _made(cuda: Cuda, held: ExitStack, make: str, release: str, *arguments: int) -> int:
    made = cuda.handle(make, *arguments)
    held.callback(cuda, release, made)
    return made


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    sys.exit(main())
