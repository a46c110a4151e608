"""How long the work of a step takes and when it stalls: what a made GPU tells the job on it.

A mapped file in the job's folder. Used under the system's Python: the standard library alone.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

_FIELDS: Final = struct.Struct("<ddq")


class Pace:
    """Three numbers with one writer: the bench.

    work_ms     of a step
    stall_ms    of the last stall
    stalls      how many there were
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "pace"
        if not path.exists():
            path.write_bytes(_FIELDS.pack(1.0, 0.0, 0))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _FIELDS.size)

    @property
    def work_ms(self) -> float:
        return float(_FIELDS.unpack_from(self._memory)[0])

    @property
    def stall_ms(self) -> float:
        return float(_FIELDS.unpack_from(self._memory)[1])

    @property
    def stalls(self) -> int:
        return int(_FIELDS.unpack_from(self._memory)[2])

    def tell(self, work_ms: float, stall_ms: float = 0.0) -> None:
        """Set the work, and stall the job once where a stall is given."""
        _, before, stalls = _FIELDS.unpack_from(self._memory)
        _FIELDS.pack_into(
            self._memory, 0, work_ms, stall_ms or before, stalls + (1 if stall_ms else 0)
        )
