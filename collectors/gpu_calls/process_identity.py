"""Probed processes: name, container, pod and batch job, which are left out. Raw: it stays here.

Container, pod and job come from the path of the cgroup (v1 and v2; docker, containerd, cri-o,
podman; Kubernetes; Slurm), and from Slurm's variables where the environment can be read
(CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for other users' processes).
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from collectors.binaries.proc_maps import process_key
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProcessLabels

_MOST_BYTES: Final = 256 << 10
_HEX: Final = r"[0-9a-f]{64}"
_ENGINES: Final = (
    ("docker", re.compile(rf"(?:^docker-({_HEX})\.scope$|^({_HEX})$)")),
    ("containerd", re.compile(rf"^(?:cri-containerd|nerdctl)-({_HEX})(?:\.scope)?$")),
    ("cri-o", re.compile(rf"^crio-({_HEX})(?:\.scope)?$")),
    ("podman", re.compile(rf"^libpod-(?:payload-)?({_HEX})(?:\.scope)?$")),
)
_UID: Final = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_POD: Final = re.compile(rf"(?:^|-)pod({_UID}|[0-9a-f]{{32}})(?:\.slice)?$")
_JOB: Final = re.compile(r"^job_(\d{1,10})$")
_STEP: Final = re.compile(r"^step_(\w{1,32})$")
_TASK: Final = re.compile(r"^task_(\w{1,32})$")
_VARIABLE: Final = re.compile(
    rb"SLURM_(?:JOB_ID|JOBID|STEP_ID|STEPID|PROCID|ARRAY_JOB_ID|ARRAY_TASK_ID)"
)

_MOST_PROCESSES: Final = 4096


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Where a process runs; "" where it does not, or where that is not to be seen.

    engine      docker, containerd, cri-o or podman; "" for a container of another
    container   64 hexadecimal digits
    pod         Kubernetes' uid of the pod
    slurm_job   number of the job; of an array's task, its own number, not the array's
    slurm_step  `0`, `batch`, `extern`, `interactive`
    slurm_task  number of the task in its step
    """

    engine: str = ""
    container: str = ""
    pod: str = ""
    slurm_job: str = ""
    slurm_step: str = ""
    slurm_task: str = ""


def parse_identity(cgroups: str, environment: Mapping[str, str] | None = None) -> ProcessIdentity:
    """Read the lines of /proc/PID/cgroup; the environment fills in what they do not say.

    A path tells of the innermost container: one in another's cgroup is the one that counts.
    """
    engine = container = pod = job = step = task = ""
    for path in _paths(cgroups):
        # With systemd under cgroup v1, containerd puts both names into one directory's.
        parts = [p for p in path.replace(":cri-containerd:", "/cri-containerd-").split("/") if p]
        kubernetes = any("kubepods" in part for part in parts)
        slurm = any("slurm" in part for part in parts)
        for part in parts:
            name, found = _container(part)
            if found:
                # kubelet's own driver names the directory by the container's number alone.
                engine = "" if kubernetes and part == found else name
                container = found
            if kubernetes and (match := _POD.search(part)):
                pod = match[1].replace("_", "-")
            if slurm:
                job = _first(_JOB, part) or job
                step = _first(_STEP, part) or step
                task = _first(_TASK, part) or task
    said = environment or {}
    return ProcessIdentity(
        engine,
        container,
        pod,
        job or said.get("SLURM_JOB_ID", "") or said.get("SLURM_JOBID", ""),
        step or said.get("SLURM_STEP_ID", "") or said.get("SLURM_STEPID", ""),
        task or said.get("SLURM_PROCID", ""),
    )


def parse_environment(content: bytes) -> dict[str, str]:
    """Take Slurm's variables, and nothing else, out of /proc/PID/environ; only plain values."""
    found = {}
    for line in content.split(b"\0"):
        name, _, value = line.partition(b"=")
        if _VARIABLE.fullmatch(name) and re.fullmatch(rb"\w{1,32}", value):
            found[name.decode()] = value.decode()
    return found


def identify(pid: int, proc: str = "/proc") -> ProcessIdentity:
    cgroups = _content(f"{proc}/{pid}/cgroup").decode("utf-8", "replace")
    return parse_identity(cgroups, parse_environment(_content(f"{proc}/{pid}/environ")))


def _paths(cgroups: str) -> Iterator[str]:
    """Yield the distinct paths of all hierarchies, the unified one last."""
    rows = [line.split(":", 2) for line in cgroups.splitlines()]
    paths = {row[2]: row[0] for row in rows if len(row) == 3}
    yield from sorted(paths, key=lambda path: (paths[path] == "0", path))


def _container(part: str) -> tuple[str, str]:
    for engine, pattern in _ENGINES:
        match = pattern.match(part)
        if match is not None:
            return engine, next(group for group in match.groups() if group)
    return "", ""


def _first(pattern: re.Pattern[str], part: str) -> str:
    match = pattern.match(part)
    return match[1] if match is not None else ""


def _content(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        pieces, size = [], 0
        while size < _MOST_BYTES and (piece := os.read(fd, 65536)):
            pieces.append(piece)
            size += len(piece)
    except OSError:
        return b""
    finally:
        os.close(fd)
    return b"".join(pieces)


class ProcessTable:
    """Identities, read once and kept for a while after a process has ended.

    left_out  patterns (fnmatch) of names of processes whose calls are not counted
    """

    def __init__(self, left_out: Sequence[str] = (), proc: str = "/proc") -> None:
        self._patterns, self._proc = tuple(left_out), proc
        self._known: OrderedDict[ProcessKey, ProcessLabels] = OrderedDict()
        self._own = os.getpid()

    def identity(self, process: ProcessKey) -> ProcessLabels:
        """Give who a process is; empty where it had ended before it was looked at."""
        known = self._known.get(process)
        if known is None:
            known = self._known[process] = self._read(process)
            while len(self._known) > _MOST_PROCESSES:
                self._known.popitem(last=False)
        return known

    def is_left_out(self, process: ProcessKey) -> bool:
        """Tell whether a process's calls are not to be counted: this agent's own, or as told.

        One that ended before its name was read has the name "", which `*` matches.
        """
        if process.pid == self._own:
            return True
        if not self._patterns or not process.pid:
            return False
        name = self.identity(process).name
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def forget(self, process: ProcessKey) -> None:
        self._known.pop(process, None)

    def _read(self, process: ProcessKey) -> ProcessLabels:
        name = ""
        with suppress(OSError):
            comm = Path(f"{self._proc}/{process.pid}/comm")
            name = comm.read_text(encoding="utf-8", errors="replace").strip()
        where = identify(process.pid, self._proc)
        if process_key(self._proc, process.pid) != process:
            return ProcessLabels("")  # ended, or its number is used again
        return ProcessLabels(name, where.container, where.pod, where.slurm_job)
