"""Waiting for somebody else, faults that no class names, and what only looks like a fault.

Of the unnamed the right answer is `unknown`. Stops are held out altogether: no method is trained or
tuned on them. A held interpreter is for tuning the rejection. Of what is no fault it is silence.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Final

from bench.diagnosis.faults.fault import CpuUse, Fault, Graded
from bench.diagnosis.workloads.feed import ITEM_BYTES

NONE: Final = "none"
_SECTOR_BYTES: Final = 512


class _PeerWait(Fault):
    cause = "communication_wait"
    counter = "exchange_wait_s"
    least = 0.05

    def meter(self) -> float:
        return self.work.knobs["exchange_wait_s"]


class SlowPeer(Graded, _PeerWait):
    """The peer answers late, on a share of its answers."""

    injector = "slow_peer"
    grades = (5.0, 10.0, 30.0)
    rest = 0.0

    def apply(self, number: float) -> None:
        self.work.knobs["peer_share"] = 0.5
        self.work.knobs["peer_delay_ms"] = number

    def withdraw(self) -> None:
        self.work.knobs["peer_delay_ms"] = 0


class ThrottledPeer(Graded, _PeerWait):
    """The peer's cgroup has a quota below what the peer needs: it stands still for milliseconds."""

    injector = "throttled_peer"
    grades = (0.8, 0.7, 0.45)
    rest = 1.6

    _use: CpuUse

    def watch(self) -> None:
        self._use = CpuUse(self.work.peer, 0.02)
        super().watch()

    def apply(self, number: float) -> None:
        self.work.peer.set_quota(self._use.cores(self.watched_s()) * number)

    def withdraw(self) -> None:
        self.work.peer.set_quota(None)


class _InputWait(Fault):
    cause = "input_starvation"
    counter = "input_wait_s"
    least = 0.05

    _items, _rate = 0.0, 0.0

    def watch(self) -> None:
        self._items = self.work.knobs["decodes"]
        super().watch()

    def items_per_s(self) -> float:
        """Items that the job took in the undisturbed stretch; first asked at its end."""
        if self._rate == 0.0:
            items = self.work.knobs["decodes"] - self._items
            self._rate = max(1.0, items / self.watched_s())
        return self._rate

    def meter(self) -> float:
        return self.work.knobs["input_wait_s"]


class SlowStore(Graded, _InputWait):
    """The store behind the feeder gives fewer bytes a second than the job takes."""

    injector = "slow_store"
    grades = (0.75, 0.5, 0.3)
    rest = 1.5

    def apply(self, number: float) -> None:
        self.work.knobs["store_bytes_per_s"] = self.items_per_s() * ITEM_BYTES * number

    def withdraw(self) -> None:
        self.work.knobs["store_bytes_per_s"] = 0


class HeavyDecode(Graded, _InputWait):
    """The feeder's items take longer to decode than a step lasts."""

    injector = "heavy_decode"
    grades = (1.3, 1.8, 3.0)
    rest = 0.3

    def apply(self, number: float) -> None:
        self.work.knobs["decode_ms"] = 1e3 / self.items_per_s() * number

    def withdraw(self) -> None:
        self.work.knobs["decode_ms"] = 0


class ProcessStops(Fault):
    """The job's process is stopped and continued by signals, as by a debugger."""

    cause = "unknown"
    injector = "process_stops"
    counter = "stops"
    least = 0.5
    stops: Final = ((15.0, 250.0), (30.0, 200.0), (80.0, 250.0))

    def meter(self) -> float:
        return self.work.knobs["stops"]

    def inject(self) -> None:
        stop_ms, every_ms = self.stops[self.intensity]
        pid, folder = self.work.main.pid, self.work.folder
        self.load("stops", folder, pid, stop_ms, every_ms, self.seed)

    def withdraw(self) -> None:
        # Its last stop may have been cut off before the process went on.
        os.kill(self.work.main.pid, signal.SIGCONT)


class HeldInterpreter(Fault):
    """A second thread of the job holds the interpreter's lock."""

    cause = "unknown"
    injector = "held_interpreter"
    counter = "held_s"
    least = 0.05
    holds_ms: Final = (4.0, 10.0, 30.0)

    def meter(self) -> float:
        return self.work.knobs["held_s"]

    def inject(self) -> None:
        self.work.knobs["hold_ms"] = self.holds_ms[self.intensity]

    def withdraw(self) -> None:
        self.work.knobs["hold_ms"] = 0


class BatchSize(Fault):
    """The job's batches grow: every step has more of everything."""

    cause = NONE
    injector = "batch_size"
    counter = "work_beyond_usual"
    least = 0.1
    scales: Final = (1.25, 1.5, 2.0)

    def meter(self) -> float:
        return self.work.knobs["beyond_usual"]

    def inject(self) -> None:
        self.work.knobs["batch_scale"] = self.scales[self.intensity]

    def withdraw(self) -> None:
        self.work.knobs["batch_scale"] = 1.0


class PhaseChange(Fault):
    """The job goes from training to evaluation: more copying, hardly any exchange."""

    cause = NONE
    injector = "phase_change"
    counter = "evaluation_steps"
    least = 1.0

    def meter(self) -> float:
        return self.work.knobs["evaluated"]

    def inject(self) -> None:
        self.work.knobs["phase"] = 1.0

    def withdraw(self) -> None:
        self.work.knobs["phase"] = 0.0


class Checkpoints(Fault):
    """The job writes its state and waits for the disk, twice."""

    cause = NONE
    injector = "checkpoint"
    counter = "checkpoints"
    least = 0.01
    sizes: Final = (32 << 20, 96 << 20, 256 << 20)
    _second: threading.Timer | None = None

    def meter(self) -> float:
        return self.work.knobs["checkpoints_done"]

    def _write(self) -> None:
        self.work.knobs["checkpoints"] += 1

    def inject(self) -> None:
        self.work.knobs["checkpoint_bytes"] = self.sizes[self.intensity]
        self._write()
        self._second = threading.Timer(12.0, self._write)
        self._second.start()

    def withdraw(self) -> None:
        if self._second is not None:
            self._second.cancel()


class WarmUp(Fault):
    """The job ends and is started anew: imports, cold files, first steps."""

    cause = NONE
    injector = "warm_up"
    counter = "restarts"
    least = 0.01
    _restarts = 0

    def meter(self) -> float:
        return self._restarts

    def inject(self) -> None:
        self.work.restart()
        self._restarts += 1


class Writeback(Fault):
    """Somebody else writes files at a rate the disk bears, and the kernel flushes them."""

    cause = NONE
    injector = "writeback"
    counter = "bytes_written"
    least = 5e6
    rates: Final = (10e6, 25e6, 50e6)

    def meter(self) -> float:
        device = self.work.folder.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        return int(block.read_text(encoding="utf-8").split()[6]) * _SECTOR_BYTES

    def inject(self) -> None:
        self.load("write", self.work.folder / "others", self.rates[self.intensity])
