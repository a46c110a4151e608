"""Probed processes: name, container, pod and batch job, which are left out. Raw: it stays here.

By the cgroup's path (docker, containerd, cri-o, podman; Kubernetes; Slurm), and Slurm's variables.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from collectors.binaries.proc_maps import content_of, process_key
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProcessLabels

_MOST_BYTES: Final = 256 << 10
_HEX: Final = r"[0-9a-f]{64}"
_CONTAINER: Final = re.compile(
    rf"docker-{_HEX}\.scope|{_HEX}"
    rf"|(?:cri-containerd|nerdctl|crio|libpod|libpod-payload)-{_HEX}(?:\.scope)?"
)
_UID: Final = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_POD: Final = re.compile(rf"(?:^|-)pod({_UID}|[0-9a-f]{{32}})(?:\.slice)?$")
_JOB: Final = re.compile(r"^job_(\d{1,10})$")
_MOST_PROCESSES: Final = 4096


def parse_identity(cgroups: str, environment: bytes = b"") -> ProcessLabels:
    """Read /proc/PID/cgroup (the innermost container counts), and environ for a batch job."""
    container = pod = job = ""
    rows = [line.split(":", 2) for line in cgroups.splitlines()]
    paths = {row[2]: row[0] for row in rows if len(row) == 3}
    for path in sorted(paths, key=lambda path: (paths[path] == "0", path)):  # the unified one last
        # With systemd under cgroup v1, containerd puts both names into one directory's.
        parts = path.replace(":cri-containerd:", "/cri-containerd-").split("/")
        kubernetes = any("kubepods" in part for part in parts)
        slurm = any("slurm" in part for part in parts)
        for part in parts:
            if _CONTAINER.fullmatch(part):
                container = re.findall(_HEX, part)[0]
            if kubernetes and (match := _POD.search(part)):
                pod = match[1].replace("_", "-")
            if slurm and (match := _JOB.match(part)):
                job = match[1]
    return ProcessLabels("", container, pod, job or _slurm_job(environment))


def _slurm_job(environment: bytes) -> str:
    """Take the number of Slurm's job, and nothing else; only a plain value."""
    for name in (b"SLURM_JOB_ID=", b"SLURM_JOBID="):
        for line in environment.split(b"\0"):
            if line.startswith(name) and re.fullmatch(rb"\w{1,32}", line.removeprefix(name)):
                return line.removeprefix(name).decode()
    return ""


def identify(pid: int, proc: str = "/proc") -> ProcessLabels:
    cgroups = content_of(f"{proc}/{pid}/cgroup", _MOST_BYTES).decode("utf-8", "replace")
    return parse_identity(cgroups, content_of(f"{proc}/{pid}/environ", _MOST_BYTES))


class ProcessTable:
    """Identities, read once; `left_out`: patterns (fnmatch) of names that are not counted."""

    def __init__(self, left_out: Sequence[str] = (), proc: str = "/proc") -> None:
        self._patterns, self._proc = tuple(left_out), proc
        self._known: OrderedDict[ProcessKey, ProcessLabels] = OrderedDict()
        self._own = os.getpid()

    def identity(self, process: ProcessKey) -> ProcessLabels:
        known = self._known.get(process)
        if known is None:
            known = self._known[process] = self._read(process)
            while len(self._known) > _MOST_PROCESSES:
                self._known.popitem(last=False)
        return known

    def is_left_out(self, process: ProcessKey) -> bool:
        """Tell whether calls are not counted: the agent's own, or as told; "" is an unread name."""
        if process.pid == self._own:
            return True
        if not self._patterns or not process.pid:
            return False
        name = self.identity(process).name
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def forget(self, process: ProcessKey) -> None:
        self._known.pop(process, None)

    def _read(self, process: ProcessKey) -> ProcessLabels:
        name = content_of(f"{self._proc}/{process.pid}/comm", 64).decode("utf-8", "replace").strip()
        labels = identify(process.pid, self._proc)
        if process_key(self._proc, process.pid) != process:
            return ProcessLabels("")  # ended, or its number is used again
        return labels._replace(name=name)
