"""What a workload shares with the bench: knobs it obeys, sums it keeps, and its own step times.

Two mapped files in the workload's folder. Used by programs under the system's Python: nothing but
the standard library here.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

KNOBS: Final = (
    "stop",  # 1: end after this step
    "batch_scale",  # work of a step, relative
    "phase",  # 0 training, 1 evaluation: more copying, hardly any exchange
    "checkpoint_bytes",  # written and synced in one step when `checkpoints` was raised
    "checkpoints",
    "peer_delay_ms",  # the peer answers this much later ...
    "peer_share",  # ... on this share of its answers
    "store_bytes_per_s",  # the store behind the feeder gives no more; 0: as much as it can
    "decode_ms",  # CPU time the feeder spends on an item, beyond the usual
    "hold_ms",  # a second thread holds the interpreter this long, again and again
)
SUMS: Final = (
    "input_wait_s",  # waited for the feeder
    "exchange_wait_s",  # waited for the peer
    "decodes",  # items the feeder made
    "held_s",  # time the second thread held the interpreter
    "checkpoints_done",
    "beyond_usual",  # work of steps beyond that of as many usual ones
    "evaluated",  # steps in phase 1
    "stops",  # times the job's process was stopped
)
_ROWS: Final = 1 << 16
_ROW: Final = struct.Struct("<qq")
_COUNT: Final = struct.Struct("<q")


def _mapped(path: Path, size: int) -> mmap.mmap:
    if not path.exists():
        path.write_bytes(bytes(size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), size)


class Knobs:
    """Named doubles in a mapped file; each has one writer at a time."""

    def __init__(self, folder: Path) -> None:
        self._names = {name: 8 * row for row, name in enumerate(KNOBS + SUMS)}
        self._memory = _mapped(folder / "knobs", 8 * len(self._names))

    def __getitem__(self, name: str) -> float:
        value: float = struct.unpack_from("<d", self._memory, self._names[name])[0]
        return value

    def __setitem__(self, name: str, value: float) -> None:
        struct.pack_into("<d", self._memory, self._names[name], value)

    def add(self, name: str, amount: float) -> None:
        """Add to a sum that only the caller's process writes."""
        self[name] = self[name] + amount

    def reset(self) -> None:
        """Put every knob back to rest: nothing held back, nothing slowed."""
        for name in KNOBS:
            if name not in {"stop", "checkpoints"}:
                self[name] = 1.0 if name == "batch_scale" else 0.0


class StepLog:
    """The workload's own times of its last 65,536 steps: the truth that probes are held against."""

    def __init__(self, folder: Path, name: str = "steps") -> None:
        self._memory = _mapped(folder / name, _COUNT.size + _ROWS * _ROW.size)

    def add(self, ended_ns: int, duration_ns: int) -> None:
        count = _COUNT.unpack_from(self._memory)[0]
        offset = _COUNT.size + count % _ROWS * _ROW.size
        _ROW.pack_into(self._memory, offset, ended_ns, duration_ns)
        _COUNT.pack_into(self._memory, 0, count + 1)

    def __len__(self) -> int:
        return int(_COUNT.unpack_from(self._memory)[0])

    def between(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return (ended, duration) of the steps that ended in [start, end), oldest first."""
        count = len(self)
        rows = (
            _ROW.unpack_from(self._memory, _COUNT.size + step % _ROWS * _ROW.size)
            for step in range(max(0, count - _ROWS), count)
        )
        return [(ended, duration) for ended, duration in rows if start_ns <= ended < end_ns]
