"""The profile in pprof's format: calls added up by stack, launched kernel and thread, and GPU time.

GPU time is known by kernel, not by launch. All of a kernel's time is put where it was launched from
if every launch of it was seen and came from one place; else it is a root of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import BinaryIO, Final

from collectors.binaries.proc_maps import Module, Modules

from .gpu_times import GpuStep
from .pprof_pb2 import Profile
from .profiled import LAUNCHES, NamedCall, ProfiledProcess

MOST_STACKS: Final = 200_000
"""Distinct samples; the calls of others are added up under `REST`."""
REST: Final = "(the rest)"

SAMPLE_TYPES: Final = (
    ("gpu_kernel_launches", "count"), ("api_time", "nanoseconds"), ("gpu_time", "nanoseconds"),
)  # fmt: skip

_Place = tuple[str, str, int, tuple[int, ...]]
"""Kernel, call, thread and stack."""
_OnGpu = tuple[int, str, bool]
"""GPU, kernel, and whether it was launched by itself and not by a graph."""
_REST: Final[_Place] = (REST, "", 0, ())


@dataclass(slots=True)
class _GpuSums:
    recorded: float = 0.0
    time_ns: float = 0.0


class PprofWriter:
    """Adds calls up; the bytes are written at the end, not compressed.

    A sample's stack is the kernel, the call, then the user's stack; its label is the thread. GPU
    time whose launches are not known has the kernel and the GPU; its label is the GPU.
    """

    def __init__(self, out: BinaryIO, most_stacks: int = MOST_STACKS) -> None:
        self._out, self._most = out, most_stacks
        self._launches: Counter[_Place] = Counter()
        self._time_ns: Counter[_Place] = Counter()
        self._gpu: dict[_OnGpu, _GpuSums] = {}

    def add(self, calls: list[NamedCall]) -> None:
        """Take calls."""
        for call in calls:
            place = (call.kernel, call.sample.call, call.sample.thread, call.stack)
            if place not in self._time_ns and len(self._time_ns) >= self._most:
                place = _REST
            self._launches[place] += call.kind in LAUNCHES
            self._time_ns[place] += call.sample.duration_ns

    def add_time(self, step: GpuStep) -> None:
        """Take what GPUs did."""
        for kernel, recorded, alone in step.kernels:
            on = kernel.gpu, kernel.kernel, alone
            if on not in self._gpu and len(self._gpu) >= self._most:
                on = kernel.gpu, REST, False
            sums = self._gpu.setdefault(on, _GpuSums())
            sums.recorded += recorded
            sums.time_ns += kernel.time.value_ns

    def finish(self, subject: ProfiledProcess) -> None:
        """Write the profile."""
        builder = _Builder(subject)
        for place, spent_ns in self._time_ns.items():
            builder.sample(place, (self._launches[place], spent_ns, 0))
        origins = {} if subject.lost else self._origins()
        on_gpus = Counter(kernel for _, kernel, _ in self._gpu)
        for (gpu, kernel, alone), sums in self._gpu.items():
            time_ns = max(round(sums.time_ns), 0)  # an estimate of few windows may be below
            origin, launches = origins.get(kernel, (None, 0))
            if alone and origin and on_gpus[kernel] == 1 and sums.recorded <= launches:
                builder.sample(origin, (0, 0, time_ns))
            else:
                builder.gpu_sample(gpu, kernel, time_ns)
        self._out.write(builder.profile.SerializeToString(deterministic=True))

    def _origins(self) -> dict[str, tuple[_Place | None, int]]:
        """Give the one place from which each kernel was launched, and how often; None for more."""
        found: dict[str, tuple[_Place | None, int]] = {}
        for place, launches in self._launches.items():
            if launches:
                found[place[0]] = (None if place[0] in found else place, launches)
        return {} if REST in found else found


class _Builder:
    """Numbers strings, functions, locations and mappings as they are first used."""

    def __init__(self, subject: ProfiledProcess) -> None:
        self.profile = Profile()
        self._strings: dict[str, int] = {}
        self._locations: dict[str | int, int] = {}
        self._mappings: dict[Module, int] = {}
        self._string("")
        self._modules = Modules(module for module, _ in subject.modules)
        self._build_ids = dict(subject.modules)
        self._thread = self._string("thread")
        for kind, unit in SAMPLE_TYPES:
            self.profile.sample_types.add(type=self._string(kind), unit=self._string(unit))
        self.profile.default_sample_type = self._string(SAMPLE_TYPES[0][0])
        self.profile.time_nanos = subject.unix_ns
        self.profile.duration_nanos = subject.ended_ns - subject.begun_ns
        self._gpu, self._gpu_time = self._string("gpu"), subject.gpu_time
        lost = ", ".join(f"{what} {count}" for what, count in sorted(subject.lost.items()))
        for line in (
            f"GPU calls of {subject.name} ({subject.pid})", f"lost: {lost or 'nothing'}",
            subject.gpu_time.said,
        ):  # fmt: skip
            self.profile.comments.append(self._string(line))
        for module, _ in subject.modules[:1]:
            self._mapping(module)  # the first mapping is taken for the program

    def gpu_sample(self, gpu: int, kernel: str, time_ns: int) -> None:
        """Add GPU time that is known by kernel alone."""
        uuid = self._gpu_time.uuids.get(gpu, "")
        named = f"GPU {gpu} ({uuid})" if uuid else f"GPU {gpu}"
        places = [self._named(name) for name in (kernel, named)]
        sample = self.profile.samples.add(location_ids=places, values=(0, 0, time_ns))
        sample.labels.add(key=self._gpu, num=gpu)

    def sample(self, place: _Place, values: tuple[int, int, int]) -> None:
        """Add one sample."""
        kernel, call, thread, stack = place
        names = [self._named(name) for name in (kernel, call) if name]
        # A return address stands behind its call: one byte before it is in the right line.
        frames = [self._address(at - (number > 0)) for number, at in enumerate(stack)]
        sample = self.profile.samples.add(location_ids=[*names, *frames], values=values)
        sample.labels.add(key=self._thread, num=thread)

    def _named(self, name: str) -> int:
        """Give the location of a kernel or call: it has a name and no address."""
        if name not in self._locations:
            self._locations[name] = len(self._locations) + 1
            function = len(self.profile.functions) + 1
            text = self._string(name)
            self.profile.functions.add(id=function, name=text, system_name=text)
            self.profile.locations.add(id=self._locations[name]).lines.add(function_id=function)
        return self._locations[name]

    def _address(self, address: int) -> int:
        if address not in self._locations:
            self._locations[address] = len(self._locations) + 1
            module = self._modules.find(address)
            mapping = self._mapping(module) if module is not None else 0
            self.profile.locations.add(
                id=self._locations[address], mapping_id=mapping, address=address
            )
        return self._locations[address]

    def _mapping(self, module: Module) -> int:
        if module not in self._mappings:
            self._mappings[module] = len(self._mappings) + 1
            self.profile.mappings.add(
                id=self._mappings[module],
                memory_start=module.start,
                memory_limit=module.end,
                file_offset=module.offset,
                filename=self._string(module.path),
                build_id=self._string(self._build_ids.get(module, "")),
            )
        return self._mappings[module]

    def _string(self, text: str) -> int:
        clean = text.encode("utf-8", "replace").decode()  # paths may hold any byte
        if clean not in self._strings:
            self._strings[clean] = len(self._strings)
            self.profile.strings.append(clean)
        return self._strings[clean]
