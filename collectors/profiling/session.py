"""Watches one process: probes its libraries, for it alone, takes each call, and reads GPU time."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import (
    Module,
    Modules,
    content_of,
    open_mapped,
    process_key,
    read_maps,
)
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.found_files import FileFound, FileGone, FoundFiles
from collectors.gpu_calls.kernel_names import UNKNOWN, Found, KernelNamer
from collectors.gpu_calls.probe_plan import Attachment, PlanBook, few
from collectors.gpu_calls.probe_table import CallKind, Meaning, ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.gpu_calls.readout import CallSample, ProbeDrain, ProbeLimits
from collectors.gpu_time.gpu_time_source import DEFAULT_SOCKET
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProbeGroup
from collectors.records.gpu_time import TimingState

from .gpu_times import GpuStep, ProfiledTimes

_ALL: Final = 0.99
"""Share of the time from which on the rest is a matter of when one looked."""
LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})


class NamedCall(NamedTuple):
    """A sampled call.

    on_stream  the call names a stream: 0 then is the default stream
    stack      addresses, the innermost first; empty where none was taken
    """

    sample: CallSample
    kind: CallKind
    kernel: str
    on_stream: bool
    stack: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.kernel or self.sample.call


@dataclass(frozen=True, slots=True)
class ProfiledGpuTime:
    """How kernels were timed: which share of time was recorded; uuids by the process's numbers."""

    state: TimingState
    share: float
    uuids: dict[int, str]

    @property
    def said(self) -> str:
        if self.state is not TimingState.MEASURED or not self.share:
            return f"GPU time: none ({self.state.value.replace('_', ' ')})"
        if self.share >= _ALL:
            return "GPU time: all of it was recorded"
        return f"GPU time: estimated, {100 * self.share:.2g} % of the time was recorded"


@dataclass(frozen=True, slots=True)
class ProfiledProcess:
    """The profiled process, by both clocks, and its modules with build ids, the program's first."""

    pid: int
    name: str
    begun_ns: int
    unix_ns: int
    ended_ns: int
    threads: dict[int, str]
    modules: tuple[tuple[Module, str], ...]
    lost: dict[str, int]
    gpu_time: ProfiledGpuTime


class ProfileWriter(Protocol):
    """One format: takes calls as they come, and ends with what is known then."""

    def add(self, calls: list[NamedCall]) -> None: ...
    def add_time(self, step: GpuStep) -> None: ...
    def finish(self, subject: ProfiledProcess) -> None: ...


_MOST_MODULES: Final = 1024


class NothingToProfile(Exception):
    """This process cannot be profiled: what was expected, what came, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Target:
    """Holds the process by a descriptor: its number is not mistaken for another's."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Look at the process. Raises NothingToProfile."""
        self._folder, self._proc, self.pid = Path(proc) / str(pid), proc, pid
        self.modules = Modules()
        self.threads: dict[int, str] = {}
        key = process_key(proc, pid)
        if key is None:
            raise _none_such(pid)
        self.process: ProcessKey = key
        self.name = _line(self._folder / "comm")
        self._program = self._check_rights()
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise _none_such(pid) from None
        except OSError:
            raise NothingToProfile(f"{pid} is a thread", "give the process's number") from None

    def look(self) -> list[Module]:
        modules = list(read_maps(self._proc, self.pid))
        if modules:
            self.modules = Modules(iter(modules))
        with suppress(OSError):
            for thread in (self._folder / "task").iterdir():
                self.threads[int(thread.name)] = _line(thread / "comm")
        return modules

    def alive(self) -> bool:
        waiting = select.poll()
        waiting.register(self._pidfd, select.POLLIN)
        return not waiting.poll(0)

    def modules_with_build_ids(self) -> tuple[tuple[Module, str], ...]:
        """Give what was mapped last, the program first; "" for a file that cannot be read."""
        ordered = sorted(self.modules, key=lambda module: module.path != self._program)
        known: dict[object, str] = {}
        for module in ordered[:_MOST_MODULES]:
            if module.file not in known:
                known[module.file] = self._build_id(module)
        return tuple((module, known[module.file]) for module in ordered[:_MOST_MODULES])

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _check_rights(self) -> str:
        try:
            with (self._folder / "maps").open("rb") as maps:
                maps.read(1)
            return str((self._folder / "exe").readlink())
        except PermissionError:
            raise NothingToProfile(
                f"may not look into process {self.pid} ({self.name})",
                "run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE",
            ) from None
        except OSError:
            raise _none_such(self.pid) from None

    def gpu_files(self) -> Iterator[tuple[str, str]]:
        """Yield (path, build id) of mapped files that have code for GPUs, good until the next."""
        for module in {module.file: module for module in self.modules}.values():
            with self._opened(module) as (path, elf):
                if elf is not None and elf.has_device_code:
                    yield path, elf.build_id

    def _build_id(self, module: Module) -> str:
        with self._opened(module) as (_, elf):
            return elf.build_id if elf is not None else ""

    @contextmanager
    def _opened(self, module: Module) -> Iterator[tuple[str, ElfFile | None]]:
        opened = open_mapped(
            self._proc, self.pid, module.start, module.end, module.file, module.path
        )
        elf = None
        try:
            if opened is not None:
                with (
                    suppress(ElfError, OSError),
                    open(opened.fd, "rb", buffering=0, closefd=False) as raw,
                ):
                    elf = ElfFile.read(raw)
            yield opened.path if opened is not None else "", elf
        finally:
            if opened is not None:
                opened.close()


def _none_such(pid: int) -> NothingToProfile:
    return NothingToProfile(
        f"there is no process {pid} that runs a program", "pgrep -a NAME finds its number"
    )


def _line(path: Path) -> str:
    return content_of(str(path), 64).decode("utf-8", "replace").strip()


_LOOK_NS: Final = 1_000_000_000
_SAMPLES_BYTES: Final = 32 << 20
"""A call is 120 bytes: a reader that comes four times a second takes a million of them a second."""
_KEPT_STACKS: Final = 65_536
_MOST_READ_S: Final = 20.0


class ProfileSession:
    """Probes one process from `start` to `close`; `poll` at least four times a second."""

    def __init__(
        self, pid: int, *, stacks: bool = True, socket: Path = DEFAULT_SOCKET, proc: str = "/proc"
    ) -> None:
        """Look at the process and load. Raises NothingToProfile, SourceUnavailable."""
        self._table = ProbeTable.load()
        self._rows = {row.id: row for row in self._table.rows}
        self._stacks, self._known_stacks = stacks, dict[int, tuple[int, ...]]()
        self._lost: dict[str, int] = {}
        self._remarks: list[str] = []
        self._look_ns = 0
        self.files = self.calls = self._places = 0
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
        for path, build_id in self.target.gpu_files():
            self._read_names(path, build_id)
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
        return self._times.poll(boottime_ns(), last)

    def stop(self) -> list[NamedCall]:
        """Take no more calls; give the last ones. Raises SourceUnavailable."""
        self._ended_ns = boottime_ns()
        self._programs.sample(self.target.process, False)
        return self.poll()

    @property
    def lost(self) -> int:
        return self._lost.get("samples", 0)

    @property
    def timed(self) -> ProfiledGpuTime:
        share = self._times.recorded_ns / max(self._times.spent_ns, 1)
        return ProfiledGpuTime(self._times.state, share, dict(self._times.uuids))

    def subject(self) -> ProfiledProcess:
        return ProfiledProcess(
            self.target.pid, self.target.name, self.begun_ns, self._unix_ns, self._ended_ns,
            dict(self.target.threads), self.target.modules_with_build_ids(), dict(self._lost),
            self.timed,
        )  # fmt: skip

    def close(self) -> None:
        self._closing.close()

    def _read_names(self, path: str, build_id: str) -> None:
        """Wait until it is known which kernels a file registers: calls are named as they come."""
        until_s = time.monotonic() + _MOST_READ_S
        while self._namer.launches(path, build_id) is None and time.monotonic() < until_s:
            time.sleep(0.02)

    def _look(self) -> None:
        self._look_ns = now_ns = boottime_ns()
        for module in self.target.look():
            for event in self._found.see(self.target.pid, module, 0, now_ns, 0):
                self._attach(event)

    def _attach(self, found: FileFound | FileGone) -> None:
        if isinstance(found, FileGone):
            of_file = [group for group in self._programs.attached if group.file == found.file]
            self._programs.detach_all(of_file)
            return
        if found.plan.remark:
            self._remarks.append(f"{found.path} {found.plan.remark}")
        # Calls that are only counted leave no sample: their probes would cost for nothing.
        wanted: Sequence[Attachment] = [
            attachment
            for attachment in found.plan.attachments
            if attachment.group is not ProbeGroup.OTHER
        ]
        if self._programs.few_places:
            wanted = few(wanted, self._places)
        if wanted:
            self._programs.attach(found.file, found.open_path, wanted)
            self._places += sum(len(attachment.offsets) for attachment in wanted)
            self.files += 1

    def _named(self, drain: ProbeDrain) -> list[NamedCall]:
        self._namer.learn(drain.names)
        samples = [sample for sample in drain.samples if sample.process.pid == self.target.pid]
        self.calls += len(samples)
        callers = {(row.process, row.kernel): row.caller for row in drain.launches}
        launched = {(sample.process, sample.kernel) for sample in samples if sample.kernel}
        names = self._namer.names({kernel: callers.get(kernel, 0) for kernel in launched})
        return [self._call(sample, names) for sample in samples]

    def _call(self, sample: CallSample, names: dict[tuple[ProcessKey, int], Found]) -> NamedCall:
        row = self._rows[sample.call]
        kernel = ""
        if row.kind is CallKind.LAUNCH:
            kernel = names.get((sample.process, sample.kernel), Found(UNKNOWN)).name
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
