"""What one probe hit costs on this machine, by the class of the probed instruction.

Measured at start in this very process: a few bytes of machine code in a file of memory hold one
function of each class and a loop that calls it; the loop is timed with and without a probe. No
other process ever maps that file, so no other process is probed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from collectors.binaries.elf_file import EntryClass
from collectors.port import SourceUnavailable

CALLS: Final = 2_000
ROUNDS: Final = 5
_SLOT: Final = 64

_X86_64: Final = {
    "loop": "53 55 4889fb 4889f5 ffd5 48ffcb 75f9 5d 5b c3",
    EntryClass.EMULATED: "55 5d c3",
    EntryClass.STEPPED: "488d0424 c3",
    EntryClass.NOP5: "0f1f440000 c3",
}
"""loop(calls, function): rbx counts down, rbp is called. Then push, lea and a five-byte nop."""

_ARM64: Final = {
    "loop": "fd7bbea9 f35301a9 f30300aa f40301aa 80023fd6 730600f1 c1ffff54 f35341a9 fd7bc2a8 "
    "c0035fd6",
    EntryClass.EMULATED: "1f2003d5 c0035fd6",
    EntryClass.STEPPED: "ff4300d1 ff430091 c0035fd6",
}
"""The same with x19 and x20; nop and sub (stepped). There is no class of five-byte nops."""

_CODE: Final = {"x86_64": _X86_64, "aarch64": _ARM64}


class HitCost(NamedTuple):
    """Nanoseconds of one hit, at the entry alone and with the return probed too."""

    entry_ns: float
    both_ns: float

    @property
    def return_ns(self) -> float:
        """What the return adds."""
        return max(self.both_ns - self.entry_ns, 0.0)


Attach = Callable[[str, int, bool], AbstractContextManager[object]]
"""attach(path, offset, returns): probe a file's offset while the context lasts."""


class CalibrationTarget:
    """One function of each entry class, callable in this process; a file that can be probed."""

    def __init__(self, machine: str | None = None) -> None:
        """Map the code. Raises SourceUnavailable on an unknown machine or without executable maps.

        machine  as platform.machine() names it, None: this one
        """
        code = _CODE.get(machine or platform.machine())
        if code is None:
            raise SourceUnavailable(
                f"probe costs: expected {' or '.join(_CODE)}, got {platform.machine()}"
            )
        image = b"".join(bytes.fromhex(part).ljust(_SLOT, b"\0") for part in code.values())
        self.classes: tuple[EntryClass, ...] = tuple(k for k in code if isinstance(k, EntryClass))
        self._file = os.memfd_create("pointillist-calibration", os.MFD_CLOEXEC)
        try:
            os.write(self._file, image.ljust(mmap.PAGESIZE, b"\0"))
            self._map = mmap.mmap(
                self._file,
                mmap.PAGESIZE,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_EXEC,  # the kernel probes no writable map
            )
        except OSError as error:
            os.close(self._file)
            raise SourceUnavailable(f"probe costs: cannot map code: {error}") from None
        self._first = int(np.frombuffer(self._map, dtype=np.uint8).ctypes.data)
        self._loop = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_void_p)(self._first)

    @property
    def path(self) -> str:
        """A path under which this process can open the file."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def offset(self, entry: EntryClass) -> int:
        """Give where the function of a class lies in the file."""
        return _SLOT * (1 + self.classes.index(entry))

    def call(self, entry: EntryClass, calls: int) -> float:
        """Call a function; gives nanoseconds of CPU time per call."""
        begin = time.thread_time_ns()  # by the clock on the wall a busy machine doubles the cost
        self._loop(calls, self._first + self.offset(entry))
        return (time.thread_time_ns() - begin) / calls

    def close(self) -> None:
        """Close the file; the mapping lives as long as this object."""
        os.close(self._file)


def calibrate(
    target: CalibrationTarget, attach: Attach, calls: int = CALLS
) -> Mapping[EntryClass, HitCost]:
    """Measure every class: medians of rounds that take turns with bare ones."""
    costs: dict[EntryClass, HitCost] = {}
    for entry in target.classes:
        bare, hit, both = [], [], []
        for _ in range(ROUNDS):
            bare.append(target.call(entry, calls))
            with attach(target.path, target.offset(entry), False):
                hit.append(target.call(entry, calls))
                with attach(target.path, target.offset(entry), True):
                    both.append(target.call(entry, calls))
        floor = median(bare)
        costs[entry] = HitCost(max(median(hit) - floor, 0.0), max(median(both) - floor, 0.0))
    return costs
