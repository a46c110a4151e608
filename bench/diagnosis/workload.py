"""A workload: its processes, each part in a cgroup of its own, and what the recorder asks of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.diagnosis.cgroups import Cgroup
from bench.diagnosis.network import Link
from bench.diagnosis.processes import Launched, python
from bench.diagnosis.shared import Knobs, StepLog
from tests.fake_library import built

STEP_SYMBOL: Final = "pointillist_step"
REQUEST_SYMBOL: Final = "pointillist_request"
STEP_LOOP: Final = "step_loop"
GLOO: Final = "gloo"
LOADER: Final = "loader"
INFERENCE: Final = "inference"
WORKLOADS: Final = (STEP_LOOP, GLOO, LOADER, INFERENCE)
_PORT: Final = 7117
_REQUESTS_PER_S: Final = 60
_PROGRAMS: Final = "bench.diagnosis.workloads"


@dataclass(slots=True)
class Workload:
    """A running workload.

    main        the process that makes the steps
    job         its cgroup, the subject's
    peer        cgroup of what answers it; store: of what feeds it
    noise       cgroup for whatever disturbs it
    symbol      function in `library` that marks steps; `returns`: a step is the call's duration
    """

    name: str
    folder: Path
    library: Path
    index: int = 0
    cpus: Sequence[int] = ()
    symbol: str = STEP_SYMBOL
    returns: bool = False
    processes: list[Launched] = field(default_factory=list)
    main: Launched = field(init=False)
    job: Cgroup = field(init=False)
    peer: Cgroup = field(init=False)
    store: Cgroup = field(init=False)
    noise: Cgroup = field(init=False)
    link: Link = field(init=False)
    knobs: Knobs = field(init=False)
    log: StepLog = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in ("knobs", "steps"):
            (self.folder / left).unlink(missing_ok=True)
        self.job, self.peer = Cgroup(f"job{self.index}"), Cgroup(f"peer{self.index}")
        self.store, self.noise = Cgroup(f"store{self.index}"), Cgroup(f"other{self.index}")
        self.link = Link(self.index)
        self.knobs, self.log = Knobs(self.folder), StepLog(self.folder)
        self.knobs.reset()

    @property
    def main_program(self) -> str:
        """Name of the process that makes the steps, as the kernel has it."""
        return Path(f"/proc/{self.main.pid}/comm").read_text(encoding="utf-8").strip()

    def launch(
        self,
        words: Sequence[str],
        cgroup: Cgroup,
        namespace: str = "",
        memory_of: Cgroup | None = None,
    ) -> Launched:
        """Start a process of the workload or of a fault; `close` ends it."""
        log = self.folder / "output.log"
        launched = Launched(words, cgroup, log, namespace, self.cpus, memory_of)
        self.processes.append(launched)
        return launched

    def check(self) -> None:
        """Raise RuntimeError where one of its processes has ended."""
        for launched in self.processes:
            launched.check()

    def restart(self) -> None:
        """End the job and start it anew: its warm-up happens again."""
        words, namespace = self.main.words, self.link.near.namespace
        self.end(self.main)
        self.main = self.launch(words, self.job, namespace)

    def end(self, launched: Launched) -> None:
        launched.stop()
        self.processes.remove(launched)

    def rest(self) -> None:
        self.knobs.reset()
        self.job.set_quota(None)
        self.peer.set_quota(None)
        self.noise.set_shares(1)
        self.job.set_memory_limit(None)

    def close(self) -> None:
        """End its processes and its link; the cgroups go with the bench's."""
        for launched in reversed(self.processes):
            launched.stop()
        self.processes.clear()
        self.link.close()


def _step_loop(work: Workload, seed: int) -> None:
    near, far = work.link.near, work.link.far
    peer = python(f"{_PROGRAMS}.step_peer", work.folder, far.address, _PORT, seed)
    loop = (work.folder, work.library, far.address, _PORT, seed)
    work.launch(python(f"{_PROGRAMS}.feed", work.folder), work.store)
    work.launch(peer, work.peer, far.namespace)
    time.sleep(0.3)  # the store's socket is bound
    words = python(f"{_PROGRAMS}.step_loop", *loop)
    work.main = work.launch(words, work.job, near.namespace)


def _gloo(work: Workload, seed: int) -> None:
    near, far = work.link.near, work.link.far
    work.launch(python(f"{_PROGRAMS}.feed", work.folder), work.store)
    time.sleep(0.3)
    for rank, (port, cgroup) in enumerate(((near, work.job), (far, work.peer))):
        job = (work.folder, work.library, port.device, near.address, _PORT, seed, rank)
        words = python(f"{_PROGRAMS}.gloo_rank", *job)
        launched = work.launch(words, cgroup, port.namespace)
        if rank == 0:
            work.main = launched


def _loader(work: Workload, seed: int) -> None:
    words = python(f"{_PROGRAMS}.loader_training", work.folder, work.library, seed)
    work.main = work.launch(words, work.job, work.link.near.namespace)


def _inference(work: Workload, seed: int) -> None:
    near, far = work.link.near, work.link.far
    work.symbol, work.returns = REQUEST_SYMBOL, True
    store = python(f"{_PROGRAMS}.step_peer", work.folder, far.address, _PORT + 1, seed)
    server = (work.folder, work.library, near.address, _PORT, far.address, seed)
    words = python(f"{_PROGRAMS}.inference_server", *server)
    clients = (near.address, _PORT, _REQUESTS_PER_S, seed)
    work.launch(store, work.peer, far.namespace)
    work.main = work.launch(words, work.job, near.namespace)
    work.launch(python(f"{_PROGRAMS}.inference_clients", *clients), work.peer, far.namespace)


_STARTS: Final[dict[str, Callable[[Workload, int], None]]] = {
    STEP_LOOP: _step_loop,
    GLOO: _gloo,
    LOADER: _loader,
    INFERENCE: _inference,
}


def start_workload(
    name: str, folder: Path, seed: int, index: int = 0, cpus: Sequence[int] = ()
) -> Workload:
    """Start a workload by name and wait for its first steps.

    index       0 or 1: which of two that run beside one another
    cpus        its processes stay on these; () anywhere
    """
    marks = Path(__file__).with_name("marks.c")
    library = built(marks, "libmarks.so", options=("-O2", "-fcf-protection=none"))
    work = Workload(name, folder, library, index, cpus)
    try:
        _STARTS[name](work, seed)
        _await_steps(work, 5)
        work.job.drop_cold()
    except BaseException:
        work.close()
        raise
    return work


def _await_steps(work: Workload, steps: int, patience_s: float = 60.0) -> None:
    give_up = time.monotonic() + patience_s
    while len(work.log) < steps:
        work.check()
        if time.monotonic() > give_up:
            raise RuntimeError(f"expected {steps} steps of {work.name}, saw {len(work.log)}")
        time.sleep(0.05)
