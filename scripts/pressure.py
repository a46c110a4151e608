"""What presses a GPU's link, the process that is watched beside it, and what is said of both."""

from __future__ import annotations

import ctypes
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectors.boot_clock import boottime_ns
from collectors.devices.cuda import Cuda
from collectors.devices.device_port import ALL, DeviceReader
from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Diagnosis
from diagnosis.frames.frame import FINE_BINS, Frame, Steps, Subject
from diagnosis.frames.gpu_signals import GpuSignals
from diagnosis.frames.signals import FINE

PRESS_BYTES: Final = 64 << 20
DUTIES: Final = {"low": 0.25, "middle": 0.5, "high": 1.0}
INJECTORS: Final = ("pinned_to_device", "pageable_to_device", "pinned_to_host")
_PIECE_S: Final = 0.1
HELD_OUT: Final = frozenset(INJECTORS[1:])
IMPACT: Final = 1.3
_SUBJECT: Final = "/gpu-check"
_NS: Final = 1_000_000_000
STEP_BYTES: Final = 16 << 20


def press(gpu: str, injector: str, duty: float) -> None:
    """Copy for this share of every tenth of a second until stdin ends; print bytes a second."""
    with ExitStack() as held:
        cuda = Cuda()
        device = context_of(cuda, gpu, held)
        on_gpu = made(cuda, held, "cuMemAlloc_v2", "cuMemFree_v2", PRESS_BYTES)
        stream = made(cuda, held, "cuStreamCreate", "cuStreamDestroy_v2", 1)
        pageable = ctypes.create_string_buffer(b"\1" * PRESS_BYTES, PRESS_BYTES)
        pinned = made(cuda, held, "cuMemHostAlloc", "cuMemFreeHost", PRESS_BYTES, 0)
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
        threading.Thread(target=_until_eof, args=(over,), daemon=True).start()
        print("pressing", flush=True)
        copies, begun_s = _turns(copy, duty, over)
        print(copies * PRESS_BYTES / max(time.monotonic() - begun_s, 1e-9), flush=True)


def _until_eof(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _turns(copy: Callable[[], None], duty: float, over: threading.Event) -> tuple[int, float]:
    copies, begun_s = 0, time.monotonic()
    while not over.is_set():
        piece_s = time.monotonic()
        while time.monotonic() - piece_s < duty * _PIECE_S and not over.is_set():
            copy()
            copies += 1
        over.wait(max(0.0, piece_s + _PIECE_S - time.monotonic()))
    return copies, begun_s


def context_of(cuda: Cuda, gpu: str, held: ExitStack) -> int:
    """Open a GPU for this thread, as long as it is held; give the device."""
    cuda("cuInit", 0)
    device = cuda.device(gpu)
    if device is None:
        raise OSError(f"CUDA does not show {gpu} (MIG, or it is kept from us)")
    context = cuda.handle("cuDevicePrimaryCtxRetain", device)
    held.callback(cuda, "cuDevicePrimaryCtxRelease_v2", device)
    cuda("cuCtxSetCurrent", context)
    return device


def made(cuda: Cuda, held: ExitStack, make: str, release: str, *arguments: int) -> int:
    """Make what is released when it is no longer held."""
    handle = cuda.handle(make, *arguments)
    held.callback(cuda, release, handle)
    return handle


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


def frame_of(second: Second) -> Frame:
    """Make the second a frame: one subject on GPU 0, no host signals."""
    ended = np.array([one for one, _ in second.steps], np.int64)
    took = np.array([one for _, one in second.steps], np.int64)
    steps = Steps(StepSource.SYNCHRONISATIONS, ended, took)
    subject = Subject(_SUBJECT, "gpu-check", {}, steps, None, (0,))
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    gpus = {0: second.gpu}
    return Frame(second.at_ns, second.span_ns, {}, fine, {_SUBJECT: subject}, {}, gpus)


def results_of(seconds: Sequence[Second], cases: Sequence[Case]) -> list[Result]:
    """Play the seconds through the diagnoser; give what stood at each case's end."""
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


class Stepper(threading.Thread):
    """The watched process' steps: a pinned copy to the GPU and a short rest, again and again."""

    def __init__(self, gpu: str, held: ExitStack) -> None:
        super().__init__(daemon=True)
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
        context_of(cuda, self._gpu, held)
        host = made(cuda, held, "cuMemHostAlloc", "cuMemFreeHost", STEP_BYTES, 0)
        on_gpu = made(cuda, held, "cuMemAlloc_v2", "cuMemFree_v2", STEP_BYTES)
        stream = made(cuda, held, "cuStreamCreate", "cuStreamDestroy_v2", 1)
        before_ns = boottime_ns()
        while not self._over.is_set():
            for _ in range(8):
                cuda("cuMemcpyHtoDAsync_v2", on_gpu, host, STEP_BYTES, stream)
            cuda("cuStreamSynchronize", stream)
            time.sleep(0.005)
            now_ns = boottime_ns()
            with self._lock:
                self._steps.append((now_ns, now_ns - before_ns))
            before_ns = now_ns


class Watch(threading.Thread):
    """Looks at the GPU and takes the steps once a second."""

    def __init__(self, reader: DeviceReader, stepper: Stepper) -> None:
        super().__init__(daemon=True)
        self._reader, self._stepper = reader, stepper
        self._signals = GpuSignals()
        self._over = threading.Event()
        self.seconds: list[Second] = []
        self.failure: Exception | None = None

    def run(self) -> None:
        """Start the steps, then look on."""
        self._stepper.start()
        before_ns = boottime_ns()
        try:
            while not self._over.wait(1.0):
                self._signals.look([self._reader.read(0, ALL)])
                now_ns = boottime_ns()
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
