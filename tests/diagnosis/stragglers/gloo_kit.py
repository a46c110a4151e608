"""A gloo job whose ranks have a cgroup each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from collectors.bpf.cgroup_names import hierarchy_of
from tests.bpf_kit import remove_cgroup

SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
_RANKS: Final = Path(__file__).with_name("gloo_ranks.py")


def torch_missing() -> str | None:
    """Say why no gloo job can run here; None where it can."""
    if not SYSTEM_PYTHON.exists():
        return "needs the system's /usr/bin/python3"
    known = [
        str(SYSTEM_PYTHON),
        "-c",
        "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))",
    ]
    if subprocess.run(known, check=False, capture_output=True).returncode:
        return "needs Debian's python3-torch, as make tools installs it for root"
    return None


class RankCgroup:
    """A cgroup of the CPU controller, of v1 or v2, whichever is mounted."""

    def __init__(self, name: str) -> None:
        root = hierarchy_of("cpu")
        self._unified = root.unified
        if root.unified:
            Path(root.path, "cgroup.subtree_control").write_text("+cpu", encoding="utf-8")
        self.path = Path(root.path) / name
        self.name = f"/{self.path.name}"
        self.path.mkdir()

    def cap(self, cores: float | None) -> None:
        """Allow so many cores in periods of 100 ms; None: any number."""
        quota_us = None if cores is None else round(100_000 * cores)
        if self._unified:
            (self.path / "cpu.max").write_text(f"{quota_us or 'max'} 100000")
        else:
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    def remove(self) -> None:
        remove_cgroup(self.path)


@contextmanager
def rank_cgroup(name: str, cores: float | None) -> Iterator[RankCgroup]:
    group = RankCgroup(name)
    try:
        group.cap(cores)
        yield group
    finally:
        group.remove()


class Launcher:
    """The process that has imported torch and forks the ranks of one job after the other."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            [SYSTEM_PYTHON, "-W", "ignore", _RANKS, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, cwd="/", start_new_session=True,
        )  # fmt: skip
        self.said = self.line()

    def line(self) -> dict[str, Any]:
        """Read one line; what went wrong where there is none."""
        assert self._process.stdout
        said = self._process.stdout.readline()
        assert said, Path(self._errors.name).read_text(encoding="utf-8")[-2000:]
        return dict(json.loads(said))

    def tell(self, job: Mapping[str, object]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        finally:
            with suppress(ProcessLookupError):  # ranks of a job that went wrong
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.stdout.close()
            self._errors.close()


class GlooJob:
    """A running job: its ranks' cgroups, and what each is told to do."""

    def __init__(self, launcher: Launcher, groups: list[RankCgroup], steering: Path) -> None:
        self.groups, self.pids = groups, dict[int, int]()
        self.pattern = groups[0].name.removesuffix("0") + "*"
        self._launcher, self._steering = launcher, steering
        for _ in groups:
            said = launcher.line()
            self.pids[said["rank"]] = said["pid"]

    def steer(self, **plan: object) -> None:
        """Tell the ranks what to do: `work` is a factor by rank."""
        part = self._steering.with_suffix(".part")
        part.write_text(json.dumps(plan))
        part.replace(self._steering)

    def end(self) -> None:
        self.steer(end=True)
        while "ended" not in (said := self._launcher.line()):
            pass
        assert set(said["ended"]) == {0}


@contextmanager
def gloo_job(
    launcher: Launcher, folder: Path, ranks: int, cores: float | None
) -> Iterator[GlooJob]:
    with ExitStack() as stack:
        name = f"pointillist-{uuid4().hex[:8]}"
        groups = [
            stack.enter_context(rank_cgroup(f"{name}-rank{rank}", cores)) for rank in range(ranks)
        ]
        steering = folder / f"steering-{time.monotonic_ns()}"
        steering.write_text("{}")
        launcher.tell(
            {
                "cgroups": [[str(group.path / "cgroup.procs")] for group in groups],
                "steering": str(steering),
            }
        )
        job = GlooJob(launcher, groups, steering)
        try:
            yield job
        finally:
            job.end()
