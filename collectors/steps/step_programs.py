"""Loads the programs that mark steps, and attaches them to named functions by file."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import bpf
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.elf_layout import ElfError
from collectors.bpf.bpf_maps import MarkRing, PerCpuMap
from collectors.bpf.libbpf import BpfObject
from collectors.bpf.uprobes import UPROBE_MULTI, UprobeLink, expect_links
from collectors.gpu_calls.programs import unavailable
from collectors.port import SourceUnavailable
from collectors.records.activity import RhythmKind

RING_BYTES: Final = 1 << 20
"""16,384 marks a second between two drains."""
THREAD_FIELDS: Final = ("began_ns", "thread_start_ns", "tgid", "process_start_ns", "lost")
"""Words of `struct step_thread` in bpf/include/marks.h (a test compares)."""

_MOST_THREADS: Final = 4096
_PROGRAMS: Final = ("step_call", "step_begin", "step_end")


@dataclass(frozen=True, slots=True)
class StepProbe:
    """A function whose calls are a program's steps.

    path      of the program or library: by file, so every process that maps it is marked
    symbol    the function's name in .symtab or .dynsym
    returns   True: each call is a step; False: a step lasts from one call to the next of a thread
    name      for people; "": `file:symbol`
    kind      where several calls make a step: what they are as marks of the rhythm, so that it is
              learnt how many (SYNCHRONISE, COLLECTIVE); None: the calls are steps
    """

    path: str
    symbol: str
    returns: bool = False
    name: str = ""
    kind: RhythmKind | None = None

    @property
    def title(self) -> str:
        """Name of the probe in records."""
        return self.name or f"{Path(self.path).name}:{self.symbol}"


class StepPrograms:
    """Loaded programs; nothing is probed until `attach`."""

    def __init__(self, unified: bool) -> None:
        """Load. Raises SourceUnavailable.

        unified     the CPU controller is on the unified hierarchy
        """
        reason = unavailable()
        if reason:
            raise SourceUnavailable(reason)
        self._object = BpfObject(files(bpf).joinpath("objects/steps.bpf.o").read_bytes())
        self._links: dict[int, list[UprobeLink]] = {}
        try:
            for program in _PROGRAMS:
                self._object.expect_attach_type(program, UPROBE_MULTI)
            self._object.set_max_entries("step_marks", RING_BYTES)
            self._object.set_max_entries("step_threads", _MOST_THREADS)
            self._object.set_initial(".rodata.marks", struct.pack("=II", unified, 0))
            self._object.load()
            expect_links(self._object.program_fd(_PROGRAMS[0]))
            self._ring = MarkRing(self._object.map_fd("step_marks"), RING_BYTES)
        except BaseException:
            self._object.close()
            raise
        fd = self._object.map_fd("step_threads")
        self._threads = PerCpuMap(fd, 8, len(THREAD_FIELDS), 1, _MOST_THREADS)

    def attach(self, number: int, probe: StepProbe) -> None:
        """Mark a function's calls in every process that maps its file. Raises SourceUnavailable."""
        place = place_of(probe)
        fd = self._object.program_fd
        made: list[UprobeLink] = []
        kinds = [("step_end", True), ("step_begin", False)] if probe.returns else []
        try:
            for program, returns in kinds or [("step_call", False)]:
                link = UprobeLink(fd(program), probe.path, [place], [number], returns=returns)
                made.append(link)
        except SourceUnavailable:
            for link in made:
                link.close()
            raise
        self._links[number] = made

    def detach(self, number: int) -> None:
        """Stop marking one probe's calls; one that is not attached is no error."""
        for link in self._links.pop(number, []):
            link.close()

    def marks(self) -> NDArray[np.uint64]:
        """Take the marks since the last call: uint64[n, MARK_FIELDS]."""
        return self._ring.read()

    def threads(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Read what threads are in: keys uint64[n] and values uint64[n, THREAD_FIELDS]."""
        keys, values = [np.zeros(0, np.uint64)], [np.zeros((0, len(THREAD_FIELDS)), np.uint64)]
        for raw, found in self._threads.batches():
            keys.append(raw.copy().view(np.uint64).reshape(-1))
            values.append(found[:, 0, :].copy())
        return np.concatenate(keys), np.concatenate(values)

    def forget(self, key: int) -> None:
        """Remove a thread's row."""
        self._threads.delete(key.to_bytes(8, "little"))

    def close(self) -> None:
        """Detach and unload; a second call does nothing."""
        for number in list(self._links):
            self.detach(number)
        self._ring.close()
        self._object.close()


def place_of(probe: StepProbe) -> int:
    """Find a function's offset in its file. Raises SourceUnavailable."""
    name = probe.symbol.encode()
    try:
        with open(probe.path, "rb", opener=_opener) as file:
            elf = ElfFile.read(file)
            offsets = {f.offset for f in elf.functions((name,)) if f.name == probe.symbol}
    except OSError as error:
        raise SourceUnavailable(f"{probe.path}: {error.strerror}") from None
    except ElfError as error:
        raise SourceUnavailable(f"{probe.path}: {error}") from None
    if not offsets:
        raise SourceUnavailable(f"{probe.path}: expected a function {probe.symbol}, found none")
    return min(offsets)


def _opener(path: str, flags: int) -> int:
    """Open without waiting for a writer: a path may be a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
