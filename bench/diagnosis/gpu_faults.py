"""GPU faults, made: a fake driver of true ABI and the job on it, recorded as frames.

Eight jobs, each on a GPU of its own and in a cgroup of its own, are watched at a time; the fault of
each comes at its own time. Each is written as a recording of its own, with the host's signals of
that minute.

What is real: pynvml's binding in a child process, step marks by uprobe, the host's eBPF signals,
frames, detection, diagnosis. What is made: the state of each GPU, and how that state slows the job.

python -m bench.diagnosis.gpu_faults record [--only NAME] [--folder FOLDER]
python -m bench.diagnosis.gpu_faults judge
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.diagnosis.cgroups import HIERARCHIES, ROOT, Cgroup
from bench.diagnosis.gpu_device import Gpu, xid_lines
from bench.diagnosis.gpu_injectors import FAULTS, LEVELS, NEGATIVES, ONCE, TICK_S, Injector, Moment
from bench.diagnosis.gpu_pace import Pace
from bench.diagnosis.impact import impact
from bench.diagnosis.native import STEP_SYMBOL, build_marks
from bench.diagnosis.processes import Launched, python
from bench.diagnosis.recording import machine
from bench.diagnosis.shared import StepLog
from bench.record import ROOT as CHECKOUT
from bench.record import commit
from collectors.boot_clock import boottime_ns
from collectors.devices.bounded import BoundedReader
from collectors.devices.devices_source import DevicesSource
from collectors.steps.steps_source import StepProbe, StepsSource
from diagnosis.frames.frame import HostSample
from diagnosis.frames.framer import LiveFrames, host_framer, host_registry
from diagnosis.frames.recording import write_recording
from pointillist.judging.runs import NOTHING_WRONG
from tests.fake_nvml_kit import FakeDriver

FOLDER: Final = CHECKOUT / "bench" / "recordings-gpu"
GPUS: Final = 8
BEFORE_S, FAULT_S, AFTER_S = 22.0, 18.0, 6.0
_SETTLE_S: Final = 2.0
_SPREAD_S: Final = 3.0
PARENT: Final = "pointillist-gpu"
WORKLOAD: Final = "gpu_steps"
_SEED: Final = 20_261_121


@dataclass(frozen=True, slots=True)
class Case:
    """One recording to be made."""

    injector: Injector
    level: int
    seed: int

    @property
    def name(self) -> str:
        """Of the file."""
        level = f"-{LEVELS[self.level]}" if self.injector.cause else ""
        return f"gpu-{self.injector.name}{level}-{self.seed}"


def plan() -> list[Case]:
    """List every case in an order that mixes causes: eight of them share a minute."""
    cases = [
        Case(one, level, 1)
        for one in (*FAULTS, *NEGATIVES)
        for level in range(len(LEVELS))
        if (one.cause and one.name not in ONCE) or level == len(LEVELS) - 1
    ]
    random.Random(_SEED).shuffle(cases)
    return cases


class GpuCgroup(Cgroup):
    """A cgroup apart from the fault bench's own, which clears everything below its name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = f"/{PARENT}/{name}"

    def folder(self, hierarchy: str) -> Path:
        """Where it is in a hierarchy."""
        return ROOT / hierarchy / PARENT / self.name

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        for hierarchy in HIERARCHIES:
            for _ in range(50):
                try:
                    self.folder(hierarchy).rmdir()
                except OSError:
                    time.sleep(0.05)
                else:
                    break


@dataclass(slots=True)
class Job:
    """A case on its GPU."""

    case: Case
    gpu: Gpu
    pace: Pace
    steps: StepLog
    cgroup: GpuCgroup
    neighbour: int
    begins_s: float
    chance: random.Random
    start_ns: int = 0
    end_ns: int = 0
    before: Gpu = field(init=False)

    def __post_init__(self) -> None:
        self.gpu.mig = self.case.injector.mig
        self.before = replace(self.gpu, rows=list(self.gpu.rows))

    def turn(self, elapsed_s: float) -> None:
        """Change the GPU as its case asks, and let the job feel it."""
        since_s, stall_ms = elapsed_s - self.begins_s, 0.0
        if 0.0 <= since_s < FAULT_S:
            self.start_ns = self.start_ns or boottime_ns()
            level, neighbour = self.case.level, self.neighbour
            moment = Moment(self.gpu, level, since_s, neighbour, self.chance)
            stall_ms = self.case.injector.turn(moment)
        elif since_s >= FAULT_S and not self.end_ns:
            self.end_ns = boottime_ns()
            self._recover()
        self.pace.tell(self.gpu.work_ms(), stall_ms)

    def _recover(self) -> None:
        """States end with the fault; what has been counted stays counted."""
        for name in (
            "clock", "throttle", "power_w", "temperature", "links_down", "lanes", "generation",
            "others", "crowding", "lost", "scale", "busy", "memory_busy",
        ):  # fmt: skip
            setattr(self.gpu, name, getattr(self.before, name))
        self.gpu.rows[2] = 0


class Driver(threading.Thread):
    """Plays all GPUs five times a second, until `over`."""

    def __init__(self, fake: FakeDriver, jobs: Sequence[Job]) -> None:
        super().__init__(daemon=True)
        self._fake, self._jobs = fake, jobs
        self._noise = random.Random(_SEED)
        self._over = threading.Event()
        self.error: Exception | None = None

    def play(self) -> None:
        """Write what the driver says now."""
        lines = [f"gpus {len(self._jobs)}"]
        for job in self._jobs:
            lines += job.gpu.lines(self._noise)
        self._fake.play(*lines, *xid_lines([job.gpu for job in self._jobs]))

    def run(self) -> None:
        """Turn by turn."""
        begun_s = time.monotonic()
        try:
            while not self._over.wait(TICK_S):
                for job in self._jobs:
                    job.turn(time.monotonic() - begun_s)
                self.play()
        except Exception as error:  # noqa: BLE001 - handed to the recorder's thread
            self.error = error

    def stop(self) -> None:
        """End the play."""
        self._over.set()
        self.join()
        if self.error is not None:
            raise RuntimeError(f"the fake driver failed: {self.error}") from self.error


def record(cases: Sequence[Case], folder: Path) -> list[Path]:
    """Record at most eight cases side by side; gives the files."""
    chance = random.Random(f"{_SEED} {' '.join(case.name for case in cases)}")
    library = build_marks()
    with ExitStack() as undo, tempfile.TemporaryDirectory(prefix="pointillist-gpu-") as name:
        here = Path(name)
        here.chmod(0o755)
        fake = FakeDriver(here)
        jobs = [
            _start(undo, here, library, index, case, chance) for index, case in enumerate(cases)
        ]
        driver = Driver(fake, jobs)
        driver.play()
        registry = host_registry("auto")
        probe = StepProbe(str(library), STEP_SYMBOL)
        registry.register("steps", lambda: StepsSource([probe]), probe)
        registry.register(
            "devices", lambda: DevicesSource([BoundedReader(fake.reader, deadline_s=1.0)])
        )
        began_ns = boottime_ns()
        with LiveFrames(registry, host_framer((f"/{PARENT}/job*",))) as live:
            if {one.source for one in live.absent} & {"devices", "steps", "ebpf"}:
                raise RuntimeError(f"expected every source, absent: {live.absent}")
            driver.start()
            frames = list(_frames(live, began_ns))
            driver.stop()
        return [_write(job, frames, began_ns, folder) for job in jobs]


def _start(
    undo: ExitStack, here: Path, library: Path, index: int, case: Case, chance: random.Random
) -> Job:
    own = here / f"job{index}"
    own.mkdir()
    cgroup, other = GpuCgroup(f"job{index}"), GpuCgroup(f"other{index}")
    undo.callback(cgroup.remove)
    undo.callback(other.remove)
    pace, steps = Pace(own), StepLog(own)
    words = python("bench.diagnosis.workloads.gpu_steps", own, library, case.seed + index)
    job = Launched(words, cgroup, own / "output.log")
    undo.callback(job.stop)
    neighbour = Launched(["sleep", "600"], other, own / "other.log")
    undo.callback(neighbour.stop)
    gpu = Gpu(index, job.pid)
    pace.tell(gpu.work_ms())
    begins_s = BEFORE_S + chance.uniform(0.0, _SPREAD_S)
    return Job(case, gpu, pace, steps, cgroup, neighbour.pid, begins_s, random.Random(case.name))


def _frames(live: LiveFrames, began_ns: int) -> Iterator[HostSample]:
    ends_s = time.monotonic() + BEFORE_S + _SPREAD_S + FAULT_S + AFTER_S
    for frame in live.frames(until=lambda: time.monotonic() > ends_s):
        if frame.boottime_ns - began_ns > _SETTLE_S * 1e9:
            yield frame


def _write(job: Job, frames: Sequence[HostSample], began_ns: int, folder: Path) -> Path:
    """Write the recording of one job: the host, its own GPU, itself."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{job.case.name}.parquet"
    shown = [_alone(frame, job) for frame in frames]
    write_recording(path, shown, _facts(job, began_ns))
    return path


def _alone(frame: HostSample, job: Job) -> HostSample:
    """Leave out the other jobs: each is a host of its own."""
    mine = job.cgroup.path
    return replace(
        frame,
        subjects={key: one for key, one in frame.subjects.items() if one.cgroup == mine},
        cgroups={
            key: one
            for key, one in frame.cgroups.items()
            if key == mine or not key.startswith(f"/{PARENT}/")
        },
        gpus={index: one for index, one in frame.gpus.items() if index == job.gpu.index},
    )


def _facts(job: Job, began_ns: int) -> dict[str, Any]:
    case, cause = job.case, job.case.injector.cause
    felt = impact(
        job.steps.between(began_ns, job.start_ns), job.steps.between(job.start_ns, job.end_ns)
    )
    span = {
        "cause": str(cause or NOTHING_WRONG), "injector": case.injector.name,
        "start_ns": job.start_ns, "end_ns": job.end_ns,
    }  # fmt: skip
    return {
        "name": case.name,
        "workload": WORKLOAD,
        "injector": case.injector.name,
        "intensity": LEVELS[case.level] if cause else "",
        "held_out": not cause or case.injector.held_out or LEVELS[case.level] == "middle",
        "seed": case.seed,
        "spans": [] if case.injector.name == "none" else [span],
        "subjects": [job.cgroup.path],
        "workers": 1,
        "gpu": "made: fake NVML of true ABI; the step's work follows the made state",
        "impact": felt.document(),
        "machine": machine(),
        "commit": commit(),
    }


def batches(cases: Sequence[Case]) -> Iterator[Sequence[Case]]:
    """Give the cases eight at a time."""
    for first in range(0, len(cases), GPUS):
        yield cases[first : first + GPUS]


def main(words: Sequence[str] | None = None) -> int:
    """Record what is missing, or judge what is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["plan", "record", "judge"])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--batches", type=int, default=100, help="at most so many minutes")
    given = parser.parse_args(words)
    if given.command == "judge":
        from bench.diagnosis.gpu_figures import write

        return write(given.folder)
    cases = [case for case in plan() if given.only in case.name]
    missing = [case for case in cases if not (given.folder / f"{case.name}.parquet").exists()]
    if given.command == "plan":
        print(f"{len(missing)} of {len(cases)} are missing")
        return 0
    if os.geteuid() != 0 or shutil.which("gcc") is None:
        print("expected root and gcc: cgroups, eBPF, and the fake driver", file=sys.stderr)
        return 1
    for number, batch in enumerate(batches(missing)):
        if number >= given.batches:
            break
        for path in record(batch, given.folder):
            print(path.name, path.stat().st_size, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
