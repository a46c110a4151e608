"""Which functions of a rank's libraries are collectives that return when they are done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from edge_agent.probes.elf_bytes import ElfError
from edge_agent.probes.elf_file import ElfFile
from edge_agent.probes.proc_maps import read_maps
from edge_agent.sources.step_programs import StepProbe


class _Library(NamedTuple):
    """Files by name, and what the symbols of their collectives begin with."""

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
above the other. NCCL's calls are not here: they return at once, before anybody has met."""

_MOST_PROCESSES: Final = 1024


def collective_probes(pids: Iterable[int], proc: str = "/proc") -> tuple[StepProbe, ...]:
    """Find the collectives in the libraries that processes have mapped: each file once."""
    found: dict[tuple[int, int], tuple[StepProbe, ...]] = {}
    for pid in list(pids)[:_MOST_PROCESSES]:
        paths = {module.path for module in read_maps(proc, pid)}
        for library in _LIBRARIES:
            known = [_probes(found, library, f"{proc}/{pid}/root{path}") for path in sorted(paths)]
            if any(known):
                break
    return tuple(probe for probes in found.values() for probe in probes)


def _probes(
    found: dict[tuple[int, int], tuple[StepProbe, ...]], library: _Library, path: str
) -> bool:
    """Look at one file of one process; tell whether it has collectives."""
    name = Path(path).name
    if not any(fnmatchcase(name, pattern) for pattern in library.files):
        return False
    try:
        with Path(path).open("rb") as file:
            about = os.fstat(file.fileno())
            key = about.st_dev, about.st_ino
            if key not in found:
                wanted = tuple(symbol.encode() for symbol in library.symbols)
                functions = {one.offset: one.name for one in ElfFile.read(file).functions(wanted)}
                found[key] = tuple(
                    StepProbe(path, symbol, returns=True, name=f"{name}:{symbol}")
                    for symbol in functions.values()
                )
            return bool(found[key])
    except (OSError, ElfError):
        return False
