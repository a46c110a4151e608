"""The process that is watched, and who watches it: steps, and looks at the GPU, once a second."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Final

from collectors.boot_clock import boottime_ns
from collectors.devices.cuda import Cuda
from collectors.devices.device_port import ALL, DeviceReader
from diagnosis.frames.gpu_signals import GpuSignals
from scripts.pressure.cases import Second
from scripts.pressure.copies import context_of, made

STEP_BYTES: Final = 16 << 20


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
