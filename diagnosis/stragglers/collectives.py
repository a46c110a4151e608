"""Which functions of a rank's libraries are collectives, and which wait for their end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import read_maps
from collectors.gpu_calls.probe_table import CallKind, ProbeRow, ProbeTable
from collectors.steps.steps_source import MOST_PROBES, StepProbe


class CallRole(StrEnum):
    MEETS = "meets"
    """It returns when the collective is done."""
    ENQUEUES = "enqueues"
    """It gives the collective to a GPU's stream, and returns at once."""
    WAITS = "waits"
    """It waits for a GPU."""


class _Library(NamedTuple):
    files: tuple[str, ...]
    symbols: tuple[str, ...]


_LIBRARIES: Final = (
    # PyTorch's one place where every gloo collective runs, whether gloo is linked in or beside it.
    _Library(("libtorch_cpu*.so*",), ("_ZN4c10d16ProcessGroupGloo9AsyncWork7execute",)),
    _Library(
        ("libgloo*.so*",),
        tuple(
            f"_ZN4gloo{len(name)}{name}E"
            for name in (
                "allreduce", "allgather", "allgatherv", "alltoall", "alltoallv", "barrier",
                "broadcast", "reduce",
            )
        ),
    ),
    _Library(
        ("libmpi.so*", "libmpich.so*", "libmpi_*.so*"),
        ("PMPI_Allreduce", "PMPI_Allgather", "PMPI_Alltoall", "PMPI_Barrier", "PMPI_Bcast",
         "PMPI_Reduce_scatter"),
    ),
)  # fmt: skip
"""The first library of a process that has any of its symbols is probed, and no other: one lies
above the other."""

_GPU_COLLECTIVES: Final = ("nccl", "rccl")
_OF_ALL: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Nobody can leave one of these before all have entered it."""
_RUNTIMES: Final = ("cudart", "hip", "cuda")
"""The first that a process has is asked when it waits: one lies above the other."""
_PREFIXES: Final = {
    "nccl": "nccl",
    "rccl": "nccl",
    "cudart": "cuda",
    "hip": "hip",
    "cuda": "cu",
}

_MOST_PROCESSES: Final = 1024

_Found = dict[tuple[int, int, CallRole], tuple[StepProbe, ...]]
_Names = Callable[[ElfFile], Iterable[str]]


def role_of(title: str) -> CallRole:
    role = title.partition(" ")[0]
    return CallRole(role) if role in {CallRole.ENQUEUES, CallRole.WAITS} else CallRole.MEETS


def collective_probes(pids: Iterable[int], proc: str = "/proc") -> tuple[StepProbe, ...]:
    """Find the collectives in libraries that processes have mapped, at most MOST_PROBES."""
    found: _Found = {}
    for pid in list(pids)[:_MOST_PROCESSES]:
        mapped = {module.path for module in read_maps(proc, pid)}
        paths = [f"{proc}/{pid}/root{path}" for path in sorted(mapped)]
        for library in _LIBRARIES:
            if _look(
                found,
                paths,
                library.files,
                CallRole.MEETS,
                _names(library.symbols),
            ):
                break
        if _gpu(found, paths, _GPU_COLLECTIVES, CallRole.ENQUEUES):
            _gpu(found, paths, _RUNTIMES, CallRole.WAITS)
    return tuple(probe for probes in found.values() for probe in probes)[:MOST_PROBES]


def _gpu(found: _Found, paths: list[str], tables: Iterable[str], role: CallRole) -> bool:
    """Look for the rows of the first probe table that any file has symbols of."""
    for table in tables:
        rows = _rows(table, role)

        def fits(name: str, rows: tuple[ProbeRow, ...] = rows) -> bool:
            return any(row.has_symbol(name) for row in rows)

        files = tuple(dict.fromkeys(name for row in rows for name in row.files))
        if rows and _look(found, paths, files, role, _names((_PREFIXES[table],), fits)):
            return True
    return False


@cache
def _rows(table: str, role: CallRole) -> tuple[ProbeRow, ...]:
    own = [row for row in ProbeTable.load().rows if row.id.startswith(f"{table}.")]
    if role is CallRole.WAITS:
        return tuple(row for row in own if row.kind is CallKind.WAIT and "synchronize" in row.id)
    return tuple(row for row in own if row.id.partition(".")[2] in _OF_ALL)


def _names(prefixes: Iterable[str], fits: Callable[[str], bool] = lambda _: True) -> _Names:
    """Give what names a file's functions that begin so and fit, each offset once."""

    wanted = tuple(prefix.encode() for prefix in prefixes)

    def names(elf: ElfFile) -> Iterable[str]:
        found = (function for function in elf.functions(wanted) if fits(function.name))
        return {function.offset: function.name for function in found}.values()

    return names


def _look(
    found: _Found, paths: list[str], files: tuple[str, ...], role: CallRole, names: _Names
) -> bool:
    known = [_probes(found, path, files, role, names) for path in paths]
    return any(known)


def _probes(
    found: _Found, path: str, files: tuple[str, ...], role: CallRole, names: _Names
) -> bool:
    name = Path(path).name
    if not any(fnmatchcase(name, pattern) for pattern in files):
        return False
    try:
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            key = about.st_dev, about.st_ino, role
            if key not in found:
                # Of what returns at once its return tells nothing, and costs a second trap.
                returns = role is not CallRole.ENQUEUES
                title = f"{name}:" if role is CallRole.MEETS else f"{role} {name}:"
                found[key] = tuple(
                    StepProbe(path, symbol, returns=returns, name=f"{title}{symbol}")
                    for symbol in names(ElfFile.read(file))
                )
            return bool(found[key])
    except (OSError, ElfError):
        return False
