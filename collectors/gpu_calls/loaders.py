"""Which loader serves on this machine: libbpf where it can, else BCC."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Final, NamedTuple

from collectors.boot_clock import boottime_ns
from collectors.port import SourceUnavailable

from . import programs, programs_bcc
from .later import LaterPrograms
from .probe_table import ProbeTable


class Loader(StrEnum):
    """What an operator may ask for; auto: the first of the others that serves."""

    AUTO = "auto"
    LIBBPF = "libbpf"
    BCC = "bcc"


_MODULES: Final[dict[Loader, ModuleType]] = {Loader.LIBBPF: programs, Loader.BCC: programs_bcc}


class Chosen(NamedTuple):
    """Programs that load when they are needed, and whether a governor may switch their links."""

    programs: LaterPrograms
    loader: Loader
    cyclable: bool


def unavailable(asked: Loader = Loader.AUTO) -> str | None:
    """Say in one line why no loader that was asked for can serve here, or None."""
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
            return Chosen(LaterPrograms(load, now_ns, tries=quick), loader, quick)
    raise SourceUnavailable(unavailable(asked) or "expected a loader, found none")


def _chosen(asked: Loader) -> tuple[Loader, ...]:
    return tuple(_MODULES) if asked is Loader.AUTO else (asked,)
