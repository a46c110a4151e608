"""Checks of GPU time: the library, the socket, and the programs that use a GPU."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from collectors.gpu_time.found_programs import FoundPrograms, GpuProgram, gpu_programs, library_file
from collectors.gpu_time.listener import try_out
from collectors.gpu_time.process_times import timing_state
from collectors.gpu_time.settings import DEFAULT_SOCKET, MOST_SOCKET_PATH
from collectors.records.gpu_time import TimingState
from edge_agent.local.timing_words import ADVICE, cupti_name, said
from transport.process.doctor_findings import Check, CheckVerdict, Finding

from .doctor_host import library

GPU_TIME: Final = "gpu time"
_MOST_NAMED: Final = 8


def gpu_time_checks(
    socket: Path = DEFAULT_SOCKET,
    look: Callable[[], FoundPrograms] = gpu_programs,
    library: Path | None = None,
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks; tests have programs and a library of their own."""
    yield GPU_TIME, "library", lambda: _library(library or library_file())
    yield GPU_TIME, "socket", lambda: _socket(socket)
    yield GPU_TIME, "programs", lambda: programs(look())


def _finding(name: str, found: str, do: str | None = None) -> Finding:
    verdict = CheckVerdict.OK if do is None else CheckVerdict.ABSENT
    return Finding(GPU_TIME, name, verdict, found, do)


def _library(path: Path) -> Finding:
    """Check that GPU programs of any user can load it."""
    if not path.is_file():
        return _finding("library", f"expected {path}, found none", "use a machine of x86-64")
    closed = [folder for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH]
    if not path.stat().st_mode & stat.S_IROTH:
        closed.append(path)
    if closed:
        found = f"{path}: programs of other users cannot read it, as {closed[-1]} is closed to them"
        return _finding("library", found, "install Pointillist where every user may read it")
    return replace(library("library", str(path), "install Pointillist anew"), group=GPU_TIME)


def _socket(path: Path) -> Finding:
    """Check that the agent could listen."""
    if len(os.fsencode(path)) > MOST_SOCKET_PATH:
        found = f"{path}: expected at most {MOST_SOCKET_PATH} bytes, got {len(os.fsencode(path))}"
        return _finding("socket", found, "set a shorter sources.gpu_time.socket")
    if path.is_socket():
        return _finding("socket", f"{path} is there")
    if not path.parent.is_dir():
        do = f"start the agent by its systemd unit, or make {path.parent} for the agent's user"
        return _finding("socket", f"expected the folder {path.parent}, found none", do)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        do = f"`chown` {path.parent} to the agent's user"
        return _finding("socket", f"{path.parent} is not this user's to write", do)
    try_out(path)
    return _finding("socket", f"{path}: an agent can listen there")


def programs(looked: FoundPrograms) -> Finding:
    """Name the programs that use a GPU: timed with which CUPTI, or not and why."""
    timed, missing, do = list[str](), list[str](), ""
    for program in looked.programs:
        state = program_state(program)
        if state in {TimingState.MEASURED, TimingState.STARTING}:
            timed.append(f"{_name(program)} with CUPTI {_cupti(program) or 'of no version yet'}")
        else:
            error = program.state.header["error"] if program.state is not None else 0
            missing.append(f"{_name(program)}: {said(state, error)}")
            do = do or ADVICE.get(state, "")
    parts = [f"attached: {_listed(timed)}"] if timed else []
    parts += [f"not timed: {_listed(missing)}"] if missing else []
    if looked.hidden:
        many = "process" if looked.hidden == 1 else "processes"
        parts.append(f"{looked.hidden} {many} of others may not be looked into")
    return _finding("programs", "; ".join(parts) or "no program uses a GPU now", do or None)


def program_state(program: GpuProgram) -> TimingState:
    """Tell whether a program is timed, from what /proc and its library say."""
    if not program.attached:
        return TimingState.NO_LIBRARY
    if program.state is None:
        return TimingState.UNKNOWN
    return timing_state(program.state)


def _cupti(program: GpuProgram) -> str:
    return cupti_name(program.state.header["cupti_version"]) if program.state is not None else ""


def _name(program: GpuProgram) -> str:
    return f"{program.name}[{program.process.pid}]"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MOST_NAMED
    return ", ".join(every[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
