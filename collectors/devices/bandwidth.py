"""How fast bytes move between this host's memory and a GPU: measured by the CUDA driver's copies.

Each GPU is measured in a child process, one after the other: GPUs that share a switch or a memory
controller slow each other down. What hangs is killed with its child.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from collectors.kernel_files import cpu_numbers
from collectors.records.basics import FailureKind, ReadFailure
from transport.process.foreign import Signatures, declare

from .bounded import AnswerRefused, Spawner, SpawnerClosed, receive

LIBRARY: Final = "libcuda.so.1"
_TYPES: Final = {
    "i": ctypes.c_int,
    "u": ctypes.c_uint,
    "s": ctypes.c_size_t,
    "q": ctypes.c_uint64,
    "p": ctypes.c_void_p,
}
_CALLS: Final = (
    "cuInit:u cuDeviceGetCount:p cuDeviceGet:pi cuDeviceGetUuid_v2:pi cuDeviceGetUuid:pi "
    "cuDeviceGetPCIBusId:pii cuDevicePrimaryCtxRetain:pi cuDevicePrimaryCtxRelease_v2:i "
    "cuCtxSetCurrent:p cuMemHostAlloc:psu cuMemFreeHost:p cuMemAlloc_v2:ps cuMemFree_v2:q "
    "cuMemcpyHtoD_v2:qps cuMemcpyHtoDAsync_v2:qpsp cuMemcpyDtoHAsync_v2:pqsp cuStreamCreate:pu "
    "cuStreamSynchronize:p cuStreamDestroy_v2:p cuEventCreate:pu cuEventRecord:pp "
    "cuEventSynchronize:p cuEventElapsedTime:ppp cuEventDestroy_v2:p cuGetErrorName:ip"
)
"""Each with the types of its arguments; `p` is a handle, memory of ours, or where to write one."""
SIGNATURES: Final[Signatures] = {
    name: (ctypes.c_int, tuple(_TYPES[letter] for letter in letters))
    for name, _, letters in (call.partition(":") for call in _CALLS.split())
}


class CudaMissing(Exception):
    """No CUDA driver library, or one that lacks a call."""


class CudaError(Exception):
    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.code = code


class Cuda:
    """The library of this process; it can be opened in a process that will not fork again."""

    def __init__(self) -> None:
        """Load it. Raises CudaMissing."""
        # Every GPU of the host is to be found, by its UUID, whatever the caller's shell hides.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaMissing(str(error)) from None

    def __call__(self, name: str, *arguments: object) -> None:
        """Call a function. Raises CudaError, CudaMissing."""
        code = self._function(name)(*arguments)
        if code:
            raise CudaError(name, code, self._error_name(code))

    def has(self, name: str) -> bool:
        return hasattr(self._library, name)

    def handle(self, name: str, *arguments: object) -> int:
        out = ctypes.c_uint64(0)
        self(name, ctypes.byref(out), *arguments)
        return out.value

    def device(self, gpu_uuid: str) -> int | None:
        """Find a device by NVML's name for it; None: CUDA does not show it, as GPUs under MIG."""
        count = ctypes.c_int(0)
        self("cuDeviceGetCount", ctypes.byref(count))
        named = "cuDeviceGetUuid_v2" if self.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        for ordinal in range(count.value):
            device, raw = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
            self("cuDeviceGet", ctypes.byref(device), ordinal)
            self(named, raw, device)
            if f"GPU-{uuid.UUID(bytes=bytes(raw))}" == gpu_uuid.lower().replace("gpu-", "GPU-", 1):
                return device.value
        return None

    def pci_address(self, device: int) -> str:
        """Give the device's address as sysfs writes it: 0000:1b:00.0."""
        text = ctypes.create_string_buffer(32)
        self("cuDeviceGetPCIBusId", text, len(text), device)
        return text.value.decode("ascii", "replace").lower()

    def _function(self, name: str) -> Any:
        try:
            declare(self._library, {name: SIGNATURES[name]})
        except AttributeError:
            raise CudaMissing(f"{LIBRARY} has no {name}") from None
        return getattr(self._library, name)

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._function("cuGetErrorName")(code, ctypes.byref(text)) or not text.value:
            return f"error {code}"
        return text.value.decode("ascii", "replace")


COPY_BYTES: Final = 64 << 20
"""Of pinned host memory and of the GPU's: 1.2 ms of a PCIe 5.0 link, 2,000 times a copy's start."""
WARM_UPS: Final = 2
REPEATS: Final = 15
DEADLINE_S: Final = 30.0
"""Of one GPU: a driver without persistence takes seconds to wake it, the copies take 0.1 s."""
BUDGET_S: Final = 120.0

_PCI: Final = Path("/sys/bus/pci/devices")
_PATTERN_BYTES: Final = 1 << 20
_NON_BLOCKING: Final = 1
_OUT_OF_MEMORY: Final = 2
_UNCORRECTABLE: Final = frozenset({214, 220, 226})
"""CUDA_ERROR_ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED (an ECC error kept to a process)"""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes a second, the median and the slowest of the repeats; the GPU's NUMA node."""

    to_device_bytes_per_s: int
    to_host_bytes_per_s: int
    slowest_to_device_bytes_per_s: int
    slowest_to_host_bytes_per_s: int
    numa_node: int | None


def measure(
    gpu_uuid: str, *, copy_bytes: int = COPY_BYTES, pci: Path = _PCI
) -> Bandwidth | ReadFailure:
    """Measure one GPU in this process, bound to the CPUs beside it, and release all again."""
    try:
        return _measured(Cuda(), gpu_uuid, copy_bytes, pci)
    except CudaMissing as error:
        return ReadFailure(FailureKind.UNSUPPORTED, str(error))
    except CudaError as error:
        kind = FailureKind.DAMAGED if error.code in _UNCORRECTABLE else FailureKind.FAILED
        busy = " (its memory is in use)" if error.code == _OUT_OF_MEMORY else ""
        return ReadFailure(kind, f"{error}{busy}")


def measure_all(
    gpu_uuids: Iterable[str],
    spawner: Spawner,
    *,
    deadline_s: float = DEADLINE_S,
    budget_s: float = BUDGET_S,
    task: Callable[[str], Bandwidth | ReadFailure] = measure,
) -> list[Bandwidth | ReadFailure]:
    end_s = time.monotonic() + budget_s
    found: list[Bandwidth | ReadFailure] = []
    for gpu_uuid in gpu_uuids:
        left_s = min(deadline_s, end_s - time.monotonic())
        if left_s <= 0:
            found.append(ReadFailure(FailureKind.FAILED, f"not reached in {budget_s:g} s"))
            continue
        found.append(_in_child(spawner, partial(task, gpu_uuid), left_s))
    return found


def _in_child(
    spawner: Spawner, task: Callable[[], Bandwidth | ReadFailure], left_s: float
) -> Bandwidth | ReadFailure:
    try:
        child = spawner.start(partial(_answer, task))
    except SpawnerClosed as error:
        return ReadFailure(FailureKind.FAILED, str(error))
    try:
        if not child.connection.poll(left_s):
            late = f"expected a measurement in {left_s:.1f} s, got none"
            return ReadFailure(FailureKind.TIMED_OUT, late)
        answer = receive(child.connection)
    except AnswerRefused as error:
        return ReadFailure(FailureKind.FAILED, str(error))
    except (EOFError, OSError):
        return ReadFailure(FailureKind.FAILED, "the measuring process ended")
    finally:
        child.kill()
    if isinstance(answer, Bandwidth | ReadFailure):
        return answer
    return ReadFailure(FailureKind.FAILED, "no measurement")


def _answer(task: Callable[[], Bandwidth | ReadFailure], connection: Connection) -> None:
    connection.send(task())


def _measured(cuda: Cuda, gpu_uuid: str, copy_bytes: int, pci: Path) -> Bandwidth | ReadFailure:
    cuda("cuInit", 0)
    device = cuda.device(gpu_uuid)
    if device is None:
        hidden = "CUDA does not show this GPU (MIG, or it is kept from us)"
        return ReadFailure(FailureKind.UNSUPPORTED, hidden)
    node = _stay_beside(pci / cuda.pci_address(device))
    with ExitStack() as held:
        context = cuda.handle("cuDevicePrimaryCtxRetain", device)
        held.callback(_released, cuda, "cuDevicePrimaryCtxRelease_v2", device)
        cuda("cuCtxSetCurrent", context)
        copier = _Copier(cuda, held, copy_bytes)
        copier.fill()
        down = list(copier.rates("cuMemcpyHtoDAsync_v2"))
        copier.wipe()
        up = list(copier.rates("cuMemcpyDtoHAsync_v2"))
        if not copier.as_filled():
            damaged = "the bytes that came back are not those that were sent"
            return ReadFailure(FailureKind.DAMAGED, damaged)
    return Bandwidth(
        int(statistics.median(down)), int(statistics.median(up)),
        int(min(down)), int(min(up)), node,
    )  # fmt: skip


class _Copier:
    def __init__(self, cuda: Cuda, held: ExitStack, copy_bytes: int) -> None:
        self._cuda, self._bytes = cuda, copy_bytes
        self._host = self._made(held, "cuMemHostAlloc", "cuMemFreeHost", copy_bytes, 0)
        self._gpu = self._made(held, "cuMemAlloc_v2", "cuMemFree_v2", copy_bytes)
        self._stream = self._made(held, "cuStreamCreate", "cuStreamDestroy_v2", _NON_BLOCKING)
        self._begin = self._made(held, "cuEventCreate", "cuEventDestroy_v2", 0)
        self._end = self._made(held, "cuEventCreate", "cuEventDestroy_v2", 0)
        held.callback(_released, cuda, "cuStreamSynchronize", self._stream)
        self._pattern = os.urandom(_PATTERN_BYTES)

    def fill(self) -> None:
        for offset, size in self._pieces():
            ctypes.memmove(self._host + offset, self._pattern, size)

    def wipe(self) -> None:
        """Forget it here, so that only the GPU has it."""
        ctypes.memset(self._host, 0, self._bytes)

    def as_filled(self) -> bool:
        """Tell whether the GPU gave back what it was given."""
        pieces = self._pieces()
        return all(ctypes.string_at(self._host + o, n) == self._pattern[:n] for o, n in pieces)

    def rates(self, copy: str) -> Iterator[float]:
        """Copy again and again; give the bytes a second of each copy after the warm-ups."""
        to_gpu = copy == "cuMemcpyHtoDAsync_v2"
        ends = (self._gpu, self._host) if to_gpu else (self._host, self._gpu)
        for number in range(WARM_UPS + REPEATS):
            self._cuda("cuEventRecord", self._begin, self._stream)
            self._cuda(copy, *ends, self._bytes, self._stream)
            self._cuda("cuEventRecord", self._end, self._stream)
            self._cuda("cuEventSynchronize", self._end)
            took_ms = ctypes.c_float(0)
            self._cuda("cuEventElapsedTime", ctypes.byref(took_ms), self._begin, self._end)
            if number >= WARM_UPS:
                yield 1_000 * self._bytes / max(took_ms.value, 1e-6)

    def _made(self, held: ExitStack, make: str, release: str, *arguments: int) -> int:
        made = self._cuda.handle(make, *arguments)
        held.callback(_released, self._cuda, release, made)
        return made

    def _pieces(self) -> list[tuple[int, int]]:
        starts = range(0, self._bytes, _PATTERN_BYTES)
        return [(at, min(_PATTERN_BYTES, self._bytes - at)) for at in starts]


def _released(cuda: Cuda, call: str, handle: int) -> None:
    """Release one thing; a driver that fails here must not keep us from the next."""
    try:
        cuda(call, handle)
    except CudaError:
        return


def _stay_beside(device: Path) -> int | None:
    try:
        node = int((device / "numa_node").read_text(encoding="ascii"))
        cpus = cpu_numbers((device / "local_cpulist").read_text(encoding="ascii"))
        os.sched_setaffinity(0, os.sched_getaffinity(0).intersection(cpus))
    except (OSError, ValueError):  # none is named, or none of them is ours
        return None
    return node if node >= 0 else None
