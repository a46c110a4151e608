"""Watches one process: probes its libraries, for it alone, takes each call, and reads GPU time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.counts import CallSample, ProbeDrain
from collectors.gpu_calls.found_files import FileFound, FileGone, FoundFiles
from collectors.gpu_calls.kernel_names import UNKNOWN, KernelNamer
from collectors.gpu_calls.map_layout import ProbeLimits
from collectors.gpu_calls.meanings import CallKind, Meaning
from collectors.gpu_calls.probe_plan import PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.gpu_time.settings import DEFAULT_SOCKET
from collectors.records.gpu_calls import ProbeGroup
from collectors.records.process import ProcessKey

from .gpu_times import GpuStep, ProfiledTimes
from .profiled import NamedCall, NothingToProfile, ProfiledGpuTime, ProfiledProcess, Target

_LOOK_NS: Final = 1_000_000_000
_SAMPLES_BYTES: Final = 32 << 20
"""A call is 120 bytes: a reader that comes four times a second takes a million of them a second."""
_KEPT_STACKS: Final = 65_536


class ProfileSession:
    """Probes one process from `start` to `close`; `poll` at least four times a second."""

    def __init__(
        self, pid: int, *, stacks: bool = True, socket: Path = DEFAULT_SOCKET, proc: str = "/proc"
    ) -> None:
        """Look at the process and load. Raises NothingToProfile, SourceUnavailable.

        socket   where the library in the process reports
        """
        self._table = ProbeTable.load()
        self._rows = {row.id: row for row in self._table.rows}
        self._stacks, self._known_stacks = stacks, dict[int, tuple[int, ...]]()
        self._lost: dict[str, int] = {}
        self._remarks: list[str] = []
        self._look_ns = 0
        self.files = self.calls = 0
        with ExitStack() as stack:
            self.target = Target(pid, proc)
            stack.callback(self.target.close)
            self._found = FoundFiles(PlanBook(self._table), proc)
            stack.callback(self._found.close)
            self._namer = KernelNamer(lambda _process: self.target.modules, proc=proc)
            stack.callback(self._namer.close)
            limits = ProbeLimits(samples_bytes=_SAMPLES_BYTES)
            self._programs = GpuPrograms(self._table, limits, only=pid)
            stack.callback(self._programs.close)
            self._times = ProfiledTimes(pid, socket, proc)
            stack.callback(self._times.close)
            self._closing = stack.pop_all()
        self.begun_ns = self._ended_ns = boottime_ns()
        self._unix_ns = time.time_ns()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def start(self) -> None:
        """Probe what the process has mapped. Raises NothingToProfile, SourceUnavailable."""
        self._look()
        if not self.files:
            remark = f": {self._remarks[0]}" if self._remarks else ""
            raise NothingToProfile(
                f"process {self.target.pid} ({self.target.name}) has no CUDA, HIP, NCCL or RCCL "
                f"library mapped{remark}",
                "start the profile once the program has loaded its GPU library",
            )
        self.begun_ns, self._unix_ns = boottime_ns(), time.time_ns()
        self._programs.sample(self.target.process, True, self._stacks)
        self._times.start(self.begun_ns)

    def poll(self) -> list[NamedCall]:
        """Give the calls that ended since the last time. Raises SourceUnavailable."""
        now_ns = boottime_ns()
        if now_ns - self._look_ns >= _LOOK_NS:
            self._look()
        drain = self._programs.drain(now_ns)
        for what, count in drain.lost.items():
            self._lost[what] = self._lost.get(what, 0) + count
        return self._named(drain)

    def gpu_time(self, last: bool = False) -> GpuStep | None:
        """Give what the GPUs did since the last time, once a second; None where nothing is new."""
        return self._times.poll(boottime_ns(), last)

    def stop(self) -> list[NamedCall]:
        """Take no more calls; give the last ones. Raises SourceUnavailable."""
        self._ended_ns = boottime_ns()
        self._programs.sample(self.target.process, False)
        return self.poll()

    @property
    def lost(self) -> int:
        """Calls that were made and could not be taken down."""
        return self._lost.get("samples", 0)

    @property
    def timed(self) -> ProfiledGpuTime:
        """Tell how far kernels were timed."""
        share = self._times.recorded_ns / max(self._times.spent_ns, 1)
        return ProfiledGpuTime(self._times.state, share, dict(self._times.uuids))

    def subject(self) -> ProfiledProcess:
        """Give what the profile is of, at its end."""
        return ProfiledProcess(
            self.target.pid, self.target.name, self.begun_ns, self._unix_ns, self._ended_ns,
            dict(self.target.threads), self.target.modules_with_build_ids(), dict(self._lost),
            self.timed,
        )  # fmt: skip

    def close(self) -> None:
        """Detach and let go of everything; a second call does nothing."""
        self._closing.close()

    def _look(self) -> None:
        """Libraries may be loaded late, and threads come and go."""
        self._look_ns = now_ns = boottime_ns()
        for module in self.target.look():
            for event in self._found.see(self.target.pid, module, 0, now_ns, 0):
                self._attach(event)

    def _attach(self, found: FileFound | FileGone) -> None:
        if isinstance(found, FileGone):
            for file_group in self._programs.attached:
                if file_group.file == found.file:
                    self._programs.detach(file_group)
            return
        if found.plan.remark:
            self._remarks.append(f"{found.path} {found.plan.remark}")
        # Calls that are only counted leave no sample: their probes would cost for nothing.
        wanted = [
            attachment
            for attachment in found.plan.attachments
            if attachment.group is not ProbeGroup.OTHER
        ]
        if wanted:
            self._programs.attach(found.file, found.open_path, wanted)
            self.files += 1

    def _named(self, drain: ProbeDrain) -> list[NamedCall]:
        self._namer.learn(drain.names)
        samples = [sample for sample in drain.samples if sample.process.pid == self.target.pid]
        self.calls += len(samples)
        names = self._namer.names(
            [(sample.process, sample.kernel) for sample in samples if sample.kernel]
        )
        return [self._call(sample, names) for sample in samples]

    def _call(self, sample: CallSample, names: dict[tuple[ProcessKey, int], str]) -> NamedCall:
        row = self._rows[sample.call]
        kernel = ""
        if row.kind is CallKind.LAUNCH:
            kernel = names.get((sample.process, sample.kernel), UNKNOWN)
            if kernel == UNKNOWN:  # two of them are not one kernel
                kernel = f"{UNKNOWN} {sample.kernel:#x}"
        elif row.kind is CallKind.GRAPH_LAUNCH:
            kernel = f"graph {sample.graph:#x}"
        on_stream = Meaning.STREAM in row.arguments
        return NamedCall(sample, row.kind, kernel, on_stream, self._stack(sample.stack_id))

    def _stack(self, stack_id: int) -> tuple[int, ...]:
        if stack_id < 0:
            return ()
        if stack_id not in self._known_stacks and len(self._known_stacks) < _KEPT_STACKS:
            self._known_stacks[stack_id] = self._programs.stack(stack_id)
        return self._known_stacks.get(stack_id, ())
