"""Two ranks on stub GPU libraries: the calls are real, the GPUs are not there."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.diagnosis.stragglers.gloo_kit import RankCgroup, rank_cgroup

_SOURCE: Final = Path(__file__).with_name("nccl_job.c")
_MOST: Final = 8


class StubJob:
    """A running job; what a step costs each rank's host and GPU can be changed."""

    def __init__(self, shared: Path, groups: list[RankCgroup]) -> None:
        self.groups, self._shared = groups, shared
        self.pattern = groups[0].name.removesuffix("0") + "*"

    def steer(self, host_ms: list[float], gpu_ms: list[float]) -> None:
        for block, values in ((1, host_ms), (2, gpu_ms)):
            padded = [round(value * 1000) for value in values] + [0] * (_MOST - len(values))
            self._write(8 * _MOST * block, struct.pack(f"{_MOST}q", *padded))

    def end(self) -> None:
        self._write(4 * 8 * _MOST, struct.pack("i", 1))

    def _write(self, offset: int, content: bytes) -> None:
        with self._shared.open("r+b") as file:
            file.seek(offset)
            file.write(content)


@contextmanager
def stub_job(folder: Path, ranks: int) -> Iterator[StubJob]:
    nccl, cudart, program = (folder / n for n in ("libnccl.so.2", "libcudart.so.12", "rank"))
    _compile("-shared", "-fPIC", "-DNCCL", _SOURCE, "-o", nccl)
    _compile("-shared", "-fPIC", "-DCUDART", _SOURCE, "-o", cudart)
    _compile(_SOURCE, nccl, cudart, f"-Wl,-rpath,{folder}", "-o", program)
    shared = folder / "job"
    shared.write_bytes(bytes(4 * 8 * _MOST + 8))
    with ExitStack() as stack:
        name = f"pointillist-{uuid4().hex[:8]}"
        groups = [stack.enter_context(rank_cgroup(f"{name}-rank{r}", None)) for r in range(ranks)]
        job = StubJob(shared, groups)
        job.steer([10.0] * ranks, [5.0] * ranks)
        for rank, group in enumerate(groups):
            told = {"STUB_JOB": str(shared), "RANK": str(rank), "RANKS": str(ranks)}
            child = subprocess.Popen(
                [program], env=os.environ | told, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_ended, child)
            (group.path / "cgroup.procs").write_text(str(child.pid))
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
        stack.callback(job.end)
        yield job


def _compile(*words: object) -> None:
    command = ["gcc", "-O1", "-g0", "-w", *map(str, words)]
    subprocess.run(command, check=True, timeout=60)


def _ended(child: subprocess.Popen[str]) -> None:
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    assert child.stdout
    child.stdout.close()
