"""Which loader serves on this machine, libbpf where it can, else BCC.

Programs are loaded when the first file is attached: a host without a GPU library pays for none of
their 21 MiB. Once loaded they stay: the next container's first process need not wait again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Final, NamedTuple, Protocol

from collectors.boot_clock import boottime_ns
from collectors.bpf.uprobes import UprobeWay, uprobe_way
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import FileGroup, ProbeGroup

from . import programs, programs_bcc
from .probe_plan import Attachment
from .probe_table import ProbeTable
from .readout import ProbeDrain


class Programs(Protocol):
    @property
    def attached(self) -> frozenset[FileGroup]: ...
    def attach(self, file: int, path: str, attachments: Sequence[Attachment], /) -> None: ...
    def detach_all(self, file_groups: Collection[FileGroup], /) -> None: ...
    def drain(self, now_ns: int, /) -> ProbeDrain: ...
    def close(self) -> None: ...


class LaterPrograms:
    """Stands for programs before and after they are loaded; from any thread, as they are."""

    def __init__(self, load: Callable[[], Programs], now_ns: int, *, tries: bool) -> None:
        """Load nothing yet; `tries`: loading is cheap enough for `try_out` to do it in vain."""
        self._load, self._begun_ns, self._tries = load, now_ns, tries
        self._programs: Programs | None = None
        self._changing = threading.Lock()
        self.failure: str | None = None

    def try_out(self, *, dear: bool = False) -> None:
        """Find out now whether the kernel and our rights let us load. Raises SourceUnavailable."""
        if self.failure is None and self._programs is None and (self._tries or dear):
            self._load().close()
        if self.failure is not None:
            raise SourceUnavailable(self.failure)

    @property
    def attached(self) -> frozenset[FileGroup]:
        return self._programs.attached if self._programs is not None else frozenset()

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        """Probe a file for every process; the first call loads. Raises SourceUnavailable."""
        self._loaded().attach(file, path, attachments)

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        if self._programs is not None:
            self._programs.detach_all(file_groups)

    def drain(self, now_ns: int) -> ProbeDrain:
        """Give everything since the last drain. Raises SourceUnavailable."""
        begun_ns, self._begun_ns = self._begun_ns, now_ns
        if self._programs is None:
            return ProbeDrain(begun_ns, max(1, now_ns - begun_ns))
        return _since(begun_ns, self._programs.drain(now_ns))

    def close(self) -> None:
        if self._programs is not None:
            self._programs.close()

    def _loaded(self) -> Programs:
        with self._changing:
            if self.failure is not None:
                raise SourceUnavailable(self.failure)
            if self._programs is None:
                try:
                    self._programs = self._load()
                except SourceUnavailable as error:
                    self.failure = str(error)
                    raise
            return self._programs


def _since(begun_ns: int, drain: ProbeDrain) -> ProbeDrain:
    """Have the first drain of the programs span what was drained without them last."""
    if drain.begun_ns == begun_ns:
        return drain
    span_ns = max(1, drain.begun_ns + drain.span_ns - begun_ns)
    duty = {place: min(1.0, d * drain.span_ns / span_ns) for place, d in drain.duty.items()}
    return replace(drain, begun_ns=begun_ns, span_ns=span_ns, duty=duty)


class Loader(StrEnum):
    AUTO = "auto"
    LIBBPF = "libbpf"
    BCC = "bcc"


_MODULES: Final[dict[Loader, ModuleType]] = {Loader.LIBBPF: programs, Loader.BCC: programs_bcc}


class Chosen(NamedTuple):
    """Programs that load when they are needed, and how dear it is to let go of a place.

    turns       groups that a governor may switch
    few         few places are to be probed
    """

    programs: LaterPrograms
    loader: Loader
    turns: frozenset[ProbeGroup]
    few: bool


def unavailable(asked: Loader = Loader.AUTO) -> str | None:
    reasons = {loader: _MODULES[loader].unavailable() for loader in _chosen(asked)}
    if not all(reasons.values()):
        return None
    return "; ".join(f"{loader}: {reason}" for loader, reason in reasons.items())


def choose(table: ProbeTable, asked: Loader = Loader.AUTO) -> Chosen:
    """Choose the first loader that serves. Raises SourceUnavailable."""
    for loader in _chosen(asked):
        if _MODULES[loader].unavailable() is None:
            load = partial(_MODULES[loader].GpuPrograms, table)
            quick = loader is Loader.LIBBPF  # BCC's compiler takes a second and 100 MiB
            now_ns = boottime_ns()
            later = LaterPrograms(load, now_ns, tries=quick)
            if not quick:
                return Chosen(later, loader, frozenset(), few=False)
            if uprobe_way() is UprobeWay.EVENTS:
                return Chosen(later, loader, frozenset({ProbeGroup.LAUNCH}), few=True)
            return Chosen(later, loader, frozenset(ProbeGroup), few=False)
    raise SourceUnavailable(unavailable(asked) or "expected a loader, found none")


def _chosen(asked: Loader) -> tuple[Loader, ...]:
    return tuple(_MODULES) if asked is Loader.AUTO else (asked,)
