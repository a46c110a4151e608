"""Cases of pressure on a GPU's link, the process that is watched, and what is said of both."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from collectors.boot_clock import boottime_ns
from collectors.devices.bandwidth import Cuda
from collectors.devices.device_port import ALL, DeviceReader
from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Diagnosis
from diagnosis.frames.frame import FINE_BINS, HostSample, Steps, Subject
from diagnosis.frames.gpu_signals import GpuSignals
from diagnosis.frames.signals import FINE
from scripts.gpu_copies import INJECTORS, context_of, made

HELD_OUT: Final = frozenset(INJECTORS[1:])
IMPACT: Final = 1.3
_SUBJECT: Final = "/gpu-check"
_NS: Final = 1_000_000_000
STEP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Case:
    injector: str
    level: str
    start_ns: int
    end_ns: int
    pressed_bytes_per_s: float

    @property
    def held_out(self) -> bool:
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
        return self.rise >= IMPACT


def frame_of(second: Second) -> HostSample:
    """Make the second a frame: one subject on GPU 0, no host signals."""
    ended = np.array([one for one, _ in second.steps], np.int64)
    took = np.array([one for _, one in second.steps], np.int64)
    steps = Steps(StepSource.SYNCHRONISATIONS, ended, took)
    subject = Subject(_SUBJECT, "gpu-check", {}, steps, None, (0,))
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    gpus = {0: second.gpu}
    return HostSample(second.at_ns, second.span_ns, {}, fine, {_SUBJECT: subject}, {}, gpus)


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


class Watch:
    """The watched process' steps, a pinned copy to the GPU and a short rest, and looks at it.

    seconds     what was seen, once a second
    """

    def __init__(self, reader: DeviceReader, gpu: str) -> None:
        self._reader, self._gpu = reader, gpu
        self._over = threading.Event()
        self._steps: deque[tuple[int, int]] = deque()
        self.seconds: list[Second] = []
        self._pool = ThreadPoolExecutor(2)
        self._running = [self._pool.submit(self._step), self._pool.submit(self._look)]

    def stop(self) -> None:
        """End both; raises what ended one before. A second call does nothing."""
        self._over.set()
        for running in self._running:
            running.result(60)
        self._pool.shutdown()

    def _step(self) -> None:
        with ExitStack() as held:
            cuda = Cuda()
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
                self._steps.append((now_ns, now_ns - before_ns))
                before_ns = now_ns

    def _look(self) -> None:
        signals, before_ns = GpuSignals(), boottime_ns()
        while not self._over.wait(1.0):
            signals.look([self._reader.read(0, ALL)])
            now_ns = boottime_ns()
            gpu = signals.signals(now_ns).get(0, {})
            steps = [self._steps.popleft() for _ in range(len(self._steps))]
            self.seconds.append(Second(now_ns, now_ns - before_ns, gpu, steps))
            before_ns = now_ns
